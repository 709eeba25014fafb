"""fuse_gate, gate_products: fuse a linear layer with the gating of its two halves.

    silu_mul(*split(linear(x, cat(gate, up))))              ->  norm_linear(x, cat(gate, up), gated)
    silu_mul(*split(expert_linear(x, cat(gate, up), ids)))  ->  expert_linear(x, cat(gate, up), ids, gated)
    cast(silu_mul(cast(gate), cast(up)))                    ->  as without the casts, which a policy's ``precision`` leaves (gate_products)

``fuse_gate`` does it for few rows (decoding), where each intermediate result costs a launch. ``gate_products`` does it for more rows of 16-bit floats, on
targets whose product has the gate in its epilogue, where that is faster than a plain product and a launch for the gate.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import Editor, Graph, Node, sources_of
from ..ir.nodes import make_node
from ..types import HALF_FLOATS, DType
from ._lib.known import few_rows, known_values
from .context import PassContext

__all__ = ["run", "run_many"]

_IsLayer = Callable[[Graph, Node, frozenset[str], PassContext], bool]
_GatingOf = Callable[[Graph, Node], tuple[tuple[Node, ...], tuple[str, ...]]]

_GATED = {"linear": "norm_linear", "expert_linear": "expert_linear"}
"""Layer -> the op of its gated form."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with gated layers of few rows."""
    return _fused(graph, context or PassContext(), _of_few_rows, _product)


def run_many(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with gated layers of many rows."""
    context = context or PassContext()
    return _fused(graph, context, _of_many_rows, _product_of_casts) if context.gates_many_rows else graph


def _fused(graph: Graph, context: PassContext, is_layer: _IsLayer, gating_of: _GatingOf) -> Graph:
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        gating, halves = gating_of(graph, node)
        split = graph.producer(halves[0]) if halves else None
        if split is None or split.op != "split" or halves != tuple(v.name for v in split.outputs):
            return
        layer = graph.producer(str(split.inputs[0]))
        if layer is None or not context.has_kernel(_GATED.get(layer.op, "")):
            return
        if not is_layer(graph, layer, known, context):
            return
        sizes, last = split.attrs["sizes"], layer.spec.rank - 1
        equal_halves = len(sizes) == 2 and sizes[0] == sizes[1] and split.attrs["dim"] == last
        single_reader = all(len(graph.users(v.name)) == 1 for v in (*split.outputs, *layer.outputs))
        outputs = {v.name for v in (*split.outputs, *layer.outputs)} & set(graph.kept)
        members = (layer, split, *gating)
        if not equal_halves or not single_reader or outputs:
            return
        op, names = _GATED[layer.op], [v.name for v in node.outputs]
        gated = make_node(
            op,
            layer.inputs,
            {"act": "silu", "gated": True},
            lambda _: names,
            graph.values,
            sources=sources_of(members),
        )
        if not context.repays(graph, gated, known) or not context.may_fuse(graph, members):
            return
        if context.may_become(op, graph, members):
            editor.replace(
                node, op, *editor.current(layer).inputs, act="silu", gated=True, absorbs=members[:-1]
            )

    return graph.rewrite(rule)


def _product(graph: Graph, node: Node) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return a gated product and the halves that it multiplies; nothing for other nodes."""
    return ((node,), node.values) if node.op == "silu_mul" else ((), ())


def _product_of_casts(graph: Graph, node: Node) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return the same, also of halves that are widened to float32 before the product, and its result narrowed to their dtype: then all four nodes."""
    product = graph.producer(node.values[0]) if node.op == "cast" else None
    if product is None:
        return _product(graph, node)
    if (
        product.op != "silu_mul"
        or product.spec.dtype is not DType.FLOAT32
        or graph.only_user(product.outputs[0].name) is None
    ):
        return (), ()
    casts = [p for p in map(graph.producer, product.values) if p is not None and p.op == "cast"]
    halves = tuple(c.values[0] for c in casts if graph.only_user(c.outputs[0].name) is not None)
    if len(halves) != 2 or {graph.spec(h).dtype for h in halves} != {node.spec.dtype}:
        return (), ()
    return (*casts, product, node), halves


def _of_few_rows(graph: Graph, layer: Node, known: frozenset[str], context: PassContext) -> bool:
    """Return whether a node is a layer of constant weights and few rows, without an activation."""
    if layer.op == "expert_linear":
        rows = layer.spec.shape[0]
        plain = layer.attrs["act"] == "none" and not layer.attrs["gated"]
        return plain and isinstance(rows, int) and rows <= context.few_rows and layer.values[1] in known
    return layer.op == "linear" and few_rows(layer, context) and {*layer.values[1:]} <= known


def _of_many_rows(graph: Graph, layer: Node, known: frozenset[str], context: PassContext) -> bool:
    """Return whether a node is a layer of constant weights without a bias, whose operands and result are 16-bit floats of one dtype."""
    if layer.op != "linear" or len(layer.values) != 2 or layer.values[1] not in known:
        return False
    dtypes = {s.dtype for s in (layer.spec, *(graph.spec(v) for v in layer.values))}
    return len(dtypes) == 1 and next(iter(dtypes)) in HALF_FLOATS
