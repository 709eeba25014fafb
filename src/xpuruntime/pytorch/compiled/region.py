"""A region of an FX graph at run time: a program per policy, or PyTorch's operators with the reason."""

from __future__ import annotations

from typing import Any

import torch

from ...frontends.torch.fx_module import import_fx, memory_order
from ...ir import Graph
from ..numbered_policies import PolicyCell
from ..programs import BACKWARD, Prepared, in_place, prepared_graph
from ..step_record import note

__all__ = ["FxRegion"]


class FxRegion(torch.nn.Module):  # type: ignore[misc]  # PyTorch is untyped here
    """A submodule that runs as one program."""

    def __init__(self, module: torch.fx.GraphModule, name: str, phase: str, cell: PolicyCell) -> None:
        super().__init__()
        self._module, self._name, self._phase, self._cell = module, name, phase, cell
        (out,) = (n for n in module.graph.nodes if n.op == "output")
        self._single = not isinstance(out.args[0], tuple | list)
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        results = [out.args[0]] if self._single else list(out.args[0])
        self._made_on: torch.device = results[0].meta["val"].device
        # PyTorch's operators around the region expect the strides that they were traced with.
        orders = {n.name: memory_order(n.meta["val"]) for n in (*inputs, *results)}
        self._orders = tuple(orders[n.name] for n in inputs)
        self._result_orders = tuple(_inverse(orders[n.name]) for n in results)
        self._graph: Graph = import_fx(module, name, {n: o for n, o in orders.items() if o is not None})
        self._inputs = [v.name for v in self._graph.inputs]
        self._programs: dict[int, Prepared] = {}

    def forward(self, *args: torch.Tensor) -> Any:
        """Return the results of the region's output node."""
        numbered = self._cell.of(backward=self._phase == BACKWARD)
        prepared = self._programs.get(numbered.number)
        if prepared is None:
            prepared = prepared_graph(
                self._name, self._families(), self._phase, self._graph, self._device_of(args), numbered
            )
            self._programs[numbered.number] = prepared
        note(prepared)
        if prepared.executor is None:
            return self._module(*args)
        results = prepared.executor.run_tensors(
            {
                name: in_memory_order(a, order)
                for name, a, order in zip(self._inputs, args, self._orders, strict=True)
            }
        )
        if results is None:
            return self._module(*args)
        values = tuple(
            v if order is None else v.permute(order)
            for v, order in zip(results.values(), self._result_orders, strict=True)
        )
        return values[0] if self._single else values

    def _device_of(self, args: tuple[torch.Tensor, ...]) -> torch.device:
        """Return the operands' device; that of the results of a region that only makes constants."""
        return next((a.device for a in args if isinstance(a, torch.Tensor)), self._made_on)

    def _families(self) -> tuple[str, ...]:
        from ...ir import find_op

        return tuple({find_op(n.op).family for n in self._graph.nodes if n.op != "opaque"})


def _inverse(order: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if order is None else tuple(order.index(d) for d in range(len(order)))


def in_memory_order(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """Return a contiguous tensor with the dims in this order: a view, if they are so in memory."""
    return in_place(tensor if order is None else tensor.permute(order))
