"""Sizes that only a run knows: the values that decide them, and the nodes that need them."""

from __future__ import annotations

from collections.abc import Iterable

from ...types import Dim, DimLike
from ..attributes import Body
from ..parts import Node

__all__ = ["deciding_values", "open_sizes", "solve", "symbols_of"]

_SOLVED = 7
"""Size for which a dim is solved, to see that it can be."""


def deciding_values(given: frozenset[str], nodes: Iterable[Node]) -> dict[str, str]:
    """Return the symbols that are not given by inputs, each with the first value whose shape determines it."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.values:  # as full has none: it is given its size
            for value in node.outputs:
                shape = () if value.spec is None else value.spec.shape
                for symbol in {s for d in shape if (s := _solved_symbol(d)) is not None} - given:
                    found.setdefault(symbol, value.name)
    return found


def open_sizes(node: Node) -> frozenset[str]:
    """Return the symbols in a node's results and attributes."""
    specs = (v.spec.symbols for v in node.outputs if v.spec is not None)
    return frozenset[str]().union(*specs, *map(symbols_of, node.attrs.values()))


def symbols_of(value: object) -> frozenset[str]:
    """Return the symbols in an attribute."""
    if isinstance(value, Dim | Body):
        return value.symbols
    if isinstance(value, tuple):
        return frozenset().union(*map(symbols_of, value))
    return frozenset()


def solve(d: Dim, size: int) -> dict[str, int] | None:
    """Solve a dim that is linear in one symbol. Return the symbol and its value if that is a natural number."""
    if len(d.symbols) != 1:
        return None
    (name,) = d.symbols
    at_zero, at_one, at_two = (d.substitute({name: k}) for k in (0, 1, 2))
    if (
        not (isinstance(at_zero, int) and isinstance(at_one, int) and isinstance(at_two, int))
        or at_two - at_one != at_one - at_zero
    ):
        return None
    slope = at_one - at_zero
    if not slope or (size - at_zero) % slope or (size - at_zero) // slope < 0:
        return None
    value = (size - at_zero) // slope
    return {name: value} if d.substitute({name: value}) == size else None


def _solved_symbol(d: DimLike) -> str | None:
    """Return the symbol that a dim determines by itself: that of ``n`` or ``a*n + b``."""
    if not isinstance(d, Dim) or len(d.symbols) != 1:
        return None
    (name,) = d.symbols
    size = d.substitute({name: _SOLVED})
    return name if isinstance(size, int) and solve(d, size) == {name: _SOLVED} else None
