"""Boxes of elements within buffers, and moves between them. Data movement ops become moves before code generation (``moves``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...types import DType, TensorSpec

__all__ = ["Box", "Lookup", "Move", "bits_type", "element_bytes", "int_type"]

_BITS_TYPES = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


def element_bytes(dtype: DType) -> int:
    """Return the bytes of the unit that moves; complex128 moves as two halves. 0 for text and for dtypes below a byte."""
    return 0 if dtype.bits < 8 else min(dtype.bits // 8, 8)


def bits_type(dtype: DType) -> str:
    """Return the C type that carries the bits of an element."""
    return _BITS_TYPES[element_bytes(dtype)]


def int_type(dtype: DType) -> str:
    """Return the C type of an integer dtype (bool is uint8_t)."""
    return "uint8_t" if dtype is DType.BOOL else f"{dtype.value}_t"


@dataclass(frozen=True, slots=True)
class Box:
    """A box within argument ``arg``: element i is at ``offset + sum(i[d] * strides[d])``, in elements."""

    arg: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, arg: str, spec: TensorSpec) -> Box:
        """Return the box of a whole value."""
        shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
        strides = spec.physical.strides
        if spec.dtype is DType.COMPLEX128:  # real and imaginary parts
            return cls(arg, (*shape, 2), (*(s * 2 for s in strides), 1))
        return cls(arg, shape, strides)

    @classmethod
    def dense(cls, arg: str, shape: Sequence[int], offset: int = 0) -> Box:
        """Return a row-major box."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return cls(arg, tuple(shape), tuple(strides), offset)

    def cut(self, dim: int, start: int, length: int, step: int = 1) -> Box:
        """Return ``length`` positions of a dim from ``start`` on, ``step`` apart (``step`` may be 0 or negative)."""
        return replace(
            self,
            shape=_put(self.shape, dim, length),
            strides=_put(self.strides, dim, self.strides[dim] * step),
            offset=self.offset + start * self.strides[dim],
        )

    def at(self, dim: int, index: int) -> Box:
        """Return the box at one index of a dim, without that dim."""
        cut = self.cut(dim, index, 1)
        return replace(
            cut,
            shape=(*cut.shape[:dim], *cut.shape[dim + 1 :]),
            strides=(*cut.strides[:dim], *cut.strides[dim + 1 :]),
        )

    def permuted(self, dims: Sequence[int]) -> Box:
        """Return the box with its dims in another order. Trailing dims that are not listed stay."""
        order = (*dims, *range(len(dims), len(self.shape)))
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            strides=tuple(self.strides[d] for d in order),
        )

    def inserted(self, dim: int, length: int = 1, stride: int = 0) -> Box:
        """Return the box with a new dim; stride 0 repeats the elements."""
        return replace(
            self,
            shape=(*self.shape[:dim], length, *self.shape[dim:]),
            strides=(*self.strides[:dim], stride, *self.strides[dim:]),
        )

    def split(self, dim: int, inner: int) -> Box:
        """Return the box with a dim split in two, the second of length ``inner``."""
        outer = self.shape[dim] // inner
        return replace(
            self,
            shape=(*self.shape[:dim], outer, inner, *self.shape[dim + 1 :]),
            strides=(
                *self.strides[:dim],
                self.strides[dim] * inner,
                self.strides[dim],
                *self.strides[dim + 1 :],
            ),
        )

    def expanded(self, shape: Sequence[int]) -> Box:
        """Return the box broadcast to a shape."""
        box = self
        for _ in range(len(shape) - len(self.shape)):
            box = box.inserted(0)
        strides = tuple(
            0 if extent == 1 and target != 1 else s
            for extent, target, s in zip(box.shape, shape, box.strides, strict=True)
        )
        return replace(box, shape=tuple(shape), strides=strides)


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index tensor that shifts one side of a move.

    For box index i, v is the value at ``offset + sum(i[d] * strides[d])`` of ``arg``. It shifts the source (with ``writes``, the target) by
    ``v * step`` elements. v must be within ``size``; a negative v counts from the end if ``wraps``.
    """

    arg: str
    dtype: DType
    strides: tuple[int, ...]
    offset: int
    step: int
    size: int
    writes: bool = False
    wraps: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of one box from ``source`` (None: the constant ``fill``, a C expression) to ``target``.

    combine: a C expression of ``have`` (old value) and ``give`` (new value) that is stored instead of ``give``.
    about:   the comment above the code.
    """

    target: Box
    source: Box | None
    lookups: tuple[Lookup, ...] = ()
    fill: str = "0"
    combine: str = ""
    about: str = ""

    @property
    def empty(self) -> bool:
        """True if the box has no elements."""
        return 0 in self.target.shape


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
