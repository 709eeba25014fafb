"""Moves (codegen/loops/moves) on CUDA devices: a thread carries a pack of contiguous elements.

Transposes use tiles of shared memory, so that reads and writes are both coalesced.

Where tensors name the target positions, the last of several values for one position in row-major order wins. Increasing positions are
distinct, so their values are written in parallel; otherwise one thread writes all that could conflict.
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
from .share import MoveShare
from .text import move_lines

__all__ = ["cuda_moves_stage"]

STATUS = 64


def cuda_moves_stage(
    stem: str,
    moves: Sequence[Move],
    args: tuple[str, ...],
    dtype: DType,
    target: CodegenTarget,
    copies: bool = False,
    ctype: str = "",
) -> Stage:
    """Return one stage that makes all moves, which do not depend on each other."""
    threads, tile = target.config.max_threadgroup_1d, target.config.max_threadgroup_2d
    kind = ctype or bits_type(dtype)
    blocks, lines = 0, list[str]()
    kept = [m for m in moves if not m.empty]
    for move in kept:
        share = MoveShare(move, element_bytes(dtype), threads, tile, alone=len(kept) == 1)
        body = [f"// {move.about}"] if move.about else []
        body += move_lines(share, kind, blocks)
        first, blocks = blocks, blocks + share.blocks
        if len(kept) > 1:
            body = [f"if (blockIdx.x >= {first} && blockIdx.x < {blocks}) {{", *indented(body), "}"]
        lines += body
        threads = share.threads
    total = carried(kept) * element_bytes(dtype)
    stage = cuda_stage(
        stem, f"{stem}: {carried(kept)} elements of {dtype.value}", _arguments(kept, args, kind), lines,
        LaunchConfig.flat(blocks, threads), parts=frozenset({"movement"}), copies=copies, bytes=2 * total,
    )  # fmt: skip
    return stage if not any(m.lookups for m in kept) else _reporting(stage)


def _reporting(stage: Stage) -> Stage:
    """Return a stage that may report an index out of range."""
    return replace(stage, scratch_bytes=STATUS)


def _arguments(moves: Sequence[Move], args: Sequence[str], kind: str) -> list[Argument]:
    index = {x.arg: int_type(x.dtype) for m in moves for x in m.lookups}
    return [Argument(a, a, index.get(a, kind), a.startswith("out")) for a in args]
