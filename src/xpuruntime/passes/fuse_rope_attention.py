"""fuse_rope_attention: fuse rotations, both updates of the KV cache and the attention that reads them.

    attention(*rope_append(q, k, v, ..., keys, values, places, positions), mask)  ->  rope_attention(q, k, v, ..., mask)

This saves one launch per layer. The kernels support few queries only, so the context decides about each node.
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node, sources_of
from ..ir.nodes import make_node
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with rope_attention nodes."""
    context = context or PassContext()
    if not context.has_kernel("rope_attention"):
        return graph

    def rule(editor: Editor, node: Node) -> None:
        before = _rows(graph, node) if node.op == "attention" else None
        if before is None:
            return
        members = (before, node)
        mask = node.inputs[3:4]
        inputs = [*before.inputs, *([None] * (9 - len(before.inputs)) if mask else []), *mask]
        attrs = dict(before.attrs) | dict(node.attrs)
        names = [v.name for v in (*node.outputs, *before.outputs[1:])]
        fused = make_node("rope_attention", tuple(inputs), attrs, lambda _: names, graph.values)
        if not context.computes(graph, fused) or not context.may_fuse(graph, members):
            return
        if not context.may_become("rope_attention", graph, members):
            return
        results = editor.insert(node, "rope_attention", *inputs, sources=sources_of(members), **attrs)
        for old, new in zip(names, results, strict=True):
            editor.forward(old, new)

    return graph.rewrite(rule)


def _rows(graph: Graph, attention: Node) -> Node | None:
    """Return the rope_append whose three results an attention reads; None if another node reads its queries, or its caches earlier."""
    append = graph.producer(attention.values[0])
    if (
        append is None
        or append.op != "rope_append"
        or attention.values[:3] != tuple(v.name for v in append.outputs)
    ):
        return None
    if graph.only_user(append.name) is not attention:
        return None
    attention_position = graph.position[attention.name]
    users = [u for v in append.outputs[1:] for u in graph.users(v.name)]
    return None if any(graph.position[u.name] < attention_position for u in users) else append
