"""Ops of compiled graphs: a batch norm of images in training with the ReLU after it and an addition before it, a max pool, and their gradients.

cuDNN computes them, on CUDA. Graphs receive them after PyTorch's autograd, so they have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...decisions import Support
from ..cudnn import pools
from ..cudnn.norms import norm_relu, norm_relu_backward, reserved_bytes
from ..ops.library import LIBRARY
from ..programs import BACKWARD, FORWARD, Prepared
from ..step_record import note

__all__ = ["IMAGE_POOL", "IMAGE_POOL_BACKWARD", "NORM_RELU", "NORM_RELU_BACKWARD"]

_LAST = torch.channels_last
_CALLS = {
    name: Prepared(name, phase, None, Support.yes(), (f"{family}/cudnn: {function}",))
    for name, phase, family, function in (
        ("batch_norm_relu", FORWARD, "norm", "cudnnBatchNormalizationForwardTrainingEx"),
        ("batch_norm_relu_backward", BACKWARD, "norm", "cudnnBatchNormalizationBackwardEx"),
        ("max_pool_image", FORWARD, "pool", "cudnnPoolingForward"),
        ("max_pool_image_backward", BACKWARD, "pool", "cudnnPoolingBackward"),
    )
}
"""Entries of a step record, by op."""
_library = torch.library.Library(LIBRARY, "FRAGMENT")
_library.define(
    "batch_norm_relu(Tensor x, Tensor? addend, Tensor weight, Tensor bias, Tensor(a!) running_mean, Tensor(b!) running_var, "
    "float momentum, float eps) -> Tensor[]"
)
_library.define(
    "batch_norm_relu_backward(Tensor grad, Tensor x, Tensor y, Tensor weight, Tensor bias, Tensor mean, Tensor root, Tensor reserve, "
    "float eps, bool has_addend) -> Tensor[]"
)
_library.define("max_pool_image(Tensor x, int[] window) -> Tensor")
_library.define("max_pool_image_backward(Tensor grad, Tensor x, Tensor y, int[] window) -> Tensor")


# ── batch norm ──


def _forward(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    """Return y, mean, 1 / std, and what backward needs. Write the running statistics."""
    note(_CALLS["batch_norm_relu"])
    x = _images(x)
    addend = None if addend is None else _images(addend)
    return [*norm_relu(x, addend, weight, bias, (running_mean, running_var), momentum, eps)]


def _backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    root: Tensor,
    reserve: Tensor,
    eps: float,
    has_addend: bool,
) -> list[Tensor]:
    """Return the gradients of x, weight and bias, and that of the addend if there was one."""
    note(_CALLS["batch_norm_relu_backward"])
    grad, x, y = map(_images, (grad, x, y))
    return norm_relu_backward(grad, x, y, weight, bias, (mean, root), reserve, eps, has_addend)


def _images(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=_LAST)


def _forward_shapes(
    x: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, *_: object
) -> list[Tensor]:
    reserve = reserved_bytes(x.shape, addend is not None, x.device)
    y = torch.empty_like(x, memory_format=_LAST)
    return [y, torch.empty_like(weight), torch.empty_like(weight), x.new_empty(reserve, dtype=torch.uint8)]


def _backward_shapes(
    grad: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *rest: object
) -> list[Tensor]:
    images = [torch.empty_like(x, memory_format=_LAST) for _ in range(2)]
    return [
        images[0],
        torch.empty_like(weight),
        torch.empty_like(bias),
        *(images[1:] if rest[-1] else ()),
    ]


# ── max pool ──


def _pooled(x: Tensor, window: Sequence[int]) -> Tensor:
    """Return uninitialized memory for the result. window: height and width of the kernel, of the padding and of the stride."""
    sizes = [(n + 2 * window[2 + i] - window[i]) // window[4 + i] + 1 for i, n in enumerate(x.shape[2:])]
    return torch.empty((*x.shape[:2], *sizes), dtype=x.dtype, device=x.device, memory_format=_LAST)


def _pool(x: Tensor, window: Sequence[int]) -> Tensor:
    note(_CALLS["max_pool_image"])
    x, y = _images(x), _pooled(x, window)
    pools.max_pool(x, y, pools.window_of(window))
    return y


def _pool_backward(grad: Tensor, x: Tensor, y: Tensor, window: Sequence[int]) -> Tensor:
    note(_CALLS["max_pool_image_backward"])
    grad, x, y = map(_images, (grad, x, y))
    return pools.max_pool_backward(grad, x, y, pools.window_of(window))


def _pool_gradient_shape(grad: Tensor, x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=_LAST)


for _name, _compute, _fake in (
    ("batch_norm_relu", _forward, _forward_shapes),
    ("batch_norm_relu_backward", _backward, _backward_shapes),
    ("max_pool_image", _pool, _pooled),
    ("max_pool_image_backward", _pool_backward, _pool_gradient_shape),
):
    _library.impl(_name, _compute, "CUDA")
    torch.library.register_fake(f"{LIBRARY}::{_name}", _fake, lib=_library)
NORM_RELU = torch.ops.xpuruntime.batch_norm_relu.default
"""(x, addend or None, weight, bias, running mean, running variance, momentum, eps) -> y, mean, 1 / std, reserve. It writes the running statistics."""
NORM_RELU_BACKWARD = torch.ops.xpuruntime.batch_norm_relu_backward.default
"""(grad, x, y, weight, bias, mean, 1 / std, reserve, eps, has an addend) -> gradients of x, weight, bias, and of the addend."""
IMAGE_POOL = torch.ops.xpuruntime.max_pool_image.default
"""(x, window) -> y. A window is the height and width of the kernel, of the padding and of the stride."""
IMAGE_POOL_BACKWARD = torch.ops.xpuruntime.max_pool_image_backward.default
"""(grad, x, y, window) -> gradient of x."""
