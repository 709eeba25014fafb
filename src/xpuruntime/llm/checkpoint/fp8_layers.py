"""Fp8Arrays: layers of fp8 checkpoints as weights in float32.

Both formats store a weight of [n, k] in float8_e4m3fn, next to scales that it is multiplied with:

fp8                 ``weight_scale_inv``: one scale per block, [n / 128, k / 128] rounded up (``weight_block_size``)
compressed-tensors  ``weight_scale`` of the format ``float-quantized``: one scale per output channel [n, 1], per tensor [1] or [], or per block

The products are exact in float32 up to one rounding. Activations stay floats: scales of static activations are not needed and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelError
from ...protocols import Array
from ...types import DType, TensorSpec

__all__ = ["SCALE_SUFFIXES", "Fp8Arrays", "Fp8Format", "compressed_format", "fp8_format"]

SCALE_SUFFIXES = (".weight_scale_inv", ".weight_scale")
"""Ends of the names of scales."""
_E4M3 = DType.FLOAT8_E4M3FN
_SCALES = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E8M0FNU})
_ACTIVATION_SCALES = (
    ".activation_scale",
    ".input_scale",
    ".output_scale",
    ".k_scale",
    ".q_scale",
    ".v_scale",
)
"""Ends of the names of scales that have no effect on models whose activations and caches stay floats."""


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """How a checkpoint scales its weights.

    method:   the word of ``quant_method``.
    strategy: ``block``, ``channel`` or ``tensor``.
    block:    outputs and inputs that share a scale, of ``block``.
    suffix:   what a weight's name and the name of its scales differ in.
    """

    method: str
    strategy: str
    block: tuple[int, int]
    suffix: str

    def scales_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that the scales of a weight may have."""
        *lead, n, k = shape
        if self.strategy == "block":
            return ((*lead, -(-n // self.block[0]), -(-k // self.block[1])),)
        if self.strategy == "channel":
            return ((*lead, n, 1), (*lead, n))
        return ((*lead, 1), (), (*lead, 1, 1))

    def scaled(self, codes: Array, scales: Array) -> Array:
        """Return the weight."""
        values = codes.astype(np.float32)
        wide = scales.astype(np.float32)
        n, k = codes.shape[-2:]
        if self.strategy == "block":
            rows = np.repeat(wide, self.block[0], axis=-2)[..., :n, :]
            wide = np.repeat(rows, self.block[1], axis=-1)[..., :k]
        elif self.strategy == "channel":
            wide = wide.reshape(*codes.shape[:-1], 1)
        else:
            wide = wide.reshape(*codes.shape[:-2], 1, 1) if wide.size > 1 else wide.reshape(())
        values *= wide
        return np.asarray(values)


class Fp8Arrays(Mapping[str, Array]):
    """Arrays by name, in which weights of float8_e4m3fn are multiplied with their scales. Each access to such a weight does so.

    specs:   shape and dtype by name, without a conversion.
    formats: the format of each such weight.
    Raises ModelError for weights without scales, scales without a weight, and shapes or dtypes that contradict the format.
    """

    def __init__(self, arrays: Mapping[str, Array], form: Fp8Format, who: str) -> None:
        self._form, self._who, self._arrays = form, who, arrays
        dtypes = {n: DType.of(a.dtype) for n, a in arrays.items()}
        self._scales = {n: n + form.suffix for n, dtype in dtypes.items() if dtype is _E4M3}
        for name, scales in self._scales.items():
            self._check(name, scales)
        scales_names = {*self._scales.values()}
        others = {n: d for n, d in dtypes.items() if n not in scales_names and n not in self._scales}
        for name, dtype in others.items():
            if dtype.value.startswith("float8"):
                raise ModelError(
                    who,
                    f"{name} has an unsupported type",
                    got=dtype.value,
                    do="Weights of fp8 must be float8_e4m3fn.",
                )
            base = name.removesuffix(form.suffix)
            if base != name and (base in dtypes or base.endswith(".weight")):
                raise ModelError(
                    who,
                    f"{name} belongs to no weight of {_E4M3.value}",
                    got=base,
                    do="Download the checkpoint again: the file is incomplete.",
                )
        plain = {n for n in others if not n.endswith(_ACTIVATION_SCALES)}
        self.specs = {
            n: TensorSpec(tuple(a.shape), DType.FLOAT32 if n in self._scales else dtypes[n])
            for n, a in arrays.items()
            if n in plain or n in self._scales
        }
        self.formats = dict.fromkeys(self._scales, f"{form.method}, one scale per {form.strategy}")

    @property
    def packed(self) -> frozenset[str]:
        """The names of weights that have scales."""
        return frozenset(self._scales)

    def _check(self, name: str, scales: str) -> None:
        shape = tuple(self._arrays[name].shape)
        if scales not in self._arrays:
            raise ModelError(
                self._who,
                f"{name} is {_E4M3.value} without scales",
                got=f"no {scales}",
                do="Download the checkpoint again: the file is incomplete.",
            )
        if len(shape) < 2:
            raise ModelError(
                self._who,
                f"{name} must be a matrix",
                got=list(shape),
                do="Download the checkpoint again: the file is damaged.",
            )
        given, allowed = self._arrays[scales], self._form.scales_shapes(shape)
        if tuple(given.shape) not in allowed:
            words = " or ".join(str(list(s)) for s in allowed)
            raise ModelError(
                self._who,
                f"{scales} must have the shape {words}",
                got=list(given.shape),
                do="Check config.json against the checkpoint.",
            )
        if DType.of(given.dtype) not in _SCALES:
            raise ModelError(
                self._who,
                f"{scales} must be floats",
                got=given.dtype.name,
                do="Quantize the checkpoint again with a current tool.",
            )

    def __getitem__(self, name: str) -> Array:
        if name in self._scales:
            return self._form.scaled(self._arrays[name], self._arrays[self._scales[name]])
        if name not in self.specs:
            raise KeyError(name)
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


_Refuse = Callable[[str, Any, str], ModelError]


def _refusal(who: str) -> _Refuse:
    def refuse(key: str, value: Any, words: str) -> ModelError:
        return ModelError(
            who, f"has an unsupported {key} in its quantization_config", got=repr(value)[:80], do=f"Use one of: {words}."
        )  # fmt: skip

    return refuse


def _block_of(value: Any, key: str, refuse: _Refuse) -> tuple[int, int]:
    sizes = value if isinstance(value, list | tuple) else ()
    if len(sizes) != 2 or any(type(s) is not int or not 0 < s < 2**31 for s in sizes):
        raise refuse(key, value, "two sizes, such as [128, 128]")
    return sizes[0], sizes[1]


def fp8_format(data: Mapping[str, Any], who: str) -> Fp8Format:
    """Return the format of a ``quantization_config`` with ``quant_method: fp8``. Raises ModelError."""
    refuse = _refusal(who)
    if data.get("fmt", "e4m3") != "e4m3":
        raise refuse("fmt", data["fmt"], "e4m3")
    if data.get("activation_scheme", "dynamic") not in ("dynamic", "static"):
        raise refuse("activation_scheme", data["activation_scheme"], "dynamic, static")
    if "weight_block_size" in data and data["weight_block_size"] is None:
        return Fp8Format("fp8", "tensor", (0, 0), "_scale_inv")
    block = _block_of(data.get("weight_block_size", (128, 128)), "weight_block_size", refuse)
    return Fp8Format("fp8", "block", block, "_scale_inv")


def compressed_format(data: Mapping[str, Any], who: str) -> Fp8Format:
    """Return the format of a ``quantization_config`` with ``quant_method: compressed-tensors``. Raises ModelError."""
    refuse = _refusal(who)
    if data.get("format") != "float-quantized":
        raise refuse("format", data.get("format"), "float-quantized")
    if data.get("quantization_status", "compressed") not in ("compressed", "frozen"):
        raise refuse("quantization_status", data["quantization_status"], "compressed, frozen")
    for key in ("kv_cache_scheme", "transform_config"):
        if data.get(key):
            raise refuse(key, data[key], "null")
    sparsity = data.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise refuse("sparsity_config", sparsity, "null, one of the format dense")
    groups = data.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise refuse("config_groups", groups, "groups with weights of float-quantized")
    forms = {_of_group(name, group, refuse) for name, group in groups.items()}
    if len(forms) != 1:
        raise refuse("config_groups", sorted(f.strategy for f in forms), "one strategy for all groups")
    return forms.pop()


def _of_group(name: str, group: Any, refuse: _Refuse) -> Fp8Format:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise refuse(f"config_groups.{name}.weights", weights, "a mapping with type, num_bits and strategy")
    at = f"config_groups.{name}.weights"
    wanted = {
        "type": ("float",),
        "num_bits": (8,),
        "symmetric": (True,),
        "dynamic": (False,),
        "strategy": ("channel", "tensor", "block"),
    }
    defaults = {"symmetric": True, "dynamic": False}
    for key, allowed in wanted.items():
        value = weights.get(key, defaults.get(key))
        if value not in allowed or type(value) is not type(allowed[0]):
            raise refuse(f"{at}.{key}", value, ", ".join(map(str, allowed)))
    if weights.get("actorder"):
        raise refuse(f"{at}.actorder", weights["actorder"], "null")
    strategy = str(weights["strategy"])
    block = (
        _block_of(weights.get("block_structure"), f"{at}.block_structure", refuse)
        if strategy == "block"
        else (0, 0)
    )
    return Fp8Format("compressed-tensors", strategy, block, "_scale")
