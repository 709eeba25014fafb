"""Rotary position embedding: supported nodes, strides of the angle tables, and updates of the KV cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ...codegen.loops.boxes import Box, Move
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from .product import sizes
from .support import FLOATS, INTEGERS, first, refuse
from .writer import MovesWriter

__all__ = ["PLACES", "POSITIONS", "RopeAppend", "cache_copies", "over_rows", "why_not"]


def over_rows(shape: Sequence[int], steps: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the strides of a [length] or [batch, length] tensor over all dims of x but the last; the head dim is between the two."""
    strides = [0 if d == 1 else s for d, s in zip(shape, steps, strict=True)]
    if len(strides) == 2 and rank == 3:
        strides.insert(1, 0)
    return (*[0] * (rank - len(strides)), *strides)


def why_not(call: NodeCall) -> Support | None:
    """Return the refusal of values that are no floats, or positions that are no integers."""

    def kinds(*positions: int, among: frozenset[DType]) -> Support | None:
        wrong = [call.tensor(p).spec.dtype for p in positions if call.optional(p) is not None]
        wrong = [d for d in wrong if d not in among]
        return refuse(wrong[0], "rope") if wrong else None

    return first(kinds(0, 1, 2, among=FLOATS), kinds(3, among=INTEGERS))


_KEYS, _VALUES, PLACES, POSITIONS = 5, 6, 7, 8
"""Operand positions: both caches, the cache rows to write, the rows of the angle tables."""


def cache_copies(call: NodeCall, target: CodegenTarget, write_moves: MovesWriter) -> list[Stage]:
    """Return the stages that copy both caches to the results. The compiler drops them where the caches are updated in place."""
    stages = []
    for operand, result in ((_KEYS, 1), (_VALUES, 2)):
        cache = Box.of(f"out{result}", call.outputs[result])
        move = Move(cache, Box.of(f"in{operand}", call.tensor(operand).spec))
        args = (f"in{operand}", f"out{result}")
        stages.append(write_moves("stays", [move], args, call.outputs[result].dtype, target, copies=True))
    return stages


class RopeAppend(Kernel):
    """Base class of ``rope_append``, which writes only new rows. The caches are updated in place, or copied first if they must not change."""

    name: str = "rope/generated"
    ops: tuple[str, ...] = ("rope_append",)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    @abstractmethod
    def rotate_stage(self, call: NodeCall, target: CodegenTarget) -> Stage:
        """Return the stage that rotates, and writes to the caches."""

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats whose last dim is contiguous."""
        dtype = call.outputs[0].dtype
        if dtype not in FLOATS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"rope_append in {dtype.value} is not supported")
        specs = [*(call.tensor(i).spec for i in range(7)), *call.outputs]
        if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the last dim must be contiguous")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return three stages: two copies of the caches, dropped if these are updated in place, then the rotation."""
        stages = cache_copies(call, target, self._write_moves)
        if all(sizes(call.outputs[0])):
            stages.append(self.rotate_stage(call, target))
        return LoweredCall(tuple(stages), in_place={1: _KEYS, 2: _VALUES})
