"""Families of decoders: a table of what each has, and rules for the fields of their configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .family import DecoderFamily
    from .table import FAMILIES

__all__ = ["FAMILIES", "DecoderFamily"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FAMILIES": "xpuruntime.llm.families.table",
        "DecoderFamily": "xpuruntime.llm.families.family",
    },
)
