"""Lowerings of ops of classic machine learning on numbers (domain ``ai.onnx.ml``), and of TfIdfVectorizer on integers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ....ir import MAX_CONST_ELEMENTS
from ....protocols import Array
from ....types import DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers

__all__ = ["LOWERINGS", "TEXT"]


def _extract(n: OnnxLoweringContext) -> Results:
    """Lower ArrayFeatureExtractor: columns of the last dim; a vector counts as one row."""
    rank = n.spec().rank
    index = n.b.view(n.input(1), size=[math.prod(numbers(n.spec(1).shape, "the number of columns"))])
    y = str(n.b.index_select(n.x, index, dim=rank - 1))
    return y if rank > 1 else str(n.b.unsqueeze(y, dims=[0]))


def _binarize(n: OnnxLoweringContext) -> Results:
    above = n.b.gt(n.x, n.like(n.attr("threshold", 0.0)))
    return str(n.b.cast(above, dtype=n.spec().dtype))


# ── trees ──

_COMPARE = ("le", "lt", "ge", "gt", "eq", "ne")
_MEMBER = 6
_AVERAGE, _SUM = 0, 1


def _trees(n: OnnxLoweringContext) -> Results:
    """Lower TreeEnsemble: compare every node of every row, then follow the branches level by level, and add up the leaves.

    A position in a tree is the number of a node, or the number of nodes plus that of a leaf, which leads to itself.
    """
    if n.attr("post_transform", 0) or n.attr("aggregate_function", 1) not in (_AVERAGE, _SUM):
        raise NotLowered("only sums and means of trees without a transform are supported")
    rows, _ = n.spec().shape
    nodes, weights = len(n.attrs["nodes_featureids"]), np.asarray(n.attrs["leaf_weights"])
    targets, roots = int(n.attrs["n_targets"]), np.asarray(n.attrs["tree_roots"], np.int64)
    if weights.size * targets > MAX_CONST_ELEMENTS or not roots.size:
        raise NotLowered("its leaves are too many for a constant")
    leaves = nodes + np.arange(weights.size, dtype=np.int64)
    following = {
        side: np.concatenate([
            np.where(np.asarray(n.attrs[f"nodes_{side}leafs"], bool), nodes, 0) + np.asarray(n.attrs[f"nodes_{side}nodeids"], np.int64),
            leaves,
        ])
        for side in ("true", "false")
    }  # fmt: skip
    alone = (following["true"] >= nodes) & (following["true"] == following["false"])  # a tree that is a leaf
    taken = n.b.cat(_conditions(n), n.b.full(size=[rows, weights.size], value=False, dtype=DType.BOOL), dim=1)
    position = n.b.expand(
        n.b.constant(np.where(alone[roots], following["true"][roots], roots)[None, :]),
        size=[rows, roots.size],
    )
    tables = [n.b.constant(following[side]) for side in ("true", "false")]
    for _ in range(_depth(following, roots, nodes)):
        branches = [n.b.index_select(table, position, dim=0) for table in tables]
        position = n.b.where(n.b.gather(taken, position, dim=1), *branches)
    content = np.zeros((weights.size, targets), weights.dtype)
    content[np.arange(weights.size), n.attrs["leaf_targetids"]] = weights
    if n.attr("aggregate_function", 1) == _AVERAGE:
        content /= content.dtype.type(roots.size)
    values = n.b.index_select(n.b.constant(content), n.b.sub(position, nodes), dim=0)
    return str(n.b.sum(values, dim=[1], keepdim=False))


def _depth(following: dict[str, Array], roots: Array, nodes: int) -> int:
    """Return the number of branches to the deepest leaf. Raise NotLowered for branches in a circle."""
    reached, depth = np.unique(roots), 0
    while (reached < nodes).any():
        inner = reached[reached < nodes]
        reached = np.unique(np.concatenate([following["true"][inner], following["false"][inner]]))
        depth += 1
        if depth > nodes:
            raise NotLowered("its branches go around in a circle")
    return depth


def _conditions(n: OnnxLoweringContext) -> str:
    """Return [rows, nodes]: whether the condition of each node holds in each row."""
    modes, splits = np.asarray(n.attrs["nodes_modes"]), np.asarray(n.attrs["nodes_splits"])
    tracks = np.asarray(n.attr("nodes_missing_value_tracks_true") or np.zeros(modes.size), bool)
    x = n.b.index_select(n.x, n.b.constant(np.asarray(n.attrs["nodes_featureids"], np.int64)), dim=1)
    holds = n.b.logical_and(n.b.isnan(x), n.b.constant(tracks[None, :]))
    for mode, op in enumerate(_COMPARE):
        here = modes == mode
        if here.any():
            compared = n.b.call(op, x, n.b.constant(splits[None, :]))
            holds = n.b.logical_or(holds, n.b.logical_and(compared, n.b.constant(here[None, :])))
    members = _members(n, modes)
    if members is not None:  # [1, nodes, members] against [rows, nodes, 1]; NaN fills up and equals nothing
        equal = n.b.eq(n.b.unsqueeze(x, dims=[2]), n.b.constant(members[None, :, :]))
        holds = n.b.logical_or(holds, n.b.any(equal, dim=[2], keepdim=False))
    return str(holds)


def _members(n: OnnxLoweringContext, modes: Array) -> Array | None:
    """Return [nodes, members] with the values of each set. The lists of the model are in the order in which the trees are walked."""
    if not (modes == _MEMBER).any():
        return None
    values = np.asarray(n.attrs["membership_values"])
    sets = np.split(values, np.flatnonzero(np.isnan(values)) + 1)
    order: list[int] = []
    visited: set[int] = set()
    for root in n.attrs["tree_roots"]:
        todo = [int(root)]
        while todo:
            node = todo.pop()
            if node in visited:
                continue
            visited.add(node)
            order.append(node)
            todo += [
                int(n.attrs[f"nodes_{side}nodeids"][node])
                for side in ("false", "true")
                if not n.attrs[f"nodes_{side}leafs"][node]
            ]
    listed = [node for node in order if modes[node] == _MEMBER]
    if len(sets) - 1 != len(listed):
        raise NotLowered("its sets of members do not match its nodes")
    table = np.full((modes.size, max(len(s) for s in sets)), np.nan, values.dtype)
    for node, content in zip(listed, sets, strict=False):
        table[node, : content.size] = content
    return table


# ── n-grams ──

_MAX_COMPARED = 1 << 22  # n-grams times windows of a row


def _grams(n: OnnxLoweringContext) -> list[Array]:
    """Return the n-grams of the pool as [number, length], for lengths 1, 2, ..."""
    pool = np.asarray(n.attrs["pool_int64s"], np.int64)
    starts = [*n.attrs["ngram_counts"], pool.size]
    return [
        pool[start:end][: (end - start) // size * size].reshape(-1, size)
        for size, (start, end) in enumerate(itertools.pairwise(starts), 1)
    ]


def _tf_idf(n: OnnxLoweringContext) -> Results:
    """Lower TfIdfVectorizer on integers: each n-gram is compared with every window of its length, at every distance between elements."""
    if "pool_int64s" not in n.attrs or not n.spec().dtype.is_integer:
        raise NotLowered("text is not supported")
    spec, grams, indexes = n.spec(), _grams(n), list(n.attrs["ngram_indexes"])
    low, high, skips = (int(n.attrs[a]) for a in ("min_gram_length", "max_gram_length", "max_skip_count"))
    if sum(len(g) for g in grams) != len(indexes) or len(set(indexes)) != len(indexes):
        raise NotLowered("its n-grams do not have one column each")
    if spec.rank not in (1, 2):
        raise NotLowered(f"rank {spec.rank} is not supported")
    length = numbers(spec.shape[-1:], "the number of elements")[0]
    rows = spec.shape[0] if spec.rank == 2 else 1
    x = n.b.view(n.cast(n.x, DType.INT64), size=[rows, 1, length])
    parts: list[Any] = []
    for size, table in enumerate(grams, 1):
        counts = n.b.full(size=[rows, len(table)], value=0.0, dtype=DType.FLOAT32)
        for distance in range(1, (skips if size > 1 else 0) + 2):
            windows = length - distance * (size - 1)
            if low <= size <= high and windows > 0 and len(table):
                counts = n.b.add(counts, _matches(n, str(x), table, distance, windows))
        parts.append(counts)
    columns = np.full(
        max(indexes) + 1, len(indexes), np.int64
    )  # the last one is 0, for columns without an n-gram
    columns[indexes] = np.arange(len(indexes))
    found = _weighted(n, str(n.b.cat(*parts, dim=1)), len(indexes))
    nothing = n.b.full(size=[rows, 1], value=0.0, dtype=DType.FLOAT32)
    y = str(n.b.index_select(n.b.cat(found, nothing, dim=1), n.b.constant(columns), dim=1))
    return y if spec.rank == 2 else str(n.b.view(y, size=[columns.size]))


def _matches(n: OnnxLoweringContext, x: str, grams: Array, distance: int, windows: int) -> str:
    """Return [rows, n-grams]: in how many windows each n-gram is found."""
    if len(grams) * windows > _MAX_COMPARED:
        raise NotLowered("its n-grams are too many to compare with every window")
    found: Any = None
    for place, elements in enumerate(grams.T):
        window = n.b.slice(x, dim=2, start=place * distance, end=place * distance + windows)
        equal = n.b.eq(window, n.b.constant(np.ascontiguousarray(elements)[None, :, None]))
        found = equal if found is None else n.b.logical_and(found, equal)
    return str(n.b.sum(n.b.cast(found, dtype=DType.FLOAT32), dim=[2], keepdim=False))


def _weighted(n: OnnxLoweringContext, counts: str, grams: int) -> str:
    """Return counts times weights, which are in the order of the pool."""
    mode, weights = n.attrs["mode"], n.attr("weights") or [1.0] * grams
    if mode == "TF":
        return counts
    if len(weights) != grams:
        raise NotLowered("it needs one weight for each n-gram")
    counts = counts if mode == "TFIDF" else str(n.b.cast(n.b.gt(counts, 0.0), dtype=DType.FLOAT32))
    return str(n.b.mul(counts, n.b.constant(np.asarray(weights, np.float32)[None, :])))


LOWERINGS: dict[str, OpLowering] = {
    "ArrayFeatureExtractor": _extract,
    "Binarizer": _binarize,
    "TreeEnsemble": _trees,
}
TEXT: dict[str, OpLowering] = {"TfIdfVectorizer": _tf_idf}
"""Lowerings of the default domain."""
