"""Facts about a node for policies: its op family, and its names in the user's model."""

from __future__ import annotations

from ..families import family_of_aten, family_of_onnx
from .graph import Node
from .infer import find_op

__all__ = ["family_of", "is_view", "source_names"]


# the family of a fused node is the first of these in its body, else elementwise
_SPEAKS = ("softmax", "norm", "reduce")


def family_of(node: Node) -> str:
    """Return the op family of a node; for an opaque node, by its ONNX or ATen name. Raises IrError for an unknown op."""
    if node.op == "fused":
        members = {family_of(n) for n in node.attrs["body"].nodes}
        return next((family for family in _SPEAKS if family in members), find_op(node.op).family)
    if node.op != "opaque":
        return find_op(node.op).family
    domain, op = node.attrs["domain"], node.attrs["op_type"]
    return family_of_aten(op) if domain in ("aten", "torch") else family_of_onnx(op, domain)


def source_names(node: Node) -> tuple[str, ...]:
    """Return the names of the model's nodes that a node computes, for policy rules; without sources, its own name."""
    return tuple(dict.fromkeys(s.name or s.module for s in node.sources if s.name or s.module)) or (
        node.name,
    )


def is_view(node: Node) -> bool:
    """Return True if the result may share the first operand's memory (see ``OpEntry.view``)."""
    return bool(find_op(node.op).view)
