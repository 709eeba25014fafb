"""The node that ``decompose`` expands, and insertion of the nodes that replace it."""

from __future__ import annotations

from typing import Any

from ...ir import Editor, Node
from ...types import DType, TensorSpec

__all__ = ["Expansion"]


class Expansion:
    """One node and its replacement: a call inserts a node before it, ``last`` replaces it."""

    def __init__(self, editor: Editor, node: Node) -> None:
        self.editor, self.node = editor, node
        self.narrow = node.spec.dtype.is_float and node.spec.dtype.bits < 32

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        value: str = self.editor.insert(self.node, op, *inputs, **attrs)
        return value

    def input(self, at: int) -> Any:
        """Return an operand; None if it is absent."""
        return self.node.inputs[at] if at < len(self.node.inputs) else None

    def wide(self, at: int) -> Any:
        """Return an operand for computing: narrow floats are cast to float32."""
        value = self.input(at)
        spec = self.spec(value) if isinstance(value, str) else None
        if spec is None or not (spec.dtype.is_float and spec.dtype.bits < 32):
            return value
        return self("cast", value, dtype=DType.FLOAT32)

    def spec(self, value: str) -> TensorSpec:
        """Return a value's spec."""
        spec = self.editor.values[value].spec
        assert spec is not None
        return spec

    def last(self, op: str, *inputs: Any, **attrs: Any) -> None:
        """Replace the node by this one, in the node's type."""
        if self.narrow and any(isinstance(i, str) and self.spec(i).dtype is DType.FLOAT32 for i in inputs):
            self.editor.replace(self.node, "cast", self(op, *inputs, **attrs), dtype=self.node.spec.dtype)
        else:
            self.editor.replace(self.node, op, *inputs, **attrs)
