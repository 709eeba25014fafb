"""Expansion of writes that reduce and that no kernel computes: means, and 16-bit floats, which would round after each addition."""

from __future__ import annotations

from ...ir import Editor, Node
from .expansion import Expansion

__all__ = ["expand_scatter", "reduces"]

_VALUES = {"scatter": 2, "scatter_nd": 2, "index_put": 1}
"""Op -> the position of the values that it writes."""


def reduces(node: Node) -> str:
    """Return how a node combines the values that it writes with others; ``none`` if it replaces them, or writes none."""
    if node.op not in _VALUES:
        return "none"
    return "add" if node.attrs.get("accumulate") else str(node.attrs.get("reduce", "none"))


def expand_scatter(editor: Editor, node: Node) -> bool:
    """Expand a write that reduces, if it is a mean or its elements are narrow floats. Return whether it was expanded."""
    how = reduces(node)
    if how == "none":
        return False
    emit, is_mean = Expansion(editor, node), how == "mean"
    if not (is_mean or emit.narrow):
        return False
    inputs = [emit.wide(i) if i in (0, _VALUES[node.op]) else v for i, v in enumerate(node.inputs)]
    attrs = {**node.attrs, "reduce": "add"} if is_mean else node.attrs
    if not is_mean:
        emit.last(node.op, *inputs, **attrs)
        return True
    total = emit(node.op, *inputs, **attrs)
    dtype = emit.spec(total).dtype
    one = 1.0 if dtype.is_float else 1
    ones = [
        emit("full", size=emit.spec(str(v)).shape, value=one, dtype=dtype) for v in (total, node.inputs[1])
    ]
    count = emit(node.op, ones[0], node.inputs[1], ones[1], **attrs)
    emit.last("div", total, count, rounding_mode=None if dtype.is_float else "floor")
    return True
