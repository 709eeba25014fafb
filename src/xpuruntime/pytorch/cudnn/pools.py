"""Max pools of images in training. Backward finds each maximum again in the values, so that forward stores no positions of 64 bits."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import library
from .library import FULL_SCALE, NO_SCALE, call, image_descriptor, made, pointer

__all__ = ["Window", "can_run", "max_pool", "max_pool_backward", "window_of"]

_DETERMINISTIC_MAX, _KEEP_NAN = 3, 1  # cudnnPoolingMode_t, cudnnNanPropagation_t
Window = tuple[int, int, int, int, int, int]
"""Height and width of the kernel, of the padding and of the stride."""


@dataclass(frozen=True, slots=True)
class _PoolPlan:
    """cuDNN's descriptors of one pool."""

    x: ctypes.c_void_p
    y: ctypes.c_void_p
    window: ctypes.c_void_p


def window_of(numbers: Sequence[int]) -> Window:
    """Return six numbers as a window."""
    kernel_h, kernel_w, pad_h, pad_w, stride_h, stride_w = numbers
    return (kernel_h, kernel_w, pad_h, pad_w, stride_h, stride_w)


def can_run(x: Sequence[int], y: Sequence[int], window: Window) -> bool:
    """Return True if cuDNN computes the pool from float16 images of shape x to those of shape y."""
    return library.can_run(lambda: _plan(tuple(x), tuple(y), window), x, y)


def max_pool(x: Tensor, y: Tensor, window: Window) -> None:
    """Write the maxima of x to y. Both are float16 and channels-last."""
    plan = _plan(tuple(x.shape), tuple(y.shape), window)
    with torch.cuda.device(x.device):
        call(
            "cudnnPoolingForward", library.handle(x.device), plan.window,
            FULL_SCALE, plan.x, pointer(x), NO_SCALE, plan.y, pointer(y),
        )  # fmt: skip


def max_pool_backward(grad: Tensor, x: Tensor, y: Tensor, window: Window) -> Tensor:
    """Return the gradient of x."""
    plan, dx = _plan(tuple(x.shape), tuple(y.shape), window), torch.empty_like(x)
    with torch.cuda.device(x.device):
        call(
            "cudnnPoolingBackward", library.handle(x.device), plan.window, FULL_SCALE, plan.y, pointer(y), plan.y, pointer(grad),
            plan.x, pointer(x), NO_SCALE, plan.x, pointer(dx),
        )  # fmt: skip
    return dx


@functools.lru_cache(maxsize=1024)
def _plan(x: tuple[int, ...], y: tuple[int, ...], window: Window) -> _PoolPlan:
    pool = made("cudnnCreatePoolingDescriptor")
    call("cudnnSetPooling2dDescriptor", pool, _DETERMINISTIC_MAX, _KEEP_NAN, *window)
    return _PoolPlan(image_descriptor(x), image_descriptor(y), pool)
