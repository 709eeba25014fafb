"""Tables that stand in several files, one per family, as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

__all__ = ["joined"]

Row = TypeVar("Row")


def joined(what: str, tables: Iterable[Mapping[str, Row]]) -> Mapping[str, Row]:
    """Return all rows of the tables by name, read-only. ``what`` says what has the names. Raises ValueError where two rows have one."""
    merged: dict[str, Row] = {}
    for table in tables:
        for name, row in table.items():
            if merged.setdefault(name, row) is not row:
                raise ValueError(f"{what} {name!r} stands twice in the table")
    return MappingProxyType(merged)
