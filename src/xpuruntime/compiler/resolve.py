"""``resolve_target``: the CodegenTarget for a target that a user names."""

from __future__ import annotations

from ..codegen.cpp.target import CppTarget, cpu_target
from ..codegen.cuda.target import cuda_target, sized_target
from ..codegen.local_libraries import local_libraries
from ..codegen.target import CodegenTarget
from ..errors import BuildError
from ..targets import TargetConfig

__all__ = ["resolve_target"]


def resolve_target(target: str | TargetConfig | CodegenTarget) -> CodegenTarget:
    """Return the code generator of a target. Raises BuildError, DeviceUnavailable.

    target: ``cpu``, ``cpu:x86-64-v3``, ``cuda``, ``cuda:1``, ``cuda:sm_90``, ``cuda:h200``, a TargetConfig (sizes of the device that it
            names), or a CodegenTarget, which is returned unchanged.
    A target without a level is this machine's own device. The compiler then asks this machine's libraries what they support.
    """
    if isinstance(target, CodegenTarget):
        return target
    if isinstance(target, TargetConfig):
        return _sized(target)
    if isinstance(target, str) and target.partition(":")[0] == "cpu":
        return _with_libraries(cpu_target(target), "cpu") if target == "cpu" else cpu_target(target)
    if isinstance(target, str) and target.partition(":")[0] == "cuda":
        _, _, device = target.partition(":")
        is_local = not device or device.isdecimal()
        return (
            _with_libraries(cuda_target(target), "cuda", int(device or 0))
            if is_local
            else cuda_target(target)
        )
    raise BuildError(
        "compile",
        "no code generator for this target",
        got=repr(target),
        do="Name cpu or cpu:LEVEL (x86-64-v2, x86-64-v3, x86-64-v4 ...), cuda or cuda:LEVEL (sm_80, sm_90 ...), or pass a CodegenTarget.",
    )


def _sized(config: TargetConfig) -> CodegenTarget:
    """Return a processor or GPU with these sizes. Raises BuildError for a kind of device that no code is generated for."""
    if config.kind == "cpu":
        return CppTarget(cpu_target("cpu").isa, config)
    if config.kind == "cuda":
        return sized_target(config)
    what = (
        f"there is no code generator for {config.kind}" if config.kind else "its name has no kind of device"
    )
    raise BuildError(
        "compile",
        f"cannot generate code for this TargetConfig: {what}",
        got=f"TargetConfig {config.name!r}",
        do="Begin its name with cpu or cuda, or pass a CodegenTarget for the device (docs/how-to/porting-to-a-new-device.md).",
    )


def _with_libraries(target: CodegenTarget, kind: str, index: int = 0) -> CodegenTarget:
    """Attach this machine's libraries to a target."""
    target.libraries = local_libraries(kind, index)
    target.here = True
    return target
