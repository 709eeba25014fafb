"""Boxes of operands, and lookups: the offsets of a move that index tensors give while the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ....codegen.loops.boxes import Box, Lookup, Move
from ....types import DType, TensorSpec
from ...kernel import NodeCall, operand_ref

__all__ = ["Plan", "halves", "indexed", "lookup", "operand", "result", "vector"]

Plan: TypeAlias = "tuple[list[Move], ...]"
"""A list of moves for each launch. A launch may read what those before it wrote."""


def operand(call: NodeCall, position: int) -> Box:
    """Return the box of an operand in its layout."""
    return Box.of(operand_ref("in", position), call.tensor(position).spec)


def result(call: NodeCall) -> Box:
    """Return the box of the first result in its layout."""
    return Box.of("out0", call.outputs[0])


def lookup(
    call: NodeCall,
    position: int,
    box: Box,
    dim_step: int,
    size: int,
    writes: bool = False,
    wraps: bool = True,
) -> Lookup:
    """Return the lookup of a dim's indices in an index operand, whose box has the dims of the move."""
    return Lookup(
        operand_ref("in", position),
        call.tensor(position).spec.dtype,
        box.strides,
        box.offset,
        dim_step,
        size,
        writes,
        wraps,
    )


def halves(box: Box, spec: TensorSpec, dtype: DType) -> Box:
    """Return an index's box for complex128 values, which have one more dim for real and imaginary part."""
    return box.inserted(len(box.shape), 2, 0) if dtype is DType.COMPLEX128 else box


def vector(box: Box) -> Box:
    """Return a scalar as a vector of one element; PyTorch accepts either."""
    return box if box.shape else box.inserted(0)


def indexed(call: NodeCall, x: Box, first: int, writes: bool) -> tuple[Box, tuple[Lookup, ...]]:
    """Return the box of x under advanced indexing by the operands from ``first`` on, and their lookups."""
    dtype = call.outputs[0].dtype
    rank = len(x.shape) - int(dtype is DType.COMPLEX128)
    indices = {
        i - first: operand(call, i) for i in range(first, len(call.inputs)) if call.inputs[i] is not None
    }
    indexed_dims = sorted(indices)
    if not indexed_dims:
        return x, ()
    block = _broadcast([b.shape for b in indices.values()])
    other_dims = [d for d in range(rank) if d not in indices]
    front = indexed_dims[0] if indexed_dims == list(range(indexed_dims[0], indexed_dims[-1] + 1)) else 0
    rest = list(range(rank, len(x.shape)))
    before, after = other_dims[:front], [*other_dims[front:], *rest]
    shape = (*(x.shape[d] for d in before), *block, *(x.shape[d] for d in after))
    strides = (*(x.strides[d] for d in before), *(0,) * len(block), *(x.strides[d] for d in after))
    lookups = []
    for dim, box in indices.items():
        box = box.expanded(block)
        index_strides = (*(0,) * len(before), *box.strides, *(0,) * len(after))
        lookups.append(
            lookup(
                call,
                first + dim,
                Box(box.arg, shape, index_strides, box.offset),
                x.strides[dim],
                x.shape[dim],
                writes,
            )
        )
    return Box(x.arg, shape, strides, x.offset), tuple(lookups)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    n = max(len(s) for s in shapes)
    columns = zip(*((*(1,) * (n - len(s)), *s) for s in shapes), strict=True)
    return tuple(next((d for d in column if d != 1), 1) for column in columns)
