"""C text of reductions: how two values are combined, the value that a reduction starts from, and numbers."""

from __future__ import annotations

import numpy as np

from ...types import DType
from .boxes import element_bytes, int_type
from .plans import Operation

__all__ = ["bits_of", "combine_text", "computed_type", "neutral_of", "number_text", "start_text"]

_COMBINE = {
    "add": "have + give",
    "mul": "have * give",
    "amax": "(have == have) & ((give != give) | (give > have)) ? give : have",
    "amin": "(have == have) & ((give != give) | (give < have)) ? give : have",
}
_BOOL = {"add": "have | give", "mul": "have & give", "amax": "have | give", "amin": "have & give"}
_NEUTRAL = {"sum": "0", "prod": "1", "any": "0", "all": "-1"}
"""Neutral elements of reductions."""


def combine_text(how: str, dtype: DType) -> str:
    """Return how an element ``have`` and a value ``give`` are reduced; empty if the value replaces the element."""
    return "" if how == "none" else (_BOOL if dtype is DType.BOOL else _COMBINE)[how]


def number_text(value: bool | int | float, dtype: DType, how: str) -> str:
    """Return a number as C text: its bits if it only moves, its value if it is computed with."""
    if how == "none":
        return bits_of(value, dtype)
    if dtype is DType.BOOL:
        return str(int(bool(value)))
    return repr(float(value)) if dtype.is_float else repr(int(value))


def start_text(how: str, dtype: DType) -> str:
    """Return the initial value of a reduction."""
    if how in ("add", "mul"):
        return "0" if how == "add" else "1"
    if dtype.is_float:
        return "-__builtin_inf()" if how == "amax" else "__builtin_inf()"
    low, high = _range(dtype)
    return f"({int_type(dtype)}){low if how == 'amax' else high}ull"


def _range(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    low = 1 << (dtype.bits - 1) if dtype.is_signed else 0
    return low, (1 << (dtype.bits - int(dtype.is_signed))) - 1


def computed_type(dtype: DType) -> str:
    """Return the C type for computing with values of a dtype; empty if they cannot be computed with."""
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return "float" if dtype is DType.FLOAT32 else "double"
    return int_type(dtype) if dtype.is_integer or dtype is DType.BOOL else ""


def bits_of(value: object, dtype: DType) -> str:
    """Return a number as a C literal of its bits in a dtype."""
    from ...ir.interp.numbers import to

    raw = np.ascontiguousarray(to(np.asarray(value), dtype)).reshape(1)
    unit = raw.view(np.uint8)[: element_bytes(dtype)]
    return f"0x{int.from_bytes(unit.tobytes(), 'little'):x}ull"


def neutral_of(o: Operation) -> str:
    """Return the neutral element of a reduction, as C text."""
    if o.op in _NEUTRAL:
        return _NEUTRAL[o.op]
    low = o.op in ("amax", "top")
    if o.dtype.is_float:
        kind = "f" if o.dtype is not DType.FLOAT64 else ""
        return f"{'-' if low else ''}__builtin_inf{kind}()"
    bits, signed = o.dtype.bits, o.dtype.is_signed
    if low:
        return f"(-{2 ** (bits - 1) - 1}ll - 1)" if signed else "0"
    return f"{2 ** (bits - 1) - 1}ll" if signed else f"{2**bits - 1}ull"
