"""Ties between scores that are equal or closer than a precision resolves. A different choice than the reference's is not wrong."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...ir import Graph, Node
from ...protocols import Array

__all__ = ["CHOICES", "choices_of", "has_tie", "is_tie", "outputs_after"]

CHOICES = frozenset(["argmax", "argmin", "max", "min", "sort", "topk"])
"""Ops whose last result is indices into the scores that they read."""


def choices_of(graph: Graph) -> dict[str, Node]:
    """Return each choosing node by the name of its index output."""
    return {node.outputs[-1].name: node for node in graph.nodes if node.op in CHOICES}


def outputs_after(graph: Graph, nodes: Collection[str]) -> frozenset[str]:
    """Return the names of the outputs that depend on results of these nodes."""
    reached: set[str] = set()
    for node in graph.nodes:
        if node.name in nodes or not reached.isdisjoint(node.values):
            reached.update(v.name for v in node.outputs)
    return frozenset(o.name for o in graph.outputs if o.value in reached)


def is_tie(node: Node, scores: Array, got: Array, want: Array, tolerance: float) -> bool:
    """Return True if indices differ only where the reference's scores are within the tolerance, relative to the largest finite score."""
    dim = node.attrs["dim"]
    if got.shape != want.shape or not np.issubdtype(got.dtype, np.integer):
        return False
    if dim is None:
        scores, dim = scores.reshape(-1), 0
        got, want = got.reshape(-1), want.reshape(-1)
    dim %= scores.ndim or 1
    if got.ndim == scores.ndim - 1:
        got, want = np.expand_dims(got, dim), np.expand_dims(want, dim)
    if got.ndim != scores.ndim or not got.size or got.min() < 0 or got.max() >= scores.shape[dim]:
        return False
    if node.op in ("sort", "topk") and not np.diff(np.sort(got, axis=dim), axis=dim).all():
        return False  # an index that is chosen twice
    wide = scores.astype(np.float64)
    mine, theirs = (np.take_along_axis(wide, places.astype(np.int64), dim) for places in (got, want))
    if node.attrs.get("sorted") is False:
        mine, theirs = np.sort(mine, axis=dim), np.sort(theirs, axis=dim)
    largest = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        return bool((same | (np.abs(mine - theirs) <= tolerance * largest)).all())


def has_tie(node: Node, scores: Array, tolerance: float) -> bool:
    """Return True if deciding scores are this close: neighbors in order, for ``topk`` down to the first one not chosen."""
    dim = node.attrs["dim"]
    ranked = np.sort(scores.astype(np.float64), axis=None if dim is None else dim)
    ranked = np.moveaxis(ranked, 0 if dim is None else dim, -1)
    largest = float(np.abs(ranked[np.isfinite(ranked)]).max(initial=0.0))
    descending = node.op in ("argmax", "max") or bool(node.attrs.get("largest", False))
    count = ranked.shape[-1] if node.op == "sort" else int(node.attrs.get("k", 1)) + 1
    decide = ranked[..., -count:] if descending else ranked[..., :count]
    with np.errstate(invalid="ignore"):
        near = np.diff(decide, axis=-1) <= tolerance * largest
    return bool((near | (decide[..., 1:] == decide[..., :-1])).any())  # infinities too
