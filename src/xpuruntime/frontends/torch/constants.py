"""Evaluation of tensors that depend on constants alone. PyTorch computes them at import if a size or a number depends on them."""

from __future__ import annotations

import operator
from typing import Any

from .nodes import as_list

__all__ = ["ConstantEvaluator"]

_MAX_ELEMENTS = 1 << 20
"""Maximum elements of a tensor that is computed."""
_MAX_DEPTH = 500
"""Maximum depth of nodes behind a value."""


class ConstantEvaluator:
    """Evaluates nodes of an exported program whose operands are all constants.

    constants: constants of the program and numbers computed so far, by FX node.
    """

    def __init__(self) -> None:
        self.constants: dict[Any, Any] = {}
        self._values: dict[Any, Any] = {}

    def of(self, node: Any) -> Any:
        """Return the node's value (tensor, number, or list of them); None if it depends on an input, a weight or a random draw."""
        return self._of(node, 0)

    def _of(self, node: Any, depth: int) -> Any:
        if node in self.constants:
            return self.constants[node]
        if node not in self._values:
            self._values[node] = self._evaluate(node, depth) if depth < _MAX_DEPTH else None
        return self._values[node]

    def _evaluate(self, node: Any, depth: int) -> Any:
        import torch

        if node.op != "call_function" or not _is_plain(node):
            return None
        operands: dict[Any, Any] = {}
        for operand in node.all_input_nodes:
            value = self._of(operand, depth + 1)
            if value is None:
                return None
            operands[operand] = value
        try:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
            cpu = {"device": "cpu"} if "device" in kwargs else {}
            with torch.no_grad():
                result = node.target(*args, **{**kwargs, **cpu})
        except Exception:  # the lowering reports what is wrong with the call
            return None
        tensors = [t for t in as_list(result) if isinstance(t, torch.Tensor)]
        return result if all(t.numel() <= _MAX_ELEMENTS for t in tensors) else None


def _is_plain(node: Any) -> bool:
    """Return whether the node is deterministic, has no side effects and creates nothing large."""
    import torch

    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    sizes = [t.shape for t in as_list(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return all(torch.Size(d for d in s if isinstance(d, int)).numel() <= _MAX_ELEMENTS for s in sizes)
