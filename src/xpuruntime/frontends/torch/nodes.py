"""Queries on FX nodes: op, default arguments, results and their readers."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["as_list", "attribute", "default", "dense", "has_extra_dim", "has_readers", "is_number", "op_name"]


def op_name(target: Any) -> tuple[str, str]:
    """Return (op, domain), such as ("add.Tensor", "aten"); a plain function has the domain ``torch``."""
    name = (
        target.name() if callable(getattr(target, "name", None)) else getattr(target, "__name__", str(target))
    )
    domain, _, op = str(name).rpartition("::")
    return op, domain


def attribute(node: Any) -> Any:
    """Return the value of a ``get_attr`` node: an attribute of the module that owns its graph."""
    value = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value


def is_number(value: Any) -> bool:
    """Return whether the value is a Python number or one of PyTorch's symbolic numbers."""
    return type(value).__name__ in ("SymInt", "SymBool", "SymFloat") or isinstance(value, bool | int | float)


def as_list(value: Any) -> list[Any]:
    """Return several results as a list, and one as a list of one."""
    return list(value) if isinstance(value, tuple | list) else [value]


def has_extra_dim(node: Any, position: int) -> bool:
    """Return whether PyTorch's shape of a result has an extra dim after the first. PyTorch 2.11 does so for the last states of an LSTM
    and decomposes the layer by that shape, while the layer itself computes the correct one.
    """
    if str(node.target) != "aten.lstm.input" or not position:
        return False
    value, initial = node.meta["val"][position], node.args[1][0].meta["val"]
    return bool(value.dim() == initial.dim() + 1 and value.shape[1] == 1)


def has_readers(node: Any, position: int) -> bool:
    """Return whether a result has readers: the node itself for a single result, else a getitem of that position."""
    import torch

    if isinstance(node.meta["val"], torch.Tensor):
        return True
    return any(u.target is operator.getitem and u.args[1] == position and u.users for u in node.users)


def dense(node: Any) -> frozenset[str]:
    """Return the names of arguments whose tensors are contiguous and the whole of their storage."""
    names = [a.name for a in node.target._schema.arguments]
    arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    tensors = {k: v.meta["val"] for k, v in arguments.items() if hasattr(v, "meta")}
    return frozenset(k for k, t in tensors.items() if hasattr(t, "is_contiguous") and _is_dense(t))


def _is_dense(tensor: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return bool(tensor.is_contiguous() and tensor.storage_offset() == 0)
    except GuardOnDataDependentSymNode:  # a size depends on the content of a tensor
        return False


def default(node: Any, name: str) -> Any:
    """Return an argument's default value by the op's schema; None without one."""
    (argument,) = (a for a in node.target._schema.arguments if a.name == name)
    return argument.default_value if argument.has_default_value() else None
