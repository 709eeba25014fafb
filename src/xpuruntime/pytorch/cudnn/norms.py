"""Batch norms of images in training, together with the ReLU after them and with an addition before it.

PyTorch's operator for cuDNN computes the norm alone: the ReLU, the addition and the ReLU's gradient each read and write all values once more.
cuDNN has functions for all of it in the passes of the norm.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import library
from .library import FULL_SCALE, NO_SCALE, call, image_descriptor, made, pointer

__all__ = ["can_run", "norm_relu", "norm_relu_backward", "reserved_bytes"]

_PERSISTENT = 2  # cudnnBatchNormMode_t
_WITH_RELU, _WITH_ADDEND_AND_RELU = 1, 2  # cudnnBatchNormOps_t
_CHANNELS = 4
"""cuDNN's norm with a ReLU takes multiples of this many channels."""
_IMAGES = 880801
"""Maximum images of a batch, as PyTorch limits its own calls of cuDNN's norm in training."""
_RELU, _KEEP_NAN = 1, 1  # cudnnActivationMode_t, cudnnNanPropagation_t


@dataclass(frozen=True, slots=True)
class _NormPlan:
    """cuDNN's descriptors of one shape, and the bytes that it needs."""

    ops: int
    image: ctypes.c_void_p
    channels: ctypes.c_void_p
    relu: ctypes.c_void_p
    forward_bytes: int
    backward_bytes: int
    reserved_bytes: int


def can_run(shape: Sequence[int], has_addend: bool, device: torch.device) -> bool:
    """Return True if cuDNN computes the norm of float16 images [n, c, h, w] with its ReLU."""
    accepts = library.can_run(lambda: _plan(tuple(shape), has_addend, device.index or 0), shape)
    return accepts and shape[1] % _CHANNELS == 0 and shape[0] <= _IMAGES


def reserved_bytes(shape: Sequence[int], has_addend: bool, device: torch.device) -> int:
    """Return the bytes that forward keeps for backward: a bit per value."""
    return _plan(tuple(shape), has_addend, device.index or 0).reserved_bytes


def norm_relu(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``relu(norm(x) + addend)``, mean and 1 / std of each channel, and what backward needs. Write the running statistics.

    Images are float16 and channels-last, all others float32.
    """
    plan = _plan(tuple(x.shape), addend is not None, x.device.index)
    y, mean, root = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    reserve, space = _bytes(plan.reserved_bytes, x), _bytes(plan.forward_bytes, x)
    with torch.cuda.device(x.device):
        call(
            "cudnnBatchNormalizationForwardTrainingEx", library.handle(x.device), _PERSISTENT, plan.ops, FULL_SCALE, NO_SCALE,
            plan.image, pointer(x), plan.image, pointer(addend), plan.image, pointer(y),
            plan.channels, pointer(weight), pointer(bias), momentum, pointer(running[0]), pointer(running[1]), eps,
            pointer(mean), pointer(root), plan.relu, pointer(space), plan.forward_bytes, pointer(reserve), plan.reserved_bytes,
        )  # fmt: skip
    return y, mean, root, reserve


def norm_relu_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: tuple[Tensor, Tensor],
    reserve: Tensor,
    eps: float,
    has_addend: bool,
) -> list[Tensor]:
    """Return the gradients of x, weight and bias, and that of the addend if there was one."""
    plan = _plan(tuple(x.shape), has_addend, x.device.index)
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    daddend = torch.empty_like(x) if has_addend else None
    space = _bytes(plan.backward_bytes, x)
    with torch.cuda.device(x.device):
        call(
            "cudnnBatchNormalizationBackwardEx", library.handle(x.device), _PERSISTENT, plan.ops,
            FULL_SCALE, NO_SCALE, FULL_SCALE, NO_SCALE,
            plan.image, pointer(x), plan.image, pointer(y), plan.image, pointer(grad),
            plan.image, pointer(daddend), plan.image, pointer(dx),
            plan.channels, pointer(weight), pointer(bias), pointer(dweight), pointer(dbias), eps,
            pointer(statistics[0]), pointer(statistics[1]), plan.relu, pointer(space), plan.backward_bytes,
            pointer(reserve), plan.reserved_bytes,
        )  # fmt: skip
    return [dx, dweight, dbias, *([] if daddend is None else [daddend])]


def _bytes(count: int, like: Tensor) -> Tensor:
    return torch.empty(max(count, 1), dtype=torch.uint8, device=like.device)


@functools.lru_cache(maxsize=1024)
def _plan(shape: tuple[int, ...], has_addend: bool, index: int) -> _NormPlan:
    image = image_descriptor(shape)
    channels, relu = made("cudnnCreateTensorDescriptor"), made("cudnnCreateActivationDescriptor")
    call("cudnnDeriveBNTensorDescriptor", channels, image, _PERSISTENT)
    call("cudnnSetActivationDescriptor", relu, _RELU, _KEEP_NAN, 0.0)
    ops, addend = (_WITH_ADDEND_AND_RELU, image) if has_addend else (_WITH_RELU, None)
    device = torch.device("cuda", index)

    def size(what: str, *descriptors: ctypes.c_void_p | None) -> int:
        count = ctypes.c_size_t()
        with torch.cuda.device(device):
            name, start = f"cudnnGetBatchNormalization{what}Size", (library.handle(device), _PERSISTENT, ops)
            call(name, *start, *descriptors, ctypes.byref(count))
        return count.value

    return _NormPlan(
        ops, image, channels, relu,
        size("ForwardTrainingExWorkspace", image, addend, image, channels, relu),
        size("BackwardExWorkspace", image, image, image, addend, image, channels, relu),
        size("TrainingExReserveSpace", relu, image),
    )  # fmt: skip
