"""Lowerings of data movement."""

from __future__ import annotations

import math
from typing import Any

from ....types import Dim, DimLike, DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers

__all__ = ["LOWERINGS"]

_FAR = 10**9  # exporters write ends of at least this for "to the end"


def _transpose(n: OnnxLoweringContext) -> Results:
    order = n.attr("perm") or list(reversed(range(n.spec().rank)))
    return str(n.b.permute(n.x, dims=order))


def _reshape(n: OnnxLoweringContext) -> Results:
    """Lower Reshape; 0 keeps the dim (unless allowzero), -1 is inferred."""
    static_shape = n.attr("shape")
    size: list[DimLike] = list(static_shape) if static_shape is not None else n.dims(1, "shape")
    have = n.spec().shape
    if not n.attr("allowzero", 0):
        if any(d == 0 and i >= len(have) for i, d in enumerate(size)):
            raise NotLowered("its shape has a 0 beyond the operand's rank")
        size = [have[i] if d == 0 else d for i, d in enumerate(size)]
    return str(n.b.view(n.x, size=size))


def _flatten(n: OnnxLoweringContext) -> Results:
    axis, shape = n.axis(1), n.spec().shape
    return str(n.b.view(n.x, size=[math.prod(shape[:axis], start=1), math.prod(shape[axis:], start=1)]))


def _squeeze(n: OnnxLoweringContext) -> Results:
    axes = n.attr_or_input("axes", 1, "axes")
    if axes is None:
        axes = [i for i, d in enumerate(numbers(n.spec().shape, "a dim that may be 1")) if d == 1]
    return str(n.b.squeeze(n.x, dims=axes))


def _unsqueeze(n: OnnxLoweringContext) -> Results:
    return str(n.b.unsqueeze(n.x, dims=n.attr_or_input("axes", 1, "axes")))


def _concat(n: OnnxLoweringContext) -> Results:
    return str(n.b.call("cat", *n.inputs, dim=n.attr("axis", 1)))


def _split(n: OnnxLoweringContext) -> Results:
    axis = n.axis(0)
    size, sizes = n.spec().shape[axis], n.attr_or_input("split", 1, "split")
    if sizes is None:
        parts = n.attr("num_outputs", len(n.outputs))
        if isinstance(size, int):
            part_size = -(-size // parts)
            sizes = [part_size] * (parts - 1) + [size - part_size * (parts - 1)]
        else:
            (quotient,) = {size // parts}
            if quotient * parts != size:
                raise NotLowered(f"it splits a symbolic dim into {parts} parts")
            return tuple(_as_tuple(n.b.split(n.x, sizes=[quotient] * parts, dim=axis)))
    return tuple(_as_tuple(n.b.split(n.x, sizes=sizes, dim=axis)))


def _as_tuple(values: Any) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _slice(n: OnnxLoweringContext) -> Results:
    if "starts" in n.attrs:
        starts, ends = list(n.attr("starts")), list(n.attr("ends"))
        axes, steps = list(n.attr("axes") or range(len(starts))), [1] * len(starts)
    else:
        starts, ends = n.dims(1, "starts"), n.dims(2, "ends")
        axes = n.ints(3, "axes") if n.opt(3) else list(range(len(starts)))
        steps = n.ints(4, "steps") if n.opt(4) else [1] * len(starts)
    value = n.x
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        value = _one_slice(n, value, axis, start, end, step)
    return value if value != n.x else str(n.b.clone(n.x))


def _one_slice(n: OnnxLoweringContext, value: str, axis: int, start: DimLike, end: DimLike, step: int) -> str:
    size = n.spec_of(value).shape[axis]
    if step < 0:
        return _backwards(n, value, axis, start, end, step, size)
    if not isinstance(size, int) and isinstance(end, int):
        if end < -_FAR:
            end = 0
        elif 0 <= end < _FAR and start != end:
            raise NotLowered(f"it slices a symbolic dim up to {end}, and the dim may be shorter")
    if isinstance(start, int) and isinstance(end, int) and isinstance(size, int):
        start, end, _ = slice(start, end, 1).indices(size)
        end = max(start, end)
    return str(n.b.slice(value, dim=axis, start=start, end=None if _is_far(end) else end, step=step))


def _backwards(
    n: OnnxLoweringContext, value: str, axis: int, start: DimLike, end: DimLike, step: int, size: DimLike
) -> str:
    """Lower a slice with a negative step as a forward slice of the flipped dim."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        first, last, _ = slice(max(start, -size), end, step).indices(size)
        begin, stop = size - 1 - first, max(size - 1 - last, size - 1 - first)
        return str(n.b.slice(n.b.flip(value, dims=[axis]), dim=axis, start=begin, end=stop, step=-step))
    if (start == -1 or _is_far(start)) and isinstance(end, int) and end <= -_FAR:
        return str(n.b.slice(n.b.flip(value, dims=[axis]), dim=axis, step=-step))
    raise NotLowered("a negative step over part of a symbolic dim is not supported")


def _is_far(value: DimLike) -> bool:
    return isinstance(value, int) and value >= _FAR


_PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "wrap"}


def _pad(n: OnnxLoweringContext) -> Results:
    rank = n.spec().rank
    pads: list[DimLike] = list(n.attr("pads")) if "pads" in n.attrs else n.dims(1, "pads")
    if n.opt(3):
        axes = n.ints(3, "axes")
        full_pads: list[DimLike] = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            full_pads[axis % rank], full_pads[axis % rank + rank] = pads[i], pads[i + len(axes)]
        pads = full_pads
    mode = _PAD_MODES[n.attr("mode", "constant")]
    if n.opt(2) and n.known(2) is None:
        inside = n.b.pad(n.b.full(size=n.spec().shape, value=True, dtype=DType.BOOL), pads=pads)
        y = n.b.pad(n.x, pads=pads, mode=mode)
        return str(n.b.where(inside, y, n.b.view(n.input(2), size=[])) if mode == "constant" else y)
    value = n.number(2, "padding value") if n.opt(2) else n.attr("value", 0.0)
    return str(n.b.pad(n.x, pads=pads, mode=mode, value=value))


def _tile(n: OnnxLoweringContext) -> Results:
    return str(n.b.repeat(n.x, repeats=n.dims(1, "repeats")))


def _expand(n: OnnxLoweringContext) -> Results:
    """Lower Expand; both sides may be broadcast, since the shape may have a 1 where the operand has more."""
    have: list[DimLike] = list(n.spec().shape)
    want = n.dims(1, "shape")
    have, want = (
        [*[1] * (len(want) - len(have)), *have],
        [*[1] * (len(have) - len(want)), *want],
    )
    size: list[DimLike] = []
    for a, b in zip(have, want, strict=True):
        if a != b and a != 1 and b != 1 and isinstance(a, Dim) and isinstance(b, Dim):
            raise NotLowered(f"it broadcasts symbolic dim {a} to {b}, and either may be 1")
        size.append(a if b == 1 or (a != 1 and isinstance(a, int)) else b)
    return str(n.b.expand(n.x, size=size))


def _blocks(op: str, mode: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, block_size=n.attr("blocksize"), mode=n.attr("mode", mode)))


def _reverse(n: OnnxLoweringContext) -> Results:
    return str(
        n.b.reverse_sequence(
            n.x, n.input(1), time_dim=n.attr("time_axis", 0), batch_dim=n.attr("batch_axis", 1)
        )
    )


def _trilu(n: OnnxLoweringContext) -> Results:
    op = "triu" if n.attr("upper", 1) else "tril"
    return str(n.b.call(op, n.x, diagonal=int(n.number(1, "diagonal")) if n.opt(1) else 0))


def _center(n: OnnxLoweringContext) -> Results:
    """Lower CenterCropPad: crop or pad each axis around its center; the end gets the larger part of an odd difference."""
    shape = numbers(n.spec().shape, "an axis to crop or pad")
    axes = [a % len(shape) for a in n.attr("axes") or range(len(shape))]
    begins, ends = [0] * len(shape), [0] * len(shape)
    for axis, want in zip(axes, n.ints(1, "shape"), strict=True):
        growth = want - shape[axis]
        half = abs(growth) // 2
        begins[axis] = half if growth > 0 else -half
        ends[axis] = growth - begins[axis]
    return str(n.b.pad(n.x, pads=begins + ends))


LOWERINGS: dict[str, OpLowering] = {
    "CenterCropPad": _center,
    "Concat": _concat,
    "DepthToSpace": _blocks("depth_to_space", "DCR"),
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse,
    "Slice": _slice,
    "SpaceToDepth": _blocks("space_to_depth", "DCR"),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
