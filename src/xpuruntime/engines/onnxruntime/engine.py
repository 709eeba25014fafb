"""The functions of ``protocols.Engine`` for ONNX Runtime, gathered."""

from __future__ import annotations

from .build import build, fingerprint, supports, version
from .providers import devices
from .run import load, stoppable_load

__all__ = ["build", "devices", "fingerprint", "load", "stoppable_load", "supports", "version"]
