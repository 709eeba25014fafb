"""fold_constants: replace nodes that read only constants by constants, computed by the interpreter.

Nodes that read weights stay: the compiler turns such subgraphs into recipes that run when weights are loaded. A constant does not
grow beyond its operands: a broadcast number is free, a broadcast tensor is memory traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..errors import IrError
from ..ir import MAX_CONST_ELEMENTS, OPS, Const, Editor, Graph, Node
from ..ir.interp import evaluate
from ..ir.ops.control import AT_RUN_TIME
from ..types import DType
from ._lib.known import elements
from .context import PassContext

__all__ = ["run"]

_GROWS = frozenset(["expand", "repeat", "full"])
_ALWAYS_ALLOWED = 64  # elements that a constant may have in any case


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with every foldable node folded, including results of folding."""
    known: dict[str, NDArray[Any]] = {}

    def rule(editor: Editor, node: Node) -> None:
        if node.op == "constant":
            const: Const = node.attrs["value"]
            if const.dtype is not DType.STRING:
                known[node.name] = const.numpy()
            return
        if not _foldable(node, known):
            return
        try:
            results = evaluate(node, known)
        except IrError:  # an index out of range, which is reported at run time
            return
        for value, array in zip(node.outputs, results, strict=True):
            known[value.name] = array
        if len(node.outputs) == 1:
            editor.replace(node, "constant", value=Const(results[0]))
            return
        for value, array in zip(node.outputs, results, strict=True):
            constant = editor.insert(node, "constant", value=Const(array), name=value.name)
            known[constant] = array  # its readers use the new name
            editor.forward(value.name, constant)

    return graph.rewrite(rule)


def _foldable(node: Node, known: Mapping[str, object]) -> bool:
    op = OPS[node.op]
    if node.op == "fused" or node.op in AT_RUN_TIME or op.random or op.data_dependent:
        return False
    if any(v not in known for v in node.values):
        return False
    max_elements = _ALWAYS_ALLOWED if node.op in _GROWS else MAX_CONST_ELEMENTS
    for value in node.outputs:
        size = elements(value.spec)
        if (
            size is None
            or size > max_elements
            or (value.spec is not None and value.spec.dtype is DType.STRING)
        ):
            return False
    return True
