"""Evaluation of opaque ATen nodes by PyTorch itself, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import RunError
from ...ir import Node
from ...protocols import Array
from .export import find_torch
from .weights import to_array

__all__ = ["evaluate_opaque", "find_overload", "to_tensor", "torch_version"]


def torch_version() -> str:
    """Return PyTorch's version. Raise EngineUnavailable without PyTorch."""
    return str(find_torch().__version__)


def find_overload(node: Node) -> Any:
    """Return the operator of an opaque node. Raise RunError for a name that PyTorch does not know (a library that is not loaded,
    control flow).
    """
    torch = find_torch()
    domain, name = str(node.attrs["domain"]), str(node.attrs["op_type"])
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, domain), packet), overload or "default")
    except AttributeError as error:
        raise RunError(
            f"torch, {name} %{node.name}",
            "PyTorch has no operator of that name here",
            got=f"{domain}::{name}",
            do="Import the library that defines it first; control flow cannot be evaluated.",
        ) from error


def evaluate_opaque(node: Node, operands: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Return the results of an opaque ATen node, with bfloat16 kept bit by bit. ``operands`` are in the order of ``node.inputs``.

    Raise RunError with PyTorch's message.
    """
    torch = find_torch()
    operator = find_overload(node)
    tensors = [None if a is None else to_tensor(a) for a in operands]
    kinds = {a.name: str(a.type) for a in operator._schema.arguments}
    values = {
        k: _argument(v, tensors, kinds.get(k, "")) for k, v in node.attrs["attributes"].items() if k in kinds
    }
    required = {a.name for a in operator._schema.arguments if not a.has_default_value()}
    kwargs = {k: v for k, v in values.items() if v is not None or k in required}
    names = [a.name for a in operator._schema.arguments if not a.kwarg_only]
    positional = []
    for name in names:  # up to the first default; the rest by name
        if name not in kwargs:
            break
        positional.append(kwargs.pop(name))
    try:
        with torch.no_grad():
            outputs = operator(*positional, **kwargs)
    except Exception as error:  # operators raise RuntimeError, IndexError, NotImplementedError ...
        raise RunError(
            f"torch, {node.attrs['op_type']} %{node.name}",
            "PyTorch failed while running",
            got=f"{type(error).__name__}: {str(error)[:300]}",
        ) from error
    results = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    return tuple(to_array(r) if isinstance(r, torch.Tensor) else None for r in results[: len(node.outputs)])


def to_tensor(array: Array) -> Any:
    """Return a tensor that shares an array's memory if PyTorch can read it in place. Types that NumPy lacks keep their bits."""
    torch = find_torch()
    import numpy as np

    dense = np.ascontiguousarray(array).reshape(array.shape)
    if not dense.flags.writeable:
        dense = dense.copy()  # PyTorch has no read-only tensors
    kind = getattr(torch, dense.dtype.name, None)
    if dense.dtype.kind == "V" or dense.dtype.name == "bfloat16" or dense.dtype.name.startswith("float8"):
        bits = {1: np.uint8, 2: np.int16}[dense.dtype.itemsize]
        return torch.from_numpy(dense.view(bits)).view(kind)
    return torch.from_numpy(dense)


def _argument(value: Any, tensors: Sequence[Any], kind: str) -> Any:
    """Return an attribute as the operator takes it: ``%0`` is the first operand, or the number in it; a dtype becomes PyTorch's."""
    if isinstance(value, str):
        if value.startswith("%") and value[1:].isdigit():
            tensor = tensors[int(value[1:])]
            is_number = bool(kind) and "Tensor" not in kind and tensor is not None and tensor.numel() == 1
            return tensor.item() if is_number else tensor
        if "ScalarType" in kind or kind in ("Optional[int]", "int"):
            dtype = _dtype(value)
            return value if dtype is None else dtype
        return complex(value) if kind in ("number", "Optional[number]") else value
    if isinstance(value, tuple | list):
        return [_argument(v, tensors, kind) for v in value]
    return value


def _dtype(name: str) -> Any:
    torch = find_torch()
    dtype = getattr(torch, name.rpartition(".")[2].lower(), None)
    return dtype if isinstance(dtype, torch.dtype) else None
