"""Operators of PyTorch extensions in a graph, and what to do about parts of a module that no session computes."""

from __future__ import annotations

from .graph import Graph, Node

__all__ = [
    "ATEN",
    "CONTROL_OPERATORS",
    "LEFT_TO_PYTORCH",
    "is_complex_tensor",
    "of_an_extension",
]

ATEN = frozenset({"aten", "torch"})
"""The domains of opaque nodes with PyTorch's own ops."""
CONTROL_OPERATORS = ("cond", "while_loop", "map_impl", "scan", "associative_scan")
"""PyTorch's operators with bodies."""
LEFT_TO_PYTORCH = "Use torch.compile(module, backend='xpuruntime'), which leaves it to PyTorch"


def of_an_extension(graph: Graph, node: Node) -> bool:
    """Return True for an operator of a PyTorch extension, of which only the extension has a form."""
    return node.op == "opaque" and node.attrs["domain"] not in ATEN and "torch" in graph.metadata


def is_complex_tensor(node: Node) -> bool:
    """Return whether PyTorch makes one complex tensor of two real ones in the node."""
    return node.op == "opaque" and (node.attrs["domain"], node.attrs["op_type"]) == ("aten", "complex")
