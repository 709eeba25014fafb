"""The op table as data: one file per family, one row per op. ``OPS`` maps an op's name to its row.

Names are ATen's base names without overloads (``add``, ``convolution``, ``view``) wherever ATen has an op of that meaning:
whether an operand is a tensor or a number shows in the node. Ranks are merged (``avg_pool`` for 1d to 3d). What ATen lacks
has a plain name (``rms_norm``, ``silu_mul``, ``quantize_linear``). ``opaque`` is any op that the table does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..schema import Mismatch, OpCall, OpEntry, op
from ..tables import joined
from . import (
    activation,
    attention,
    backward,
    conv,
    creation,
    decoder,
    elementwise,
    fused,
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

__all__ = ["OPAQUE", "OPS", "aten_index", "onnx_index"]


def _opaque(c: OpCall) -> list[object]:
    raise Mismatch("an opaque op's outputs are declared, not inferred")


OPAQUE = op(
    "opaque(operands?*; domain: str, op_type: str, reason: str, attributes: map) -> outputs*",
    "other",
    _opaque,  # type: ignore[arg-type]
    meaning="an op of another vocabulary (ONNX domain and op_type, or domain aten); only engines that know it take it",
)

_FILES = (
    elementwise,
    fused,
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
)

OPS: Mapping[str, OpEntry] = joined(
    "op", ({row.name: row} for row in (OPAQUE, *(row for file in _FILES for row in file.ROWS)))
)


def aten_index() -> dict[str, str]:
    """ATen name (``add.Tensor``, ``mm``) -> op name; the first row that lists it counts."""
    index: dict[str, str] = {}
    for row in OPS.values():
        for name in row.aten:
            index.setdefault(name, row.name)
    return index


def onnx_index() -> dict[str, tuple[str, ...]]:
    """ONNX op name of the default domain -> op names that it may become."""
    index: dict[str, tuple[str, ...]] = {}
    for row in OPS.values():
        for name in row.onnx:
            index[name] = (*index.get(name, ()), row.name)
    return index
