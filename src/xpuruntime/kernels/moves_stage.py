"""Moves of elements as a stage: the function around their text, and what fits into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..codegen.boxes import Move, bits_type, element_bytes
from ..codegen.moves import carried, emit
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..types import DType, TensorSpec
from .cuda.moves import cuda_moves_stage
from .kernel import Stage

__all__ = ["STATUS", "bits_of", "function", "moves_stage", "static", "too_small"]


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
