"""whole_pools: means of whole images stay pools, as an inference session sees them. PyTorch's autograd would make them sums of another order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation

__all__ = ["whole_pools"]

_POOLS = {
    F.adaptive_avg_pool2d: (torch.ops.aten._adaptive_avg_pool2d.default, 2),
    torch._C._nn.adaptive_avg_pool2d: (torch.ops.aten._adaptive_avg_pool2d.default, 2),
    F.adaptive_avg_pool3d: (torch.ops.aten._adaptive_avg_pool3d.default, 3),
    torch._C._nn.adaptive_avg_pool3d: (torch.ops.aten._adaptive_avg_pool3d.default, 3),
}


def whole_pools(module: torch.fx.GraphModule) -> None:
    """Replace ``adaptive_avg_pool2d(x, 1)`` by the ATen op that is not a mean, in place. It runs before PyTorch's autograd sees the graph."""
    changed = False
    for node in module.graph.nodes:
        op, rank = _POOLS.get(node.target, (None, 0)) if node.op == "call_function" else (None, 0)
        if op is None:
            continue
        arguments = dict(zip(("input", "output_size"), node.args, strict=False)) | node.kwargs
        if _is_one(arguments.get("output_size"), rank):
            node.target, node.args, node.kwargs = op, (arguments["input"], [1] * rank), {}
            changed = True
    if changed:
        module.recompile()


def _is_one(size: Any, rank: int) -> bool:
    return size == 1 or (isinstance(size, tuple | list) and list(size) in ([1], [1] * rank))
