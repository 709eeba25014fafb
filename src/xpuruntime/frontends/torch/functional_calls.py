"""The op that each node of an ExportedProgram calls, with functional ones for ops that write in place where nobody else sees the write."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from .export import find_torch
from .nodes import as_list

__all__ = [
    "PLAIN_TENSORS",
    "MemoryUses",
    "MustDecomposeWhole",
    "asserts",
    "functional_target",
    "functional_targets",
    "is_static",
    "returns_operand",
    "storage_of",
    "without_write",
    "written_tensor",
]

_IN_PLACE = frozenset((
    "abs_", "add_", "celu_", "clamp_", "clamp_max_", "clamp_min_", "cos_", "div_", "elu_", "erf_", "exp_", "hardsigmoid_", "hardswish_", "hardtanh_",
    "leaky_relu_", "log_", "mish_", "mul_", "neg_", "reciprocal_", "relu_", "rsqrt_", "selu_", "sigmoid_", "silu_", "sin_", "sqrt_", "sub_", "tanh_",
))  # fmt: skip
"""Elementwise ops that write to their first argument and return what the op without the underscore returns."""
_IN_PLACE_INTEGERS = frozenset({"add_", "mul_", "sub_"})
"""Those of integers and truth values."""
_IN_PLACE_BY_MASK = frozenset({
    "index_add_", "index_copy_", "index_fill_", "index_put_", "masked_fill_", "masked_scatter_", "scatter_", "scatter_add_",
})  # fmt: skip
"""Those whose other operands have a type of their own: the mask and the indices. Values have the type of what is written."""
_MAY_COPY = frozenset({"contiguous", "flatten", "reshape", "reshape_as", "to", "type_as"})
"""Ops that return their operand, or a view of it, or a copy."""
PLAIN_TENSORS = ("Tensor", "Parameter", "Buffer", "FakeTensor")
"""Classes of tensors. PyTorch replaces other ones by their parts."""


class MustDecomposeWhole(Exception):
    """The program must be decomposed as a whole."""


def functional_targets(nodes: Iterable[Any]) -> dict[Any, Any]:
    """Return the op without side effects that each node calls, but for getitem and assertions. Raise MustDecomposeWhole."""
    torch = find_torch()
    targets: dict[Any, Any] = {}
    position: dict[Any, int] = {}
    for i, node in enumerate(nodes):
        position[node] = i
        if node.op in ("placeholder", "output") or node.target is operator.getitem or asserts(node):
            continue
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            raise MustDecomposeWhole
        if returns_operand(node):
            continue
        if node.meta.get("unbacked_bindings") or not all(map(is_static, as_list(node.meta.get("val")))):
            raise MustDecomposeWhole
        targets[node] = node.target
    memory = MemoryUses(position)
    for node, target in targets.items():
        if target._schema.is_mutable:
            memory.check_write(node)
            targets[node] = without_write(node)
    return targets


def returns_operand(node: Any) -> bool:
    """Return whether a call that writes in place writes nothing."""
    name = str(node.target)
    return name == "aten.detach_.default" or (
        name == "aten.dropout_.default" and len(node.args) == 3 and node.args[2] is False
    )


def written_tensor(node: Any) -> Any:
    """Return the tensor that a node writes to, its first argument; None for one that writes to another argument, or to a list."""
    torch = find_torch()
    arguments = node.target._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, torch.fx.Node) else None
    writes_first_alone = [a.name for a in written] == [arguments[0].name]
    return value if writes_first_alone and isinstance(value, torch.Tensor) else None


def asserts(node: Any) -> bool:
    """Return whether a node only checks a value."""
    return str(node.target).startswith("aten._assert_")


def is_static(value: Any) -> bool:
    """Return whether it is a plain dense tensor whose sizes are numbers."""
    torch = find_torch()
    if type(value).__name__ not in PLAIN_TENSORS or value.layout is not torch.strided:
        return False
    return all(type(size) is int for size in (*value.shape, *value.stride(), value.storage_offset()))


class MemoryUses:
    """The nodes that share memory, by the storages of the tensors that they were traced with, and the order of nodes."""

    def __init__(self, position: Mapping[Any, int]) -> None:
        torch = find_torch()
        self.position = position
        self.is_known = all(map(_shares_as_declared, position))
        self.sharing: dict[int, list[Any]] = {}
        for node in position:
            for tensor in as_list(node.meta.get("val")):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    self.sharing.setdefault(storage_of(tensor), []).append(node)

    def check_write(self, node: Any) -> None:
        """Raise MustDecomposeWhole if memory that the node writes to is an input's, or is read later under the name of an earlier node.

        A program that was saved and loaded has a storage of its own for each node, which does not tell.
        """
        written = written_tensor(node)
        if not self.is_known or written is None:
            raise MustDecomposeWhole
        for other in self.sharing[storage_of(written)]:
            earlier = self.position[other] < self.position[node]
            if other.op == "placeholder" or (
                earlier and any(self.position[u] > self.position[node] for u in other.users)
            ):
                raise MustDecomposeWhole


def _shares_as_declared(node: Any) -> bool:
    """Return whether a node's results share memory with the operands that its op returns or returns views of, unless they are copies."""
    torch = find_torch()
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return True
    if not any(r.alias_info is not None for r in node.target._schema.returns):
        return True
    operands = {
        storage_of(v)
        for n in node.all_input_nodes
        for v in as_list(n.meta.get("val"))
        if isinstance(v, torch.Tensor)
    }
    results = [v for v in as_list(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    return all(storage_of(v) in operands for v in results) or _must_copy(node)


def _must_copy(node: Any) -> bool:
    """Return whether an op that may return its operand cannot: the result has another dtype, other strides, or a shape that is no view."""
    packet = node.target._schema.name.removeprefix("aten::")
    if packet not in _MAY_COPY:
        return False
    operand, result = node.args[0].meta["val"], node.meta["val"]
    if packet in ("contiguous", "to", "type_as"):
        return result.dtype is not operand.dtype or result.stride() != operand.stride()
    try:
        operand.view(result.shape)
    except (RuntimeError, ValueError):
        return True
    return False


def storage_of(tensor: Any) -> int:
    """Return the identity of a tensor's storage. Raise MustDecomposeWhole for one that has none, as those inside of ``torch.func.vmap``."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError as error:
        raise MustDecomposeWhole from error


def without_write(node: Any) -> Any:
    """Return the op that returns what the node's op writes to a dense tensor. Raise MustDecomposeWhole without an exact one."""
    if not _is_dense(node.args[0].meta["val"]):
        raise MustDecomposeWhole
    return functional_target(node)


def functional_target(node: Any) -> Any:
    """Return the op that returns what the node's op writes. Raise MustDecomposeWhole without an exact one."""
    torch = find_torch()
    packet, overload = node.target._schema.name.removeprefix("aten::"), node.target._overloadname
    written = node.args[0].meta["val"]
    operands = [a.meta["val"] for a in node.all_input_nodes]
    by_mask = packet in _IN_PLACE_BY_MASK
    plain = _IN_PLACE if written.is_floating_point() else _IN_PLACE_INTEGERS
    if not (by_mask or packet in plain):
        raise MustDecomposeWhole
    if not all(isinstance(o, torch.Tensor) and (by_mask or o.dtype is written.dtype) for o in operands):
        raise MustDecomposeWhole
    target = getattr(getattr(torch.ops.aten, packet[:-1]), overload, None)
    names = [[a.name for a in t._schema.arguments] for t in (node.target, target) if t is not None]
    if len(names) != 2 or names[0] != names[1]:
        raise MustDecomposeWhole
    return target


def _is_dense(tensor: Any) -> bool:
    torch = find_torch()
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    other = formats.get(tensor.dim())
    return tensor.is_contiguous() or (other is not None and tensor.is_contiguous(memory_format=other))
