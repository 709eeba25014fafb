"""Tensors that are read and created without a DLPack capsule: buffers of the runtime, and PyTorch's where the core reads them in place.

A ``form`` is all that decides how a tensor may be used (shape, strides, dtype, device). Callers check a form once and keep the result by it.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ... import _core
from ...types import TensorSpec
from .arrays import dlpack_dtype
from .buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["TensorKind", "tensor_kind"]


class TensorKind(ABC):
    """Tensors of one library in the memory of a backend."""

    def __init__(self, backend: RuntimeBackend) -> None:
        self._backend = backend

    @abstractmethod
    def form(self, tensor: Any, stream: int) -> Hashable | None:
        """Return the form of a tensor, ordered on the stream; None for one that must be imported by DLPack."""

    @abstractmethod
    def address(self, tensor: Any) -> int:
        """Return the address of its first element."""

    @abstractmethod
    def spec(self, form: Any, name: str) -> TensorSpec | None:
        """Return the spec of a form; None for a tensor that is not dense, or not in the backend's memory."""

    @abstractmethod
    def maker(self, spec: TensorSpec) -> Callable[[int], Any] | None:
        """Return a function that creates a tensor for work on a stream; None if the library lacks the dtype."""

    def written(self, tensors: Sequence[Any], stream: int) -> None:  # noqa: B027 - most libraries order their streams themselves
        """Record that work queued on the stream writes the tensors."""


class _Buffers(TensorKind):
    """Buffers of the runtime."""

    def __init__(self, backend: RuntimeBackend) -> None:
        super().__init__(backend)
        self._has_streams, self._address_of = backend.stages, backend.address

    def form(self, tensor: DeviceBuffer, stream: int) -> Hashable | None:
        spec = tensor.spec
        if spec.layout is not None or not (
            tensor.backend is self._backend or self._backend.shares_memory(tensor.backend)
        ):
            return None
        if tensor.pending is not None and tensor.pending != stream:
            tensor.settle(stream)
        if self._has_streams:
            tensor.native_handle.used_on(stream)  # otherwise its memory may be reused before the run
        return spec.shape, spec.dtype

    def address(self, tensor: DeviceBuffer) -> int:
        return self._address_of(tensor.native_handle)

    def spec(self, form: Any, name: str) -> TensorSpec | None:
        shape, dtype = form
        return TensorSpec(shape, dtype, name)

    def maker(self, spec: TensorSpec) -> Callable[[int], Any] | None:
        size, backend = spec.size_bytes or 0, self._backend
        allocate = backend.allocate_on
        return lambda stream: DeviceBuffer(allocate(size, stream), spec, backend)

    def written(self, tensors: Sequence[DeviceBuffer], stream: int) -> None:
        for buffer in tensors:
            buffer.pending = stream


class _Torch(TensorKind):
    """PyTorch's tensors. Work on the current stream is ordered by PyTorch itself."""

    def form(self, tensor: Any, stream: int) -> Hashable | None:
        return None if tensor.is_neg() else _core.show_tensor(tensor)

    def address(self, tensor: Any) -> int:
        address: int = tensor.data_ptr()
        return address

    def spec(self, form: Any, name: str) -> TensorSpec | None:
        shape, strides, words, device = form
        dtype = dlpack_dtype(*words)
        if dtype is None or device != self._backend.dlpack_device():
            return None
        spec = TensorSpec(shape, dtype, name)
        dense = spec.physical.strides
        return spec if all(d < 2 or s == t for d, s, t in zip(shape, strides, dense, strict=True)) else None

    def maker(self, spec: TensorSpec) -> Callable[[int], Any] | None:
        torch = sys.modules["torch"]
        dtype = vars(torch).get(spec.dtype.value)
        if dtype is None:
            return None
        device = torch.device("cpu" if self._backend.core_is_host else str(self._backend.device))
        empty = functools.partial(torch.empty, spec.shape, dtype=dtype, device=device)
        return lambda stream: empty()


def tensor_kind(of: type, backend: RuntimeBackend) -> TensorKind | None:
    """Return the kind of tensors of a Python type; None for a type that must be imported by DLPack."""
    if of is DeviceBuffer:
        return _Buffers(backend)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(of, torch.Tensor) and _core.knows_tensors(of):
        return _Torch(backend)
    return None
