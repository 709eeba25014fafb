"""The table of ATen ops: one row per overload, one file per family. What has no row is decomposed, or becomes opaque.

A row keeps its op whole: what stands here is taken out of PyTorch's decompositions. A row that cannot take a call exactly raises
NotLowered; the op is then decomposed where PyTorch can, and opaque with that reason where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....ir.tables import joined
from . import (
    activation,
    attention,
    backward,
    conv,
    create,
    elementwise,
    groups,
    indexing,
    matmul,
    movement,
    norm,
    pool,
    recurrent,
    reduce,
    resize,
    signal,
)
from .complexes import MAKERS, PAIRS, real_form
from .context import FREE, AtenLoweringContext, ComplexPair, OpLowering, Results, TensorRef

__all__ = [
    "FREE",
    "MAKERS",
    "PAIRS",
    "TABLE",
    "AtenLoweringContext",
    "ComplexPair",
    "OpLowering",
    "Results",
    "TensorRef",
    "real_form",
]

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
    groups,
    attention,
    create,
    resize,
    signal,
    recurrent,
    backward,
)

TABLE: Mapping[str, OpLowering] = joined("ATen op", (file.LOWERINGS for file in _FILES))
"""ATen name, overload included (``add.Tensor``, ``mm``) -> how it is lowered. Another library's op has its name before it: ``library::op``."""
