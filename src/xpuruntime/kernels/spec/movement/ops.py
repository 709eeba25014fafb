"""Data movement ops as moves of boxes (``codegen/loops/moves``). The moves of a node are independent of each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.loops.boxes import Box, Move
from ....ir.ops.movement import slice_length
from ....types import DType, TensorSpec
from ...kernel import NodeCall, operand_ref
from .elements import static
from .pieces import Moves, Piece, operand_box, pad_moves, repeat_moves, result_box, roll_moves, runs

__all__ = ["MOVEMENTS", "MoveTemplate", "Moves", "Piece", "runs", "strided_inside"]


def _clone(call: NodeCall) -> Moves:
    yield Move(result_box(call), operand_box(call))


def _view(call: NodeCall) -> Moves:
    """Return the moves of a reshape: one side must be dense, and is addressed with the shape of the other."""
    x, y = call.tensor(0).spec, call.outputs[0]
    if x.is_dense:
        yield Move(result_box(call), Box.of("in0", TensorSpec(y.shape, y.dtype)))
    else:
        yield Move(Box.of("out0", TensorSpec(x.shape, x.dtype)), operand_box(call))


def _permute(call: NodeCall) -> Moves:
    yield Move(result_box(call), operand_box(call).permuted(call.attrs["dims"]))


def _expand(call: NodeCall) -> Moves:
    target = result_box(call)
    yield Move(target, operand_box(call).expanded(target.shape))


def _cat(call: NodeCall) -> Moves:
    dim, at = call.attrs["dim"], 0
    for i, x in enumerate(call.tensors):
        length = static(x.spec)[dim]
        yield Move(
            result_box(call).cut(dim, at, length),
            Box.of(operand_ref("in", i), x.spec),
            about=f"operand {i}",
        )
        at += length


def _split(call: NodeCall) -> Moves:
    dim, at = call.attrs["dim"], 0
    for i, size in enumerate(call.attrs["sizes"]):
        yield Move(result_box(call, i), operand_box(call).cut(dim, at, int(size)), about=f"part {i}")
        at += int(size)


def _slice_of(call: NodeCall) -> tuple[int, int, int, int]:
    dim, step = call.attrs["dim"], call.attrs["step"]
    size = static(call.tensor(0).spec)[dim]
    start, _, length = slice_length(size, call.attrs["start"], call.attrs["end"], step)
    return dim, int(str(start)), int(str(length)), step


def _slice(call: NodeCall) -> Moves:
    yield Move(result_box(call), operand_box(call).cut(*_slice_of(call)))


def _index(call: NodeCall) -> tuple[int, int]:
    dim, index = call.attrs["dim"], int(call.attrs["index"])
    return dim, index + (static(call.tensor(0).spec)[dim] if index < 0 else 0)


def _select(call: NodeCall) -> Moves:
    yield Move(result_box(call), operand_box(call).at(*_index(call)))


def _around(call: NodeCall, dim: int, start: int, length: int, step: int) -> Moves:
    """Return the moves of ``x`` outside the slice that is written. They are dropped if the result reuses x's memory."""
    size = static(call.outputs[0])[dim]
    x, y = operand_box(call), result_box(call)
    end = start + (length - 1) * step + 1 if length else start
    pieces = [(0, start, 1), (end, size - end, 1)]
    pieces += [(start + k, length - 1, step) for k in range(1, step) if length > 1]
    for begin, count, pace in pieces:
        if count > 0:
            box = x.cut(dim, begin, count, pace), y.cut(dim, begin, count, pace)
            yield Move(box[1], box[0], about="unchanged elements")


def _slice_scatter(call: NodeCall) -> Moves:
    dim, start, length, step = _slice_of(call)
    yield from _around(call, dim, start, length, step)
    part = result_box(call).cut(dim, start, length, step)
    yield Move(part, operand_box(call, 1).expanded(part.shape), about="the slice")


def _select_scatter(call: NodeCall) -> Moves:
    dim, index = _index(call)
    yield from _around(call, dim, index, 1, 1)
    part = result_box(call).at(dim, index)
    yield Move(part, operand_box(call, 1).expanded(part.shape), about="the selection")


def _flip(call: NodeCall) -> Moves:
    box = operand_box(call)
    for dim in call.attrs["dims"] if call.outputs[0].rank else ():
        box = box.cut(dim, box.shape[dim] - 1, box.shape[dim], -1)
    yield Move(result_box(call), box)


def _as_strided(call: NodeCall) -> Moves:
    a = call.attrs
    size, stride, offset = ([int(v) for v in a["size"]], [int(v) for v in a["stride"]], int(a["offset"]))
    x = Box("in0", tuple(size), tuple(stride), offset)
    if call.outputs[0].dtype is DType.COMPLEX128:
        x = Box("in0", (*size, 2), (*(s * 2 for s in stride), 1), 2 * offset)
    yield Move(result_box(call), x)


def strided_inside(call: NodeCall) -> bool:
    """Return whether all positions of an ``as_strided`` are within its operand."""
    size = [int(v) for v in call.attrs["size"]]
    if 0 in size:
        return True
    extents = [(n - 1) * int(s) for n, s in zip(size, call.attrs["stride"], strict=True)]
    low, high = (int(call.attrs["offset"]) + sum(f(r, 0) for r in extents) for f in (min, max))
    return low >= 0 and high < math.prod(static(call.tensor(0).spec))


def _diagonal(call: NodeCall) -> Moves:
    a, b, offset = call.attrs["dim1"], call.attrs["dim2"], call.attrs["offset"]
    x, y = operand_box(call), result_box(call)
    corner = x.cut(a, max(-offset, 0), 1).cut(b, max(offset, 0), 1)
    rest = [d for d in range(len(x.shape)) if d not in (a, b)]
    lead = call.outputs[0].rank - 1
    keep = corner.permuted([*rest, a, b])
    shape = (*(x.shape[d] for d in rest),)
    strides = tuple(x.strides[d] for d in rest)
    length, step = y.shape[lead], x.strides[a] + x.strides[b]
    yield Move(
        y,
        Box(
            "in0",
            (*shape[:lead], length, *shape[lead:]),
            (*strides[:lead], step, *strides[lead:]),
            keep.offset,
        ),
    )


def _blocks(call: NodeCall, whole: Box, blocked: Box) -> tuple[Box, Box]:
    """Return [..., C, H*b, W*b] and [..., C*b*b, H, W] as boxes with the same dim order: ..., C, b, b, H, W."""
    b, lead = call.attrs["block_size"], call.outputs[0].rank - 3
    space = whole.split(lead + 1, b).split(lead + 3, b)  # C H b W b
    space = space.permuted([*range(lead), lead, lead + 2, lead + 4, lead + 1, lead + 3])
    if call.attrs["mode"] == "DCR":
        deep = blocked.split(lead, blocked.shape[lead] // (b * b)).split(lead, b)  # b b C H W
        deep = deep.permuted([*range(lead), lead + 2, lead, lead + 1, lead + 3, lead + 4])
    else:
        deep = blocked.split(lead, b).split(lead, b)  # C b b H W
    return space, deep


def _depth_to_space(call: NodeCall) -> Moves:
    space, deep = _blocks(call, result_box(call), operand_box(call))
    yield Move(space, deep)


def _space_to_depth(call: NodeCall) -> Moves:
    space, deep = _blocks(call, operand_box(call), result_box(call))
    yield Move(deep, space)


@dataclass(frozen=True, slots=True)
class MoveTemplate:
    """The moves of an op.

    dense:    sides that must be dense.
    in_place: whether elements that keep their position may stay in the operand's memory.
    """

    moves: Callable[[NodeCall], Moves]
    dense: tuple[str, ...] = ()
    in_place: bool = False


MOVEMENTS: dict[str, MoveTemplate] = {
    "clone": MoveTemplate(_clone),
    "bitcast": MoveTemplate(_clone),
    "view": MoveTemplate(_view),
    "squeeze": MoveTemplate(_view),
    "unsqueeze": MoveTemplate(_view),
    "permute": MoveTemplate(_permute),
    "expand": MoveTemplate(_expand),
    "cat": MoveTemplate(_cat),
    "split": MoveTemplate(_split),
    "slice": MoveTemplate(_slice),
    "select": MoveTemplate(_select),
    "slice_scatter": MoveTemplate(_slice_scatter, in_place=True),
    "select_scatter": MoveTemplate(_select_scatter, in_place=True),
    "flip": MoveTemplate(_flip),
    "roll": MoveTemplate(roll_moves),
    "repeat": MoveTemplate(repeat_moves),
    "pad": MoveTemplate(pad_moves),
    "as_strided": MoveTemplate(_as_strided, dense=("in",)),
    "diagonal": MoveTemplate(_diagonal),
    "depth_to_space": MoveTemplate(_depth_to_space),
    "space_to_depth": MoveTemplate(_space_to_depth),
}
