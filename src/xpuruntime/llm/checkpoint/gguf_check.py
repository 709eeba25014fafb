"""Validation of a GGUF header against the file's size. The ``gguf`` package trusts the header's counts, so this runs first."""

from __future__ import annotations

import math
import mmap
from pathlib import Path

from ...errors import ModelError
from ...storage.files import open_regular

__all__ = ["check_gguf"]

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Size in bytes of the values of a type, by the type's number. Strings and arrays have no fixed size."""
_UINT32, _STRING, _ARRAY = 4, 8, 9
_MAX_DIMS, _MAX_DEPTH, _MAX_ELEMENTS = 4, 4, 1 << 48
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # length of the name, number of dims, type, offset
_MIN_PAIR_BYTES = 8 + 4 + 1  # length of the key, type, value


def check_gguf(path: Path, who: str) -> None:
    """Raise ModelError if a count, a length, an offset or the alignment points outside the file."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _GgufCursor(data).file()
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise ModelError(who, "is not a GGUF file, or damaged", got=str(error)[:200]) from error


class _GgufCursor:
    """A position in the file, checked against its end. Raises ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order, self.alignment = data, 0, "<", 32

    def file(self) -> None:
        """Check every count, key, value and tensor."""
        if self.bytes(4) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        if self.data[4:6] == b"\0\0":  # the low bytes of the version are zero: the file is big-endian
            self.order = ">"
        version = self.number(4)
        if version not in (2, 3):
            raise ValueError(f"version {version}; versions 2 and 3 are supported")
        tensors, pairs = self.count(_MIN_TENSOR_BYTES), self.count(_MIN_PAIR_BYTES)
        for _ in range(pairs):
            self.pair()
        names: set[bytes] = set()
        farthest = 0
        for _ in range(tensors):
            name = self.string()
            if name in names:
                raise ValueError(f"duplicate tensor {name[:80]!r}")
            names.add(name)
            farthest = max(farthest, self.tensor(name))
        begin = -(-self.at // self.alignment) * self.alignment
        if begin + farthest > len(self.data):
            raise ValueError(
                f"a tensor begins {begin + farthest - len(self.data)} bytes after the end of the file"
            )

    def pair(self) -> None:
        key, kind = self.string(), self.number(4)
        if key == b"general.alignment":
            if kind != _UINT32:
                raise ValueError(f"general.alignment has type {kind}, not {_UINT32}")
            self.alignment = self.number(4)
            if not 1 <= self.alignment <= 1 << 20 or self.alignment & (self.alignment - 1):
                raise ValueError(f"general.alignment is {self.alignment}, not a power of two up to 1 MiB")
            return
        self.value(kind, 0)

    def value(self, kind: int, depth: int) -> None:
        if kind in _SIZES:
            self.bytes(_SIZES[kind])
        elif kind == _STRING:
            self.string()
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            item = self.number(4)
            count = self.count(_SIZES.get(item, 8))
            if item in _SIZES:
                self.bytes(count * _SIZES[item])
            else:
                for _ in range(count):
                    self.value(item, depth + 1)
        else:
            raise ValueError(
                f"a value has type {kind} at depth {depth}; known are 0 to 12, and arrays of depth {_MAX_DEPTH}"
            )

    def tensor(self, name: bytes) -> int:
        """Return the offset of the tensor's data."""
        dims = [self.number(8) for _ in range(self.number(4, _MAX_DIMS))]
        if any(d < 1 for d in dims) or math.prod(dims) > _MAX_ELEMENTS:
            raise ValueError(f"tensor {name[:80]!r} has the shape {dims}")
        self.number(4)
        offset = self.number(8)
        if offset % self.alignment:
            raise ValueError(f"tensor {name[:80]!r} at {offset}, which is not a multiple of {self.alignment}")
        return offset

    def string(self) -> bytes:
        return self.bytes(self.count(1))

    def count(self, min_bytes: int) -> int:
        """Read a number of items, of at least ``min_bytes`` bytes each, which must fit in the rest of the file."""
        count = self.number(8)
        if count * min_bytes > len(self.data) - self.at:
            raise ValueError(
                f"{count} items at byte {self.at} do not fit in a file of {len(self.data)} bytes"
            )
        return count

    def number(self, size: int, maximum: int | None = None) -> int:
        value = int.from_bytes(self.bytes(size), "little" if self.order == "<" else "big")
        if maximum is not None and value > maximum:
            raise ValueError(f"{value} at byte {self.at - size}, but at most {maximum} is allowed")
        return value

    def bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes at byte {self.at} do not fit in a file of {len(self.data)} bytes")
        self.at += size
        return self.data[self.at - size : self.at]
