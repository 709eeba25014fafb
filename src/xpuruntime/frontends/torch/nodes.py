"""What an FX node says of itself: its op, its arguments' defaults, what its results are and who reads them."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["attribute", "default", "dense", "has_extra_dim", "is_number", "listed", "op_name", "users"]


def op_name(target: Any) -> tuple[str, str]:
    """("add.Tensor", "aten") of an op; a function that is none has the domain ``torch``."""
    name = (
        target.name() if callable(getattr(target, "name", None)) else getattr(target, "__name__", str(target))
    )
    domain, _, op = str(name).rpartition("::")
    return op, domain


def attribute(node: Any) -> Any:
    """What a ``get_attr`` node gives: an attribute of the module that holds its graph."""
    value = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def is_number(value: Any) -> bool:
    """A number of Python, or one of PyTorch's symbolic ones."""
    return type(value).__name__ in ("SymInt", "SymBool", "SymFloat") or isinstance(value, bool | int | float)


def listed(value: Any) -> list[Any]:
    """Several results as they are, one as a list of one."""
    return list(value) if isinstance(value, tuple | list) else [value]


def has_extra_dim(node: Any, position: int) -> bool:
    """Whether PyTorch's own shape of a result has a dim too many, after the first: 2.11 has for the last states of an LSTM, and takes the layer
    apart by that shape, while the layer itself computes the right one.
    """
    if str(node.target) != "aten.lstm.input" or not position:
        return False
    value, given = node.meta["val"][position], node.args[1][0].meta["val"]
    return bool(value.dim() == given.dim() + 1 and value.shape[1] == 1)


def users(node: Any, position: int) -> bool:
    """Whether somebody reads a result: the node itself where it has one, else the getitem of that place."""
    import torch

    if isinstance(node.meta["val"], torch.Tensor):
        return True
    return any(u.target is operator.getitem and u.args[1] == position and u.users for u in node.users)


def dense(node: Any) -> frozenset[str]:
    """Arguments whose tensors are the whole of their memory, in order."""
    names = [a.name for a in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    tensors = {k: v.meta["val"] for k, v in given.items() if hasattr(v, "meta")}
    return frozenset(k for k, t in tensors.items() if hasattr(t, "is_contiguous") and _is_dense(t))


def _is_dense(tensor: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return bool(tensor.is_contiguous() and tensor.storage_offset() == 0)
    except GuardOnDataDependentSymNode:  # a size depends on the content of a tensor
        return False


def default(node: Any, name: str) -> Any:
    """An argument's default value by the op's schema; None without one."""
    (argument,) = (a for a in node.target._schema.arguments if a.name == name)
    return argument.default_value if argument.has_default_value() else None
