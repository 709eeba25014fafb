"""Merging of tables that are split over several files, one per family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

__all__ = ["joined"]

Entry = TypeVar("Entry")


def joined(noun: str, tables: Iterable[Mapping[str, Entry]]) -> Mapping[str, Entry]:
    """Merge tables to one read-only table. ``what`` describes an entry in messages. Raises ValueError for a duplicate name."""
    merged: dict[str, Entry] = {}
    for table in tables:
        for name, row in table.items():
            if merged.setdefault(name, row) is not row:
                raise ValueError(f"duplicate {noun} {name!r} in the table")
    return MappingProxyType(merged)
