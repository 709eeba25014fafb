"""softmax/generated: softmax, log-softmax and hardmax along any dim, in any layout."""

from __future__ import annotations

from .reduce import RowKernel

__all__ = ["KERNELS"]

KERNELS = (RowKernel("softmax/generated", ("softmax", "log_softmax", "hardmax")),)
