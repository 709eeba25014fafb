"""Devices of regions: the GPU among them, and their products, for records that hold on one of them."""

from __future__ import annotations

from collections.abc import Iterable

from ...runtime.backends.cuda import CudaBackend
from ...runtime.device import Device
from ...targets import DeviceId

__all__ = ["first_gpu", "product_of"]


def first_gpu(devices: Iterable[str]) -> DeviceId | None:
    """Return the first GPU with CUDA of some devices by name; None if there is none."""
    return next((d for d in map(DeviceId.parse, devices) if d.kind == "cuda"), None)


def product_of(device: DeviceId) -> str:
    """Return the device by its place and its product's name: what is known of one GPU says nothing about another. Raises DeviceUnavailable."""
    if device.kind != "cuda":
        return str(device)
    backend = Device(device).backend
    return f"{device}: {backend.name}" if isinstance(backend, CudaBackend) else str(device)
