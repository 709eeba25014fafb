"""The node that an expansion replaces, and how it writes nodes before it."""

from __future__ import annotations

from typing import Any

from ...ir import Editor, Node
from ...types import DType, TensorSpec

__all__ = ["Expansion"]


class Expansion:
    """Writes nodes before one, and the last in its place."""

    def __init__(self, editor: Editor, node: Node) -> None:
        self.editor, self.node = editor, node
        self.narrow = node.spec.dtype.is_float and node.spec.dtype.bits < 32

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        made: str = self.editor.insert(self.node, op, *inputs, **attrs)
        return made

    def input(self, at: int) -> Any:
        """An operand, None where it is absent."""
        return self.node.inputs[at] if at < len(self.node.inputs) else None

    def wide(self, at: int) -> Any:
        """An operand to compute with: narrow floats in float32."""
        value = self.input(at)
        spec = self.spec(value) if isinstance(value, str) else None
        if spec is None or not (spec.dtype.is_float and spec.dtype.bits < 32):
            return value
        return self("cast", value, dtype=DType.FLOAT32)

    def spec(self, value: str) -> TensorSpec:
        """A value's spec."""
        spec = self.editor.values[value].spec
        assert spec is not None
        return spec

    def last(self, op: str, *inputs: Any, **attrs: Any) -> None:
        """The result, in the node's own type."""
        if self.narrow and any(isinstance(i, str) and self.spec(i).dtype is DType.FLOAT32 for i in inputs):
            self.editor.replace(self.node, "cast", self(op, *inputs, **attrs), dtype=self.node.spec.dtype)
        else:
            self.editor.replace(self.node, op, *inputs, **attrs)
