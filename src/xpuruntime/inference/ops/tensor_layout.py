"""How a tensor lies in memory, and as which dense input of a graph, transposed and broadcast there, it is read in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import _core
from ...ir.build import GraphBuilder
from ...runtime.arrays import dlpack_dtype
from ...types import DType, TensorSpec

__all__ = ["Facts", "Lying", "facts_of", "lying"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a tensor shows of itself. strides: in elements; device: DLPack's (type, index)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lying:
    """A dense block of memory that holds each element once.

    order: the tensor's dims from the outermost to the innermost in memory; shape: the block's, in that order; broadcast dims have extent 1.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]

    def input(self, builder: GraphBuilder, name: str, facts: Facts) -> str:
        """The block as an input of a graph and the tensor as a view of it; the view's name."""
        b: Any = builder
        made: str = b.input(name, TensorSpec(self.shape, facts.dtype))
        if self.order != tuple(range(len(self.order))):
            made = b.permute(made, dims=[self.order.index(d) for d in range(len(self.order))])
        if tuple(self.shape[self.order.index(d)] for d in range(len(self.order))) != facts.shape:
            made = b.expand(made, size=facts.shape)
        return made


def facts_of(tensor: Any) -> Facts | None:
    """Of a tensor that the core reads in place; None for any other."""
    shown = _core.show_tensor(tensor)
    dtype = None if shown is None else dlpack_dtype(*shown[2])
    return None if shown is None or dtype is None else Facts(shown[0], shown[1], dtype, shown[3])


def lying(facts: Facts) -> Lying | None:
    """The block that a tensor is a view of; None where it has gaps, overlaps itself or runs backwards."""
    if 0 in facts.shape:
        return Lying(tuple(range(len(facts.shape))), facts.shape)
    extents = tuple(
        1 if stride == 0 else size for size, stride in zip(facts.shape, facts.strides, strict=True)
    )
    real = sorted((d for d, size in enumerate(extents) if size > 1), key=lambda d: -facts.strides[d])
    expected = 1
    for d in reversed(real):
        if facts.strides[d] != expected:
            return None
        expected *= extents[d]
    if real == sorted(real):  # row-major, but for dims of one element
        return Lying(tuple(range(len(extents))), extents)
    order = (*(d for d, size in enumerate(extents) if size == 1), *real)
    return Lying(order, tuple(extents[d] for d in order))
