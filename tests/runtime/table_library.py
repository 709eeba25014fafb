"""A tensor library with DLPack's table of C functions, over the memory of a backend of ours: what PyTorch is on a real device."""

from __future__ import annotations

import ctypes as c
from typing import Any, ClassVar

import numpy as np

from xpuruntime.runtime.backends.base import RuntimeBackend


class _Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p), ("device_type", c.c_int32), ("device_index", c.c_int32), ("rank", c.c_int32),
        ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64),
    )  # fmt: skip


class _Managed(c.Structure):
    _fields_ = (
        ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", c.c_void_p),
        ("flags", c.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_SHOW = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(_Tensor))
_ALLOCATE = c.PYFUNCTYPE(c.c_int, c.POINTER(_Tensor), c.POINTER(c.POINTER(_Managed)), c.c_void_p, c.c_void_p)
_EXPORT = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p)
_IMPORT = c.PYFUNCTYPE(c.c_int, c.POINTER(_Managed), c.POINTER(c.c_void_p))
_STREAM = c.PYFUNCTYPE(c.c_int, c.c_int32, c.c_int32, c.POINTER(c.c_void_p))


class _Table(c.Structure):
    _fields_ = (
        ("major", c.c_uint32), ("minor", c.c_uint32), ("older", c.c_void_p), ("allocate", _ALLOCATE),
        ("export_tensor", _EXPORT), ("import_tensor", _IMPORT), ("show", _SHOW), ("current_stream", _STREAM),
    )  # fmt: skip


class Tensor:
    """float32, dense, on the device of ``backend``, which is set before the first is made; ``backends`` has those of several devices."""

    backend: RuntimeBackend
    backends: ClassVar[dict[int, RuntimeBackend]] = {}
    stream = 0
    made = 0

    def __init__(self, shape: tuple[int, ...], handle: Any = None, device: int = 0) -> None:
        self.shape = shape
        self.backend = self.backends.get(device) or type(self).backend
        # In the order of the library's stream, as such libraries do: what is queued there may outlive the tensor.
        size = 4 * int(np.prod(shape))
        self.handle = self.backend.allocate_on(size, self.stream) if handle is None else handle
        self.dims = (c.c_int64 * len(shape))(*shape)
        dense = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        self.steps = (c.c_int64 * len(shape))(*dense)

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], device: int = 0) -> Tensor:
        made = cls(array.shape, device=device)
        made.backend.wait(made.stream)  # what is still queued there may read the memory's earlier content
        made.backend.upload(made.handle, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return made

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, after all that is queued on the library's stream."""
        self.backend.wait(self.stream)
        raw = self.backend.download(self.handle, 4 * int(np.prod(self.shape)))
        return np.array(raw).view(np.float32).reshape(self.shape)

    def fill(self, out: _Tensor) -> None:
        """Write what the tensor shows of itself."""
        kind, index = self.backend.dlpack_device()
        out.data, out.device_type, out.device_index = self.backend.address(self.handle), kind, index
        out.rank, out.code, out.bits, out.lanes, out.byte_offset = len(self.shape), 2, 32, 1, 0
        out.shape, out.strides = self.dims, self.steps

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.backend.dlpack_device()

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("the table of functions was there, and nobody used it")


_IN_TRANSIT: dict[int, tuple[Tensor, _Managed]] = {}


@_SHOW
def _show(object_: int, out: Any) -> int:
    c.cast(object_, c.py_object).value.fill(out[0])
    return 0


@_ALLOCATE
def _allocate(prototype: Any, out: Any, context: int, set_error: int) -> int:
    shape, device = tuple(prototype[0].shape[: prototype[0].rank]), prototype[0].device_index
    tensor, managed = Tensor(shape, device=device), _Managed(1, 3)
    Tensor.made += 1
    tensor.fill(managed.tensor)
    out[0] = c.pointer(managed)
    _IN_TRANSIT[c.addressof(managed)] = (tensor, managed)
    return 0


@_IMPORT
def _import(managed: Any, out: Any) -> int:
    tensor, _ = _IN_TRANSIT.pop(c.addressof(managed[0]))
    c.pythonapi.Py_IncRef(c.py_object(tensor))
    out[0] = id(tensor)
    return 0


@_EXPORT
def _export(object_: int, out: int) -> int:
    raise AssertionError("nobody asks for a tensor that outlives a call")


@_STREAM
def _stream(device_type: int, index: int, out: Any) -> int:
    out[0] = Tensor.stream
    return 0


_TABLE = _Table(1, 3, None, _allocate, _export, _import, _show, _stream)
_NAME = c.c_char_p(b"dlpack_exchange_api")
c.pythonapi.PyCapsule_New.restype = c.py_object
c.pythonapi.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
Tensor.__dlpack_c_exchange_api__ = c.pythonapi.PyCapsule_New(c.addressof(_TABLE), _NAME, None)  # type: ignore[attr-defined]
