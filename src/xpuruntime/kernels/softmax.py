"""softmax/generated: softmax, log-softmax and hardmax along any dim, in any layout."""

from __future__ import annotations

from .reduce import RowKernel
from .rows import CPP

__all__ = ["KERNELS", "OPS"]

OPS = ("softmax", "log_softmax", "hardmax")

KERNELS = (RowKernel("softmax/generated", OPS, CPP),)
