"""fuse_conv: fuse a convolution with the bias, residual addition and activation that follow it.

If an addition joins two convolutions, it is fused into the later one, whose residual is then the earlier result.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ._lib.epilogue import combined_bias, find_groups
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run"]

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
