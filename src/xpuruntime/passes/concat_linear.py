"""concat_linear: merge linear layers of one input (query, key and value; gate and up) into one, followed by a split.

One product over wider weights reads the input once and is one launch instead of three; the weights are concatenated at load time.
The parts are views of the result if the reading kernels support strides. Every element is the same sum as before.
"""

from __future__ import annotations

from collections import defaultdict

from ..ir import Editor, Graph, Node
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with groups of two or more plain linear layers merged."""
    context = context or PassContext()
    if not context.has_kernel("split"):
        return graph
    known = known_values(graph)
    groups: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "linear" and node.name not in known and all(v in known for v in node.values[1:]):
            groups[(node.inputs[0], len(node.values), node.spec.dtype)].append(node)
    joined = {
        nodes[0].name: nodes
        for nodes in groups.values()
        if len(nodes) > 1 and context.may_fuse(graph, tuple(nodes))
    }
    if not joined:
        return graph

    def rule(editor: Editor, node: Node) -> None:
        if node.name in joined:
            _join(editor, joined[node.name])

    return graph.rewrite(rule)


def _join(editor: Editor, nodes: list[Node]) -> None:
    """Replace the first layer by the merged one; readers of the others read its parts."""
    first = nodes[0]
    sources = tuple(dict.fromkeys(s for n in nodes for s in n.sources))
    parts = [
        editor.insert(first, "cat", *(n.values[i] for n in nodes), dim=0) for i in range(1, len(first.values))
    ]
    wide = editor.insert(first, "linear", first.inputs[0], *parts, sources=sources)
    sizes = [n.spec.shape[-1] for n in nodes]
    pieces = editor.insert(first, "split", wide, sizes=sizes, dim=first.spec.rank - 1)
    for node, piece in zip(nodes, pieces, strict=True):
        if node.name in editor.graph.kept:
            editor.replace(node, "clone", piece)
        else:
            editor.forward(node.name, piece)
