"""Bounds of symbols: the sizes that a model was exported for (``torch.export.Dim("n", min=2, max=64)``), checked at every run.

A graph stores them in ``metadata["ranges"]``: [minimum, maximum] by symbol, None for no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import InputError
from ...types import Dim, TensorSpec
from ..graph import Graph
from .symbols import bind

__all__ = ["Bounds", "bounds_of", "check_bounds", "outside", "span"]

Bounds = Mapping[str, tuple[int | None, int | None]]


def bounds_of(graph: Graph) -> Bounds:
    """Return the bounds of a graph's symbols, without those that have no bound."""
    stated = graph.metadata.get("ranges")
    bounds: dict[str, tuple[int | None, int | None]] = {}
    for name, pair in stated.items() if isinstance(stated, Mapping) else ():
        if isinstance(pair, list | tuple) and len(pair) == 2:
            low, high = (v if type(v) is int else None for v in pair)
            if (low is not None and low > 0) or high is not None:
                bounds[str(name)] = low, high
    return bounds


def outside(bounds: Bounds, sizes: Mapping[str, int]) -> str:
    """Return the first symbol whose size is out of bounds; ``""`` if all are within."""
    for name, (low, high) in bounds.items():
        size = sizes.get(name)
        if size is not None and ((low is not None and size < low) or (high is not None and size > high)):
            return name
    return ""


def span(pair: tuple[int | None, int | None]) -> str:
    """Return bounds as text: ``from 2 to 64``, ``at least 2``, ``at most 64``."""
    low, high = pair
    if low is not None and high is not None:
        return f"from {low} to {high}" if low != high else str(low)
    return f"at least {low}" if low is not None else f"at most {high}"


def check_bounds(
    who: str, specs: Sequence[TensorSpec], bounds: Bounds, shapes: Mapping[str, Sequence[int]]
) -> None:
    """Check the shapes of arrays against the bounds. specs: named, with symbols.

    Raises InputError with the input and its axis, and as ``bind`` if shapes contradict each other.
    """
    sizes = bind(specs, shapes)
    name = outside(bounds, sizes)
    if not name:
        return
    low, high = bounds[name]
    where = next(
        (
            f"input {s.name!r} axis {i}"
            for s in specs
            for i, d in enumerate(s.shape)
            if isinstance(d, Dim) and name in d.symbols
        ),
        "inputs",
    )
    wider = (
        f"min={min(sizes[name], low or 0)}" if low is not None and sizes[name] < low else f"max={sizes[name]}"
    )
    raise InputError(
        f"{who} {where}",
        f"{name} must be {span((low, high))}, the sizes that the model was exported for",
        got=sizes[name],
        do=f"Change the array, or export the model with wider bounds: torch.export.Dim({name!r}, {wider}).",
    )
