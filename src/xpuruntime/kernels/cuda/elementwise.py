"""``elementwise/generated`` on CUDA devices: every pointwise op."""

from __future__ import annotations

from ..spec.elementwise import Elementwise
from .pointwise import lower_pointwise

__all__ = ["KERNELS"]

KERNELS = (Elementwise(lower_pointwise),)
