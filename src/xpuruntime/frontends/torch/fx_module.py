"""Import of an FX graph of ATen ops, as PyTorch's compiler hands it to a backend: parameters and buffers are inputs, like every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...errors import ModelError
from ...ir import Graph
from ...types import TensorSpec
from ..builder import ImportBuilder
from ..lowered_parts import AUTOMATIC_ROWS
from ..not_lowered import NotLowered
from .dims import SymbolNames, spec_of
from .lower import AtenLowering
from .nodes import as_list
from .ops import TensorRef

__all__ = ["import_fx", "memory_order"]


def memory_order(tensor: Any) -> tuple[int, ...] | None:
    """Return the order of dims for which ``tensor.permute(order)`` is contiguous, from the outermost dim in memory to the innermost.

    None if the tensor is contiguous as it is, or in no order of its dims.
    """
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d)))
    return order if tensor.permute(order).is_contiguous() else None


def import_fx(module: Any, name: str, orders: Mapping[str, Sequence[int]] = MappingProxyType({})) -> Graph:
    """Return the graph of an FX module of functional ATen ops with static shapes, whose nodes have PyTorch's fake results (``meta["val"]``).

    Inputs have the placeholders' names. Outputs are ``output0``, ``output1`` ..., one for each result that is a node. An op that the IR cannot
    represent exactly becomes an ``opaque`` node, which has the reason. The source of a node has the name of the FX node that it comes from.
    orders: name of an input's or a result's FX node -> the order of its dims in memory (``memory_order``). The graph's input or output then has
            its dims in that order. Others have PyTorch's order.
    Raises ModelError for an input or a result that is not a tensor of a dtype of the IR, and for symbolic sizes.
    """
    nodes = list(module.graph.nodes)
    builder = ImportBuilder(name, {n.name for n in nodes})
    symbols = SymbolNames()
    lowering = AtenLowering(builder, symbols, AUTOMATIC_ROWS)
    who = f"FX graph {name!r}"
    for node in nodes:
        if node.op == "placeholder":
            try:
                spec = spec_of(node.meta["val"], symbols)
            except (NotLowered, AttributeError, KeyError) as error:
                reason = getattr(error, "reason", "it is not a tensor")
                raise ModelError(
                    who,
                    f"has an input {node.name!r} that the IR cannot represent",
                    got=reason,
                    do="Pass tensors of ordinary dtypes.",
                ) from error
            if spec.symbols:
                raise ModelError(
                    who,
                    "has symbolic sizes",
                    got=f"{node.name}: {spec}",
                    do="Compile with dynamic=False.",
                )
            lowering.values[node] = TensorRef(_input(builder, node.name, spec, orders.get(node.name)))
    lowering.nodes(nodes)
    (out,) = (n for n in nodes if n.op == "output")
    for i, result in enumerate(r for r in as_list(out.args[0]) if hasattr(r, "op")):
        value = lowering.as_complex(lowering.values[result], "an output")
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
    """Declare an input with its dims in memory order, and return its value with the dims in PyTorch's order."""
    if order is None:
        return builder.input(name, spec)
    in_memory = replace(spec, shape=tuple(spec.shape[d] for d in order))
    inverse = [order.index(d) for d in range(len(order))]
    return str(builder.permute(builder.input(name, in_memory), dims=inverse))
