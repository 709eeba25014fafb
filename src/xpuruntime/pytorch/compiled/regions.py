"""Regions: nodes of an FX graph that our compiler supports and that run together."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ...compiler.partition.support import call_of, is_op_supported
from ...compiler.resolve import resolve_target
from ...errors import XpuError
from ...frontends.torch.fx_module import import_fx
from ...ir import OPS
from ...ir.ops.control import CONTROL
from ...kernels.kernel import NodeCall
from .levels import in_order_of_draws, is_random, levels, views_at_readers

__all__ = ["divided", "reasons_against"]


def reasons_against(
    module: torch.fx.GraphModule, name: str, target: Any, kept_ops: Mapping[str, str] = MappingProxyType({})
) -> Mapping[str, str]:
    """Return node -> the reason why our compiler does not support it on a target. Supported nodes are not listed.

    kept_ops: operator -> reason why PyTorch computes it, though our compiler could.
    """
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    try:
        graph = import_fx(module, name)
    except XpuError as error:
        return {n.name: f"{error.what} ({error.got})" for n in calls}
    reasons = {n.name: kept_ops[str(n.target)] for n in calls if str(n.target) in kept_ops}
    resolved = resolve_target(target)  # once, because it asks the driver
    for node in graph.nodes:
        source = node.sources[0].name if node.sources else ""
        if node.op == "opaque":
            reasons.setdefault(source, str(node.attrs["reason"]))
            continue
        if node.op in CONTROL:
            reasons.setdefault(source, "it is control flow, whose bodies are modules of the traced graph")
            continue
        if OPS[node.op].random and node.attrs.get("train") is not False:
            reasons.setdefault(source, "it draws random numbers, which PyTorch's seed decides")
            continue
        call = call_of(graph, node)
        support = is_op_supported(call, resolved) if isinstance(call, NodeCall) else call
        if not support:
            reasons.setdefault(source, support.reason)
    for node in calls:
        value = node.meta.get("val")
        if value is None and node.target is not operator.getitem:
            reasons.setdefault(node.name, "it has no result that is traced")
        values = value if isinstance(value, tuple | list) else (value,)
        if not all(v is None or isinstance(v, torch.Tensor) for v in values):
            reasons.setdefault(node.name, "its result is not a tensor")
    for node in calls:
        if node.target is torch.ops.aten.as_strided.default:
            for source in (node, *node.all_input_nodes):
                reasons.setdefault(source.name, "as_strided reads its memory by strides")
    # PyTorch also computes the getitem of a tuple that it computes.
    for node in calls:
        if node.target is operator.getitem and node.args[0].name in reasons:
            reasons.setdefault(node.name, reasons[node.args[0].name])
    _leave_complex(module, reasons)
    return reasons


def _leave_complex(module: torch.fx.GraphModule, reasons: dict[str, str]) -> None:
    """Leave complex tensors that PyTorch makes or reads to PyTorch, with all that they are computed from: a program has no complex inputs or results."""
    pending = [n for n in module.graph.nodes if _is_complex(n) and _meets_pytorch(n, reasons)]
    while pending:
        value = pending.pop()
        for node in (value, *value.users):
            if node.op == "call_function" and node.name not in reasons:
                reasons[node.name] = "a complex tensor that PyTorch makes or reads"
                pending += [n for n in (node, *node.all_input_nodes) if _is_complex(n)]


def _is_complex(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _meets_pytorch(node: torch.fx.Node, reasons: Mapping[str, str]) -> bool:
    return node.op != "call_function" or any(
        n.op != "call_function" or n.name in reasons for n in (node, *node.users)
    )


def divided(
    module: torch.fx.GraphModule, unsupported: Mapping[str, str]
) -> tuple[torch.fx.GraphModule, list[str]]:
    """Return the module with each region as a submodule, and the regions' names. unsupported: node -> reason, as of ``reasons_against``."""
    level = views_at_readers(module, levels(module, unsupported))
    draws = [n.name for n in module.graph.nodes if is_random(n) and n.name in unsupported]
    parts: dict[int, dict[torch.fx.Node, int | None]] = {}
    for node, at in level.items():
        parts.setdefault(at, {})[node] = None
    whole = fuse_by_partitions(module, [parts[at] for at in sorted(parts)], prefix="region_")
    if len(draws) > 1:
        in_order_of_draws(whole, draws)
    for node in whole.graph.nodes:
        if (
            node.target is torch.ops.aten.view.default
        ):  # a region may return other strides than PyTorch traced
            node.target = torch.ops.aten.reshape.default
    return whole, [str(n.target) for n in whole.graph.nodes if n.op == "call_module"]
