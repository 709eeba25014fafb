"""Where native programs run: the devices of this machine, and the target that each one's code is generated for."""

from __future__ import annotations

from ...codegen.isa import own_level
from ...codegen.sm import LEVELS, sm_level
from ...decisions import Reason, Support
from ...errors import DeviceUnavailable
from ...protocols import DeviceFact
from ...runtime.device import CudaDevice, cpu, cuda
from ...targets import DeviceId

__all__ = ["device_facts", "own_target", "reaches", "target_of"]


def device_facts() -> tuple[DeviceFact, ...]:
    """The host processor, then every CUDA device that its driver shows."""
    facts = cpu()
    level = own_level()
    host = {"target": f"cpu:{level.name}" if level else _cpu_target(), "cores": facts.usable_cores}
    return (
        DeviceFact(DeviceId("cpu"), facts.model, Support.yes(), host),
        *(DeviceFact(DeviceId("cuda", d.index), d.name, _drives(d), _described(d)) for d in cuda().devices),
    )


def reaches(device: DeviceId) -> Support:
    """Whether native programs run on a device of this machine."""
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
    found = next((d for d in report.devices if d.index == device.index), None)
    if found is None:
        why = report.status.message or f"the driver shows {len(report.devices)} devices, counted from 0"
        return Support.no(
            Reason.NO_DEVICE,
            f"there is no {device}: {why}",
            do=report.status.advice or "Use device='cpu'.",
        )
    return _drives(found)


def target_of(device: DeviceId) -> str:
    """``cpu:x86-64-v4``, ``cuda:sm_90``: what code for a device of this machine is generated for. Raises DeviceUnavailable."""
    support = reaches(device)
    if not support:
        raise DeviceUnavailable(
            f"device {device}", "native programs cannot run there", got=support.reason, do=support.do
        )
    if device.kind != "cuda":
        return _cpu_target()
    found = next(d for d in cuda().devices if d.index == device.index)
    level = sm_level(found.compute_capability)
    assert level is not None  # as reaches says
    return f"cuda:{level.name}"


def _cpu_target() -> str:
    """Return the target of this machine's processor. Raise DeviceUnavailable."""
    from ...codegen.cpp import cpu_target  # in a function: a list of devices needs no code generator

    return cpu_target().name


def own_target(device: DeviceId) -> str:
    """What to compile for where the program runs on this very device: of a GPU its name, so that its libraries are asked. Raises as ``target_of``."""
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
