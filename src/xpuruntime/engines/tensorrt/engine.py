"""The functions of ``protocols.Engine`` for TensorRT."""

from __future__ import annotations

from .build import build, fingerprint, supports
from .devices import devices, version
from .kernel_options import kernel_options
from .run import load

__all__ = ["build", "devices", "fingerprint", "kernel_options", "load", "supports", "version"]
