"""The table of ONNX ops: one row per op, one file per family. What has no row is inlined, or becomes opaque."""

from __future__ import annotations

from collections.abc import Mapping

from ....ir.tables import joined
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
from .context import NotLowered, Results, Row, Site

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

TABLE: Mapping[str, Row] = joined("ONNX op", (file.ROWS for file in _FILES))
"""Op of the default ONNX domain -> how it is lowered."""
