"""``norm/generated`` on CPUs: layer, RMS, group, instance and batch normalization as row reductions."""

from __future__ import annotations

from ..spec.norm import OPS, ChannelNorm
from ..spec.reduce import RowKernel
from .rows.loops import CPP

__all__ = ["KERNELS"]

KERNELS = (RowKernel("norm/generated", OPS, CPP), ChannelNorm(CPP))
