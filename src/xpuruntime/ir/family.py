"""What a policy asks of a node: its op family, and the names under which the user's model knows it."""

from __future__ import annotations

from ..families import family_of_aten, family_of_onnx
from .graph import Node
from .infer import find_op

__all__ = ["family_of", "is_view", "source_names"]


# a fused node is of the first of these that its body has, else elementwise
_SPEAKS = ("softmax", "norm", "reduce")


def family_of(node: Node) -> str:
    """Return the policy's word for the node's op; an opaque node is asked by its own vocabulary. Raises IrError for an unknown op."""
    if node.op == "fused":
        members = {family_of(n) for n in node.attrs["body"].nodes}
        return next((family for family in _SPEAKS if family in members), find_op(node.op).family)
    if node.op != "opaque":
        return find_op(node.op).family
    domain, op = node.attrs["domain"], node.attrs["op_type"]
    return family_of_aten(op) if domain in ("aten", "torch") else family_of_onnx(op, domain)


def source_names(node: Node) -> tuple[str, ...]:
    """Return names of the model's nodes that it computes, for rules that match node names; its own where there is no source."""
    return tuple(dict.fromkeys(s.name or s.module for s in node.sources if s.name or s.module)) or (
        node.name,
    )


def is_view(node: Node) -> bool:
    """Return whether the result may share the first operand's memory (``Op.view`` says how)."""
    return bool(find_op(node.op).view)
