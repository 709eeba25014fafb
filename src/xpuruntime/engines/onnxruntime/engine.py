"""The functions of ``protocols.Engine`` for ONNX Runtime."""

from __future__ import annotations

from .build import build, fingerprint, supports
from .kernel_options import kernel_options
from .providers import devices, version
from .run import load, stoppable_load

__all__ = [
    "build",
    "devices",
    "fingerprint",
    "kernel_options",
    "load",
    "stoppable_load",
    "supports",
    "version",
]
