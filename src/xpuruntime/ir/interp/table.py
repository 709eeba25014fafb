"""Every op's rule in one table. ``opaque`` has none: what it does is known to engines only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    attention,
    backward,
    casting,
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
    random,
    reduce,
    regions,
    resize,
    rnn,
    search,
    signal,
)
from .rule import Rule

__all__ = ["RULES"]

_FILES = (
    elementwise,
    fused,
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
    creation,
    random,
    quant,
    resize,
    rnn,
    signal,
    backward,
)


def _table() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for file in _FILES:
        for name, rule in file.RULES.items():
            if table.setdefault(name, rule) is not rule:
                raise ValueError(f"op {name!r} has two rules")
    return table


RULES: Mapping[str, Rule] = MappingProxyType(_table())
