"""Queries of rewrite rules: producers, constant operands, and checked forwarding."""

from __future__ import annotations

from typing import Any

from ...ir import Const, Editor, Node
from ...types import DType, TensorSpec

__all__ = ["forward", "number", "producer_of", "spec_of"]


def producer_of(editor: Editor, value: Any) -> Node | None:
    """Return the current node that produces a value; None for numbers, inputs, weights, and values of this sweep."""
    node = editor.graph.producer(value) if isinstance(value, str) else None
    return None if node is None else editor.current(node)


def spec_of(editor: Editor, value: Any) -> TensorSpec | None:
    """Return a value's spec; None for numbers and unknown types."""
    entry = editor.values.get(value) if isinstance(value, str) else None
    return None if entry is None else entry.spec


def number(editor: Editor, operand: Any) -> float | int | bool | None:
    """Return the number that all elements of an operand have; None if there is none."""
    if operand is None or isinstance(operand, bool | int | float):
        return operand
    node = producer_of(editor, operand)
    if node is None or node.op != "constant":
        return None
    value: Const = node.attrs["value"]
    if not value.size or not (value.dtype.is_float or value.dtype.is_integer or value.dtype is DType.BOOL):
        return None
    values = value.numpy().reshape(-1)
    first: float | int | bool = (
        values[:1].astype(value.dtype.numpy if value.dtype.is_integer else _plain(value.dtype))[0].item()
    )
    return first if bool((values == values[0]).all()) else None


def _plain(dtype: DType) -> type:
    return bool if dtype is DType.BOOL else float


def forward(editor: Editor, node: Node, to: Any) -> bool:
    """Redirect readers of the node's result to ``to`` if the types are equal. A graph output must stay a node's result."""
    if not isinstance(to, str) or spec_of(editor, to) != node.outputs[0].spec:
        return False
    if node.name in editor.graph.kept and editor.graph.producer(to) is None:
        return False
    editor.forward(node.name, to)
    return True
