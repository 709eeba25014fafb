"""Outputs that an engine rounds in units of 1, however small they are.

Vendors compute functions such as the sigmoid with an error of some last places of 1, and not of the result: a score of 0.0001 may be off by a
thousandth. Such a difference from a vendor shows nothing about a session. Another reference decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ...ir import Graph
from ...numerics import Comparison
from ...protocols import Array
from ...types import DType

__all__ = ["Inconclusive", "bounded_outputs", "differ_in_last_places_of_one", "within_last_places_of_one"]

_BOUNDED = frozenset({"sigmoid", "softmax", "tanh", "erf"})
_PASSING = frozenset({
    "amax", "amin", "cast", "cat", "clone", "expand", "flip", "gather", "gather_nd", "index", "index_select", "max", "max_pool", "maximum", "min",
    "minimum", "mul", "pad", "permute", "resize", "roll", "select", "slice", "sort", "split", "squeeze", "topk", "unsqueeze", "view", "where",
})  # fmt: skip
"""Ops that move values, choose among them, or multiply them by others that are at most 1."""
_PLACES = 8


class Inconclusive(Exception):
    """A reference differs by no more than it may be off itself."""


def bounded_outputs(graph: Graph) -> frozenset[str]:
    """Return the outputs that come from a bounded function with no more than moves, choices and products after it."""
    producers = {value.name: node for node in graph.nodes for value in node.outputs}
    found = set()
    for output in graph.outputs:
        pending, seen = [output.value], set()
        while pending:
            name = pending.pop()
            node = producers.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            if node.op in _BOUNDED:
                found.add(output.name)
                break
            if node.op in _PASSING:
                pending += node.values
    return frozenset(found)


def within_last_places_of_one(ours: Array, theirs: Array, precision: DType) -> bool:
    """Return True if no element differs by more than some last places of 1."""
    if precision.numpy.kind not in "fV" or ours.shape != theirs.shape:
        return False
    allowed = _PLACES * float(ml_dtypes.finfo(precision.numpy).eps)
    return bool((np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) <= allowed).all())


def differ_in_last_places_of_one(
    ours: Sequence[Array],
    theirs: Sequence[Array],
    comparisons: Sequence[Comparison],
    bounded: frozenset[str],
    precision: DType,
) -> bool:
    """Return True if every output that disagrees is bounded, and differs by at most some last places of 1."""
    return all(
        c.ok or (c.name in bounded and within_last_places_of_one(a, b, precision))
        for a, b, c in zip(ours, theirs, comparisons, strict=True)
    )
