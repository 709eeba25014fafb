"""Moves that divide dims into pieces: roll, repeat, and pad in every mode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ....codegen.loops.boxes import Box, Move
from ....codegen.loops.combine import bits_of
from ....types import DType
from ...kernel import NodeCall, operand_ref
from .elements import static

__all__ = [
    "Moves",
    "Piece",
    "operand_box",
    "pad_moves",
    "pieced",
    "repeat_moves",
    "result_box",
    "roll_moves",
    "runs",
]

Moves: TypeAlias = "Iterator[Move]"


# ── ops: node -> moves ──


def operand_box(call: NodeCall, position: int = 0) -> Box:
    """Return an operand's box."""
    return Box.of(operand_ref("in", position), call.tensor(position).spec)


def result_box(call: NodeCall, position: int = 0) -> Box:
    """Return a result's box."""
    return Box.of(operand_ref("out", position), call.outputs[position])


Piece: TypeAlias = tuple[int, int, int, int]
"""Along one dim: start in the result, length, start in the operand, step in the operand."""


def pieced(target: Box, source: Box, pieces: Sequence[Sequence[Piece]]) -> Moves:
    """Return a move per combination of pieces, one piece of each dim."""
    for combination in itertools.product(*pieces):
        y, x = target, source
        for dim, (to, length, start, step) in enumerate(combination):
            y, x = y.cut(dim, to, length), x.cut(dim, start, length, step)
        yield Move(y, x)


def roll_moves(call: NodeCall) -> Moves:
    """Return the moves of a roll: two pieces per rolled dim."""
    shape, shifts, dims = static(call.outputs[0]), call.attrs["shifts"], call.attrs["dims"]
    total = math.prod(shape)
    if not dims or not shape:  # over the flattened tensor
        halves = 2 if call.outputs[0].dtype is DType.COMPLEX128 else 1
        x, y = (Box.dense(arg, (total * halves,)) for arg in ("in0", "out0"))
        shape, by = (total * halves,), {0: sum(shifts) * halves if shape else 0}
    else:
        x, y, by = operand_box(call), result_box(call), dict.fromkeys(dims, 0)
        for dim, shift in zip(dims, shifts, strict=True):
            by[dim] += shift
    pieces = []
    for dim, n in enumerate(shape):
        shift = by.get(dim, 0) % n if n else 0
        pieces.append([p for p in ((shift, n - shift, 0, 1), (0, shift, n - shift, 1)) if p[1]])
    yield from pieced(y, x, pieces)


def repeat_moves(call: NodeCall) -> Moves:
    """Return one move. The operand has an extra dim of stride 0 per repeated dim."""
    repeats = call.attrs["repeats"]
    x, y = operand_box(call), result_box(call)
    for _ in range(len(repeats) - call.tensor(0).spec.rank):
        x = x.inserted(0)
    for i, times in enumerate(repeats):
        dim = 2 * i
        if 0 in y.shape:
            return
        y = y.split(dim, x.shape[dim])
        x = x.inserted(dim, int(times))
    yield Move(y, x)


def pad_moves(call: NodeCall) -> Moves:
    """Return the moves of padding.

    Constant mode fills a slab per side, then copies the middle. Other modes are pieces with a step of 1, -1 or 0.
    """
    x, y, mode = operand_box(call), result_box(call), call.attrs["mode"]
    pads, n = [int(p) for p in call.attrs["pads"]], call.outputs[0].rank
    begins, ends = pads[:n], pads[n:]
    for d in range(n):  # negative padding crops
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
    yield from pieced(y, x, pieces)


def _sources(size: int, begin: int, end: int, mode: str) -> list[Piece]:
    """Return the positions that a padded dim reads, as pieces."""
    from ....ir.interp.movement import _source

    return runs([int(v) for v in _source(size, begin, end, mode)])


def runs(positions: Sequence[int]) -> list[Piece]:
    """Return a list of positions as runs of constant step: -1, 0 or 1."""
    pieces: list[Piece] = []
    for at, position in enumerate(positions):
        if pieces:
            start, length, first, step = pieces[-1]
            delta = position - positions[at - 1]
            if abs(delta) <= 1 and (length == 1 or delta == step):
                pieces[-1] = (start, length + 1, first, delta)
                continue
        pieces.append((at, 1, position, 1))
    return pieces
