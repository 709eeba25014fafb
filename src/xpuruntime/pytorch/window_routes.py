"""PyTorch's functions of convolutions, pools and batch norm, as calls of the ops of this package.

Each has the signature of the function of that name. It returns None for a call that no op takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import ops
from .mixed_precision import as_autocast
from .ops.pool import max_pool_with_indices
from .plain import is_plain

__all__ = [
    "adaptive_avg_pool",
    "avg_pool",
    "batch_norm",
    "convolution",
    "max_pool",
    "transposed_convolution",
]

Numbers = Any


def convolution(
    input: Tensor,  # noqa: A002  - PyTorch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return the result of a call of ``conv1d``, ``conv2d`` or ``conv3d``."""
    if not is_plain(input, weight, bias):
        return None
    x, weight, bias = as_autocast("conv", input, weight, bias)
    return ops.convolution(x, weight, bias, stride, padding, dilation, groups)


def transposed_convolution(
    input: Tensor,  # noqa: A002  - PyTorch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Tensor | None:
    """Return the result of a call of ``conv_transpose1d``, ``conv_transpose2d`` or ``conv_transpose3d``."""
    if not is_plain(input, weight, bias):
        return None
    x, weight, bias = as_autocast("conv", input, weight, bias)
    return ops.convolution(x, weight, bias, stride, padding, dilation, groups, True, output_padding)


def max_pool(dims: int) -> Callable[..., Any]:
    """Return the function for ``max_pool1d``, ``max_pool2d`` or ``max_pool3d``, with or without indices."""

    def run(
        input: Tensor,  # noqa: A002  - PyTorch's name
        kernel_size: Numbers,
        stride: Numbers = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if not is_plain(input) or not dims < input.dim() <= dims + 2:
            return None
        (x,) = as_autocast("pool", input)
        y, indices = max_pool_with_indices(
            x, _per_dim(kernel_size, dims), stride, padding, dilation, ceil_mode
        )
        return (y, indices) if return_indices else y

    return run


def avg_pool(dims: int) -> Callable[..., Tensor | None]:
    """Return the function for ``avg_pool1d``, ``avg_pool2d`` or ``avg_pool3d``."""

    def run(
        input: Tensor,  # noqa: A002  - PyTorch's name
        kernel_size: Numbers,
        stride: Numbers = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor | None:
        if not is_plain(input) or not dims < input.dim() <= dims + 2:
            return None
        (x,) = as_autocast("pool", input)
        size = _per_dim(kernel_size, dims)
        return ops.avg_pool(x, size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return run


def adaptive_avg_pool(dims: int) -> Callable[..., Tensor | None]:
    """Return the function for ``adaptive_avg_pool1d``, 2d or 3d. It supports output sizes that divide the input sizes."""

    def run(input: Tensor, output_size: Numbers) -> Tensor | None:  # noqa: A002  - PyTorch's name
        if not is_plain(input) or not dims < input.dim() <= dims + 2:
            return None
        have = input.shape[input.dim() - dims :]
        want = [h if w is None else w for h, w in zip(have, _per_dim(output_size, dims), strict=True)]
        if any(not w or not h or h % w for h, w in zip(have, want, strict=True)):
            return None
        (x,) = as_autocast("pool", input)
        return ops.avg_pool(x, [h // w for h, w in zip(have, want, strict=True)])

    return run


def batch_norm(
    input: Tensor,  # noqa: A002  - PyTorch's name
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return the result of a call of ``batch_norm``."""
    if not is_plain(input, running_mean, running_var, weight, bias):
        return None
    (x,) = as_autocast("batch_norm", input)
    return ops.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def _per_dim(value: Numbers, dims: int) -> Any:
    """Return one number as one per dim. PyTorch also accepts a list of one number."""
    if isinstance(value, int):
        return [value] * dims
    return list(value) * dims if len(value) == 1 else value
