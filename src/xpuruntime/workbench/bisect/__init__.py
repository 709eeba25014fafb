"""Bisection of a difference: to the first node whose values differ, or to the smallest policy change that makes them differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from ..values.side import Side
    from .bisection import bisect
    from .report import Bisection

__all__ = ["Bisection", "Side", "bisect"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Bisection": "xpuruntime.workbench.bisect.report",
        "Side": "xpuruntime.workbench.values.side",
        "bisect": "xpuruntime.workbench.bisect.bisection",
    },
)
