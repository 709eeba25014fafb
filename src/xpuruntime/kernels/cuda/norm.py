"""norm/generated on CUDA devices: layer, RMS, group, instance and batch normalisation."""

from __future__ import annotations

from ..norm import OPS, ChannelNorm
from ..reduce import RowKernel
from .rows import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("norm/generated", OPS, CUDA), ChannelNorm(CUDA))
