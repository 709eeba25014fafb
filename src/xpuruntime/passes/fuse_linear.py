"""fuse_linear: turn products with a known matrix into ``linear``, then fuse bias, residual and activation as fuse_conv does.

``mm``, ``matmul`` and ``addmm`` read the matrix as [in, out], ``linear`` as [out, in]. The pass inserts a permute on known values,
which the compiler turns into a recipe. A permute that exists already cancels.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ._lib.epilogue import combined_bias, find_groups
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with linear and fused_linear nodes."""
    context = context or PassContext()
    return _with_epilogues(_as_linear(graph), context)


def _as_linear(graph: Graph) -> Graph:
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        match node.op:
            case "mm" | "matmul":
                bias, (x, weight) = None, node.inputs
            case "addmm" if node.attrs["alpha"] == 1.0 and node.attrs["beta"] in (0.0, 1.0):
                bias, x, weight = node.inputs
                bias = bias if node.attrs["beta"] else None
            case _:
                return
        if not isinstance(x, str) or not isinstance(weight, str) or weight not in known or x in known:
            return
        spec = editor.values[weight].spec
        if spec is None or spec.rank != 2:
            return
        if bias is not None:
            added = editor.values[str(bias)].spec
            if (
                bias not in known
                or added is None
                or added.shape not in ((spec.shape[1],), (1, spec.shape[1]), (1,), ())
            ):
                return
            bias = combined_bias(editor, node, None, [str(bias)], spec.shape[1])
        operands = (x, _transposed(editor, graph, node, weight), *(() if bias is None else (bias,)))
        editor.replace(node, "linear", *operands)

    return graph.rewrite(rule)


def _transposed(editor: Editor, graph: Graph, at: Node, weight: str) -> str:
    """Return the transpose of the known matrix."""
    maker = graph.producer(weight)
    if maker is not None and maker.op == "permute" and maker.attrs["dims"] == (1, 0):
        return str(maker.inputs[0])
    permuted: str = editor.insert(at, "permute", weight, dims=(1, 0))
    return permuted


def _with_epilogues(graph: Graph, context: PassContext) -> Graph:
    known = known_values(graph)
    fused = find_groups(graph, known, context, frozenset(["linear"]), lambda node: node.spec.rank - 1)

    def rule(editor: Editor, node: Node) -> None:
        group = fused.get(node.name)
        if group is None:
            return
        layer = editor.current(group.members[0])
        x, weight, bias = (*layer.inputs, None)[:3]
        bias = combined_bias(editor, node, bias, group.biases, layer.spec.shape[-1])
        operands: list[Any] = [x, weight, bias, group.residual]
        while operands[-1] is None:
            operands.pop()
        op, act = (
            ("linear", {})
            if group.residual is None and group.act == "none"
            else ("fused_linear", {"act": group.act})
        )
        editor.replace(node, op, *operands, absorbs=group.members[:-1], **act)

    return graph.rewrite(rule)
