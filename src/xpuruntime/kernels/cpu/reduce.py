"""``reduce/generated`` on CPUs: row reductions."""

from __future__ import annotations

from ..spec.reduce import OPS, RowKernel
from .rows.loops import CPP

__all__ = ["KERNELS"]

KERNELS = (RowKernel("reduce/generated", OPS, CPP),)
