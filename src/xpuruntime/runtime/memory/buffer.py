"""DeviceBuffer: a value in a device's memory, in the layout of its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import InputError
from ...types import DType, Layout, TensorSpec
from ..device import Device
from .layouts import from_memory, to_memory

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["BackendBase", "DeviceBuffer", "NPUBuffer", "backend_of", "host_array"]


class BackendBase:
    """Base of ``RuntimeBackend``. Buffers recognize backends by this class, since importing ``RuntimeBackend`` here would be a cycle."""


class DeviceBuffer:
    """A value on a device.

    spec:          shape, dtype and layout.
    native_handle: the backend's handle of the memory.
    pending:       the stream with queued work that writes this buffer; None if there is no such work.

    Buffers on the host and on GPUs import and export DLPack. ``to_numpy`` copies any buffer to the host.
    """

    __slots__ = ("__weakref__", "_array", "backend", "native_handle", "pending", "spec")

    def __init__(self, native_handle: Any, spec: TensorSpec, backend: RuntimeBackend) -> None:
        self.native_handle, self.spec, self.backend = native_handle, spec, backend
        self._array: NDArray[Any] | None = None
        self.pending: int | None = None

    @classmethod
    def from_numpy(
        cls,
        array: Any,
        device: Device | RuntimeBackend | str = "cpu",
        *,
        spec: TensorSpec | None = None,
        alloc_shape: tuple[int, ...] | None = None,
    ) -> DeviceBuffer:
        """Copy an array to a device, with the layout and padding of ``spec`` (dense without one). Raises InputError if the array does not
        match the spec.
        """
        array = np.asarray(array)
        if spec is None:
            shape = tuple(array.shape)
            layout = None if alloc_shape is None else Layout(tuple(range(len(shape))), tuple(alloc_shape))
            spec = TensorSpec(shape, DType.of(array.dtype), layout=layout)
        buffer = cls.empty(spec, device)
        buffer.write(array)
        return buffer

    @classmethod
    def empty(cls, spec: TensorSpec, device: Device | RuntimeBackend | str = "cpu") -> DeviceBuffer:
        """Allocate a buffer with undefined content. Raises InputError for a spec with unknown dims."""
        size, backend = spec.size_bytes, backend_of(device)
        if size is None:
            raise InputError(
                f"buffer {spec.name or spec}",
                "has no size before its symbols are known",
                got=spec,
                do="Give the sizes of its symbols.",
            )
        return cls(backend.allocate(size), spec, backend)

    @classmethod
    def zeros(cls, spec: TensorSpec, device: Device | RuntimeBackend | str = "cpu") -> DeviceBuffer:
        """Allocate a buffer of zeros."""
        buffer = cls.empty(spec, device)
        buffer.backend.clear(buffer.native_handle, buffer.size_bytes)
        return buffer

    @classmethod
    def from_dlpack(cls, tensor: Any, device: Device | RuntimeBackend | str = "cpu") -> DeviceBuffer:
        """Import a tensor of any DLPack library, bfloat16 included. Memory on the device is shared; host memory is copied. Raises
        InputError for a tensor on another device.
        """
        backend = backend_of(device)
        imported = backend.import_tensor(tensor, backend.current_stream())
        return cls.from_numpy(host_array(tensor), backend) if imported is None else imported

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the logical shape."""
        return cast("tuple[int, ...]", self.spec.shape)

    @property
    def alloc_shape(self) -> tuple[int, ...]:
        """Return the padded extents, in logical order."""
        return cast("tuple[int, ...]", self.spec.alloc_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return NumPy's dtype of an element."""
        return self.spec.dtype.numpy

    @property
    def size_bytes(self) -> int:
        """Return the bytes in memory, padding included."""
        return self.spec.size_bytes or 0

    @property
    def address(self) -> int:
        """Return the number that identifies the memory in the core: an address or a handle."""
        return self.backend.address(self.native_handle)

    def to_numpy(self, spec: TensorSpec | None = None) -> NDArray[Any]:
        """Copy the logical array to the host, without layout and padding. ``spec`` overrides the buffer's own spec for reading. Raises
        InputError if its size differs.
        """
        actual = spec if spec is not None and spec.is_static else self.spec
        self.settle()
        raw = self.backend.download(self.native_handle, self.size_bytes)
        return np.array(from_memory(raw, actual), order="C")

    def numpy(self) -> NDArray[Any]:
        """Return the logical array: a view if the device shares the host's memory, otherwise a copy."""
        if not self.backend.core_is_host:
            return self.to_numpy()
        if self._array is None:
            self._array = from_memory(self.backend.download(self.native_handle, self.size_bytes), self.spec)
        return self._array

    def settle(self, stream: int | None = None) -> None:
        """Wait for queued writes to this buffer. With ``stream``, later work on that stream waits instead of the caller."""
        if self.pending is None:
            return
        if stream is None:
            self.backend.wait(self.pending)
            self.pending = None
        else:
            self.backend.order(stream, self.pending)

    def write(self, array: Any) -> None:
        """Copy an array into the buffer in the layout of its spec. Raises InputError if it does not match the spec."""
        self.settle()
        memory = np.ascontiguousarray(to_memory(np.asarray(array), self.spec))
        self.backend.upload(self.native_handle, memory.reshape(-1).view(np.uint8))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy() if not copy else self.to_numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        exported = self.backend.export_tensor(self, options.get("stream"))
        if exported is not None:
            return exported
        array = self.numpy()
        if self.spec.dtype is DType.BFLOAT16:  # NumPy cannot export ml_dtypes.bfloat16
            array = array.copy() if options.get("copy") else array
            strides = [s // array.itemsize for s in array.strides]
            bfloat = (4, 16)  # kDLBfloat
            return _core.dlpack_capsule(array.ctypes.data, array.shape, strides, *bfloat, array)
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.backend.dlpack_device()

    def __repr__(self) -> str:
        return f"DeviceBuffer({self.spec}, {self.backend.kind or 'null'})"


NPUBuffer = DeviceBuffer
"""The name of ``DeviceBuffer`` in the specification."""


def host_array(value: Any) -> NDArray[Any]:
    """Return an array, a tensor of another library or a nested list as a NumPy array; over the same memory if the library allows it.

    Raises InputError for a tensor that is not on the host.
    """
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        if "bfloat16" in str(getattr(value, "dtype", "")):
            return _core.bfloat_words(value).view(DType.BFLOAT16.numpy)
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        try:
            return np.asarray(value)  # the library converts types that DLPack or NumPy lacks
        except (RuntimeError, TypeError, ValueError):
            do = "Copy it to the host, and detach it from gradients."
            raise InputError("tensor", "cannot be read", got=str(error)[:200], do=do) from error


def backend_of(device: Any) -> RuntimeBackend:
    """Return the backend of a device or of a device's name; a backend is returned as it is."""
    if isinstance(device, BackendBase):
        return cast("RuntimeBackend", device)
    return (device if isinstance(device, Device) else Device(device)).backend
