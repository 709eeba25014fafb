"""fuse_conv: fuse a convolution with the bias, residual addition and activation that follow it.

If an addition joins two convolutions, the later one takes it: the result of the earlier one exists by then.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ._lib.epilogue import Epilogue, grow
from ._lib.known import known_values
from .context import PassContext

__all__ = ["combined_bias", "run"]

_OPS = frozenset(["convolution"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with fused_convolution nodes."""
    context = context or PassContext()
    known = known_values(graph)
    fused = find_groups(graph, known, context, _OPS, lambda node: 1)

    def rule(editor: Editor, node: Node) -> None:
        group = fused.get(node.name)
        if group is None:
            return
        layer = editor.current(group.members[0])
        x, weight, bias = (*layer.inputs, None)[:3]
        bias = combined_bias(editor, node, bias, group.biases, layer.spec.shape[1])
        absorbed = group.members[:-1]
        if group.residual is None and group.act == "none":
            editor.replace(node, "convolution", x, weight, bias, absorbs=absorbed, **layer.attrs)
            return
        operands: list[Any] = [x, weight, bias, group.residual]
        while operands[-1] is None:
            operands.pop()
        editor.replace(node, "fused_convolution", *operands, absorbs=absorbed, **layer.attrs, act=group.act)

    return graph.rewrite(rule)


def find_groups(
    graph: Graph, known: frozenset[str], context: PassContext, ops: frozenset[str], channel: Any
) -> dict[str, Epilogue]:
    """Return layers with their epilogues by the name of the last member, without layers that have none."""
    taken: set[str] = set()
    groups: dict[str, Epilogue] = {}

    def rival(layer: Node, add: Node) -> bool:
        return _leave_to_other(graph, layer, add, ops)

    for node in graph.nodes:
        if node.op not in ops or node.name in taken:
            continue
        group = grow(graph, node, known, channel(node), taken, context.may_fuse, rival)
        if len(group.members) > 1:
            taken.update(n.name for n in group.members)
            groups[group.root.name] = group
    return groups


def _leave_to_other(graph: Graph, layer: Node, add: Node, ops: frozenset[str]) -> bool:
    """Return whether the other operand of an addition comes from a later layer of this kind (through its bias) that could take it as well."""
    for operand in add.values:
        node = graph.producer(operand)
        while node is not None and node.op == "add" and graph.only_user(node.name) is not None:
            nodes = [n for n in (graph.producer(i) for i in node.values) if n is not None and n.op in ops]
            node = nodes[0] if nodes else None
        if (
            node is None
            or node.op not in ops
            or node.name == layer.name
            or graph.only_user(node.name) is None
        ):
            continue
        if graph.position[node.name] > graph.position[layer.name]:
            return True
    return False


def combined_bias(editor: Editor, at: Node, bias: Any, more: list[str], channels: Any) -> Any:
    """Return one bias [C] as the sum of all per-channel additions; None if there is none."""
    for other in more:
        spec = editor.values[other].spec
        assert spec is not None
        flat = other
        if spec.shape != (channels,):
            size = next((d for d in spec.shape if d != 1), 1)
            flat = editor.insert(at, "view", other, size=(size,))
            if size != channels:
                flat = editor.insert(at, "expand", flat, size=(channels,))
        bias = flat if bias is None else editor.insert(at, "add", bias, flat, name="bias")
    return bias
