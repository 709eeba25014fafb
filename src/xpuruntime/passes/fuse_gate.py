"""fuse_gate: fuse a linear layer with the gating of its two halves.

    silu_mul(*split(linear(x, cat(gate, up))))              ->  norm_linear(x, cat(gate, up), gated)
    silu_mul(*split(expert_linear(x, cat(gate, up), ids)))  ->  expert_linear(x, cat(gate, up), ids, gated)

Only for few rows (decoding), where each intermediate result costs a launch. With many rows, faster kernels compute the plain product.
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node, sources_of
from ..ir.nodes import make_node
from ._lib.known import few_rows, known_values
from .context import PassContext

__all__ = ["run"]

_GATED = {"linear": "norm_linear", "expert_linear": "expert_linear"}
"""Layer -> the op of its gated form."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with gated layers."""
    context = context or PassContext()
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "silu_mul":
            return
        split = graph.producer(str(node.inputs[0]))
        if split is None or split.op != "split" or node.values != tuple(v.name for v in split.outputs):
            return
        layer = graph.producer(str(split.inputs[0]))
        if layer is None or not context.has_kernel(_GATED.get(layer.op, "")):
            return
        if not _is_layer(graph, layer, known, context):
            return
        sizes, last = split.attrs["sizes"], layer.spec.rank - 1
        equal_halves = len(sizes) == 2 and sizes[0] == sizes[1] and split.attrs["dim"] == last
        single_reader = all(len(graph.users(v.name)) == 1 for v in (*split.outputs, *layer.outputs))
        outputs = {v.name for v in (*split.outputs, *layer.outputs)} & set(graph.kept)
        members = (layer, split, node)
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
                node, op, *editor.current(layer).inputs, act="silu", gated=True, absorbs=(layer, split)
            )

    return graph.rewrite(rule)


def _is_layer(graph: Graph, layer: Node, known: frozenset[str], context: PassContext) -> bool:
    """Return whether a node is a layer of constant weights and few rows, without an activation."""
    if layer.op == "expert_linear":
        rows = layer.spec.shape[0]
        plain = layer.attrs["act"] == "none" and not layer.attrs["gated"]
        return plain and isinstance(rows, int) and rows <= context.few_rows and layer.values[1] in known
    return layer.op == "linear" and few_rows(layer, context) and {*layer.values[1:]} <= known
