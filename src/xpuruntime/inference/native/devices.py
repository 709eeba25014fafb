"""The native engine's version and devices. The module imports no compiler, which keeps ``xpu devices`` fast."""

from __future__ import annotations

from ... import __version__
from ...protocols import DeviceFact
from .targets import device_facts

__all__ = ["devices", "version"]


def version() -> str:
    """Return the version of xpuruntime."""
    return __version__


def devices() -> tuple[DeviceFact, ...]:
    """Return the host processor and the CUDA devices."""
    return device_facts()
