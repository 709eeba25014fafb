"""unflatten: replace a product over flattened batch dims by the product of the unflattened values, so that no views separate a layer from its readers.

view(linear(view(x)))          ->  linear(x)              leading dims merged before and split after
view(bmm(view(a), view(b)))    ->  matmul(a, b)           as decompositions of matmul write it
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from . import simplify
from ._lib.pattern_utils import producer_of, spec_of
from .context import PassContext

__all__ = ["run"]

_LAYERS = frozenset(["linear", "mm", "addmm", "matmul"])
_MOVES = frozenset(["view", "squeeze", "unsqueeze"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with products over unflattened dims."""
    for _ in range(8):
        rewritten = graph.rewrite(_rule)
        if rewritten is graph:
            return graph
        graph = simplify.run(rewritten, context)
    return graph


def _rule(editor: Editor, node: Node) -> None:
    if node.op not in _MOVES or node.outputs[0].spec is None or not node.spec.is_static:
        return
    inner = _single_reader(editor, node.inputs[0])
    if inner is None:
        return
    if inner.op in _LAYERS:
        _layer(editor, node, inner)
    elif inner.op == "bmm":
        _batches(editor, node, inner)


def _single_reader(editor: Editor, value: Any) -> Node | None:
    """Return the producer of a value with one reader."""
    node = producer_of(editor, value)
    return None if node is None or editor.graph.only_user(node.name) is None else node


def _before(editor: Editor, value: Any, lead: int) -> Any:
    """Return the value before a view that keeps the last dims (all but ``lead``); None if there is no such view."""
    node = producer_of(editor, value)
    if node is None or node.op not in _MOVES:
        return None
    x, y = spec_of(editor, node.inputs[0]), node.outputs[0].spec
    if x is None or y is None or x.rank < y.rank or x.shape[x.rank - (y.rank - lead) :] != y.shape[lead:]:
        return None
    return node.inputs[0]


def _layer(editor: Editor, node: Node, inner: Node) -> None:
    """Replace a view of ``linear`` or a similar op over [rows, in]."""
    at = 1 if inner.op == "addmm" else 0
    x = _before(editor, inner.inputs[at], 1)
    source, weight = spec_of(editor, x), spec_of(editor, inner.inputs[at + 1])
    if source is None or weight is None or inner.spec.rank != 2 or weight.rank != 2:
        return
    if node.spec.shape != (*source.shape[:-1], inner.spec.shape[-1]):
        return
    match inner.op:
        case "linear":
            product_node = editor.replace(node, "linear", x, *inner.inputs[1:])
        case "addmm":
            bias = spec_of(editor, inner.inputs[0])
            if inner.attrs["alpha"] != 1.0 or inner.attrs["beta"] != 1.0 or bias is None or bias.rank > 1:
                return
            product = editor.insert(node, "matmul", x, inner.inputs[2], sources=inner.sources)
            product_node = editor.replace(node, "add", product, inner.inputs[0])
        case _:
            product_node = editor.replace(node, "matmul", x, inner.inputs[1])
    _merge_sources(editor, product_node, inner)


def _batches(editor: Editor, node: Node, inner: Node) -> None:
    """Replace a view of ``bmm`` over [batches, rows, columns]."""
    a, b = (_before(editor, i, 1) for i in inner.inputs)
    first, second = spec_of(editor, a), spec_of(editor, b)
    if first is None or second is None or first.rank != second.rank or first.shape[:-2] != second.shape[:-2]:
        return
    if node.spec.shape != (*first.shape[:-1], second.shape[-1]):
        return
    _merge_sources(editor, editor.replace(node, "matmul", a, b), inner)


def _merge_sources(editor: Editor, replacement: Node, inner: Node) -> None:
    editor.set_sources(replacement, tuple(dict.fromkeys((*inner.sources, *replacement.sources))))
