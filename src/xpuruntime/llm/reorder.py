"""Reordering of the texts of a batch: a program that gives each text the cache of another one, for beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compiler import compile as compile_graph
from ..ir import GraphBuilder
from ..program.program import CompiledProgram, StateRef

__all__ = ["reorder_program"]


def reorder_program(states: Sequence[StateRef], batch: int, target: Any) -> CompiledProgram:
    """Return the program with the input ``rows``, int64[batch]: row i of each state becomes its row ``rows[i]``.

    The states are those of a decoder, and have one row per text.
    """
    b = GraphBuilder("reorder")
    rows = b.input("rows", f"int64[{batch}]")
    for state in states:
        old = b.state(state.name, state.spec)
        b.set_state(old, b.index_select(old, rows, dim=0))
    return compile_graph(b.build(), target=target)
