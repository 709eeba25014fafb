"""Max pools of a joint graph on CUDA, as cuDNN computes them on images that are channels-last.

PyTorch's own kernels store a position of 64 bits per result, and their backward takes several times as long as memory needs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..cudnn.library import is_image
from ..cudnn.pools import Window, can_run
from .cudnn_ops import IMAGE_POOL, IMAGE_POOL_BACKWARD

__all__ = ["cudnn_pools"]

_ATEN = torch.ops.aten
_FORWARD, _BACKWARD = (
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.max_pool2d_with_indices_backward.default,
)


def cudnn_pools(joint: GraphModule) -> None:
    """Replace max pools of float16 images and their gradients by cuDNN's, in place."""
    if not torch.backends.cudnn.enabled or torch.version.hip is not None:
        return
    graph, changed = joint.graph, False
    for pool in [n for n in graph.nodes if n.target is _FORWARD]:
        window, items = _window(pool), {u.args[1]: u for u in pool.users}
        if window is None or 0 not in items or 1 not in items:
            continue
        gradients = [u for u in items[1].users if u.target is _BACKWARD]
        x, y = pool.args[0], items[0]
        if len(gradients) != len(items[1].users) or not is_image(x.meta["val"]):
            continue
        if not can_run(x.meta["val"].shape, y.meta["val"].shape, window):
            continue
        with graph.inserting_before(pool):
            new = graph.call_function(IMAGE_POOL, (x, list(window)))
        new.meta["val"] = y.meta["val"]
        y.replace_all_uses_with(new)
        for gradient in gradients:
            with graph.inserting_before(gradient):
                dx = graph.call_function(IMAGE_POOL_BACKWARD, (gradient.args[0], x, new, list(window)))
            dx.meta["val"] = gradient.meta["val"]
            gradient.replace_all_uses_with(dx)
            graph.erase_node(gradient)
        changed = True
    if changed:
        graph.eliminate_dead_code()
        joint.recompile()


def _window(pool: Node) -> Window | None:
    """Return the window of a pool; None for one that is dilated, rounds its size up, or is not of the graph's numbers."""
    given: list[Any] = [*pool.args, *((), (), (), (0, 0), (1, 1), False)[len(pool.args) :]]
    _, kernel, stride, padding, dilation, rounds_up = given
    kernel, stride, padding, dilation = map(_pair, (kernel, stride or kernel, padding, dilation))
    if rounds_up or dilation != (1, 1) or not all(isinstance(n, int) for n in (*kernel, *stride, *padding)):
        return None
    return (*kernel, *padding, *stride)


def _pair(numbers: Any) -> tuple[Any, Any]:
    first, *rest = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return (first, rest[0] if rest else first)
