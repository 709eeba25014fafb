"""Ops of compiled graphs: a batch norm of images in training with the ReLU after it and an addition before it, and its gradients.

Graphs receive them after PyTorch's autograd, so they have none. On CUDA cuDNN computes them, on a CPU PyTorch's operators do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...decisions import Support
from ..cudnn_norms import norm_relu, norm_relu_backward, reserved_bytes
from ..ops.library import LIBRARY
from ..programs import BACKWARD, FORWARD, Prepared
from ..step_record import note

__all__ = ["NORM_RELU", "NORM_RELU_BACKWARD"]

_LAST = torch.channels_last
_CALLS = {
    phase: Prepared(name, phase, None, Support.yes(), (f"norm/cudnn: {function}",))
    for name, phase, function in (
        ("batch_norm_relu", FORWARD, "cudnnBatchNormalizationForwardTrainingEx"),
        ("batch_norm_relu_backward", BACKWARD, "cudnnBatchNormalizationBackwardEx"),
    )
}
"""What a record of a step says of them."""
_library = torch.library.Library(LIBRARY, "FRAGMENT")
_library.define(
    "batch_norm_relu(Tensor x, Tensor? addend, Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var, "
    "float momentum, float eps) -> Tensor[]"
)
_library.define(
    "batch_norm_relu_backward(Tensor grad, Tensor x, Tensor y, Tensor weight, Tensor bias, Tensor mean, Tensor root, Tensor reserve, "
    "float eps, bool has_addend) -> Tensor[]"
)


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
    """Return y, mean, 1 / std, what backward needs, and the new running statistics."""
    note(_CALLS[FORWARD])
    x, running = _images(x), (running_mean.clone(), running_var.clone())
    addend = None if addend is None else _images(addend)
    return [*norm_relu(x, addend, weight, bias, running, momentum, eps), *running]


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
    note(_CALLS[BACKWARD])
    grad, x, y = map(_images, (grad, x, y))
    return norm_relu_backward(grad, x, y, weight, bias, (mean, root), reserve, eps, has_addend)


def _images(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=_LAST)


def _forward_on_cpu(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    running = (running_mean.clone(), running_var.clone())
    y, mean, root = torch.native_batch_norm(x.float(), weight, bias, *running, True, momentum, eps)
    y = torch.relu(y if addend is None else y + addend).to(x.dtype)
    return [_images(y), mean, root, x.new_empty(0, dtype=torch.uint8), *running]


def _backward_on_cpu(
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
    grad = torch.where(y <= 0, 0.0, grad.float())
    wanted = [True, True, True]
    parts = torch.ops.aten.native_batch_norm_backward(
        grad, x.float(), weight, None, None, mean, root, True, eps, wanted
    )
    gradients = [_images(parts[0].to(x.dtype)), parts[1], parts[2]]
    return [*gradients, _images(grad.to(x.dtype))] if has_addend else gradients


def _forward_shapes(
    x: Tensor, addend: Tensor | None, weight: Tensor, bias: Tensor, *_: object
) -> list[Tensor]:
    reserve = reserved_bytes(x.shape, addend is not None, x.device) if x.device.type == "cuda" else 0
    numbers = [torch.empty_like(weight) for _ in range(4)]
    y = torch.empty_like(x, memory_format=_LAST)
    return [y, *numbers[:2], x.new_empty(reserve, dtype=torch.uint8), *numbers[2:]]


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


for _name, _cuda, _cpu, _fake in (
    ("batch_norm_relu", _forward, _forward_on_cpu, _forward_shapes),
    ("batch_norm_relu_backward", _backward, _backward_on_cpu, _backward_shapes),
):
    _library.impl(_name, _cuda, "CUDA")
    _library.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"{LIBRARY}::{_name}", _fake, lib=_library)
NORM_RELU = torch.ops.xpuruntime.batch_norm_relu.default
"""(x, addend or None, weight, bias, running mean, running variance, momentum, eps) -> y, mean, 1 / std, reserve, new running mean and variance."""
NORM_RELU_BACKWARD = torch.ops.xpuruntime.batch_norm_relu_backward.default
"""(grad, x, y, weight, bias, mean, 1 / std, reserve, eps, has an addend) -> gradients of x, weight, bias, and of the addend."""
