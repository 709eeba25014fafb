"""Formats of blocks in checkpoints, and the groups that kernels read: codes of a few bits with a scale and a minimum per group of inputs.

Most formats are those of GGUF files. ``PACKED4`` and ``PACKED8`` are groups of GPTQ and AWQ layers, which readers make of their parts.

Every format of ``BLOCK_FORMATS`` is ``low + scale * code`` with both numbers exact in float32, so groups hold the file's values without loss:

    floats = block_values(raw, "Q4_K")                     # what the file says, in float32
    groups = block_groups(raw, "Q4_K", GroupForm(4, 32, "float32"))

A group's bytes are its codes (4 bits: 0 to 15, two per byte, low bits first; 8 bits: signed), then two numbers, little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK_FORMATS",
    "NUMBER_BYTES",
    "BlockFormat",
    "GroupForm",
    "block_groups",
    "block_values",
    "common_form",
]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NUMBER_BYTES: Mapping[str, int] = {"bfloat16": 4, "float16": 4, "product": 4, "float32": 8, "channel": 0}
"""How a group stores its numbers -> their bytes. ``product``: two float16 whose product is the scale; the minimum is 0. ``channel``: none, since all groups
of an output have one scale, which is stored apart; the minimum is 0. Others: scale and minimum."""


@dataclass(frozen=True, slots=True)
class GroupForm:
    """Groups of ``group`` inputs: codes of ``bits`` bits, and numbers as in ``NUMBER_BYTES``."""

    bits: int
    group: int
    numbers: str

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes."""
        return self.group * self.bits // 8

    @property
    def number_bytes(self) -> int:
        """Bytes of a group's numbers."""
        return NUMBER_BYTES[self.numbers]

    @property
    def bytes(self) -> int:
        """Bytes of a group."""
        return self.code_bytes + self.number_bytes


@dataclass(frozen=True, slots=True)
class _Groups:
    """Codes [..., groups, group] and the numbers of each group. ``factors``: float16 whose product is the scale."""

    codes: NDArray[np.int8]
    scale: Floats
    low: Floats
    factors: tuple[Floats, Floats] | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format: ``bytes`` hold ``values`` neighboring values of a row. ``form``: the smallest groups that hold it without loss."""

    values: int
    bytes: int
    form: GroupForm
    groups: Callable[[Bytes], _Groups]


def block_values(raw: Bytes, name: str) -> Floats:
    """Return the values of rows of blocks, [..., bytes] -> [..., values]."""
    form = BLOCK_FORMATS[name]
    groups = form.groups(_blocks(raw, form))
    values = groups.codes.astype(np.float32)
    values *= groups.scale[..., None]
    values += groups.low[..., None]
    return values.reshape(*raw.shape[:-1], raw.shape[-1] // form.bytes * form.values)


def block_groups(raw: Bytes, name: str, form: GroupForm) -> NDArray[np.int8]:
    """Return rows of blocks as groups of a form, [..., bytes] -> int8[..., groups, bytes of a group].

    Raises ValueError for a form that does not hold the format, and for numbers that are not finite or exceed float16.
    """
    own = BLOCK_FORMATS[name]
    if common_form((own.form, form)) != form:
        raise ValueError(f"groups of {form} do not hold {name}")
    groups = own.groups(_blocks(raw, own))
    leading, count = raw.shape[:-1], raw.shape[-1] // own.bytes * own.values // form.group
    if not (np.isfinite(groups.scale).all() and np.isfinite(groups.low).all()):
        raise ValueError(f"a block of {name} has a scale that is not finite")
    codes = groups.codes.reshape(*leading, count, form.group).view(np.uint8)
    if form.bits == 4:
        codes = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    numbers = groups.factors if form.numbers == "product" else (groups.scale, groups.low)
    assert numbers is not None  # of every format whose form has products
    kind = np.dtype("<f4" if form.numbers == "float32" else "<f2")
    with np.errstate(over="ignore"):
        pair = np.stack(numbers, -1).astype(kind)
    if not np.isfinite(pair).all():
        raise ValueError(f"a block of {name} has a minimum that exceeds float16")
    # Groups of a format may be wider than the form's: all parts have its numbers.
    parts = groups.codes.shape[-1] // form.group
    pair = np.repeat(pair.reshape(*leading, count // parts, 2), parts, axis=-2)
    return np.concatenate([codes, pair.view(np.uint8)], -1).view(np.int8)


def common_form(forms: Iterable[GroupForm]) -> GroupForm:
    """Return the smallest form that holds groups of all these forms."""
    first, *others = dict.fromkeys(forms)
    for other in others:
        same = first.numbers == other.numbers
        first = GroupForm(
            max(first.bits, other.bits), min(first.group, other.group), first.numbers if same else "float32"
        )
    return first


def _blocks(raw: Bytes, form: BlockFormat) -> Bytes:
    return np.ascontiguousarray(raw).reshape(*raw.shape[:-1], -1, form.bytes)


# ── formats: blocks [..., bytes] as groups ──


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at a byte of each block, as float32."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return the low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _of_block(codes: NDArray[np.int8], scale: Floats, low: Floats) -> _Groups:
    """Return blocks of one group each."""
    return _Groups(codes[..., None, :], scale[..., None], low[..., None])


def _q4_0(x: Bytes) -> _Groups:
    scale = _half(x, 0)
    return _of_block(_nibbles(x[..., 2:]).view(np.int8), scale, -8 * scale)


def _q4_1(x: Bytes) -> _Groups:
    return _of_block(_nibbles(x[..., 4:]).view(np.int8), _half(x, 0), _half(x, 2))


def _fifth_bits(x: Bytes, at: int) -> NDArray[np.int8]:
    """Return codes of five bits: the high bits of 32 values, then their low four bits."""
    high = np.unpackbits(x[..., at : at + 4], axis=-1, bitorder="little")
    return (_nibbles(x[..., at + 4 :]) | high << 4).view(np.int8)


def _q5_0(x: Bytes) -> _Groups:
    scale = _half(x, 0)
    return _of_block(_fifth_bits(x, 2) - np.int8(16), scale, np.zeros_like(scale))


def _q5_1(x: Bytes) -> _Groups:
    return _of_block(_fifth_bits(x, 4), _half(x, 0), _half(x, 2))


def _q8_0(x: Bytes) -> _Groups:
    scale = _half(x, 0)
    return _of_block(x[..., 2:].view(np.int8), scale, np.zeros_like(scale))


def _six_bits(x: Bytes) -> tuple[Floats, Floats]:
    """Return scales and minima of the eight groups of a block, whose 12 bytes pack them in six bits."""
    first, second, third = x[..., 4:8], x[..., 8:12], x[..., 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], -1)
    lows = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], -1)
    return (
        _half(x, 0)[..., None] * scales.astype(np.float32),
        -(_half(x, 2)[..., None] * lows.astype(np.float32)),
    )


def _q4_k(x: Bytes) -> _Groups:
    codes = _nibbles(x[..., 16:].reshape(*x.shape[:-1], 4, 32)).reshape(*x.shape[:-1], 8, 32)
    return _Groups(codes.view(np.int8), *_six_bits(x))


def _q5_k(x: Bytes) -> _Groups:
    codes = _nibbles(x[..., 48:].reshape(*x.shape[:-1], 4, 32)).reshape(*x.shape[:-1], 8, 32)
    high = x[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _Groups((codes | high << 4).view(np.int8), *_six_bits(x))


def _q6_k(x: Bytes) -> _Groups:
    leading = x.shape[:-1]
    low = x[..., :128].reshape(*leading, 2, 2, 32)
    high = x[..., 128:192].reshape(*leading, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = np.concatenate([low & 15, low >> 4], -2) | high << 4
    signed = codes.view(np.int8) - np.int8(32)
    factor, own = np.broadcast_arrays(
        _half(x, 208)[..., None], x[..., 192:208].view(np.int8).astype(np.float32)
    )
    scale = np.asarray(factor * own)
    return _Groups(signed.reshape(*leading, 16, 16), scale, np.zeros_like(scale), (factor, own))


def _packed(form: GroupForm) -> Callable[[Bytes], _Groups]:
    """Return the reader of blocks that are groups of a form with numbers in float32."""

    def groups(x: Bytes) -> _Groups:
        codes = x[..., : form.code_bytes]
        if form.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
        numbers = np.ascontiguousarray(x[..., form.code_bytes :]).view("<f4")
        return _of_block(np.ascontiguousarray(codes).view(np.int8), numbers[..., 0], numbers[..., 1])

    return groups


_QUARTER, _WIDE = GroupForm(4, 32, "float16"), GroupForm(8, 32, "float16")
_SINGLE_4, _SINGLE_8 = GroupForm(4, 32, "float32"), GroupForm(8, 32, "float32")

BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, _QUARTER, _q4_0),
    "Q4_1": BlockFormat(32, 20, _QUARTER, _q4_1),
    "Q5_0": BlockFormat(32, 22, _WIDE, _q5_0),
    "Q5_1": BlockFormat(32, 24, _WIDE, _q5_1),
    "Q8_0": BlockFormat(32, 34, _WIDE, _q8_0),
    "Q4_K": BlockFormat(256, 144, _SINGLE_4, _q4_k),
    "Q5_K": BlockFormat(256, 176, _SINGLE_8, _q5_k),
    "Q6_K": BlockFormat(256, 210, GroupForm(8, 16, "product"), _q6_k),
    "PACKED4": BlockFormat(32, 24, _SINGLE_4, _packed(_SINGLE_4)),
    "PACKED8": BlockFormat(32, 40, _SINGLE_8, _packed(_SINGLE_8)),
}
"""Formats of GGUF files by the names of the ``gguf`` package, and those of packed layers."""
