"""recognize_causal: replace a mask that is known at compile time and hides later keys by attention's ``causal``.

attention(q, k, v, [[0, -inf], [0, 0]])       ->  attention(q, k, v, causal=true)                     two queries, two keys
attention(q, k, v, [[true, true, false]])     ->  attention(q, k, v, causal=true, causal_offset=1)    one query, three keys
attention(q, k, v, [[true, true, true]])      ->  attention(q, k, v)                                  hides nothing

Exporters of language models write the mask as a tensor computed from positions. Kernels with a causal option skip the hidden half of
the products (Dao 2023, section 3.1), and some libraries do not support mask tensors.

A mask qualifies if each element either keeps (true, or exactly 0) or hides (false, or at most the lowest float16), equally for all
samples and heads, and every query sees a key. Its value is computed here from constants and available weights, by elementwise ops,
reductions and data movement: at most 64 nodes of at most 4096 * 4096 elements each. Padding inputs, windows smaller than the sequence and
biases stay tensors. The mask also stays if no kernel computes attention: ``decompose`` expands masks only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IrError
from ..ir import OPS, Editor, Graph, Node, family_of, sources_of
from ..ir.interp import evaluate
from ..types import DType
from ._lib.known import elements
from .context import PassContext

__all__ = ["run"]

_HIDDEN = -65504.0  # the lowest float16: exp of it is 0 next to any other score
_MAX_NODES = 64
_MAX_ELEMENTS = 4096 * 4096
"""Limits of the computation at compile time."""
_FAMILIES = frozenset(["elementwise", "reduce", "data_movement", "create"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with causal attention instead of causal masks."""
    context = context or PassContext()
    if not context.has_kernel("attention"):
        return graph
    masks = _CausalMasks(graph, context)

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "attention" or len(node.inputs) < 4 or not isinstance(node.inputs[3], str):
            return
        attrs = dict(node.attrs)
        offset = masks.offset(
            node.inputs[3], graph.spec(node.values[0]).shape[2], graph.spec(node.values[1]).shape[2]
        )
        if offset is None:
            return
        if offset != math.inf:
            existing_offset = attrs["causal_offset"] if attrs["causal"] else offset
            if not isinstance(existing_offset, int):
                return
            attrs |= {"causal": True, "causal_offset": min(existing_offset, int(offset))}
        chain = masks.chains[node.inputs[3]]
        if not context.may_fuse(graph, (*chain, node)):
            return
        replacement = editor.replace(node, "attention", *node.inputs[:3], **attrs)
        editor.set_sources(replacement, sources_of([node, *chain]))

    return graph.rewrite(rule)


class _CausalMasks:
    """The causal masks of a graph; each mask is computed once."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph = graph
        self.weights = {w.name: w for w in graph.weights}
        self.peek = context.peek
        self.chains: dict[str, list[Node]] = {}  # mask -> the nodes that compute it
        self.answers: dict[tuple[object, ...], float | None] = {}

    def offset(self, mask: str, queries: object, keys: object) -> float | None:
        """Return the offset by which query i sees keys up to i + offset; infinite if nothing is hidden, None for another mask."""
        key = (mask, queries, keys)
        if key not in self.answers:
            seen = self.seen(mask)
            self.answers[key] = None if seen is None else _offset(seen, queries, keys)
        return self.answers[key]

    def seen(self, mask: str) -> NDArray[np.bool_] | None:
        """Return the kept elements as a matrix that all samples and heads share; its dims may be 1."""
        value, spread = mask, []
        while (node := self.graph.producer(value)) is not None and node.op == "expand":
            spread.append(node)
            value = str(node.inputs[0])
        spec = self.graph.values[value].spec
        if spec is None or not (spec.dtype is DType.BOOL or spec.dtype.is_float):
            return None
        arrays: dict[str, NDArray[Any]] = {}
        chain = self.computed(value, arrays)
        if chain is None:
            return None
        self.chains[mask] = [*chain, *spread[::-1]]
        keeps = _kept(arrays[value])
        if keeps is None or not keeps.size:
            return None
        heads = keeps.reshape(-1, *(1,) * (2 - keeps.ndim), *keeps.shape[-2:])
        return heads[0] if bool((heads == heads[0]).all()) else None

    def computed(self, root: str, arrays: dict[str, NDArray[Any]]) -> list[Node] | None:
        """Compute a value from known values into ``arrays``. Return its nodes in order; None if it is not known."""
        chain = self.known(root, arrays)
        if chain is None:
            return None
        try:
            for node in chain:
                results = evaluate(node, arrays)
                arrays.update(zip((v.name for v in node.outputs), results, strict=True))
        except IrError:  # an index out of range, which is reported at run time
            return None
        return chain

    def known(self, root: str, arrays: dict[str, NDArray[Any]]) -> list[Node] | None:
        """Return the nodes that compute a value, in order, and put the weights that they read into ``arrays``."""
        names: set[str] = set()
        pending = [root]
        while pending:
            value = pending.pop()
            size, node = elements(self.graph.values[value].spec), self.graph.producer(value)
            if size is None or size > _MAX_ELEMENTS:
                return None
            if node is None:
                array = self.peek(self.weights[value]) if value in self.weights else None
                if array is None:
                    return None
                arrays[value] = array
            elif node.name not in names:
                if not _is_computable(node) or len(names) == _MAX_NODES:
                    return None
                names.add(node.name)
                pending += node.values
        return [n for n in self.graph.nodes if n.name in names]


def _is_computable(node: Node) -> bool:
    op = OPS[node.op]
    return (
        node.op not in ("opaque", "fused")
        and not (op.random or op.data_dependent)
        and family_of(node) in _FAMILIES
    )


def _kept(mask: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return the kept elements of a mask; None if it has other values."""
    if mask.dtype == np.bool_:
        return mask
    values = mask.astype(np.float32) if mask.dtype.itemsize < 4 else mask
    keeps = values == 0
    return keeps if bool((keeps | (values <= _HIDDEN)).all()) else None


def _offset(seen: NDArray[np.bool_], queries: object, keys: object) -> float | None:
    if bool(seen.all()):
        return math.inf
    if not isinstance(queries, int) or not isinstance(keys, int):
        return None
    full = np.broadcast_to(seen, (queries, keys))
    offset = int(np.count_nonzero(full[0])) - 1
    causal = offset >= 0 and np.array_equal(full, np.tri(queries, keys, offset, dtype=np.bool_))
    return offset if causal else None
