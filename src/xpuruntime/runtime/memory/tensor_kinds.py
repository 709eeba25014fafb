"""Tensors that the core reads and creates without a DLPack capsule: buffers of the runtime, and PyTorch's.

A ``form`` is all that decides how a tensor may be used (shape, strides, dtype, device). Callers check a form once and keep the result by it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from ... import _core
from ...types import DType, TensorSpec
from .arrays import dlpack_dtype, dlpack_words
from .buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["TensorKind", "tensor_kind"]


class TensorKind(ABC):
    """Tensors of one library in the memory of a backend."""

    def __init__(self, backend: RuntimeBackend) -> None:
        self._backend = backend

    @abstractmethod
    def form(self, tensor: Any) -> Hashable | None:
        """Return the form of a tensor; None for one that must be imported by DLPack."""

    @abstractmethod
    def spec(self, form: Any, name: str) -> TensorSpec | None:
        """Return the spec of a form; None for a tensor that is not dense, or not in the backend's memory."""

    def has(self, dtype: DType) -> bool:
        """Return True if the library has tensors of the dtype that the core can create."""
        return dlpack_words(dtype) is not None


class _Buffers(TensorKind):
    """Buffers of the runtime."""

    def form(self, tensor: DeviceBuffer) -> Hashable | None:
        spec = tensor.spec
        dense = spec.layout is None and self._backend.shares_memory(tensor.backend)
        return (spec.shape, spec.dtype) if dense else None

    def spec(self, form: Any, name: str) -> TensorSpec | None:
        shape, dtype = form
        return TensorSpec(shape, dtype, name)


class _Torch(TensorKind):
    """PyTorch's tensors. Work on the current stream is ordered by PyTorch itself."""

    def form(self, tensor: Any) -> Hashable | None:
        return None if tensor.is_neg() else _core.show_tensor(tensor)

    def spec(self, form: Any, name: str) -> TensorSpec | None:
        shape, strides, words, device = form
        dtype = dlpack_dtype(*words)
        if dtype is None or device != self._backend.dlpack_device():
            return None
        spec = TensorSpec(shape, dtype, name)
        dense = spec.physical.strides
        return spec if all(d < 2 or s == t for d, s, t in zip(shape, strides, dense, strict=True)) else None

    def has(self, dtype: DType) -> bool:
        torch = sys.modules["torch"]
        return super().has(dtype) and dtype.value in vars(torch)


def tensor_kind(of: type, backend: RuntimeBackend) -> TensorKind | None:
    """Return the kind of tensors of a Python type; None for a type that must be imported by DLPack."""
    if of is DeviceBuffer:
        return _Buffers(backend) if backend.stages else None
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(of, torch.Tensor) and _core.knows_tensors(of):
        return _Torch(backend)
    return None
