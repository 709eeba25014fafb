"""The op table: one file per family, one entry per op. ``OPS`` maps an op's name to its entry.

Names are ATen's base names without overloads (``add``, ``convolution``, ``view``) if ATen has such an op: the node shows if an
operand is a tensor or a number. Ranks are merged (``avg_pool`` for 1d to 3d). Other ops have plain names (``rms_norm``,
``silu_mul``, ``quantize_linear``). ``opaque`` represents any op that the table does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..schema import Mismatch, OpCall, OpEntry, op
from ..tables import joined
from . import (
    activation,
    attention,
    backward,
    collective,
    control,
    conv,
    creation,
    decoder,
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
from .fused import infer_fused

__all__ = ["OPAQUE", "OPS", "aten_index", "onnx_index"]


def _opaque(c: OpCall) -> list[object]:
    raise Mismatch("an opaque op's outputs are declared, not inferred")


OPAQUE = op(
    "opaque(operands?*; domain: str, op_type: str, reason: str, attributes: map) -> outputs*",
    "other",
    _opaque,  # type: ignore[arg-type]
    meaning="an op that is not in this table (ONNX domain and op_type, or domain aten); only engines that know it can run it",
)

FUSED = op(
    "fused(operands*; body: graph) -> outputs*",
    "elementwise",
    lambda c: infer_fused(c, OPS),
    meaning="the results of its body, a graph whose inputs are the operands in order",
)

_FILES = (
    activation,
    reduce,
    matmul,
    conv,
    pool,
    norm,
    movement,
    indexing,
    attention,
    decoder,
    creation,
    quant,
    resize,
    rnn,
    signal,
    backward,
    collective,
    control,
)

_TABLES = ((OPAQUE,), elementwise.ROWS, (FUSED,), *(file.ROWS for file in _FILES))

OPS: Mapping[str, OpEntry] = joined("op", ({row.name: row} for rows in _TABLES for row in rows))


def aten_index() -> dict[str, str]:
    """Return op names by ATen name (``add.Tensor``, ``mm``); the first entry that lists a name counts."""
    index: dict[str, str] = {}
    for row in OPS.values():
        for name in row.aten:
            index.setdefault(name, row.name)
    return index


def onnx_index() -> dict[str, tuple[str, ...]]:
    """Return the op names that each ONNX op of the default domain may be lowered to."""
    index: dict[str, tuple[str, ...]] = {}
    for row in OPS.values():
        for name in row.onnx:
            index[name] = (*index.get(name, ()), row.name)
    return index
