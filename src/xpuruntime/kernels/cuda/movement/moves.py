"""Data movement (``codegen/loops/moves``) on CUDA devices: strided copies, gathers and scatters.

A thread copies a pack of up to 16 contiguous bytes. Transposes use tiles in shared memory, so that both loads and stores are
coalesced. All of these kernels are bandwidth-bound.

In a scatter, the last of several values for one position wins, in row-major order. If the positions increase, they are distinct, and
the values are written in parallel. Otherwise one thread writes all values that may collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....codegen.loops.boxes import Move, bits_type, element_bytes, int_type
from ....codegen.loops.moves import carried
from ....codegen.loops.nest import indented
from ....codegen.target import CodegenTarget
from ....types import DType
from ...kernel import Stage
from ..launch import Argument, LaunchConfig, cuda_stage
from .text import move_lines
from .tiling import MoveTiling

__all__ = ["cuda_moves_stage"]

STATUS = 64
"""Bytes of the buffer in which a kernel reports an index out of range."""


def cuda_moves_stage(
    stem: str,
    moves: Sequence[Move],
    args: tuple[str, ...],
    dtype: DType,
    target: CodegenTarget,
    copies: bool = False,
    ctype: str = "",
) -> Stage:
    """Return one stage for moves that are independent of each other; each move gets its own range of blocks."""
    threads, tile = target.config.max_threadgroup_1d, target.config.max_threadgroup_2d
    kind = ctype or bits_type(dtype)
    blocks, lines = 0, list[str]()
    nonempty = [m for m in moves if not m.empty]
    for move in nonempty:
        tiling = MoveTiling(move, element_bytes(dtype), threads, tile, is_only_move=len(nonempty) == 1)
        body = [f"// {move.about}"] if move.about else []
        body += move_lines(tiling, kind, blocks)
        first, blocks = blocks, blocks + tiling.blocks
        if len(nonempty) > 1:
            body = [f"if (blockIdx.x >= {first} && blockIdx.x < {blocks}) {{", *indented(body), "}"]
        lines += body
        threads = tiling.threads
    size = carried(nonempty) * element_bytes(dtype)
    stage = cuda_stage(
        stem, f"{stem}: {carried(nonempty)} elements of {dtype.value}", _arguments(nonempty, args, kind), lines,
        LaunchConfig.flat(blocks, threads), parts=frozenset({"movement"}), copies=copies, bytes=2 * size,
    )  # fmt: skip
    return stage if not any(m.lookups for m in nonempty) else _reporting(stage)


def _reporting(stage: Stage) -> Stage:
    """Return a stage that may report an index out of range."""
    return replace(stage, scratch_bytes=STATUS)


def _arguments(moves: Sequence[Move], args: Sequence[str], kind: str) -> list[Argument]:
    index = {x.arg: int_type(x.dtype) for m in moves for x in m.lookups}
    return [Argument(a, a, index.get(a, kind), a.startswith("out")) for a in args]
