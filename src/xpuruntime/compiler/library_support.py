"""Checks that this machine's libraries compute the calls that are chosen for them."""

from __future__ import annotations

from ..codegen.target import CodegenTarget
from ..kernels.kernel import LoweredCall, NodeCall
from ..program.program import KernelCall
from ..types import DType, TensorSpec

__all__ = ["declined"]


def declined(target: CodegenTarget, kernel: str, call: NodeCall, lowered: LoweredCall) -> str:
    """Return why a library declines a stage of a node; empty if none does, or if the target is not this machine."""
    if target.libraries is None:
        return ""
    for stage in lowered.stages:
        if not stage.library:
            continue
        # The query assumes aligned arguments. If the memory plan places one at an odd offset, loading may still decline.
        kernel_call = KernelCall(
            kernel,
            stage.stem,
            stage.args[:-1],
            stage.args[-1:],
            tasks=stage.tasks,
            grain=stage.grain,
            scratch_bytes=stage.scratch_bytes,
            library=stage.library,
            options=stage.options,
        )
        why = target.libraries.declines(kernel_call, [_spec(n, call, lowered) for n in stage.args])
        if why:
            return why
    return ""


def _spec(name: str, call: NodeCall, lowered: LoweredCall) -> TensorSpec:
    """Return the spec of a stage's argument."""
    if name in lowered.extra_weights:
        return lowered.extra_weights[name][1].spec
    if name == "counters":
        return TensorSpec((-(-lowered.counters // 4),), DType.INT32)
    kind, at = name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])
    if kind == "temp":
        return TensorSpec((lowered.temps[at],), DType.UINT8)
    if kind == "out":
        return call.outputs[at]
    packed = lowered.weights.get(at)
    return call.tensor(at).spec if packed is None else packed.spec
