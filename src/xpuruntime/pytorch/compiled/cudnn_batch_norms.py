"""Batch norms of a joint graph on CUDA, as cuDNN computes them on values that are channels-last.

PyTorch's own kernels for them take several times as long as memory needs. PyTorch's compiler always traces those; eager PyTorch would call cuDNN.
A norm whose only reader is a ReLU, or an addition before a ReLU, is computed together with it, forward and backward.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..cudnn.library import is_image
from ..cudnn.norms import can_run
from .cudnn_ops import NORM_RELU, NORM_RELU_BACKWARD

__all__ = ["cudnn_batch_norms"]

_ATEN = torch.ops.aten
_FORWARD, _BACKWARD = (
    _ATEN._native_batch_norm_legit_functional.default,
    _ATEN.native_batch_norm_backward.default,
)
_RESULTS = 5  # y, mean, 1 / std, and the running mean and variance after the batch
_SAME_VALUES = (_ATEN.detach.default, _ATEN.alias.default)
_CONSTANTS = {_ATEN.scalar_tensor.default: 0, _ATEN.full.default: 1}
"""Operator that makes a constant -> the position of its value."""


def cudnn_batch_norms(joint: GraphModule) -> None:
    """Replace batch norms of float16 images and their gradients by cuDNN's, in place."""
    if not torch.backends.cudnn.enabled or torch.version.hip is not None:
        return
    gradients = {_norm_of(n): n for n in joint.graph.nodes if n.target is _BACKWARD}
    changed = False
    for norm in [n for n in joint.graph.nodes if n.target is _FORWARD]:
        if norm in gradients and _is_supported(norm):
            gradient = gradients[norm]
            activation = _activation(joint.graph, norm, gradient)
            if activation is None:
                _replace(joint.graph, norm, gradient)
            else:
                _replace_with_relu(joint.graph, norm, gradient, activation)
            changed = True
    if changed:
        joint.graph.eliminate_dead_code()
        joint.recompile()


def _norm_of(gradient: Node) -> Node | None:
    """Return the norm whose statistics a gradient reads."""
    mean, root = gradient.args[5:7]
    items = (
        isinstance(mean, Node) and isinstance(root, Node) and mean.target is root.target is operator.getitem
    )
    return mean.args[0] if items and mean.args[0] is root.args[0] else None


def _is_supported(norm: Node) -> bool:
    x, weight, bias, mean, variance, training = norm.args[:6]
    if training is not True or not all(isinstance(n, Node) for n in (x, weight, bias, mean, variance)):
        return False
    numbers = (weight, bias, mean, variance)
    return is_image(x.meta["val"]) and all(
        n.meta["val"].dtype is torch.float32 and n.meta["val"].is_contiguous() for n in numbers
    )


# ── a norm alone ──


def _replace(graph: torch.fx.Graph, norm: Node, gradient: Node) -> None:
    x, weight, bias, mean, variance, _, momentum, eps = norm.args
    emit = _Emitter(graph, norm)
    values = norm.meta["val"]
    # cuDNN writes the running statistics: copies of them, as the operator that it replaces returns new ones.
    running = [emit(n.meta["val"], _ATEN.clone.default, n) for n in (mean, variance)]
    reserve = values[1].new_empty(0, dtype=torch.uint8)  # cuDNN decides its size
    whole = (*values[:3], reserve)
    both = emit(whole, _ATEN.cudnn_batch_norm.default, x, weight, bias, *running, True, momentum, eps)
    results = _saved_results(emit, both)
    _redirect(norm, (*results[:3], *running))
    emit = _Emitter(graph, gradient.prev)
    parts = emit(
        gradient.meta["val"], _ATEN.cudnn_batch_norm_backward.default,
        x, gradient.args[0], weight, None, None, *results[1:3], eps, results[3],
    )  # fmt: skip
    gradient.replace_all_uses_with(parts)
    graph.erase_node(gradient)


class _Emitter:
    """Insertion of nodes after one another."""

    def __init__(self, graph: torch.fx.Graph, after: Node) -> None:
        self._graph, self._last = graph, after

    def __call__(self, value: Any, target: Any, *args: Any) -> Node:
        """Insert a call whose traced result is ``value``."""
        with self._graph.inserting_after(self._last):
            self._last = self._graph.call_function(target, args)
        self._last.meta["val"] = value
        return self._last


def _saved_results(emit: _Emitter, whole: Node) -> list[Node]:
    """Return the results of a node, which backward does not compute again."""
    whole.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    results = [emit(value, operator.getitem, whole, i) for i, value in enumerate(whole.meta["val"])]
    results[3].meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return results


def _items(node: Node) -> dict[Any, Node]:
    return {u.args[1]: u for u in node.users}


def _redirect(norm: Node, results: Sequence[Node]) -> None:
    """Let the readers of a norm's results read others; the last of the results, if there are fewer."""
    items = _items(norm)
    for at, new in zip(range(_RESULTS - len(results), _RESULTS), results, strict=True):
        if at in items:
            items[at].replace_all_uses_with(new)


# ── a norm with its ReLU ──


@dataclass(frozen=True, slots=True)
class _ReluAfterNorm:
    """The ReLU after a norm.

    relu:   its node. addend: what is added before it, if anything.
    masked: its gradient, which is ``grad`` where the result is positive.
    """

    relu: Node
    addend: Node | None
    masked: Node
    grad: Node


def _activation(graph: torch.fx.Graph, norm: Node, gradient: Node) -> _ReluAfterNorm | None:
    """Return the ReLU that cuDNN can compute together with a norm and its gradient, or None."""
    items, masked = _items(norm), gradient.args[0]
    y = items.get(0)
    relu, addend = _only_reader(y), None
    if relu is not None and relu.target is _ATEN.add.Tensor and not relu.kwargs and y is not None:
        left, right = relu.args
        addend = right if left is y else left
        relu = _only_reader(relu)
        if not isinstance(addend, Node) or addend is y or not _fits(addend, y):
            return None
    if relu is None or relu.target is not _ATEN.relu.default or not isinstance(masked, Node):
        return None
    grad = _masked_by(masked, relu)
    if grad is None or not _fits(grad, relu, any_layout=True):
        return None
    if addend is None and len(masked.users) > 1:
        return None
    order = {n: i for i, n in enumerate(graph.nodes)}
    early = [u for at, item in items.items() if at for u in item.users if order[u] < order[relu]]
    x = norm.args[0].meta["val"]
    if early or not can_run(x.shape, addend is not None, x.device):
        return None
    return _ReluAfterNorm(relu, addend, masked, grad)


def _only_reader(node: Node | None) -> Node | None:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def _fits(node: Node, like: Node, any_layout: bool = False) -> bool:
    """Return True if a node's result has the shape and dtype of an image that another node returns, and its layout."""
    value, image = node.meta.get("val"), like.meta["val"]
    if not isinstance(value, torch.Tensor) or value.shape != image.shape or value.dtype is not image.dtype:
        return False
    return value.device == image.device and (any_layout or is_image(value))


def _masked_by(masked: Node, relu: Node) -> Node | None:
    """Return the gradient that a node passes on where a ReLU's result is positive; None if the node does something else."""
    if masked.target is _ATEN.threshold_backward.default:
        grad, result, threshold = masked.args
        return grad if threshold == 0 and _source(result) is relu else None
    if masked.target is not _ATEN.where.self:
        return None
    mask, zero, grad = masked.args
    is_mask = mask.target is _ATEN.le.Scalar and mask.args[1] == 0 and _source(mask.args[0]) is relu
    at = _CONSTANTS.get(zero.target)
    return grad if is_mask and at is not None and zero.args[at] == 0 else None


def _source(node: Any) -> Any:
    while isinstance(node, Node) and node.target in _SAME_VALUES:
        node = node.args[0]
    return node


def _replace_with_relu(graph: torch.fx.Graph, norm: Node, gradient: Node, activation: _ReluAfterNorm) -> None:
    x, weight, bias, mean, variance, _, momentum, eps = norm.args
    addend, relu, masked = activation.addend, activation.relu, activation.masked
    emit = _Emitter(graph, relu)
    running = [
        # PyTorch copies the new values of a graph's input to the input, which costs nothing if they are in its memory.
        n
        if n.op == "placeholder" and {*n.users} <= {norm, gradient}
        else emit(n.meta["val"], _ATEN.clone.default, n)
        for n in (mean, variance)
    ]
    arguments = (x, addend, weight, bias, *running, momentum, eps)
    whole = NORM_RELU(*(a.meta["val"] if isinstance(a, Node) else a for a in arguments))
    y, own_mean, root, reserve = _saved_results(emit, emit(tuple(whole), NORM_RELU, *arguments))
    _redirect(norm, (own_mean, root, *running))
    relu.replace_all_uses_with(y)
    emit = _Emitter(graph, masked)
    kept = (x, y, weight, bias, own_mean, root, reserve)
    gradients = tuple(
        masked.meta["val"] if i in (0, 3) else weight.meta["val"] for i in range(3 + bool(addend))
    )
    parts = emit(gradients, NORM_RELU_BACKWARD, activation.grad, *kept, eps, addend is not None)
    gradient.replace_all_uses_with(parts)
    graph.erase_node(gradient)
    if addend is not None:
        masked.replace_all_uses_with(emit(masked.meta["val"], operator.getitem, parts, 3))
