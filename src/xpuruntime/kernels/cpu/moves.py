"""Data movement on CPUs: a list of moves (``codegen/loops/moves``) as one stage."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.loops.boxes import Move, bits_type, element_bytes
from ...codegen.loops.moves import carried, emit
from ...codegen.target import CodegenTarget
from ...types import DType
from ..kernel import Stage
from ..spec.movement.elements import STATUS
from .abi import function

__all__ = ["moves_stage"]


def moves_stage(
    stem: str,
    moves: Sequence[Move],
    args: tuple[str, ...],
    dtype: DType,
    target: CodegenTarget,
    copies: bool = False,
    ctype: str = "",
) -> Stage:
    """Return one stage that runs all moves (``spec.writer.MovesWriter``)."""
    config = target.config
    body, tasks = emit(
        moves, args, ctype or bits_type(dtype), config.max_threadgroup_1d, config.max_threadgroup_2d
    )
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    size = carried(moves) * element_bytes(dtype)
    return Stage(
        stem=stem,
        source=function(lines),
        args=args,
        tasks=max(tasks, 1),
        grain=1,
        scratch_bytes=STATUS if any(m.lookups for m in moves) else 0,
        parts=frozenset({"movement"}),
        bytes=2 * size,
        copies=copies,
    )
