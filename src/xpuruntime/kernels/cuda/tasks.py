"""The CPU's kernels of single elements and lines on CUDA devices: a thread per task. Right first; models spend little time in them.

Their texts use the prelude's scalars only, which both preludes have. What a task needs as scratch lies in a temp, a piece per thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...codegen.nest import indented
from ...codegen.target import CodegenTarget
from ...decisions import Support
from .. import (
    conv_plain,
    creation,
    distance,
    embedding,
    narrow,
    norm,
    places,
    pool_places,
    products,
    quant,
    resize,
    scan,
    signal,
    sort,
)
from ..kernel import Kernel, Lowered, NodeCall, Stage
from .launch import Argument, Launch, blocks_for, cuda_stage

__all__ = ["KERNELS", "Tasks"]

_THREADS = 128
_FEW = 32
_BUSY = 16384
_FUNCTION = re.compile(r'extern "C" void KERNEL\([^)]*\) \{\n', re.DOTALL)


class Tasks:
    """A row of the CPU's catalogue whose text is of scalars."""

    def __init__(self, kernel: Kernel) -> None:
        self.name, self.ops, self._kernel = kernel.name, kernel.ops, kernel

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """What it computes on a CPU."""
        return self._kernel.supports(call, target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """Its stages, a thread per task."""
        lowered = self._kernel.lower(call, target)
        temps, stages = list(lowered.temps), []
        for stage in lowered.stages:
            if target.kind != "cuda" or stage.library or "block" in stage.options:
                stages.append(stage)  # written for CUDA already
                continue
            scratch = -(-stage.scratch_bytes // 64) * 64 if "scratch" in _plain(stage) else 0
            if scratch:
                temps.append(scratch * max(stage.tasks, 1))
            stages.append(_launched(stage, scratch, f"temp{len(temps) - 1}"))
        return replace(lowered, stages=tuple(stages), temps=tuple(temps))


def _plain(stage: Stage) -> str:
    """The text without the calls that only pass scratch on to where nothing reads it."""
    body = stage.source[_FUNCTION.search(stage.source).end() :]  # type: ignore[union-attr]
    return re.sub(r", scratch\)|fail\(scratch", "", body)


def _launched(stage: Stage, scratch: int, temp: str) -> Stage:
    """A stage of the CPU's ABI as one of CUDA's."""
    found = _FUNCTION.search(stage.source)
    assert found is not None
    about = stage.source[: found.start()].strip().removeprefix("// ").partition("\n")[0] or stage.stem
    body = stage.source[found.end() : stage.source.rindex("}")].rstrip("\n").split("\n")
    threads = _THREADS if stage.tasks >= _BUSY else _FEW
    arguments = [
        Argument(a, f"p{i}", "char", a.startswith(("out", "temp"))) for i, a in enumerate(stage.args)
    ]
    names = ", ".join(f"(void *){a.name}" for a in arguments)
    if scratch:
        arguments.append(Argument(temp, temp, "char", True))
    lines = [
        f"void *const args[] = {{{names}}};",
        f"const int64_t begin = (int64_t)blockIdx.x * {threads} + threadIdx.x, end = begin + 1;",
        f"if (begin >= {stage.tasks}) return;",
        f"void *const scratch = {f'{temp} + begin * {scratch}' if scratch else 'nullptr'};",
        *indented([line.removeprefix("  ") for line in body], 0),
    ]
    launch = Launch.flat(blocks_for(stage.tasks, threads), threads)
    made = cuda_stage(
        stage.stem, about, arguments, lines, launch, parts=stage.parts | {"movement", "math"}, params=stage.params,
        copies=stage.copies, flops=stage.flops, bytes=stage.bytes,
    )  # fmt: skip
    return replace(made, scratch_bytes=64 if "fail(" in stage.source or "index_in" in stage.source else 0)


# Rows that are written for a CPU's vectors, or that have a kernel of their own here.
_OWN = frozenset(
    {"create/fill", "embedding/generated", "matmul/generated", "norm/generated", "attention/flash"}
)


def _rows() -> Iterator[Any]:
    files = (narrow, places, scan, sort, distance, resize, creation, quant, signal, products, pool_places)
    for file in files:
        yield from (k for k in getattr(file, "KERNELS", ()) if k.name not in _OWN)
    yield from (pool_places.Places(), pool_places.Regions(), conv_plain.Naive(), conv_plain.Deformed())
    yield from (k for k in embedding.KERNELS if "embedding_bag" in k.ops)
    yield from (k for k in norm.KERNELS if "local_response_norm" in k.ops)


KERNELS: tuple[Kernel, ...] = tuple(Tasks(k) for k in _rows())
