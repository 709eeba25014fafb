"""Versions that vendor libraries report themselves. A file name tells only the major version of a library in a Python wheel (``libcublas.so.13``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

from .device import LibraryStatus

__all__ = ["reported_version"]

_Read = Callable[[ctypes.CDLL], str]


def _digits(number: int, scales: Sequence[int]) -> str:
    """Return a version that is packed into one decimal number: 91400 with scales 10000 and 100 is 9.14.0."""
    parts = []
    for scale in scales:
        parts.append(number // scale)
        number %= scale
    return ".".join(map(str, (*parts, number)))


def _property(symbol: str) -> _Read:
    """Return a reader of ``libraryPropertyType``: major, minor and patch level."""

    def read(library: ctypes.CDLL) -> str:
        parts = []
        for kind in range(3):
            value = ctypes.c_int()
            if library[symbol](kind, ctypes.byref(value)):
                return ""
            parts.append(str(value.value))
        return ".".join(parts)

    return read


def _cudnn(library: ctypes.CDLL) -> str:
    get = library["cudnnGetVersion"]
    get.restype = ctypes.c_size_t
    number = int(get())
    return _digits(number, (10000, 100) if number >= 90000 else (1000, 100))


def _nvrtc(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = library["nvrtcVersion"](ctypes.byref(major), ctypes.byref(minor))
    return "" if failed else f"{major.value}.{minor.value}"


def _nccl(library: ctypes.CDLL) -> str:
    number = ctypes.c_int()
    failed = library["ncclGetVersion"](ctypes.byref(number))
    return "" if failed else _digits(number.value, (10000, 100))


_READERS: Mapping[str, _Read] = {
    "cublas": _property("cublasGetProperty"),
    "cublasLt": _property("cublasLtGetProperty"),
    "cudnn": _cudnn,
    "nvrtc": _nvrtc,
    "nccl": _nccl,
}


def reported_version(status: LibraryStatus) -> str:
    """Return the version that a loaded library reports; that of its file name if it reports none."""
    read = _READERS.get(status.name)
    if read is None or not status.path:
        return status.version
    try:
        return read(ctypes.CDLL(status.path)) or status.version
    except (OSError, AttributeError):  # AttributeError: the library lacks the function
        return status.version
