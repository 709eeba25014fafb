"""Batch norms of a joint graph on CUDA, as cuDNN computes them on values that are channels-last.

PyTorch's own kernels for them take several times as long as memory needs. PyTorch's compiler always traces those; eager PyTorch would call cuDNN.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

__all__ = ["cudnn_batch_norms"]

_ATEN = torch.ops.aten
_FORWARD, _BACKWARD = (
    _ATEN._native_batch_norm_legit_functional.default,
    _ATEN.native_batch_norm_backward.default,
)
_RESULTS = 5  # y, mean, 1 / std, and the running mean and variance after the batch


def cudnn_batch_norms(joint: GraphModule) -> None:
    """Replace batch norms of float16 images and their gradients by cuDNN's, in place."""
    if not torch.backends.cudnn.enabled or torch.version.hip is not None:
        return
    gradients = {_norm_of(n): n for n in joint.graph.nodes if n.target is _BACKWARD}
    changed = False
    for norm in [n for n in joint.graph.nodes if n.target is _FORWARD]:
        if norm in gradients and _is_supported(norm):
            _replace(joint.graph, norm, gradients[norm])
            changed = True
    if changed:
        joint.graph.eliminate_dead_code()
        joint.recompile()


def _norm_of(gradient: Node) -> Node | None:
    """Return the norm whose statistics a gradient reads."""
    mean, root = gradient.args[5:7]
    same = isinstance(mean, Node) and isinstance(root, Node) and mean.args[0] is root.args[0]
    return mean.args[0] if same and mean.target is root.target is operator.getitem else None


def _is_supported(norm: Node) -> bool:
    x, weight, bias, mean, variance, training = norm.args[:6]
    if training is not True or not all(isinstance(n, Node) for n in (x, weight, bias, mean, variance)):
        return False
    value = x.meta["val"]
    return (
        value.device.type == "cuda"
        and value.dim() == 4
        and value.numel() > 0
        and value.dtype is torch.float16  # PyTorch's operator refuses bfloat16 with parameters of float32
        and value.is_contiguous(memory_format=torch.channels_last)
        and all(n.meta["val"].dtype is torch.float32 for n in (weight, bias, mean, variance))
    )


def _replace(graph: torch.fx.Graph, norm: Node, gradient: Node) -> None:
    x, weight, bias, mean, variance, _, momentum, eps = norm.args
    last = norm

    def emit(value: Any, target: Any, *args: Any) -> Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.call_function(target, args)
        last.meta["val"] = value
        return last

    items = {u.args[1]: u for u in norm.users}
    values = norm.meta["val"]
    # cuDNN writes the running statistics: copies of them, as the operator that it replaces returns new ones.
    running = [emit(n.meta["val"], _ATEN.clone.default, n) for n in (mean, variance)]
    reserve = values[1].new_empty(0, dtype=torch.uint8)  # cuDNN decides its size
    whole = (*values[:3], reserve)
    both = emit(whole, _ATEN.cudnn_batch_norm.default, x, weight, bias, *running, True, momentum, eps)
    both.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    results = [emit(value, operator.getitem, both, i) for i, value in enumerate(whole)]
    results[3].meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for at, new in zip(range(_RESULTS), (*results[:3], *running), strict=True):
        if at in items:
            items[at].replace_all_uses_with(new)
    last = gradient.prev
    grads = gradient.args[0]
    parts = emit(
        gradient.meta["val"],
        _ATEN.cudnn_batch_norm_backward.default,
        x,
        grads,
        weight,
        None,
        None,
        *results[1:3],
        eps,
        results[3],
    )
    gradient.replace_all_uses_with(parts)
    graph.erase_node(gradient)
