"""Portable kernels (``portable``) on CPUs: a thread loops over a range of tasks."""

from __future__ import annotations

import math

from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable import creation, dense, embedding, narrow, norm, products, quant, rearrange, triangular
from ..portable.lines import distance, scan, signal, sort
from ..portable.tasks import PortableKernel, TaskEnvironment, TaskStage
from ..portable.windows import pool_regions, resize
from ..spec.movement.elements import STATUS
from .abi import function, isa_of

__all__ = ["KERNELS", "LoopedTasks"]


class LoopedTasks(Kernel):
    """A portable kernel in a loop over tasks."""

    def __init__(self, kernel: PortableKernel) -> None:
        self.name, self.ops, self._kernel = kernel.name, kernel.ops, kernel

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return the portable kernel's answer."""
        return self._kernel.supports(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        stage = self._kernel.task_stage(call, TaskEnvironment(False, isa_of(target).vector_bytes))
        return LoweredCall((_looped(stage, target),), accumulates=stage.accumulates)


def _looped(stage: TaskStage, target: CodegenTarget) -> Stage:
    min_elements = target.config.max_threadgroup_1d
    return Stage(
        stem=stage.stem,
        source=function("\n".join(f"  {line}" for line in stage.lines), stage.about),
        args=stage.args,
        tasks=stage.tasks,
        grain=stage.grain or max(1, math.ceil(min_elements / max(stage.per, 1))),
        scratch_bytes=max(stage.scratch_bytes, STATUS if stage.reports else 0),
        parts=stage.parts,
        flops=stage.flops,
        bytes=stage.bytes,
    )


KERNELS = tuple(
    LoopedTasks(kernel)
    for kernel in (
        *narrow.KERNELS,
        *norm.KERNELS,
        *products.KERNELS,
        *dense.KERNELS,
        *triangular.KERNELS,
        *embedding.KERNELS,
        *pool_regions.KERNELS,
        *rearrange.KERNELS,
        *scan.KERNELS,
        *sort.KERNELS,
        *distance.KERNELS,
        *resize.KERNELS,
        *creation.KERNELS,
        *quant.KERNELS,
        *signal.KERNELS,
    )
)
