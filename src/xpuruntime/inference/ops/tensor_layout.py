"""Memory layout of a tensor, and the dense graph input, transposed and broadcast, that reads it in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import _core
from ...ir.build import GraphBuilder
from ...runtime.memory.arrays import dlpack_dtype
from ...types import DType, TensorSpec

__all__ = ["DenseBlock", "TensorFacts", "dense_block", "facts_of"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape, strides in elements, dtype and device of a tensor. device: DLPack's (type, index)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """A dense block of memory that holds each element once.

    order: the tensor's dims from outermost to innermost in memory. shape: the block's dims in that order; broadcast dims have extent 1.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]

    def input(self, builder: GraphBuilder, name: str, facts: TensorFacts) -> str:
        """Add the block as a graph input, view it as the tensor, and return the view's name."""
        b: Any = builder
        value: str = b.input(name, TensorSpec(self.shape, facts.dtype))
        if self.order != tuple(range(len(self.order))):
            value = b.permute(value, dims=[self.order.index(d) for d in range(len(self.order))])
        if tuple(self.shape[self.order.index(d)] for d in range(len(self.order))) != facts.shape:
            value = b.expand(value, size=facts.shape)
        return value


def facts_of(tensor: Any) -> TensorFacts | None:
    """Return the facts of a tensor that the core reads in place, or None."""
    shown = _core.show_tensor(tensor)
    dtype = None if shown is None else dlpack_dtype(*shown[2])
    return None if shown is None or dtype is None else TensorFacts(shown[0], shown[1], dtype, shown[3])


def dense_block(facts: TensorFacts) -> DenseBlock | None:
    """Return the block behind a tensor, or None if the tensor has gaps, overlaps itself or runs backwards."""
    if 0 in facts.shape:
        return DenseBlock(tuple(range(len(facts.shape))), facts.shape)
    extents = tuple(
        1 if stride == 0 else size for size, stride in zip(facts.shape, facts.strides, strict=True)
    )
    real = sorted((d for d, size in enumerate(extents) if size > 1), key=lambda d: -facts.strides[d])
    expected = 1
    for d in reversed(real):
        if facts.strides[d] != expected:
            return None
        expected *= extents[d]
    if real == sorted(real):  # row-major, ignoring dims of one element
        return DenseBlock(tuple(range(len(extents))), extents)
    order = (*(d for d, size in enumerate(extents) if size == 1), *real)
    return DenseBlock(order, tuple(extents[d] for d in order))
