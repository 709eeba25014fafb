"""The functions of ``protocols.Engine`` for QNN."""

from __future__ import annotations

from .build import build, fingerprint, supports
from .library import devices, version
from .run import load

__all__ = ["build", "devices", "fingerprint", "load", "supports", "version"]
