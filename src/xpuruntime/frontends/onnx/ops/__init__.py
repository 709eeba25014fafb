"""The table of ONNX ops: one lowering per op, one file per family. An op without an entry is inlined, or becomes opaque."""

from __future__ import annotations

from collections.abc import Mapping

from ....ir.tables import joined
from . import (
    activation,
    attention,
    classic,
    contrib,
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
    training,
)
from .at_run_time import AT_RUN_TIME
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["AT_RUN_TIME", "DOMAINS", "TABLE", "OnnxLoweringContext", "OpLowering", "Results"]

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

TABLE: Mapping[str, OpLowering] = joined(
    "ONNX op", (*(file.LOWERINGS for file in _FILES), classic.TEXT, contrib.DEFAULT_DOMAIN)
)
"""Op of the default ONNX domain -> its lowering."""
DOMAINS: Mapping[str, Mapping[str, OpLowering]] = {
    "ai.onnx.ml": classic.LOWERINGS,
    "ai.onnx.preview.training": training.LOWERINGS,
    "com.microsoft": contrib.LOWERINGS,
}
"""Other domain -> op -> its lowering."""
