"""Sums of two gradients of an image in a joint graph on CUDA. If one comes from a 1 by 1 convolution, a product computes it and adds the other.

The input of a residual block has such a sum. An addition of its own would write one gradient, and read and write both again.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["gradient_sums"]

_ATEN = torch.ops.aten
_GRADIENTS = _ATEN.convolution_backward.default
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The order in memory of the dims of an image that is channels-last, and its inverse."""


def gradient_sums(joint: GraphModule) -> None:
    """Replace sums of 16-bit gradients that are channels-last by a product with an addend, in place."""
    changed = False
    for total in [n for n in joint.graph.nodes if n.target is _ATEN.add.Tensor and not n.kwargs]:
        for part, other in (total.args, total.args[::-1]):
            if (
                other is not part
                and _is_product(part)
                and _is_image(other)
                and _fits(other, part)
                and _fits(total, part)
            ):
                _replace(joint.graph, total, part, other)
                changed = True
                break
    if changed:
        joint.graph.eliminate_dead_code()
        joint.recompile()


def _is_product(node: Any) -> bool:
    """Return True for a gradient that a matrix product of each pixel computes, and that only the sum reads."""
    if not _is_image(node) or len(node.users) != 1 or node.target is not operator.getitem:
        return False
    source, at = node.args
    if source.target is not _GRADIENTS or at != 0:
        return False
    grad, _, weight, _, stride, padding, _, transposed, _, groups, _ = source.args
    window = weight.meta["val"].shape[2:]
    is_product = all(n == 1 for n in (*window, *stride, groups)) and not any(padding) and not transposed
    return is_product and _is_image(grad) and weight.meta["val"].dtype is grad.meta["val"].dtype


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cuda"
        and value.dim() == 4
        and value.dtype in (torch.float16, torch.bfloat16)
        and all(isinstance(n, int) for n in value.shape)
        and value.numel() > 0
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def _fits(node: Node, like: Node) -> bool:
    value, wanted = node.meta["val"], like.meta["val"]
    return bool(value.shape == wanted.shape and value.dtype is wanted.dtype and value.device == wanted.device)


def _replace(graph: torch.fx.Graph, total: Node, part: Node, other: Node) -> None:
    source = part.args[0]
    grad, weight = source.args[0], source.args[2]
    batch, channels, *size = total.meta["val"].shape

    def emit(target: Any, *args: Any) -> Node:
        with graph.inserting_before(total):
            node = graph.call_function(target, args)
        node.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args))
        return node

    def pixels(image: Node) -> Node:
        rows = emit(_ATEN.permute.default, image, list(_LAST))
        return emit(_ATEN.view.default, rows, [-1, image.meta["val"].shape[1]])

    matrix = emit(_ATEN.view.default, weight, list(weight.meta["val"].shape[:2]))
    rows = emit(_ATEN.addmm.default, pixels(other), pixels(grad), matrix)
    image = emit(_ATEN.view.default, rows, [batch, *size, channels])
    total.replace_all_uses_with(emit(_ATEN.permute.default, image, list(_FIRST)))
    source.update_arg(10, [False, *source.args[10][1:]])
