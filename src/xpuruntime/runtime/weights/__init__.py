"""Weights: loading a model's arrays into buffers by recipes. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .load import Weights, load_weights

__all__ = ["Weights", "load_weights"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Weights": "xpuruntime.runtime.weights.load",
        "load_weights": "xpuruntime.runtime.weights.load",
    },
)
