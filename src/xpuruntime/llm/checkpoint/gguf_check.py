"""Validation of a GGUF header against the file's size. The ``gguf`` package trusts the header's counts, so this runs first."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path

from ...errors import ModelError
from ...storage.files import open_regular

__all__ = ["TYPES", "UNREAD", "check_gguf"]

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Size in bytes of the values of a type, by the type's number. Strings and arrays have no fixed size."""
TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 28: ("F64", 1, 8), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip
"""Types of tensors that can be read, by number: name, values in a block, bytes of a block."""
UNREAD: Mapping[int, str] = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 31: "Q4_0_4_4", 32: "Q4_0_4_8",
    33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 41: "Q1_0",
}  # fmt: skip
"""Other types that have a name: removed from the format, or not for weights."""
_AGAIN = "Download the file again, or convert the model again."
_UINT32, _STRING, _ARRAY = 4, 8, 9
_MAX_DIMS, _MAX_DEPTH, _MAX_ELEMENTS = 4, 4, 1 << 48
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # length of the name, number of dims, type, offset
_MIN_PAIR_BYTES = 8 + 4 + 1  # length of the key, type, value


def check_gguf(path: Path, who: str) -> None:
    """Raise ModelError if a count, a length, an offset, the alignment or a tensor is outside the file, or a type cannot be read."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _GgufCursor(data)
            cursor.file()
    except OSError as error:
        raise ModelError(who, "cannot be read", got=error.strerror or error, do="Check the path.") from error
    except ValueError as error:  # mmap raises it for an empty file
        raise ModelError(who, "is not a GGUF file, or damaged", got=str(error)[:200], do=_AGAIN) from error
    if cursor.unread:
        (name, kind), *_ = cursor.unread.items()
        text = f"{name[:80].decode(errors='replace')}: type {kind} ({UNREAD.get(kind, 'unknown')})"
        do = "Convert the model to a type such as F16, BF16, Q8_0 or Q4_K."
        raise ModelError(who, "has a tensor of a type that cannot be read", got=text, do=do)


class _GgufCursor:
    """A position in the file, checked against its end. Raises ValueError. unread: tensors of types that cannot be read."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order, self.alignment = data, 0, "<", 32
        self.unread: dict[bytes, int] = {}

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
            missing = begin + farthest - len(self.data)
            raise ValueError(f"a tensor ends {missing} bytes after the end of the file")

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
        """Return the end of the tensor's data, from the begin of all data."""
        dims = [self.number(8) for _ in range(self.number(4, _MAX_DIMS))]
        if any(d < 1 for d in dims) or math.prod(dims) > _MAX_ELEMENTS:
            raise ValueError(f"tensor {name[:80]!r} has the shape {dims}")
        kind, offset = self.number(4), self.number(8)
        if offset % self.alignment:
            raise ValueError(f"tensor {name[:80]!r} at {offset}, which is not a multiple of {self.alignment}")
        if kind not in TYPES:
            self.unread[name] = kind
            return offset
        word, values, size = TYPES[kind]
        if dims and dims[0] % values:
            raise ValueError(
                f"tensor {name[:80]!r} has rows of {dims[0]} values; {word} has blocks of {values}"
            )
        return offset + math.prod(dims) // values * size

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
