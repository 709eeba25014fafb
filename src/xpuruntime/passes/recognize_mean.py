"""recognize_mean: replace a pool whose window is the whole input by a reduction, which uses more threads.

adaptive_avg_pool(x, [1, 1])      ->  mean(x, spatial dims)
adaptive_max_pool(x, [1, 1])      ->  amax(x, spatial dims)
avg_pool(x, the size of x)        ->  mean(x, spatial dims)      without padding
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node
from ._lib.pattern_utils import spec_of
from .context import PassContext

__all__ = ["run"]

_REDUCTIONS = {"adaptive_avg_pool": "mean", "avg_pool": "mean", "adaptive_max_pool": "amax"}


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with reductions for such pools, if policies allow it."""
    context = context or PassContext()

    def rule(editor: Editor, node: Node) -> None:
        if node.op in _REDUCTIONS and _covers_input(editor, node) and _allowed(graph, node, context):
            rank = len(
                node.attrs["output_size"] if "output_size" in node.attrs else node.attrs["kernel_size"]
            )
            dims = list(range(node.spec.rank - rank, node.spec.rank))
            editor.replace(node, _REDUCTIONS[node.op], node.inputs[0], dim=dims, keepdim=True)

    return graph.rewrite(rule)


def _allowed(graph: Graph, node: Node, context: PassContext) -> bool:
    return bool(context.may_fuse(graph, (node,)) and context.may_become(_REDUCTIONS[node.op], graph, (node,)))


def _covers_input(editor: Editor, node: Node) -> bool:
    x, at = spec_of(editor, node.inputs[0]), node.attrs
    if x is None or not x.dtype.is_float or len(node.outputs) > 1:
        return False
    if "output_size" in at:
        return all(n == 1 for n in at["output_size"])
    space = x.shape[x.rank - len(at["kernel_size"]) :]
    return (
        tuple(at["kernel_size"]) == tuple(space)
        and not any(at["padding"])
        and all(d == 1 for d in at["dilation"])
        and at["divisor"] is None
    )
