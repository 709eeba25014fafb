"""The GPUs that TensorRT can use: those of the CUDA driver, if the vendor's libraries load."""

from __future__ import annotations

import functools
from typing import Any

from ...decisions import Reason, Support
from ...errors import PluginError
from ...protocols import DeviceFact
from ...targets import DeviceId
from .api import api, short

__all__ = ["cuda_index", "device_facts", "devices", "usable", "usable_vendor", "version"]


def version() -> str:
    """Return the vendor's version."""
    return api().version


def cuda_index(device: DeviceId) -> int | None:
    """Return the index of the CUDA device; None for another kind of device."""
    return device.index if device.kind in ("cuda", "gpu") else None


@functools.cache
def _library_error() -> str:
    """Return why the vendor's package cannot be imported; empty if it can."""
    try:
        api()
    except PluginError as error:
        return short(str(error.got))
    except Exception as error:  # of the functions that are looked up in the package
        return short(f"{type(error).__name__}: {error}")
    return ""


def _gpus() -> tuple[Any, str, str]:
    """Return the CUDA devices, and without any the driver's reason and advice."""
    from ...runtime.device import cuda

    report = cuda()
    return report.devices, report.status.message, report.status.advice


def usable_vendor() -> Support:
    """Return whether the vendor's package can be imported; the reason quotes its error."""
    if error := _library_error():
        text = f"the package tensorrt cannot be imported: {error}"
        return Support.no(Reason.DEVICE_REFUSED, text, do="Reinstall it: pip install 'xpuruntime[tensorrt]'")
    return Support.yes()


def usable(device: DeviceId) -> Support:
    """Return whether TensorRT can use the device here; the reason quotes the vendor's text."""
    index = cuda_index(device)
    if index is None:
        text = f"TensorRT supports cuda and gpu, not {device}"
        return Support.no(Reason.DEVICE_MISMATCH, text, do="Use device='cuda:0'.")
    if not (imported := usable_vendor()):
        return imported
    gpus, reason, advice = _gpus()
    if index >= len(gpus):
        text = f"there are {len(gpus)} CUDA devices" if gpus else f"there is no CUDA device: {reason}"
        return Support.no(Reason.NO_DEVICE, text, do=advice or "Choose another device.")
    return Support.yes()


def device_facts(device: DeviceId) -> dict[str, str]:
    """Return what an engine depends on besides the model: version, driver, name and compute capability of the GPU."""
    facts = {"tensorrt": version()}
    index, (gpus, _, _) = cuda_index(device), _gpus()
    if index is not None and index < len(gpus):
        gpu = gpus[index]
        major, minor = gpu.compute_capability
        facts |= {"gpu": gpu.name, "compute_capability": f"{major}.{minor}", "driver": gpu.driver_version}
    return facts


def devices() -> tuple[DeviceFact, ...]:
    """Return a fact for each CUDA device, or one for the missing device. Never raises."""
    try:
        gpus, _, _ = _gpus()
        count = max(1, len(gpus))
        return tuple(
            DeviceFact(d, gpus[d.index].name if d.index < len(gpus) else "NVIDIA GPU", usable(d))
            for d in (DeviceId("cuda", i) for i in range(count))
        )
    except Exception as error:  # a broken installation must not hide the other engines
        text = short(f"{type(error).__name__}: {error}")
        return (DeviceFact(DeviceId("cuda"), "NVIDIA GPU", Support.no(Reason.DEVICE_REFUSED, text)),)
