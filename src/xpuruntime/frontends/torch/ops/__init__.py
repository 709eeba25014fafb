"""The table of ATen ops: one lowering per overload, one file per family. An op without an entry is decomposed, or becomes opaque.

An op in the table is taken out of PyTorch's decompositions and stays whole. A lowering that cannot represent a call exactly raises
NotLowered; the op is then decomposed if PyTorch can, else opaque with that reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....ir.tables import joined
from . import (
    activation,
    attention,
    backward,
    bessel,
    bits,
    conv,
    create,
    elementwise,
    gamma_integrals,
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
    special,
)
from .complexes import PAIR_CREATORS, PAIR_LOWERINGS, real_form
from .context import IGNORED_ARGUMENTS, AtenLoweringContext, ComplexPair, OpLowering, Results, TensorRef

__all__ = [
    "IGNORED_ARGUMENTS",
    "PAIR_CREATORS",
    "PAIR_LOWERINGS",
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
    bits,
    bessel,
    gamma_integrals,
    create,
    resize,
    signal,
    special,
    recurrent,
    backward,
)

TABLE: Mapping[str, OpLowering] = joined("ATen op", (file.LOWERINGS for file in _FILES))
"""ATen name with overload (``add.Tensor``, ``mm``) -> its lowering. An op of another library has a prefix: ``library::op``."""
