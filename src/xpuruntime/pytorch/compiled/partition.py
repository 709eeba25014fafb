"""Division of a joint graph into forward and backward: what forward keeps, and what backward computes again.

PyTorch's minimum cut over bytes decides. It may compute again whatever one pass over memory computes: elementwise ops, conversions, norms
and rows of a table. PyTorch's own rules keep a value that a product of backward reads, since computing it again is not free; here such a
value, the result of a norm or an activation, is computed again, because a pass over memory is cheap next to the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config
from torch._functorch.partitioners import get_default_op_list, min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from .cudnn_batch_norms import cudnn_batch_norms
from .norm_statistics import keep_statistics

__all__ = ["forward_and_backward"]

_ATEN = torch.ops.aten
_MORE = frozenset((_ATEN.native_layer_norm, _ATEN.native_group_norm, _ATEN.embedding, _ATEN._softmax))
"""Ops that are computed again in one pass, in addition to those of PyTorch's list."""


def forward_and_backward(
    saved: dict[str, int], joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any
) -> tuple[GraphModule, GraphModule]:
    """Return the graphs of forward and backward; with its first argument bound, a ``partition_fn`` of PyTorch's ``aot_autograd``.

    saved: is filled with the values that forward keeps for backward -> their bytes; views of one value count once.
    """
    if any(n.op == "placeholder" and "tangents" in n.name and n.users for n in joint.graph.nodes):
        cudnn_batch_norms(joint)
        keep_statistics(joint)
        op_types = get_default_op_list()  # PyTorch makes it anew at each call
        for node in joint.graph.nodes:
            packet = getattr(node.target, "overloadpacket", node.target)
            if node.op == "call_function" and packet not in _MORE and not op_types.is_recomputable(node):
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    relaxed = {"ban_recompute_not_in_allowlist": False, "ban_recompute_materialized_backward": False}
    with config.patch(relaxed):
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **more
        )
    (out,) = (n for n in forward.graph.nodes if n.op == "output")
    seen = {_memory(n.meta["val"]) for n in forward.graph.nodes if n.op == "placeholder" and _is_static(n)}
    for node in out.args[0][num_fwd_outputs:]:
        if isinstance(node, Node) and _is_static(node) and (memory := _memory(node.meta["val"])) not in seen:
            seen.add(memory)
            saved[node.name] = node.meta["val"].numel() * node.meta["val"].element_size()
    return forward, backward


def _is_static(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)


def _memory(value: torch.Tensor) -> int:
    """Return the identity of a traced tensor's memory, which its views share."""
    return int(value.untyped_storage()._cdata)
