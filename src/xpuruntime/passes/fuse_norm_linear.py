"""fuse_norm_linear: fuse an RMS norm into the one linear layer that reads it.

Only for few rows, and where a kernel computes both: each block recomputes the normalized rows, which is cheaper than a launch and a round trip to
memory.
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node, sources_of
from ..ir.nodes import make_node
from ._lib.known import few_rows, known_values
from .context import PassContext

__all__ = ["run"]

_LAYERS = frozenset(["linear", "fused_linear", "norm_linear"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with norms fused into the layers after them."""
    context = context or PassContext()
    if not context.has_kernel("norm_linear"):
        return graph
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        if node.op not in _LAYERS or not few_rows(node, context):
            return
        if (
            not all(i is None or i in known for i in node.inputs[1:3])
            or node.values.count(node.values[0]) > 1
        ):
            return
        norm, views = _before(graph, node)
        if norm is None or not _fits(graph, norm, node, known):
            return
        members = (norm, *views, node)
        if not context.may_fuse(graph, members) or not context.may_become("norm_linear", graph, members):
            return
        attrs = {"act": "none", "gated": False, **node.attrs, "eps": norm.attrs["eps"]}
        operands = [*node.inputs[:4], *[None] * (4 - len(node.inputs)), norm.inputs[1]]
        names = [v.name for v in node.outputs]
        fused = make_node(
            "norm_linear", operands, attrs, lambda _: names, graph.values, sources=sources_of((norm, node))
        )
        if not context.repays(graph, fused, known):
            return
        inputs = [editor.resolve(i) for i in node.inputs]
        x = editor.resolve(norm.inputs[0])
        for view in reversed(views):
            x = editor.insert(node, view.op, x, sources=view.sources, **view.attrs)
        inputs += [None] * (4 - len(inputs))
        editor.replace(
            node, "norm_linear", x, *inputs[1:4], editor.resolve(norm.inputs[1]), absorbs=(norm,), **attrs
        )

    return graph.rewrite(rule)


def _before(graph: Graph, layer: Node) -> tuple[Node | None, list[Node]]:
    """Return the norm that a layer reads, and the views between them; all keep the rows and have one reader."""
    views: list[Node] = []
    value = str(layer.inputs[0])
    while True:
        node = graph.producer(value)
        if node is None or graph.only_user(value) is None or value in graph.kept:
            return None, []
        if node.op == "rms_norm":
            return node, views
        if node.op != "view" or node.spec.shape[-1:] != graph.spec(node.values[0]).shape[-1:]:
            return None, []
        views.append(node)
        value = node.values[0]


def _fits(graph: Graph, norm: Node, layer: Node, known: frozenset[str]) -> bool:
    scale = norm.inputs[1] if len(norm.inputs) > 1 else None
    if not isinstance(scale, str) or scale not in known or len(norm.outputs) != 1:
        return False
    if layer.op == "norm_linear" and len(layer.inputs) > 4 and layer.inputs[4] is not None:
        return False  # it has a norm already
    spec, width = graph.spec(norm.values[0]), norm.attrs["normalized_shape"]
    residual = layer.inputs[3] if len(layer.inputs) > 3 else None
    if isinstance(residual, str) and graph.spec(residual).shape != layer.spec.shape:
        return False
    return len(width) == 1 and graph.spec(scale).dtype is spec.dtype is layer.spec.dtype
