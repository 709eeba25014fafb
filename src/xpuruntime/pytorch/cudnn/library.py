"""The cuDNN that PyTorch loaded: its functions with checked results, a handle per thread and device, and descriptors."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import RunError, UnavailableError

__all__ = [
    "FULL_SCALE",
    "NO_SCALE",
    "call",
    "can_run",
    "handle",
    "image_descriptor",
    "is_image",
    "made",
    "pointer",
]

_HALF, _NHWC = 2, 1  # cudnnDataType_t, cudnnTensorFormat_t
_LARGEST = 2**31
"""Values of an image batch that cuDNN's indices cannot count."""
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
FULL_SCALE, NO_SCALE = ctypes.byref(_ONE), ctypes.byref(_ZERO)
"""Factors of a result and of what its memory held before."""
_P, _INT, _DOUBLE, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_size_t
_FUNCTIONS: dict[str, list[type]] = {
    "cudnnCreate": [_P],
    "cudnnSetStream": [_P, _P],
    "cudnnCreateTensorDescriptor": [_P],
    "cudnnSetTensor4dDescriptor": [_P, *[_INT] * 6],
    "cudnnDeriveBNTensorDescriptor": [_P, _P, _INT],
    "cudnnCreateActivationDescriptor": [_P],
    "cudnnSetActivationDescriptor": [_P, _INT, _INT, _DOUBLE],
    "cudnnCreatePoolingDescriptor": [_P],
    "cudnnSetPooling2dDescriptor": [_P, *[_INT] * 8],
    "cudnnPoolingForward": [_P] * 8,
    "cudnnPoolingBackward": [_P] * 12,
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


@functools.cache
def _library() -> ctypes.CDLL:
    version = torch.backends.cudnn.version()
    if not version or torch.version.hip is not None:
        raise UnavailableError("cuDNN", "PyTorch was built without it", do="Install PyTorch for CUDA.")
    library = ctypes.CDLL(f"libcudnn.so.{version // (10000 if version >= 90000 else 1000)}")
    for name, types in _FUNCTIONS.items():
        getattr(library, name).argtypes = types  # an index would make a new function at each use
    return library


def call(name: str, *args: Any) -> None:
    """Call a function of cuDNN. Raises RunError for a status that is not success."""
    library = _library()
    status = getattr(library, name)(*args)
    if status:
        text = library.cudnnGetErrorString
        text.restype, text.argtypes = ctypes.c_char_p, [_INT]
        do = 'Name norm and pool in the kernel policy (norm="generated", pool="generated"): our own kernels compute them then.'
        raise RunError(name, "failed", got=(text(status) or b"").decode(), do=do)


def can_run(plan: Callable[[], object], *shapes: Sequence[object]) -> bool:
    """Return True if cuDNN is there and accepts a plan. ``shapes``: those of the plan, which has none for sizes that are not known yet."""
    if not all(type(size) is int for shape in shapes for size in shape):
        return False
    try:
        plan()
    except (OSError, AttributeError, UnavailableError, RunError):
        return False
    return True


def handle(device: torch.device) -> ctypes.c_void_p:
    """Return this thread's handle on a device, set to PyTorch's current stream there. The device is the current one."""
    index = device.index or 0
    known = _handles.by_device.get(index)
    if known is None:
        known = made("cudnnCreate")
        _handles.by_device[index] = known
    call("cudnnSetStream", known, torch.cuda.current_stream(device).cuda_stream)
    return known


def made(create: str) -> ctypes.c_void_p:
    """Return what a function of cuDNN creates."""
    result = ctypes.c_void_p()
    call(create, ctypes.byref(result))
    return result


def is_image(value: torch.Tensor) -> bool:
    """Return True for images that the functions of this package take, which are float16 and channels-last.

    PyTorch's batch norm by cuDNN refuses bfloat16 with parameters of float32.
    """
    return (
        value.device.type == "cuda"
        and value.dim() == 4
        and 0 < value.numel() < _LARGEST
        and value.dtype is torch.float16
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def image_descriptor(shape: tuple[int, ...]) -> ctypes.c_void_p:
    """Return the descriptor of float16 images [n, c, h, w] that are channels-last."""
    result = made("cudnnCreateTensorDescriptor")
    call("cudnnSetTensor4dDescriptor", result, _NHWC, _HALF, *shape)
    return result


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Return a tensor's address."""
    return None if tensor is None else tensor.data_ptr()
