"""Convolutions of one input channel along one dim as matrix products over overlapping windows, which are read in place.

The taps of a window have one stride, and so have the windows of a row of output positions. So the input is a matrix of windows by taps whose rows
overlap, and nothing is gathered. For channels-last results, windows are the rows of A and filters the columns of B, which are packed at load. For
row-major results, filters are the rows of A and windows the columns of B, so that vectors of positions are stored. Padding is a copy of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....codegen.loops.boxes import Box, Move
from ....codegen.target import CodegenTarget
from ....types import DType
from ...kernel import LoweredCall, NodeCall
from ...spec.conv import act_of, stem_of
from ...spec.conv_shape import ConvShape
from ...spec.product import Product, Term, even_stride
from ..matmul.gemm import lower_product
from ..moves import moves_stage

__all__ = ["WindowProduct", "lower_windows", "window_product"]

_MIN_POSITIONS = 8
"""Minimum output positions of one product. A product of fewer, repeated for every row of an image, wastes its register tiles."""


@dataclass(frozen=True, slots=True)
class WindowProduct:
    """The product of a convolution. ``padded``: the extents (images, then space) of the padded copy that it reads; None if it reads the input."""

    product: Product
    padded: tuple[int, ...] | None


def window_product(call: NodeCall, shape: ConvShape) -> WindowProduct | None:
    """Return the product; None for other convolutions, and for results that are neither channels-last nor row-major."""
    long_dims = [d for d in range(3) if shape.kernel[d] > 1]
    if shape.channels != 1 or shape.groups != 1 or shape.transposed or len(long_dims) != 1:
        return None
    if not shape.pixels or not shape.filters or not all(shape.size):
        return None
    reach = tuple(
        (n - 1) * s + (k - 1) * w + 1
        for n, s, k, w in zip(shape.out, shape.stride, shape.kernel, shape.dilation, strict=True)
    )
    padded = None
    steps = (shape.x[0], *shape.x[2:])
    if any(shape.begin) or any(n > size for n, size in zip(reach, shape.size, strict=True)):
        padded = (shape.images, *reach)
        steps = tuple(math.prod(padded[i + 1 :]) for i in range(4))
    product = _by_filters(call, shape, steps, long_dims[0]) or _by_windows(call, shape, steps, long_dims[0])
    return None if product is None else WindowProduct(product, padded)


def lower_windows(
    call: NodeCall, shape: ConvShape, windows: WindowProduct, target: CodegenTarget
) -> LoweredCall:
    """Return the product's stage, after one that pads the input if the windows need it."""
    lowered = lower_product(call, windows.product, target, stem=stem_of("conv", shape))
    if windows.padded is None:
        return lowered
    dtype = call.outputs[0].dtype
    pad = moves_stage("pad", _pad_moves(shape, windows.padded), ("in0", "temp0"), dtype, target)
    stages = [replace(s, args=tuple("temp0" if a == "in0" else a for a in s.args)) for s in lowered.stages]
    return replace(lowered, stages=(pad, *stages), temps=(math.prod(windows.padded) * dtype.bits // 8,))


def _by_filters(call: NodeCall, shape: ConvShape, steps: tuple[int, ...], dim: int) -> Product | None:
    """Return the product of filters by windows, for row-major results."""
    if call.tensor(0).is_weight:  # B is packed at load from a whole weight, which overlapping windows are not
        return None
    out, y, r = (shape.images, *shape.out), (shape.y[0], *shape.y[2:]), (shape.r[0], *shape.r[2:])
    moves = _window_steps(shape, steps)
    first = next(d for d in range(4) if all(even_stride(out[d:], v[d:]) is not None for v in (moves, y, r)))
    if _few(out, first) or (math.prod(out[first:]) > 1 and even_stride(out[first:], y[first:]) != 1):
        return None
    batch = out[:first]
    w = call.tensor(1).spec.physical.strides
    terms = []
    if call.optional(2) is not None:
        terms.append(Term(2, call.tensor(2), (*(0,) * len(batch), 1, 0)))
    if _has_residual(call):
        terms.append(
            Term(3, call.tensor(3), (*r[:first], shape.r[1], even_stride(out[first:], r[first:]) or 0))
        )
    return Product(
        1, 0, batch, (shape.filters,), math.prod(out[first:]), shape.taps,
        (*(0,) * len(batch), w[0], w[_weight_dim(shape, dim)]),
        (*moves[:first], steps[1 + dim] * shape.dilation[dim], even_stride(out[first:], moves[first:]) or 0),
        (*y[:first], shape.y[1], 1), tuple(terms), act=act_of(call),
    )  # fmt: skip


def _by_windows(call: NodeCall, shape: ConvShape, steps: tuple[int, ...], dim: int) -> Product | None:
    """Return the product of windows by filters, for channels-last results."""
    out, y, r = (shape.images, *shape.out), (shape.y[0], *shape.y[2:]), (shape.r[0], *shape.r[2:])
    tap = steps[1 + dim] * shape.dilation[dim]
    if shape.y[1] != 1 and shape.filters > 1:
        return None
    if tap != 1 and call.outputs[0].dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None  # the product would convert each tap of each window by itself
    moves = _window_steps(shape, steps)
    first = next(d for d in range(4) if even_stride(out[d:], moves[d:]) is not None)
    if _few(out, first):
        return None
    batch, rows = out[:first], out[first:]
    w = call.tensor(1).spec.physical.strides
    terms = []
    if call.optional(2) is not None:
        terms.append(Term(2, call.tensor(2), (*(0,) * len(batch + rows), 1)))
    if _has_residual(call):
        terms.append(Term(3, call.tensor(3), (*r[:first], *r[first:], shape.r[1])))
    return Product(
        0, 1, batch, rows, shape.filters, shape.taps,
        (*moves[:first], *moves[first:], tap),
        (*(0,) * len(batch), w[_weight_dim(shape, dim)], w[0]),
        (*y[:first], *y[first:], 1), tuple(terms), act=act_of(call),
    )  # fmt: skip


def _window_steps(shape: ConvShape, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides between windows over images and space."""
    return (steps[0], *(s * n for s, n in zip(steps[1:], shape.stride, strict=True)))


def _few(out: Sequence[int], first: int) -> bool:
    """Return whether each product of several has too few output positions."""
    return math.prod(out[:first]) > 1 and math.prod(out[first:]) < _MIN_POSITIONS


def _has_residual(call: NodeCall) -> bool:
    return call.op == "fused_convolution" and call.optional(3) is not None


def _weight_dim(shape: ConvShape, dim: int) -> int:
    """Return the dim of [filters, channels, *kernel] of one of three spatial dims."""
    return 2 + dim - (3 - shape.rank)


def _pad_moves(shape: ConvShape, padded: tuple[int, ...]) -> list[Move]:
    """Return the moves of the copy: a slab of zeros per side of each dim, then the input in the middle."""
    x = Box("in0", (shape.images, *shape.size), (shape.x[0], *shape.x[2:]))
    y = Box.dense("temp0", padded)
    moves = []
    for d, (size, begin) in enumerate(zip(shape.size, shape.begin, strict=True), 1):
        first = min(max(begin, 0), padded[d])
        end = max(first, min(padded[d], size + begin))
        for start, length in ((0, first), (end, padded[d] - end)):
            if length:
                moves.append(Move(y.cut(d, start, length), None, fill="0", about=f"around dim {d}"))
        y, x = y.cut(d, first, end - first), x.cut(d, first - begin, end - first)
    if math.prod(y.shape):
        moves.append(Move(y, x, about="the input"))
    return moves
