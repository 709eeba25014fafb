"""fuse_rope_append: fuse the nodes between a decoder's products and its attention: both rotations and both cache updates.

    attention(rope(q), index_copy(keys, places, rope(k)), index_copy(values, places, v), ...)

``scatter`` along the length with indices that are the same for all heads counts as ``index_copy``: batches whose samples are at
different positions are written so. Attention may read a slice of the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Editor, Graph, Node, sources_of
from ..types import DType
from . import cse, simplify
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run"]

_VIEWS = frozenset(["expand", "view", "unsqueeze"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with rope_append nodes."""
    context = context or PassContext()
    if not context.has_kernel("rope_append"):
        return graph
    # Makes queries and keys read the same pair of tables.
    graph = cse.run(simplify.run(graph, context), context)
    known = known_values(graph)
    found = [u for node in graph.nodes if node.op == "attention" if (u := _find(graph, node, known))]
    updates = {update.reader: update for update in found}

    def rule(editor: Editor, node: Node) -> None:
        update = updates.get(node.name)
        if update is None or not context.may_fuse(graph, update.members):
            return
        if not context.may_become("rope_append", graph, update.members):
            return
        q, k = update.rope_q, update.rope_k
        keys, values = update.keys, update.values
        results = editor.insert(
            node, "rope_append", q.inputs[0], k.inputs[0], values.inputs[2], *q.inputs[1:3],
            keys.inputs[0], values.inputs[0], update.places, *q.inputs[3:4],
            size=q.attrs["size"], sources=sources_of(update.members),
        )  # fmt: skip
        for old, new in zip((q, keys, values), results, strict=True):
            editor.forward(old.name, new)

    return graph.rewrite(rule)


@dataclass(frozen=True, slots=True)
class _CacheUpdate:
    """The four nodes, the value with the indices of the written rows, and the name of the first node that reads a result."""

    rope_q: Node
    rope_k: Node
    keys: Node
    values: Node
    places: str
    reader: str

    @property
    def members(self) -> tuple[Node, ...]:
        return (self.rope_q, self.rope_k, self.keys, self.values)


def _find(graph: Graph, attention: Node, known: frozenset[str]) -> _CacheUpdate | None:
    q, *read = (graph.producer(v) for v in attention.values[:3])
    slices = [n for n in read if n is not None and n.op == "slice"]
    keys, values = (graph.producer(str(n.inputs[0])) if n in slices else n for n in read)
    if q is None or keys is None or values is None or q.op != "rope":
        return None
    at = [_places(graph, n) for n in (keys, values)]
    k = graph.producer(str(keys.inputs[2])) if at[0] else None
    if at[0] is None or at[0] != at[1] or k is None or k.op != "rope" or graph.only_user(k.name) is not keys:
        return None
    if q.inputs[1:] != k.inputs[1:] or q.attrs != k.attrs or q.attrs["interleaved"]:
        return None
    reader = min((attention, *slices), key=lambda n: graph.position[n.name])
    first, members = graph.position[reader.name], (q, keys, values)
    if any(graph.position[n.name] > first for n in members):
        return None
    if any(graph.position[u.name] < first for n in members for u in graph.users(n.name)):
        return None  # a reader of one part precedes the fused node
    caches = {str(keys.inputs[0]), str(values.inputs[0])}
    if len(caches) < 2 or caches & known or q.name in graph.kept:
        return None
    specs = [graph.spec(n.name) for n in members]
    if any(s.rank != 4 or s.dtype is not specs[0].dtype for s in specs):
        return None
    return _CacheUpdate(q, k, keys, values, at[0], reader.name)


def _places(graph: Graph, update: Node) -> str | None:
    """Return the [length] or [batch, length] value of the indices that an update along the length writes to; None for another update."""
    if update.op not in ("index_copy", "scatter") or update.attrs["dim"] not in (2, -2):
        return None
    if not all(isinstance(i, str) for i in update.inputs[:3]):
        return None
    value = str(update.inputs[1])
    spec = graph.spec(value)
    if spec.dtype not in (DType.INT32, DType.INT64):
        return None
    if update.op == "index_copy":
        return value if spec.rank == 1 else None
    rows = graph.spec(str(update.inputs[2])).shape
    if update.attrs["reduce"] != "none" or spec.shape != rows:
        return None
    # [batch, length] broadcast to [batch, heads, length, size]
    while (node := graph.producer(value)) is not None and node.op in _VIEWS:
        value = str(node.inputs[0])
        if graph.spec(value).shape == (rows[0], rows[2]):
            return value if _same_for_all(graph, str(update.inputs[1]), rows) else None
    return None


def _same_for_all(graph: Graph, value: str, rows: tuple[object, ...]) -> bool:
    """Return whether the index is [batch, 1, length, 1] broadcast, with no other movement."""
    node = graph.producer(value)
    if node is None or node.op != "expand":
        return False
    before = graph.spec(str(node.inputs[0])).shape
    return before == (rows[0], 1, rows[2], 1)
