"""DType, TensorSpec and Layout, the types of every tensor. Dims are defined in ``dims`` and exported here, too."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .dims import Dim, DimLike, dim, parse_dim, substitute, symbols_of

__all__ = ["HALF_FLOATS", "DType", "Dim", "DimLike", "Layout", "TensorSpec", "dim", "parse_dim"]


class DType(enum.StrEnum):
    """Element types, spelled as NumPy and ml_dtypes spell them. ``STRING`` has no fixed size."""

    BOOL = "bool"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1FN = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that holds one element (object for strings; sub-byte types take a byte each)."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Bits of one element when packed; 0 for strings."""
        return _BITS.get(self, 0 if self is DType.STRING else self.numpy.itemsize * 8)

    @property
    def is_float(self) -> bool:
        """True for every real floating-point type."""
        return "float" in self.value

    @property
    def is_complex(self) -> bool:
        """True for complex64 and complex128."""
        return self.value.startswith("complex")

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return "int" in self.value

    @property
    def is_signed(self) -> bool:
        """True for types with negative values."""
        return not (self.value.startswith("uint") or self in (DType.BOOL, DType.STRING, DType.FLOAT8_E8M0FNU))

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Return the DType of a NumPy dtype, a NumPy scalar type, or a name. Raises ValueError if there is none."""
        if isinstance(dtype, DType):
            return dtype
        if dtype is None:
            raise ValueError("no such dtype: None")  # NumPy would take it for float64
        if isinstance(dtype, str) and dtype in _ALIASES:
            return _ALIASES[dtype]
        try:
            native = np.dtype(dtype)  # type: ignore[call-overload]
        except (TypeError, ValueError, SyntaxError) as error:
            raise ValueError(f"no such dtype: {dtype!r}") from error
        if native.kind in "OUST":
            return cls.STRING
        try:
            return cls(native.name)
        except ValueError as error:
            raise ValueError(f"no tensor dtype for {native!r}") from error


HALF_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16})
"""The floats of 16 bits."""

_SUB_BYTE = {DType.INT4: 4, DType.UINT4: 4, DType.INT2: 2, DType.UINT2: 2, DType.FLOAT4_E2M1FN: 4}
_BITS: dict[DType, int] = dict(_SUB_BYTE)
_NUMPY: dict[DType, np.dtype[Any]] = {
    d: np.dtype(object) if d is DType.STRING else np.dtype(getattr(ml_dtypes, d.value, None) or d.value)
    for d in DType
}
_ALIASES: dict[str, DType] = {d.value: d for d in DType} | {
    "f16": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "half": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "f32": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "float": DType.FLOAT32,
    "f64": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "double": DType.FLOAT64,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory layout of a value with a static shape: the order of its dims, and the padding of each.

    order: logical dims from the outermost to the innermost in memory: ``(0, 2, 3, 1)`` is NHWC of an NCHW value.
    alloc: allocated extent of each logical dim, at least the dim itself; the content of the padding is undefined.
    """

    order: tuple[int, ...]
    alloc: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.alloc))):
            raise ValueError(
                f"a layout's order must name each dim once, got {self.order} for {len(self.alloc)} dims"
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the logical dims, in elements."""
        strides, step = [0] * len(self.order), 1
        for d in reversed(self.order):
            strides[d], step = step, step * self.alloc[d]
        return tuple(strides)

    @property
    def elements(self) -> int:
        """Elements that the allocation holds, padding included."""
        return math.prod(self.alloc)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one value, and its name if it has one.

    layout: the memory layout; None for dense row-major. The shape is always the logical one.
    """

    shape: tuple[DimLike, ...]
    dtype: DType
    name: str = ""
    layout: Layout | None = None

    @property
    def alloc_shape(self) -> tuple[DimLike, ...]:
        """Allocated extents in logical order: the shape plus the layout's padding."""
        return self.shape if self.layout is None else self.layout.alloc

    @property
    def physical(self) -> Layout:
        """The layout, or the dense one of a static shape. Raises ValueError for a symbolic shape without a layout."""
        if self.layout is not None:
            return self.layout
        if not self.is_static:
            raise ValueError(f"{self} has no layout before its symbols are known")
        shape = tuple(int(d) for d in self.shape if isinstance(d, int))
        return Layout(tuple(range(len(shape))), shape)

    @property
    def is_dense(self) -> bool:
        """True for row-major order without padding; the position of dims of extent 1 does not matter."""
        if self.layout is None:
            return True
        if self.layout.alloc != self.shape:
            return False
        order = [d for d in self.layout.order if self.shape[d] != 1]
        return order == sorted(order)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dim is an integer."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol in the shape."""
        return frozenset().union(*(symbols_of(d) for d in self.shape))

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the value in memory, sub-byte types packed; None if the shape is symbolic or the dtype is string."""
        if not self.is_static or self.dtype is DType.STRING:
            return None
        return (math.prod(int(d) for d in self.alloc_shape if isinstance(d, int)) * self.dtype.bits + 7) // 8

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to the end of the last one in memory. Raises ValueError for a symbolic shape."""
        if any(d == 0 for d in self.shape):
            return 0
        steps = zip(self.shape, self.physical.strides, strict=True)
        last = sum((int(d) - 1) * step for d, step in steps if isinstance(d, int))
        return ((last + 1) * self.dtype.bits + 7) // 8

    def substitute(self, values: Mapping[str, DimLike]) -> TensorSpec:
        """Return the spec with symbols replaced."""
        return TensorSpec(
            tuple(substitute(d, values) for d in self.shape), self.dtype, self.name, self.layout
        )

    def __str__(self) -> str:
        text = f"{self.dtype.value}[{', '.join(str(d) for d in self.shape)}]"
        if self.layout is None:
            return text
        padded = "" if self.layout.alloc == self.shape else f" in {list(self.layout.alloc)}"
        return f"{text}{{{','.join(str(d) for d in self.layout.order)}{padded}}}"

    @classmethod
    def parse(cls, text: str, name: str = "") -> TensorSpec:
        """Parse a spec such as ``"float32[n, 3, 2*h]"``. Raises ValueError."""
        head, bracket, tail = text.strip().partition("[")
        if not bracket or not tail.endswith("]"):
            raise ValueError(f"not a tensor spec: {text[:80]!r}; write dtype[dim, dim]")
        body = tail[:-1].strip()
        return cls(
            tuple(parse_dim(part) for part in _split(body)) if body else (), DType.of(head.strip()), name
        )


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes (a quoted symbol may hold any text)."""
    parts, depth, quote, start = [], 0, "", 0
    escaped = False
    for i, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped, quote = char == "\\", "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return parts
