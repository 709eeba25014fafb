"""scatter_into_sum: add scattered values to the other operand of a sum, instead of to zeros that are added to it afterwards.

add(x, index_put(zeros, values, indices, accumulate))  ->  index_put(x, values, indices, accumulate)

A language model whose head shares the table of its embedding has this sum in backward: the table's size is read and written twice less.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ._lib.pattern_utils import number, producer_of, spec_of
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with scatters into the operands of sums."""
    return graph.rewrite(_rule)


def _rule(editor: Editor, node: Node) -> None:
    if node.op != "add" or node.inputs[0] == node.inputs[1]:
        return
    for at in (0, 1):
        scatter, other = producer_of(editor, node.inputs[at]), node.inputs[1 - at]
        if scatter is None or scatter.op != "index_put" or not scatter.attrs["accumulate"]:
            continue
        is_read_once = len(editor.graph.users(scatter.name)) == 1 and scatter.name not in editor.graph.kept
        same = spec_of(editor, other) == scatter.spec == node.spec
        if is_read_once and same and _is_zero(editor, scatter.inputs[0]):
            editor.replace(node, "index_put", other, *scatter.inputs[1:], accumulate=True, absorbs=[scatter])
            return


def _is_zero(editor: Editor, value: Any) -> bool:
    producer = producer_of(editor, value)
    if producer is not None and producer.op == "full":
        return bool(producer.attrs["value"] == 0)
    return number(editor, value) == 0
