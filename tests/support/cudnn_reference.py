"""The ops that cuDNN computes in compiled graphs, by PyTorch's operators on the host: the reference of its results. Importing it registers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xpuruntime.pytorch.compiled import cudnn_ops as cudnn_ops

_ATEN = torch.ops.aten


def _images(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def norm_relu(x: Tensor, addend: Tensor | None, *rest: Any) -> list[Tensor]:
    weight, bias, running_mean, running_var, momentum, eps = rest
    y, mean, root = torch.native_batch_norm(
        x.float(), weight, bias, running_mean, running_var, True, momentum, eps
    )
    y = torch.relu(y if addend is None else y + addend).to(x.dtype)
    return [_images(y), mean, root, x.new_empty(0, dtype=torch.uint8)]


def norm_relu_backward(grad: Tensor, x: Tensor, y: Tensor, *rest: Any) -> list[Tensor]:
    weight, _, mean, root, _, eps, has_addend = rest
    grad = torch.where(y <= 0, 0.0, grad.float())
    parts = _ATEN.native_batch_norm_backward(
        grad, x.float(), weight, None, None, mean, root, True, eps, [True] * 3
    )
    gradients = [_images(parts[0].to(x.dtype)), parts[1], parts[2]]
    return [*gradients, _images(grad.to(x.dtype))] if has_addend else gradients


def pool(x: Tensor, window: Sequence[int]) -> Tensor:
    return _images(F.max_pool2d(x, window[:2], window[4:], window[2:4]))


def pool_backward(grad: Tensor, x: Tensor, y: Tensor, window: Sequence[int]) -> Tensor:
    sizes = (list(window[:2]), list(window[4:]), list(window[2:4]))
    _, places = _ATEN.max_pool2d_with_indices(x, *sizes)
    return _images(_ATEN.max_pool2d_with_indices_backward(grad, x, *sizes, [1, 1], False, places))


_library = torch.library.Library("xpuruntime", "IMPL")
_library.impl("batch_norm_relu", norm_relu, "CPU")
_library.impl("batch_norm_relu_backward", norm_relu_backward, "CPU")
_library.impl("max_pool_image", pool, "CPU")
_library.impl("max_pool_image_backward", pool_backward, "CPU")
