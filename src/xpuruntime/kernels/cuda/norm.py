"""``norm/generated`` on CUDA devices: layer, RMS, group, instance and batch normalization as row reductions, and the gradients of layer norms."""

from __future__ import annotations

from ..spec.norm import OPS, ChannelNorm
from ..spec.reduce import RowKernel
from .norm_backward import LayerNormBackward
from .rows.loops import CUDA

__all__ = ["KERNELS"]

KERNELS = (RowKernel("norm/generated", OPS, CUDA), ChannelNorm(CUDA), LayerNormBackward())
