"""Regions: connected nodes of an FX graph that our compiler takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ...compiler.partition.support import call_of, is_op_supported
from ...compiler.resolve import resolve_target
from ...errors import XpuError
from ...frontends.torch.fx_module import import_fx
from ...kernels.kernel import NodeCall

__all__ = ["divided", "reasons_against"]

_VIEWS = (
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.t.default", "aten.transpose.int", "aten.permute.default",
    "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.slice.Tensor", "aten.select.int",
    "aten.alias.default", "aten.detach.default",
)  # fmt: skip
"""Operators that move no data in PyTorch."""
_LEFT = {
    "cuda": {
        "aten.convolution_backward.default": "our expansion stores the windows of its input; PyTorch's library computes them as it reads",
    }
}  # fmt: skip
"""Kind of target -> operator -> reason why PyTorch computes it, though our compiler could."""
_OUTSIDE = "xpuruntime_outside"
"""Mark of a node that stays outside of regions."""


def reasons_against(module: torch.fx.GraphModule, name: str, target: Any) -> Mapping[str, str]:
    """Return node -> the reason why our compiler does not take it on a target. Nodes that it takes are not listed."""
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    try:
        graph = import_fx(module, name)
    except XpuError as error:
        return {n.name: f"{error.what} ({error.got})" for n in calls}
    reasons: dict[str, str] = {}
    resolved = resolve_target(target)  # once, because it asks the driver
    for node in graph.nodes:
        source = node.sources[0].name if node.sources else ""
        if node.op == "opaque":
            reasons.setdefault(source, str(node.attrs["reason"]))
            continue
        call = call_of(graph, node)
        support = is_op_supported(call, resolved) if isinstance(call, NodeCall) else call
        if not support:
            reasons.setdefault(source, support.reason)
    left = _LEFT.get(str(target).partition(":")[0], {})
    for node in calls:
        if str(node.target) in left:
            reasons.setdefault(node.name, left[str(node.target)])
        value = node.meta.get("val")
        values = value if isinstance(value, tuple | list) else (value,)
        if not all(v is None or isinstance(v, torch.Tensor) for v in values):
            reasons.setdefault(node.name, "its result is not a tensor")
    for node in calls:
        if node.target is torch.ops.aten.as_strided.default:
            for source in (node, *node.all_input_nodes):
                reasons.setdefault(source.name, "as_strided reads its memory by strides")
    # An item of a result that stays with PyTorch stays there, too.
    for node in calls:
        if str(node.target) == "<built-in function getitem>" and node.args[0].name in reasons:
            reasons.setdefault(node.name, reasons[node.args[0].name])
    return reasons


def _view_names() -> list[str]:
    """Return the views' names as PyTorch's partitioner has them: a region neither begins nor ends with one."""
    return [f"torch.ops.{name}" for name in _VIEWS]


def views_last(module: torch.fx.GraphModule) -> None:
    """Give each result that is a view its own chain of views, so that a region returns what the view is of, and copies nothing."""
    (out,) = (n for n in module.graph.nodes if n.op == "output")

    def twin(node: Any) -> Any:
        if (
            not isinstance(node, torch.fx.Node)
            or node.op != "call_function"
            or str(node.target) not in _VIEWS
        ):
            return node
        with module.graph.inserting_before(out):
            copy = module.graph.node_copy(node, lambda n: twin(n) if n is node.args[0] else n)
        copy.meta = {**node.meta, _OUTSIDE: True}
        return copy

    out.args = (torch.fx.map_arg(out.args[0], twin),)
    module.graph.eliminate_dead_code()
    module.recompile()


class _Taken(OperatorSupportBase):  # type: ignore[misc]  # PyTorch is untyped here
    def __init__(self, left: Mapping[str, str]) -> None:
        self._left = left

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node.name not in self._left and _OUTSIDE not in node.meta


def divided(module: torch.fx.GraphModule, left: Mapping[str, str]) -> tuple[torch.fx.GraphModule, list[str]]:
    """Return the module with each region as a submodule, and the regions' names."""
    views_last(module)
    partitioner = CapabilityBasedPartitioner(
        module, _Taken(left), allows_single_node_partition=True, non_compute_ops=_view_names()
    )
    partitions = partitioner.propose_partitions()
    partitioner.remove_bookend_non_compute_ops(partitions)
    whole = partitioner.fuse_partitions([p for p in partitions if p.nodes], prefix="region_")
    for node in whole.graph.nodes:
        if (
            node.target is torch.ops.aten.view.default
        ):  # a region may return other strides than PyTorch traced
            node.target = torch.ops.aten.reshape.default
    names = [
        n.target for n in whole.graph.nodes if n.op == "call_module" and str(n.target).startswith("region_")
    ]
    return whole, [str(n) for n in names]
