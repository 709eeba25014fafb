"""Random cases of ONNX Runtime's own ops."""

from __future__ import annotations

from . import attention, fused, integers, packed
from .draw import DRAWS, Draw

__all__ = ["DRAWS", "Draw", "attention", "fused", "integers", "packed"]
