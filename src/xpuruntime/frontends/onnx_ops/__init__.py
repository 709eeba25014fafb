"""The table of ONNX ops: one row per op, one file per family. What has no row is inlined, or becomes opaque."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    attention,
    conv,
    create,
    elementwise,
    indexing,
    matmul,
    movement,
    norm,
    pool,
    quant,
    reduce,
    resize,
    rnn,
    signal,
)
from .site import NotLowered, Results, Row, Site

__all__ = ["TABLE", "NotLowered", "Results", "Row", "Site"]

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
    quant,
    resize,
    rnn,
    signal,
)


def _table() -> dict[str, Row]:
    table: dict[str, Row] = {}
    for file in _FILES:
        for op, row in file.ROWS.items():
            if table.setdefault(op, row) is not row:
                raise ValueError(f"ONNX op {op!r} stands twice in the table")
    return table


TABLE: Mapping[str, Row] = MappingProxyType(_table())
"""Op of the default ONNX domain -> how it is lowered."""
