"""The rules of all families in one table. ``opaque`` has none: only engines know what it does. ``evaluate`` adds that of ``fused``."""

from __future__ import annotations

from collections.abc import Mapping

from ..tables import joined
from . import (
    activation,
    attention,
    backward,
    casting,
    collective,
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
    random,
    reduce,
    regions,
    resize,
    rnn,
    sampling,
    search,
    signal,
)
from .rule import InterpRule

__all__ = ["RULES"]

_FILES = (
    elementwise,
    casting,
    activation,
    reduce,
    matmul,
    conv,
    pool,
    regions,
    norm,
    movement,
    indexing,
    search,
    attention,
    decoder,
    collective,
    creation,
    random,
    sampling,
    quant,
    resize,
    rnn,
    signal,
    backward,
)

RULES: Mapping[str, InterpRule] = joined("the rule of", (file.RULES for file in _FILES))
