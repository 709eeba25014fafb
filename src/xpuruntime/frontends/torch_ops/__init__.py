"""The table of ATen ops: one row per overload, one file per family. What has no row is decomposed, or becomes opaque.

A row keeps its op whole: what stands here is taken out of PyTorch's decompositions. A row that cannot take a call exactly raises
NotLowered; the op is then decomposed where PyTorch can, and opaque with that reason where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    attention,
    backward,
    conv,
    create,
    elementwise,
    indexing,
    matmul,
    movement,
    norm,
    pool,
    reduce,
    resize,
    signal,
)
from .site import FREE, NotLowered, Ref, Results, Row, Site

__all__ = ["FREE", "TABLE", "NotLowered", "Ref", "Results", "Row", "Site"]

_FILES = (
    elementwise,
    activation,
    reduce,
    matmul,
    conv,
    pool,
    norm,
    movement,
    indexing,
    attention,
    create,
    resize,
    signal,
    backward,
)


def _table() -> dict[str, Row]:
    table: dict[str, Row] = {}
    for file in _FILES:
        for op, row in file.ROWS.items():
            if table.setdefault(op, row) is not row:
                raise ValueError(f"ATen op {op!r} stands twice in the table")
    return table


TABLE: Mapping[str, Row] = MappingProxyType(_table())
"""ATen name, overload included (``add.Tensor``, ``mm``) -> how it is lowered."""
