"""C types of dtypes in generated code, by their names in the prelude (``templates``)."""

from __future__ import annotations

from ..types import DType

__all__ = ["C_TYPES", "STORAGE", "accumulator"]

STORAGE: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
} | {d: f"{d.value}_t" for d in DType if d.is_integer and d.bits >= 8}
"""The type of an element in memory, for each dtype that kernels compute with."""

C_TYPES: dict[DType, str] = {d: name for d, name in STORAGE.items() if d is not DType.BOOL}
"""The types of numbers: floats and whole integers."""


def accumulator(dtype: DType) -> str:
    """Return the C type of sums: float for narrower floats; integers are summed modulo 2^32 or 2^64."""
    if dtype.is_float:
        return "double" if dtype is DType.FLOAT64 else "float"
    return "uint64_t" if dtype.bits == 64 else "uint32_t"
