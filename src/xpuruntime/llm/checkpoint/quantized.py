"""The ``quantization_config`` of a ``config.json``, and the arrays of a checkpoint that has one as weights in float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from ...errors import ModelError
from ...protocols import Array
from .fp8_layers import SCALE_SUFFIXES, Fp8Arrays, Fp8Format, compressed_format, fp8_format
from .packed_layers import PackedArrays, PackedFormat, packed_format

__all__ = ["QuantizedFormat", "quantized_arrays", "quantized_format"]

QuantizedFormat: TypeAlias = PackedFormat | Fp8Format

_METHODS: Mapping[str, Callable[[Mapping[str, Any], str], QuantizedFormat]] = {
    "gptq": packed_format,
    "awq": packed_format,
    "fp8": fp8_format,
    "compressed-tensors": compressed_format,
}
"""``quant_method`` -> the reader of its words."""


def quantized_format(config: Mapping[str, Any], who: str) -> QuantizedFormat | None:
    """Return the format that a config names; None if its weights are plain. Raises ModelError."""
    data = config.get("quantization_config")
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ModelError(
            who,
            "has an unsupported quantization_config",
            got=repr(data)[:80],
            do="Use the checkpoint in floats, GPTQ, AWQ, fp8 or GGUF.",
        )
    method = data.get("quant_method")
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        do = f"Use one of: {', '.join(_METHODS)}."
        raise ModelError(
            who, "has an unsupported quant_method in its quantization_config", got=repr(method)[:80], do=do
        )
    return read(data, who)


def quantized_arrays(
    arrays: Mapping[str, Array], form: QuantizedFormat | None, needed: Collection[str], who: str
) -> PackedArrays | Fp8Arrays | None:
    """Return arrays by name, with a weight for each quantized layer; None for arrays without a format.

    needed: the names of the model's weights. Raises ModelError.
    """
    if form is None:
        if scales := next((n for n in arrays if n.endswith(SCALE_SUFFIXES)), None):
            do = "Give the config.json of this checkpoint, whose quantization_config says what the scales mean."
            raise ModelError(who, f"has scales such as {scales}, but no quantization_config", do=do)
        return None
    if isinstance(form, Fp8Format):
        return Fp8Arrays(arrays, form, who)
    return PackedArrays(arrays, form, needed, who)
