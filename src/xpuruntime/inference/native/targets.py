"""Devices that native programs run on, and the compilation target of each."""

from __future__ import annotations

from ...codegen.cpp.isa import own_level
from ...codegen.cuda.sm import LEVELS, sm_level
from ...decisions import Reason, Support
from ...errors import DeviceUnavailable
from ...protocols import DeviceFact
from ...runtime.device import CudaDevice, cpu, cuda
from ...targets import DeviceId

__all__ = ["device_facts", "own_target", "reaches", "target_of"]


def device_facts() -> tuple[DeviceFact, ...]:
    """Return the host processor and every CUDA device that the driver reports."""
    facts = cpu()
    level = own_level()
    host = {"target": f"cpu:{level.name}" if level else _cpu_target(), "cores": facts.usable_cores}
    return (
        DeviceFact(DeviceId("cpu"), facts.model, Support.yes(), host),
        *(DeviceFact(DeviceId("cuda", d.index), d.name, _drives(d), _described(d)) for d in cuda().devices),
    )


def reaches(device: DeviceId) -> Support:
    """Return whether native programs run on a device of this machine."""
    if device.kind in ("cpu", "auto"):
        if not device.index:
            return Support.yes()
        return Support.no(
            Reason.NO_DEVICE,
            f"there is one {device.kind} device, not {device}",
            do=f"Use device='{device.kind}'.",
        )
    if device.kind != "cuda":
        return Support.no(
            Reason.DEVICE_MISMATCH,
            f"the native engine drives cpu and cuda in this release, not {device}",
            do="Use device='cpu' or device='cuda:0', or another engine.",
        )
    report = cuda()
    named = next((d for d in report.devices if d.index == device.index), None)
    if named is None:
        count = len(report.devices)
        why = report.status.message or f"this machine has {count} CUDA devices, counted from 0"
        return Support.no(
            Reason.NO_DEVICE,
            f"there is no {device}: {why}",
            do=report.status.advice
            or (
                f"Use cuda:0 to cuda:{count - 1}."
                if count > 1
                else "Use device='cuda:0'."
                if count
                else "Use device='cpu'."
            ),
        )
    return _drives(named)


def target_of(device: DeviceId) -> str:
    """Return the compilation target of a device, for example ``cpu:x86-64-v4`` or ``cuda:sm_90``. Raises DeviceUnavailable."""
    support = reaches(device)
    if not support:
        raise DeviceUnavailable(
            f"device {device}", "native programs cannot run there", got=support.reason, do=support.do
        )
    if device.kind != "cuda":
        return _cpu_target()
    gpu = next(d for d in cuda().devices if d.index == device.index)
    level = sm_level(gpu.compute_capability)
    assert level is not None  # checked by reaches
    return f"cuda:{level.name}"


def _cpu_target() -> str:
    """Return the target of this machine's processor. Raise DeviceUnavailable."""
    from ...codegen.cpp.target import (
        cpu_target,  # imported here, because listing devices needs no code generator
    )

    return cpu_target().name


def own_target(device: DeviceId) -> str:
    """Return the target for compiling on this device: a GPU by its name, so that its libraries can be queried. Raises as ``target_of``."""
    target = target_of(device)
    return str(device) if device.kind == "cuda" else target


def _drives(device: CudaDevice) -> Support:
    if sm_level(device.compute_capability) is not None:
        return Support.yes()
    return Support.no(
        Reason.DEVICE_REFUSED,
        f"no code is generated for {device.name}, compute capability {'.'.join(map(str, device.compute_capability))}",
        do=f"Devices of {', '.join(LEVELS)} and their families are driven.",
    )


def _described(device: CudaDevice) -> dict[str, object]:
    return {"target": device.target, "memory_bytes": device.memory_bytes}
