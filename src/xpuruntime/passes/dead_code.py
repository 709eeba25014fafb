"""dead_code: remove unused nodes and weights, and unused optional outputs at the end of a node (a norm's mean, a dropout's mask)."""

from __future__ import annotations

from ..ir import OPS, Editor, Graph, Node
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without nodes that no output and no state depends on."""
    live = graph.rewrite(_nothing)
    nodes = tuple(_trimmed(live, n) for n in live.nodes)
    return live if all(a is b for a, b in zip(nodes, live.nodes, strict=True)) else live.replace(nodes=nodes)


def _nothing(editor: Editor, node: Node) -> None:
    """Do nothing: every rewrite drops dead nodes."""


def _trimmed(graph: Graph, node: Node) -> Node:
    op, keep = OPS[node.op], len(node.outputs)
    if op.outputs[-1].rest:
        return node
    while (
        keep > op.min_outputs
        and not graph.users(node.outputs[keep - 1].name)
        and node.outputs[keep - 1].name not in graph.kept
    ):
        keep -= 1
    if keep == len(node.outputs):
        return node
    return Node(node.op, node.inputs, node.attrs, node.outputs[:keep], node.sources)
