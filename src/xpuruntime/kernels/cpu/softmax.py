"""``softmax/generated`` on CPUs: softmax, log-softmax and hardmax along any dim, in any layout."""

from __future__ import annotations

from ..spec.reduce import SOFTMAX_OPS, RowKernel
from .rows.loops import CPP

__all__ = ["KERNELS"]

KERNELS = (RowKernel("softmax/generated", SOFTMAX_OPS, CPP),)
