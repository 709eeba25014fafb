"""Plug-ins: code of others: engines by dotted name, user kernels, and vendors' packages. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .loader import EnginePlugin

__all__ = ["EnginePlugin"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "EnginePlugin": "xpuruntime.plugins.loader",
    },
)
