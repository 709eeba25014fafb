"""Batch norms of images in training by cuDNN, together with the ReLU after them and with an addition before it.

PyTorch's operator for cuDNN computes the norm alone: the ReLU, the addition and the ReLU's gradient each read and write all values once more.
cuDNN has functions for all of it in the passes of the norm. They are called here through its C interface.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import RunError, UnavailableError

__all__ = ["can_run", "norm_relu", "norm_relu_backward", "reserved_bytes"]

_FLOAT, _HALF = 0, 2  # cudnnDataType_t
_NHWC = 1  # cudnnTensorFormat_t
_PERSISTENT = 2  # cudnnBatchNormMode_t
_WITH_RELU, _WITH_ADDEND_AND_RELU = 1, 2  # cudnnBatchNormOps_t
_RELU, _KEEP_NAN = 1, 1  # cudnnActivationMode_t, cudnnNanPropagation_t
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
_P, _INT, _DOUBLE, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_size_t
_FUNCTIONS: dict[str, list[type]] = {
    "cudnnCreate": [_P],
    "cudnnSetStream": [_P, _P],
    "cudnnCreateTensorDescriptor": [_P],
    "cudnnSetTensor4dDescriptor": [_P, *[_INT] * 6],
    "cudnnDeriveBNTensorDescriptor": [_P, _P, _INT],
    "cudnnCreateActivationDescriptor": [_P],
    "cudnnSetActivationDescriptor": [_P, _INT, _INT, _DOUBLE],
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": [_P, _INT, _INT, *[_P] * 6],
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": [_P, _INT, _INT, *[_P] * 8],
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": [_P, _INT, _INT, *[_P] * 3],
    "cudnnBatchNormalizationForwardTrainingEx": [
        _P, _INT, _INT, *[_P] * 11, _DOUBLE, _P, _P, _DOUBLE, _P, _P, _P, _P, _SIZE, _P, _SIZE,
    ],
    "cudnnBatchNormalizationBackwardEx": [
        _P, _INT, _INT, *[_P] * 19, _DOUBLE, _P, _P, _P, _P, _SIZE, _P, _SIZE,
    ],
}  # fmt: skip
"""Function -> the types of its arguments."""


class _Handles(threading.local):
    """The handles of a thread, by device."""

    def __init__(self) -> None:
        self.by_device: dict[int, ctypes.c_void_p] = {}


_handles = _Handles()


@dataclass(frozen=True, slots=True)
class _Plan:
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
    try:
        _plan(tuple(shape), has_addend, device.index or 0)
    except (OSError, AttributeError, UnavailableError, RunError):
        return False
    return True


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
        _call(
            "cudnnBatchNormalizationForwardTrainingEx", _handle(x.device), _PERSISTENT, plan.ops, ctypes.byref(_ONE), ctypes.byref(_ZERO),
            plan.image, x.data_ptr(), plan.image, addend.data_ptr() if addend is not None else None, plan.image, y.data_ptr(),
            plan.channels, weight.data_ptr(), bias.data_ptr(), momentum, running[0].data_ptr(), running[1].data_ptr(), eps,
            mean.data_ptr(), root.data_ptr(), plan.relu, space.data_ptr(), plan.forward_bytes, reserve.data_ptr(), plan.reserved_bytes,
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
    daddend = [torch.empty_like(x)] if has_addend else []
    space, one, zero = _bytes(plan.backward_bytes, x), ctypes.byref(_ONE), ctypes.byref(_ZERO)
    with torch.cuda.device(x.device):
        _call(
            "cudnnBatchNormalizationBackwardEx", _handle(x.device), _PERSISTENT, plan.ops, one, zero, one, zero,
            plan.image, x.data_ptr(), plan.image, y.data_ptr(), plan.image, grad.data_ptr(),
            plan.image, daddend[0].data_ptr() if has_addend else None, plan.image, dx.data_ptr(),
            plan.channels, weight.data_ptr(), bias.data_ptr(), dweight.data_ptr(), dbias.data_ptr(), eps,
            statistics[0].data_ptr(), statistics[1].data_ptr(), plan.relu, space.data_ptr(), plan.backward_bytes,
            reserve.data_ptr(), plan.reserved_bytes,
        )  # fmt: skip
    return [dx, dweight, dbias, *daddend]


def _bytes(count: int, like: Tensor) -> Tensor:
    return torch.empty(max(count, 1), dtype=torch.uint8, device=like.device)


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the cuDNN that PyTorch loaded, with the types of its functions."""
    version = torch.backends.cudnn.version()
    if not version or torch.version.hip is not None:
        raise UnavailableError("cuDNN", "PyTorch was built without it", do="Install PyTorch for CUDA.")
    library = ctypes.CDLL(f"libcudnn.so.{version // (10000 if version >= 90000 else 1000)}")
    for name, types in _FUNCTIONS.items():
        getattr(library, name).argtypes = types  # an index would make a new function at each use
    return library


def _call(name: str, *args: object) -> None:
    """Call a function of cuDNN. Raises RunError for a status that is not success."""
    library = _library()
    status = getattr(library, name)(*args)
    if status:
        text = library.cudnnGetErrorString
        text.restype, text.argtypes = ctypes.c_char_p, [_INT]
        do = 'Name norm in the kernel policy (norm="generated"), and our own kernels compute the batch norms.'
        raise RunError(name, "failed", got=(text(status) or b"").decode(), do=do)


def _handle(device: torch.device) -> ctypes.c_void_p:
    """Return this thread's handle on a device, set to PyTorch's current stream there. The device is the current one."""
    handle = _handles.by_device.get(device.index)
    if handle is None:
        handle = ctypes.c_void_p()
        _call("cudnnCreate", ctypes.byref(handle))
        _handles.by_device[device.index] = handle
    _call("cudnnSetStream", handle, torch.cuda.current_stream(device).cuda_stream)
    return handle


@functools.lru_cache(maxsize=1024)
def _plan(shape: tuple[int, ...], has_addend: bool, index: int) -> _Plan:
    image, channels, relu = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _library()
    _call("cudnnCreateTensorDescriptor", ctypes.byref(image))
    _call("cudnnSetTensor4dDescriptor", image, _NHWC, _HALF, *shape)
    _call("cudnnCreateTensorDescriptor", ctypes.byref(channels))
    _call("cudnnDeriveBNTensorDescriptor", channels, image, _PERSISTENT)
    _call("cudnnCreateActivationDescriptor", ctypes.byref(relu))
    _call("cudnnSetActivationDescriptor", relu, _RELU, _KEEP_NAN, 0.0)
    ops = _WITH_ADDEND_AND_RELU if has_addend else _WITH_RELU
    forward, backward, reserved = _SIZE(), _SIZE(), _SIZE()
    with torch.cuda.device(index):
        handle = _handle(torch.device("cuda", index))
        size = "cudnnGetBatchNormalization{}Size"
        addend = image if has_addend else None
        _call(
            size.format("ForwardTrainingExWorkspace"), handle, _PERSISTENT, ops,
            image, addend, image, channels, relu, ctypes.byref(forward),
        )  # fmt: skip
        _call(
            size.format("BackwardExWorkspace"), handle, _PERSISTENT, ops,
            image, image, image, addend, image, channels, relu, ctypes.byref(backward),
        )  # fmt: skip
        _call(
            size.format("TrainingExReserveSpace"),
            handle,
            _PERSISTENT,
            ops,
            relu,
            image,
            ctypes.byref(reserved),
        )
    return _Plan(ops, image, channels, relu, forward.value, backward.value, reserved.value)
