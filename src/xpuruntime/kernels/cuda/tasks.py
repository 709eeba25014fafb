"""Portable kernels (``portable``) on CUDA devices, one thread per task.

They are simple rather than fast: models spend little time in these ops. Scratch memory of a task is a slice of a temp buffer.
"""

from __future__ import annotations

from dataclasses import replace

from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable import creation, dense, embedding, narrow, norm, products, quant, rearrange, triangular
from ..portable.lines import distance, scan, signal, sort
from ..portable.tasks import PortableKernel, TaskEnvironment, TaskStage
from ..portable.windows import conv, pool_regions, resize
from ..spec.movement.elements import STATUS
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage

__all__ = ["KERNELS", "ThreadedTasks"]

_THREADS = 128
_FEW_THREADS = 32
"""Threads of a block with many tasks (``_THREADS``), and with fewer than ``_MIN_TASKS``."""
_MIN_TASKS = 16384
"""Tasks from which on blocks are full; fewer tasks are spread over more, smaller blocks."""


class ThreadedTasks(Kernel):
    """A portable kernel with a thread per task."""

    def __init__(self, kernel: PortableKernel) -> None:
        self.name, self.ops, self._kernel = kernel.name, kernel.ops, kernel

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return the portable kernel's answer."""
        return self._kernel.supports(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        stage = self._kernel.task_stage(call, TaskEnvironment(True))
        scratch = -(-stage.scratch_bytes // 64) * 64
        temps = (scratch * max(stage.tasks, 1),) if scratch else ()
        return LoweredCall((_launched(stage, scratch),), temps=temps, accumulates=stage.accumulates)


def _launched(stage: TaskStage, scratch: int) -> Stage:
    """Return a stage whose threads each run one task, with ``scratch`` bytes of ``temp0`` each."""
    threads = _THREADS if stage.tasks >= _MIN_TASKS else _FEW_THREADS
    arguments = [
        Argument(a, f"p{i}", "char", a.startswith(("out", "temp"))) for i, a in enumerate(stage.args)
    ]
    names = ", ".join(f"(void *){a.name}" for a in arguments)
    if scratch:
        arguments.append(Argument("temp0", "temp0", "char", True))
    lines = [
        f"void *const args[] = {{{names}}};",
        f"const int64_t begin = (int64_t)blockIdx.x * {threads} + threadIdx.x, end = begin + 1;",
        f"if (begin >= {stage.tasks}) return;",
        f"void *const scratch = {f'temp0 + begin * {scratch}' if scratch else 'nullptr'};",
        *stage.lines,
    ]
    launch = LaunchConfig.flat(blocks_for(stage.tasks, threads), threads)
    launched = cuda_stage(
        stage.stem, stage.about or stage.stem, arguments, lines, launch,
        parts=stage.parts | {"movement", "math"}, flops=stage.flops, bytes=stage.bytes,
    )  # fmt: skip
    return replace(launched, scratch_bytes=STATUS if stage.reports else 0)


KERNELS = tuple(
    ThreadedTasks(kernel)
    for kernel in (
        *narrow.KERNELS,
        *rearrange.KERNELS,
        *scan.KERNELS,
        *sort.KERNELS,
        *distance.KERNELS,
        *resize.KERNELS,
        *creation.KERNELS,
        *quant.KERNELS,
        *signal.KERNELS,
        *products.KERNELS,
        *dense.KERNELS,
        *triangular.KERNELS,
        *pool_regions.KERNELS,
        *conv.KERNELS,
        *embedding.KERNELS,
        *norm.KERNELS,
    )
)
