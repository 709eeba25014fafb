"""NumPy arrays that the core reads in place, and dtypes as DLPack codes."""

from __future__ import annotations

import numpy as np

from ... import _core
from ...types import DType

__all__ = ["dlpack_dtype", "dlpack_words", "trust_arrays"]

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_TYPES: dict[DType, tuple[int, int]] = {DType.BOOL: (6, 8)} | {
    DType(f"{kind}{bits}"): (code, bits)
    for kind, code in _CODES.items()
    for bits in (8, 16, 32, 64)
    if f"{kind}{bits}" in {d.value for d in DType}
}
_DTYPES = {code_and_bits: dtype for dtype, code_and_bits in _TYPES.items()}
_trusted: list[bool] = []


def trust_arrays() -> None:
    """Let the core read NumPy arrays in place, after a probe has shown that it parses their layout correctly."""
    if _trusted:
        return
    probe = np.zeros((3, 5), np.float32)
    _trusted.append(_core.trust_arrays(np.ndarray, probe, probe.ctypes.data, probe.dtype, 3))
    for dtype, (code, bits) in _TYPES.items():
        _core.trust_dtype(dtype.numpy, code, bits)


def dlpack_words(dtype: DType) -> tuple[int, int] | None:
    """Return DLPack's type code and number of bits; None for a dtype that DLPack lacks."""
    return _TYPES.get(dtype)


def dlpack_dtype(code: int, bits: int) -> DType | None:
    """Return the dtype of a DLPack type code and bits; None for an unknown pair."""
    return _DTYPES.get((code, bits))
