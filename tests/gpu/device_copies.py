"""Copies between the host and a CUDA device, as CUPTI records them, whichever library of the process makes them.

    with CopyCounter() as copies:
        sess.run({"x": x})
        backend.synchronize()
    copies.host                     # [("to the device", 602112)]

Needs CUPTI, which the core finds (``xpu doctor``), and no other package. Only one client of CUPTI's records may be active at a time, so do not
observe a run of the native engine meanwhile.
"""

from __future__ import annotations

import ctypes

from xpuruntime.runtime.device import open_library

__all__ = ["CopyCounter"]

_MEMCPY, _FORCED = 1, 1  # CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_DIRECTIONS = {1: "to the device", 2: "to the host", 3: "to an array", 4: "from an array"}
"""CUpti_ActivityMemcpyKind of the copies that touch the host's memory."""
_BUFFER_BYTES = 1 << 20

_REQUESTED = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class _Copy(ctypes.Structure):
    """The first fields of CUpti_ActivityMemcpy, the same in all versions."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("copy_kind", ctypes.c_uint8),
        ("source_kind", ctypes.c_uint8),
        ("target_kind", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("bytes", ctypes.c_uint64),
    )


class CopyCounter:
    """Records the copies inside a ``with`` block. Synchronize the device before the block ends.

    host: direction and bytes of each copy that touched the host. other: the number of copies on the device. dropped: lost records.
    """

    def __init__(self) -> None:
        library = open_library("cupti")
        if not library.path:
            raise RuntimeError(f"CUPTI cannot be loaded: {library.status.message}")
        self._cupti = ctypes.CDLL(library.path)
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._requested, self._completed = _REQUESTED(self._give), _COMPLETED(self._take)
        self.host: list[tuple[str, int]] = []
        self.other, self.dropped = 0, 0

    def __enter__(self) -> CopyCounter:
        self._call("cuptiActivityRegisterCallbacks", self._requested, self._completed)
        self._call("cuptiActivityEnable", _MEMCPY)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(_FORCED))
        self._call("cuptiActivityDisable", _MEMCPY)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cupti, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} returned CUPTI's error {result}")

    def _give(
        self,
        address: ctypes._Pointer[ctypes.c_void_p],
        size: ctypes._Pointer[ctypes.c_size_t],
        records: ctypes._Pointer[ctypes.c_size_t],
    ) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + 8)
        at = -(-ctypes.addressof(memory) // 8) * 8
        self._buffers[at] = memory
        address[0], size[0], records[0] = at, _BUFFER_BYTES, 0

    def _take(self, context: int, stream: int, address: int, size: int, valid: int) -> None:
        at = ctypes.c_void_p()
        while valid and not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(at)
        ):
            record = _Copy.from_address(at.value or 0)
            if record.kind != _MEMCPY:
                continue
            if record.copy_kind in _DIRECTIONS:
                self.host.append((_DIRECTIONS[record.copy_kind], int(record.bytes)))
            else:
                self.other += 1
        lost = ctypes.c_size_t()
        self._cupti.cuptiActivityGetNumDroppedRecords(
            ctypes.c_void_p(context), ctypes.c_uint32(stream), ctypes.byref(lost)
        )
        self.dropped += lost.value
        self._buffers.pop(address, None)
