"""Import of an FX graph of ATen ops, as PyTorch's compiler hands it to a backend: every tensor from outside is an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...errors import ModelError
from ...ir import Graph
from ...types import TensorSpec
from ..builder import ImportBuilder
from ..not_lowered import NotLowered
from .dims import SymbolNames, spec_of
from .lower import AtenLowering
from .nodes import as_list
from .ops import TensorRef

__all__ = ["import_fx", "memory_order"]


def memory_order(tensor: Any) -> tuple[int, ...] | None:
    """Return the dims of a tensor from the outermost to the innermost in memory, if ``tensor.permute(order)`` is contiguous and tensor is not."""
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d)))
    return order if tensor.permute(order).is_contiguous() else None


def import_fx(module: Any, name: str, orders: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Graph:
    """Return the graph of an FX module of functional ATen ops with static shapes, whose nodes have PyTorch's fake results (``meta["val"]``).

    Inputs have the placeholders' names, outputs are ``output0``, ``output1`` ... in the order of the results that are tensors. An op without
    an exact form is an ``opaque`` node with its reason. Every node's source has the name of its FX node.
    orders: input or result -> the order of its dims in memory (``memory_order``); the graph's input or output then has its dims in that order.
    Raises ModelError.
    """
    nodes = list(module.graph.nodes)
    builder = ImportBuilder(name, {n.name for n in nodes})
    symbols = SymbolNames()
    lowering = AtenLowering(builder, symbols)
    who = f"FX graph {name!r}"
    for node in nodes:
        if node.op == "placeholder":
            try:
                spec = spec_of(node.meta["val"], symbols)
            except (NotLowered, AttributeError, KeyError) as no:
                reason = getattr(no, "reason", "it is not a tensor")
                raise ModelError(
                    who,
                    f"has an input {node.name!r} that the IR cannot represent",
                    got=reason,
                    do="Pass tensors of ordinary dtypes.",
                ) from no
            if spec.symbols:
                raise ModelError(
                    who,
                    "has sizes that are not known",
                    got=f"{node.name}: {spec}",
                    do="Compile with dynamic=False, or mark the sizes as dynamic.",
                )
            lowering.values[node] = TensorRef(_input(builder, node.name, spec, orders.get(node.name)))
    lowering.nodes(nodes)
    (out,) = (n for n in nodes if n.op == "output")
    for i, result in enumerate(r for r in as_list(out.args[0]) if hasattr(r, "op")):
        value = lowering.as_complex(lowering.values[result])
        if not isinstance(value, TensorRef):
            raise ModelError(
                who,
                f"has a result {result.name!r} that is not a tensor",
                do="Return tensors only from the module.",
            )
        order = orders.get(result.name)
        builder.output(
            f"output{i}",
            value.value if order is None else str(builder.permute(value.value, dims=list(order))),
        )
    return builder.build()


def _input(builder: ImportBuilder, name: str, spec: TensorSpec, order: Sequence[int] | None) -> str:
    """Declare an input, and return the value with its dims in PyTorch's order."""
    if order is None:
        return builder.input(name, spec)
    dense = replace(spec, shape=tuple(spec.shape[d] for d in order))
    value: str = builder.permute(builder.input(name, dense), dims=[order.index(d) for d in range(len(order))])
    return value
