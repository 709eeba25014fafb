"""Devices of regions: their products, for records that hold on one of them."""

from __future__ import annotations

from ...runtime.backends.cuda import CudaBackend
from ...runtime.device import Device
from ...targets import DeviceId

__all__ = ["product_of"]


def product_of(device: DeviceId) -> str:
    """Return the device by its place and its product's name: what is known of one GPU says nothing about another. Raises DeviceUnavailable."""
    if device.kind != "cuda":
        return str(device)
    backend = Device(device).backend
    return f"{device}: {backend.name}" if isinstance(backend, CudaBackend) else str(device)
