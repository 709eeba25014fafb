"""Elements that keep their value and change their place: every op is a list of boxes (codegen/moves), whatever the layouts.

Each op's function turns a node into moves that do not depend on each other, so their tasks run in any order. Values of 1, 2, 4, 8
and 16 bytes move as bits; what lies beyond a value in its layout is not touched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..codegen.moves import Move, Place, bits_type, carried, element_bytes, emit
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..ir.ops.movement import slice_length
from ..types import DType, TensorSpec
from .cuda.moves import cuda_moves_stage
from .kernel import Lowered, NodeCall, Stage, operand_ref

__all__ = [
    "KERNELS",
    "STATUS",
    "Movement",
    "bits_of",
    "function",
    "moves_stage",
    "static",
    "too_small",
]

Moves: TypeAlias = "Iterator[Move]"
_MOST = 1024
"""Boxes in one kernel; a node that needs more (mirrors of mirrors) would be a text without end."""


STATUS = 64
"""Bytes of scratch that a stage asks for so that it can say what it cannot compute (``fail`` of templates/movement.h)."""


def static(spec: TensorSpec) -> tuple[int, ...]:
    """The shape, all of it known."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def too_small(*specs: TensorSpec) -> Support | None:
    """Why elements cannot move: text, or less than a byte each. None when they can."""
    for spec in specs:
        if not element_bytes(spec.dtype):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"{spec.dtype.value} elements have no bytes of their own to move"
            )
    return None


def bits_of(value: object, dtype: DType) -> str:
    """A number as a C literal of the bits that an element moves as."""
    from ..ir.interp.numbers import to

    raw = np.ascontiguousarray(to(np.asarray(value), dtype)).reshape(1)
    unit = raw.view(np.uint8)[: element_bytes(dtype)]
    return f"0x{int.from_bytes(unit.tobytes(), 'little'):x}ull"


def function(body: str) -> str:
    """The text of a kernel's function around its body."""
    return (
        'extern "C" void KERNEL(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {\n'
        f"{body}\n}}\n"
    )


def moves_stage(
    stem: str,
    moves: Sequence[Move],
    args: tuple[str, ...],
    dtype: DType,
    target: CodegenTarget,
    copies: bool = False,
    ctype: str = "",
) -> Stage:
    """One stage that makes all moves, for the target's kind. ``copies``: it only brings the first operand to the result (``Stage.copies``); ``ctype``: the
    type that elements are computed with, else they move as bits.
    """
    if target.kind == "cuda":
        return cuda_moves_stage(stem, moves, args, dtype, target, copies, ctype)
    config = target.config
    body, tasks = emit(
        moves, args, ctype or bits_type(dtype), config.max_threadgroup_1d, config.max_threadgroup_2d
    )
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    total = carried(moves) * element_bytes(dtype)
    return Stage(
        stem=stem,
        source=function(lines),
        args=args,
        tasks=max(tasks, 1),
        grain=1,
        scratch_bytes=STATUS if any(m.lookups for m in moves) else 0,
        parts=frozenset({"movement"}),
        bytes=2 * total,
        copies=copies,
    )


# ── ops: node -> moves ──


def _in(call: NodeCall, position: int = 0) -> Place:
    return Place.of(operand_ref("in", position), call.tensor(position).spec)


def _out(call: NodeCall, position: int = 0) -> Place:
    return Place.of(operand_ref("out", position), call.outputs[position])


def _clone(call: NodeCall) -> Moves:
    yield Move(_out(call), _in(call))


def _view(call: NodeCall) -> Moves:
    """Another shape: one side must be dense, and is read as the other's shape."""
    x, y = call.tensor(0).spec, call.outputs[0]
    if x.is_dense:
        yield Move(_out(call), Place.of("in0", TensorSpec(y.shape, y.dtype)))
    else:
        yield Move(Place.of("out0", TensorSpec(x.shape, x.dtype)), _in(call))


def _permute(call: NodeCall) -> Moves:
    yield Move(_out(call), _in(call).permuted(call.attrs["dims"]))


def _expand(call: NodeCall) -> Moves:
    target = _out(call)
    yield Move(target, _in(call).expanded(target.shape))


def _cat(call: NodeCall) -> Moves:
    dim, at = call.attrs["dim"], 0
    for i, x in enumerate(call.tensors):
        length = static(x.spec)[dim]
        yield Move(
            _out(call).cut(dim, at, length), Place.of(operand_ref("in", i), x.spec), about=f"operand {i}"
        )
        at += length


def _split(call: NodeCall) -> Moves:
    dim, at = call.attrs["dim"], 0
    for i, size in enumerate(call.attrs["sizes"]):
        yield Move(_out(call, i), _in(call).cut(dim, at, int(size)), about=f"part {i}")
        at += int(size)


def _slice_of(call: NodeCall) -> tuple[int, int, int, int]:
    dim, step = call.attrs["dim"], call.attrs["step"]
    size = static(call.tensor(0).spec)[dim]
    start, _, length = slice_length(size, call.attrs["start"], call.attrs["end"], step)
    return dim, int(str(start)), int(str(length)), step


def _slice(call: NodeCall) -> Moves:
    yield Move(_out(call), _in(call).cut(*_slice_of(call)))


def _index(call: NodeCall) -> tuple[int, int]:
    dim, index = call.attrs["dim"], int(call.attrs["index"])
    return dim, index + (static(call.tensor(0).spec)[dim] if index < 0 else 0)


def _select(call: NodeCall) -> Moves:
    yield Move(_out(call), _in(call).at(*_index(call)))


def _around(call: NodeCall, dim: int, start: int, length: int, step: int) -> Moves:
    """``x`` where a slice of the result is not written; nothing when the result lies in x's memory."""
    size = static(call.outputs[0])[dim]
    x, y = _in(call), _out(call)
    end = start + (length - 1) * step + 1 if length else start
    pieces = [(0, start, 1), (end, size - end, 1)]
    pieces += [(start + k, length - 1, step) for k in range(1, step) if length > 1]
    for begin, count, pace in pieces:
        if count > 0:
            box = x.cut(dim, begin, count, pace), y.cut(dim, begin, count, pace)
            yield Move(box[1], box[0], about="what stays")


def _slice_scatter(call: NodeCall) -> Moves:
    dim, start, length, step = _slice_of(call)
    yield from _around(call, dim, start, length, step)
    part = _out(call).cut(dim, start, length, step)
    yield Move(part, _in(call, 1).expanded(part.shape), about="the slice")


def _select_scatter(call: NodeCall) -> Moves:
    dim, index = _index(call)
    yield from _around(call, dim, index, 1, 1)
    part = _out(call).at(dim, index)
    yield Move(part, _in(call, 1).expanded(part.shape), about="the selection")


def _flip(call: NodeCall) -> Moves:
    box = _in(call)
    for dim in call.attrs["dims"] if call.outputs[0].rank else ():
        box = box.cut(dim, box.shape[dim] - 1, box.shape[dim], -1)
    yield Move(_out(call), box)


Piece: TypeAlias = tuple[int, int, int, int]
"""Along one dim: start in the result, length, start in the operand, step there."""


def _pieced(target: Place, source: Place, pieces: Sequence[Sequence[Piece]]) -> Moves:
    """A box per combination of pieces, one of each dim."""
    for chosen in itertools.product(*pieces):
        y, x = target, source
        for dim, (to, length, start, step) in enumerate(chosen):
            y, x = y.cut(dim, to, length), x.cut(dim, start, length, step)
        yield Move(y, x)


def _roll(call: NodeCall) -> Moves:
    shape, shifts, dims = static(call.outputs[0]), call.attrs["shifts"], call.attrs["dims"]
    total = math.prod(shape)
    if not dims or not shape:  # along the flattened whole
        halves = 2 if call.outputs[0].dtype is DType.COMPLEX128 else 1
        x, y = (Place.dense(arg, (total * halves,)) for arg in ("in0", "out0"))
        shape, by = (total * halves,), {0: sum(shifts) * halves if shape else 0}
    else:
        x, y, by = _in(call), _out(call), dict.fromkeys(dims, 0)
        for dim, shift in zip(dims, shifts, strict=True):
            by[dim] += shift
    pieces = []
    for dim, n in enumerate(shape):
        shift = by.get(dim, 0) % n if n else 0
        pieces.append([p for p in ((shift, n - shift, 0, 1), (0, shift, n - shift, 1)) if p[1]])
    yield from _pieced(y, x, pieces)


def _repeat(call: NodeCall) -> Moves:
    repeats = call.attrs["repeats"]
    x, y = _in(call), _out(call)
    for _ in range(len(repeats) - call.tensor(0).spec.rank):
        x = x.inserted(0)
    for i, times in enumerate(repeats):
        dim = 2 * i
        if 0 in y.shape:
            return
        y = y.split(dim, x.shape[dim])
        x = x.inserted(dim, int(times))
    yield Move(y, x)


def _pad(call: NodeCall) -> Moves:
    """Constant: what is around, a slab per side, then the middle. Other modes: pieces that run forward, backward or stand still."""
    x, y, mode = _in(call), _out(call), call.attrs["mode"]
    pads, n = [int(p) for p in call.attrs["pads"]], call.outputs[0].rank
    begins, ends = pads[:n], pads[n:]
    for d in range(n):  # negative ones crop
        cut = max(-begins[d], 0), max(-ends[d], 0)
        if mode in ("constant", "wrap"):
            x = x.cut(d, cut[0], x.shape[d] - sum(cut))
            begins[d], ends[d] = max(begins[d], 0), max(ends[d], 0)
    if mode == "constant":
        fill = bits_of(call.attrs["value"], call.outputs[0].dtype)
        for d in range(n):
            for start, length in ((0, begins[d]), (y.shape[d] - ends[d], ends[d])):
                if length:
                    yield Move(y.cut(d, start, length), None, fill=fill, about=f"around dim {d}")
            y = y.cut(d, begins[d], x.shape[d])
        yield Move(y, x, about="the operand")
        return
    size = static(call.tensor(0).spec) if mode != "wrap" else x.shape[:n]
    pieces = [_sources(size[d], begins[d], ends[d], mode) for d in range(n)]
    yield from _pieced(y, x, pieces)


def _sources(size: int, begin: int, end: int, mode: str) -> list[Piece]:
    """A padded dim as runs of one step."""
    from ..ir.interp.movement import _source

    return runs([int(v) for v in _source(size, begin, end, mode)])


def runs(places: Sequence[int]) -> list[Piece]:
    """A list of places as runs of one step: -1, 0 or 1."""
    found: list[Piece] = []
    for at, place in enumerate(places):
        if found:
            start, length, first, step = found[-1]
            own = place - places[at - 1]
            if abs(own) <= 1 and (length == 1 or own == step):
                found[-1] = (start, length + 1, first, own)
                continue
        found.append((at, 1, place, 1))
    return found


def _as_strided(call: NodeCall) -> Moves:
    a = call.attrs
    size, stride, offset = ([int(v) for v in a["size"]], [int(v) for v in a["stride"]], int(a["offset"]))
    x = Place("in0", tuple(size), tuple(stride), offset)
    if call.outputs[0].dtype is DType.COMPLEX128:
        x = Place("in0", (*size, 2), (*(s * 2 for s in stride), 1), 2 * offset)
    yield Move(_out(call), x)


def _strided_inside(call: NodeCall) -> bool:
    size = [int(v) for v in call.attrs["size"]]
    if 0 in size:
        return True
    reach = [(n - 1) * int(s) for n, s in zip(size, call.attrs["stride"], strict=True)]
    low, high = (int(call.attrs["offset"]) + sum(f(r, 0) for r in reach) for f in (min, max))
    return low >= 0 and high < math.prod(static(call.tensor(0).spec))


def _diagonal(call: NodeCall) -> Moves:
    a, b, offset = call.attrs["dim1"], call.attrs["dim2"], call.attrs["offset"]
    x, y = _in(call), _out(call)
    place = x.cut(a, max(-offset, 0), 1).cut(b, max(offset, 0), 1)
    rest = [d for d in range(len(x.shape)) if d not in (a, b)]
    lead = call.outputs[0].rank - 1
    keep = place.permuted([*rest, a, b])
    shape = (*(x.shape[d] for d in rest),)
    strides = tuple(x.strides[d] for d in rest)
    length, step = y.shape[lead], x.strides[a] + x.strides[b]
    yield Move(
        y,
        Place(
            "in0",
            (*shape[:lead], length, *shape[lead:]),
            (*strides[:lead], step, *strides[lead:]),
            keep.offset,
        ),
    )


def _blocks(call: NodeCall, whole: Place, blocked: Place) -> tuple[Place, Place]:
    """[..., C, H*b, W*b] and [..., C*b*b, H, W] as boxes of the same order: ..., C, b, b, H, W."""
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
    space, deep = _blocks(call, _out(call), _in(call))
    yield Move(space, deep)


def _space_to_depth(call: NodeCall) -> Moves:
    space, deep = _blocks(call, _in(call), _out(call))
    yield Move(deep, space)


@dataclass(frozen=True, slots=True)
class _Row:
    moves: Callable[[NodeCall], Moves]
    dense: tuple[str, ...] = ()
    """Which sides must be dense."""
    in_place: bool = False


_ROWS: dict[str, _Row] = {
    "clone": _Row(_clone),
    "bitcast": _Row(_clone),
    "view": _Row(_view),
    "squeeze": _Row(_view),
    "unsqueeze": _Row(_view),
    "permute": _Row(_permute),
    "expand": _Row(_expand),
    "cat": _Row(_cat),
    "split": _Row(_split),
    "slice": _Row(_slice),
    "select": _Row(_select),
    "slice_scatter": _Row(_slice_scatter, in_place=True),
    "select_scatter": _Row(_select_scatter, in_place=True),
    "flip": _Row(_flip),
    "roll": _Row(_roll),
    "repeat": _Row(_repeat),
    "pad": _Row(_pad),
    "as_strided": _Row(_as_strided, dense=("in",)),
    "diagonal": _Row(_diagonal),
    "depth_to_space": _Row(_depth_to_space),
    "space_to_depth": _Row(_space_to_depth),
}


class Movement:
    """Strided copies."""

    name = "movement/strided"
    ops = tuple(_ROWS)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every type that has bytes of its own, every layout (views: one side dense)."""
        refused = too_small(call.outputs[0], *(t.spec for t in call.tensors))
        if refused is not None:
            return refused
        x, y = call.tensor(0).spec, call.outputs[0]
        if call.op in ("view", "squeeze", "unsqueeze") and not (x.is_dense or y.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a view between two layouts, neither of them dense")
        if call.op in ("view", "squeeze", "unsqueeze") and y.layout is not None and x.is_dense and y.is_dense:
            return Support.yes()
        if call.op == "as_strided" and not (x.is_dense and _strided_inside(call)):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "as_strided reads within dense operands only")
        if call.op == "pad" and y.dtype is DType.COMPLEX128 and call.attrs["value"]:
            return Support.no(Reason.DTYPE_UNSUPPORTED, "complex128 is padded with zeros only")
        if call.op == "roll" and not call.attrs["dims"] and not (x.is_dense and y.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a roll of the flattened whole needs dense values")
        boxes = sum(1 for _ in itertools.islice(_ROWS[call.op].moves(call), _MOST + 1))
        if boxes > _MOST:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"needs more than {_MOST} boxes of elements")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage; where the result may lie in the operand's memory, what stays is not moved then."""
        row = _ROWS[call.op]
        outs = range(len(call.outputs))
        args = tuple(operand_ref("in", i) for i in range(len(call.inputs)) if call.inputs[i] is not None)
        args += tuple(operand_ref("out", i) for i in outs)
        moves = [m for m in row.moves(call) if not m.empty]
        dtype = call.outputs[0].dtype
        if not row.in_place:
            return Lowered((moves_stage(call.op, moves, args, dtype, target),))
        stays = [m for m in moves if m.source is not None and m.source.arg == "in0"]
        new = [m for m in moves if m not in stays]
        stages = [
            moves_stage(stem, some, args, dtype, target, copies)
            for stem, some, copies in (("stays", stays, True), (call.op, new, False))
            if some
        ]
        if not stages:
            stages = [moves_stage(call.op, [], args, dtype, target)]
        return Lowered(tuple(stages), in_place={0: 0})


KERNELS = (Movement(),)
