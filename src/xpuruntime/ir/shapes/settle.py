"""Sizes of control flow that become known: once the dims of a graph have values, branches may agree and loops have a length."""

from __future__ import annotations

from ...types import Dim, DimLike
from ..graph import Graph
from ..infer import find_op, infer
from ..nodes import operand_specs
from ..ops.control import CONTROL
from .symbols import specialize

__all__ = ["settled"]


def settled(graph: Graph) -> Graph:
    """Return the graph with symbols of control flow replaced by sizes that are known."""
    while any(n.op in CONTROL and n.attrs["sizes"] for n in graph.nodes):
        sizes: dict[str, DimLike] = {}
        for node in graph.nodes:
            if node.op not in CONTROL or not node.attrs["sizes"]:
                continue
            row = find_op(node.op)
            inferred = infer(row, operand_specs(row, node.inputs, graph.values, node.name), node.attrs)
            for value, spec in zip(node.outputs, inferred, strict=True):
                for old, new in zip(() if value.spec is None else value.spec.shape, spec.shape, strict=True):
                    symbol = _symbol(old)
                    if symbol and old != new:
                        sizes[symbol] = new
        if not sizes:
            return graph
        graph = specialize(graph, sizes)
    return graph


def _symbol(d: DimLike) -> str:
    """Return the name of a dim that is one symbol, else an empty string."""
    return str(d) if isinstance(d, Dim) and d.symbols == {str(d)} else ""
