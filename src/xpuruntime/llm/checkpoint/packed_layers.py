"""PackedArrays: linear layers of GPTQ and AWQ checkpoints as weights in float32.

Both formats store a weight of [n, k] as codes of a few bits in int32 words, with a float16 scale and an integer zero per output and group of inputs:
``weight = scale * (code - zero)``. They differ in what a word holds:

gptq    ``qweight`` [k / codes, n]: neighboring inputs, first in the low bits; ``qzeros`` [groups, n / codes]: neighboring outputs, less one (unless
        ``checkpoint_format`` is ``gptq_v2``); ``g_idx`` [k] is the group of an input (``desc_act``)
awq     ``qweight`` [k, n / 8] and ``qzeros`` [groups, n / 8]: outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight (version ``gemm``)

Products are exact in float32. ``weights: stored`` keeps codes and numbers as they are, in groups of 32, for layers whose groups are neighbors in
multiples of 32. With ``weights: int4`` and groups that divide the checkpoint's, the loader finds the same codes again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...protocols import Array
from ...types import DType, TensorSpec
from .data import blocks_name

__all__ = ["PackedArrays", "PackedFormat", "packed_format"]

_WORD = 32
_BLOCK = 32
"""Inputs of a block."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output of eight that each field of an AWQ word holds, from the low bits."""


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """How a checkpoint packs its linear layers.

    method:   ``gptq`` or ``awq``.
    group:    inputs that share a scale; 0: all.
    zero_add: what is added to a stored zero.
    """

    method: str
    bits: int
    group: int
    zero_add: int


def packed_format(data: Mapping[str, Any], who: str) -> PackedFormat:
    """Return the format of a ``quantization_config`` with ``quant_method: gptq`` or ``awq``. Raises ModelError."""

    def one_of(key: str, default: Any, *allowed: Any) -> Any:
        value = data.get(key, default)
        if type(value) is bool or value not in allowed:
            words = ", ".join(map(str, allowed))
            raise ModelError(
                who,
                f"has an unsupported {key} in its quantization_config",
                got=repr(value)[:80],
                do=f"Use one of: {words}.",
            )
        return value

    method = one_of("quant_method", None, "gptq", "awq")
    bits = one_of("bits", None, *((4, 8) if method == "gptq" else (4,)))
    group = data.get("group_size", -1)
    if type(group) is not int or not (group == -1 or 0 < group < 2**31):
        raise ModelError(
            who,
            "has an unsupported group_size in its quantization_config",
            got=repr(group)[:80],
            do="Use a checkpoint with groups of 32, 64 or 128.",
        )
    zero_add = 0
    if method == "awq":
        one_of("version", "gemm", "gemm", "GEMM")
    else:
        zero_add = int(one_of("checkpoint_format", "gptq", "gptq", "gptq_v2") == "gptq")
    return PackedFormat(method, bits, max(group, 0), zero_add)


class PackedArrays(Mapping[str, Array]):
    """Arrays by name, in which packed layers are one ``weight`` each. Each access to such a weight unpacks it.

    needed: the names of the model's weights. Some programs write a bias of zeros for layers that have none; it is left out.
    specs:  shape and dtype by name, without unpacking.
    formats: the format of each packed weight (``storage/blocks.py``), or its method. Under ``blocks_name`` are the rows of those in blocks,
            which iteration omits.
    Raises ModelError for parts that are missing, or whose shapes or dtypes contradict each other.
    """

    def __init__(
        self, arrays: Mapping[str, Array], form: PackedFormat, needed: Collection[str], who: str
    ) -> None:
        self._form, self._who = form, who
        self._layers: dict[str, dict[str, Array]] = {}
        self._plain: dict[str, Array] = {}
        parts = {"qweight", "qzeros", "scales", "g_idx"}
        for name, array in arrays.items():
            stem, _, part = name.rpartition(".")
            if part in parts and f"{stem}.qweight" in arrays:
                self._layers.setdefault(f"{stem}.weight", {})[part] = array
            elif part != "bias" or name in needed or f"{stem}.qweight" not in arrays or array.any():
                self._plain[name] = array
        if twice := next((n for n in self._layers if n in self._plain), None):
            raise ModelError(
                who,
                "has a weight and its packed form",
                got=twice,
                do="Remove one of them from the checkpoint.",
            )
        specs = {n: TensorSpec(tuple(a.shape), DType.of(a.dtype)) for n, a in self._plain.items()}
        self.specs = specs | {n: TensorSpec(self._checked(n), DType.FLOAT32) for n in self._layers}
        whole = {n: self._in_groups(n) for n in self._layers}
        self.formats = {
            n: f"PACKED{form.bits}" if kept else f"{form.method} of scattered groups"
            for n, kept in whole.items()
        }
        self._raw = {blocks_name(n): n for n, kept in whole.items() if kept}

    @property
    def packed(self) -> frozenset[str]:
        """The names of weights that are packed."""
        return frozenset(self._layers)

    def __getitem__(self, name: str) -> Array:
        if name in self._raw:
            return self._blocks(self._raw[name])
        if name not in self._layers:
            return self._plain[name]
        codes, scales, offsets = self._unpacked(name)
        groups = self._groups(name, codes.shape[1])
        return np.asarray((codes.astype(np.float32) - offsets[groups].T) * scales[groups].T)

    def _blocks(self, name: str) -> Array:
        """Return the rows of a weight in blocks of 32 inputs: codes, then scale and minimum in float32."""
        codes, scales, offsets = self._unpacked(name)
        groups = self._groups(name, codes.shape[1])[::_BLOCK]
        scale = scales[groups].T
        if self._form.bits == 4:
            codes = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
            low = -scale * offsets[groups].T
        else:  # codes are signed in blocks
            codes, low = codes ^ np.uint8(128), scale * (128 - offsets[groups].T)
        numbers = np.stack([scale, low], -1).astype("<f4").view(np.uint8)
        rows = np.concatenate([codes.reshape(len(codes), len(groups), -1), numbers], -1)
        return np.asarray(rows.reshape(len(codes), -1))

    def _in_groups(self, name: str) -> bool:
        """Return True if each 32 neighboring inputs of a weight share their group."""
        k = int(self.specs[name].shape[1])  # type: ignore[arg-type]
        if k % _BLOCK:
            return False
        groups = self._groups(name, k).reshape(-1, _BLOCK)
        return bool((groups == groups[:, :1]).all())

    def _unpacked(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
        """Return the codes of a weight [n, k], and scales and zeros of its groups [groups, n]."""
        form, layer = self._form, self._layers[name]
        shape = self.specs[name].shape
        n, k = int(shape[0]), int(shape[1])  # type: ignore[arg-type]
        zeros = _fields(layer["qzeros"], form.bits, _order(form)).reshape(-1, n)
        if form.method == "gptq":
            codes = _fields(np.ascontiguousarray(layer["qweight"].T), form.bits, None).reshape(n, k)
        else:
            codes = np.ascontiguousarray(_fields(layer["qweight"], form.bits, _order(form)).reshape(k, n).T)
        if form.zero_add and (zeros == 2**form.bits - 1).any():
            raise ModelError(
                self._who, f"{name} has a zero point that programs read in two ways", got=f"{2**form.bits - 1}, stored less one",
                do="Convert the checkpoint to checkpoint_format gptq_v2.",
            )  # fmt: skip
        scales, offsets = (
            layer["scales"].astype(np.float32),
            zeros.astype(np.float32) + np.float32(form.zero_add),
        )
        return codes, scales, offsets

    def __contains__(self, name: object) -> bool:
        return name in self.specs or name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def _groups(self, name: str, k: int) -> NDArray[np.int64]:
        """Return the group of each input."""
        given = self._layers[name].get("g_idx")
        count = len(self._layers[name]["scales"])
        size = self._form.group or max(k, 1)
        groups = np.arange(k) // size if given is None else np.asarray(given, np.int64)
        if groups.size and not (int(groups.min()) >= 0 and int(groups.max()) < count):
            raise ModelError(
                self._who,
                f"{name} names a group that it does not have",
                got=f"{groups.max()} of {count}",
                do="Download the checkpoint again: the file is damaged.",
            )
        return groups

    def _checked(self, name: str) -> tuple[int, int]:
        """Return the shape of a packed weight, after checking its parts."""
        form, layer = self._form, self._layers[name]
        if missing := {"qweight", "qzeros", "scales"} - layer.keys():
            raise ModelError(
                self._who,
                f"{name} lacks parts of its packed form",
                got=", ".join(sorted(missing)),
                do="Download the checkpoint again: the file is incomplete.",
            )
        codes = _WORD // form.bits
        words, scales = layer["qweight"], layer["scales"]
        if any(layer[p].ndim != 2 for p in ("qweight", "qzeros", "scales")):
            raise ModelError(
                self._who,
                f"the parts of {name} must be matrices",
                got=[list(a.shape) for a in layer.values()],
                do="Download the checkpoint again: the file is damaged.",
            )
        groups, n = scales.shape
        k = words.shape[0] * (codes if form.method == "gptq" else 1)
        kinds = {p: "int32" for p in ("qweight", "qzeros", "g_idx") if p in layer}
        for stored, kind in kinds.items():
            if layer[stored].dtype.name != kind:
                raise ModelError(
                    self._who,
                    f"{stored} of {name} must be {kind}",
                    got=layer[stored].dtype.name,
                    do="Quantize the checkpoint again with a current tool.",
                )
        if not DType.of(scales.dtype).is_float:
            raise ModelError(
                self._who,
                f"scales of {name} must be floats",
                got=scales.dtype.name,
                do="Quantize the checkpoint again with a current tool.",
            )
        wanted = {
            "qweight": (k // codes, n) if form.method == "gptq" else (k, n // codes),
            "qzeros": (groups, n // codes),
            "scales": (-(-k // (form.group or max(k, 1))), n),
        } | ({"g_idx": (k,)} if "g_idx" in layer else {})
        for part, shape in wanted.items():
            if tuple(layer[part].shape) != shape or n % codes:
                raise ModelError(
                    self._who,
                    f"{part} of {name} must have the shape {list(shape)}",
                    got=list(layer[part].shape),
                    do="Check config.json against the checkpoint.",
                )
        return n, k


def _order(form: PackedFormat) -> tuple[int, ...] | None:
    return _AWQ_ORDER if form.method == "awq" else None


def _fields(words: Array, bits: int, order: tuple[int, ...] | None) -> NDArray[np.uint8]:
    """Return the fields of int32 words [..., w] as [..., w * fields], from the low bits; ``order``: where each field of a word belongs."""
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
    fields = ((unsigned[..., None] >> shifts) & np.uint32(2**bits - 1)).astype(np.uint8)
    if order is not None:
        placed = np.empty_like(fields)
        placed[..., list(order)] = fields
        fields = placed
    return fields.reshape(*words.shape[:-1], -1)
