"""Vendor options that select the kernels a KernelPolicy names, by device.

The CPU plugin has no such option. On a GPU attention is one fused kernel or plain products.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...targets import DeviceId

__all__ = ["kernel_options"]

_BY_DEVICE: Mapping[str, Mapping[tuple[str, str], Mapping[str, str]]] = {
    "gpu": {
        ("attention", "flash"): {"GPU_ENABLE_SDPA_OPTIMIZATION": "YES"},
        ("attention", "naive"): {"GPU_ENABLE_SDPA_OPTIMIZATION": "NO"},
    }
}


def kernel_options(device: DeviceId) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return options by (op family, kernel), for regions on that device; other pairs have none."""
    return _BY_DEVICE.get(device.kind, {})
