"""Elementwise arithmetic, comparison, logic and bit ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from .numbers import Array, dtype_of, to, widen
from .rule import InterpRule, Operand, arithmetic, as_quotient, common, plain, quotient, real, together, wide

__all__ = ["RULES", "erf"]

_ERF = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Return the error function of float64 values, by the C library."""
    return np.asarray(_ERF(x)).astype(np.float64)


# ── one operand ──


def sign(x: Array) -> Array:
    """Return -1, 0 or 1 in the operand's type; NaN gives 0, as in PyTorch."""
    if x.dtype.kind == "c":
        size = np.abs(x)
        return np.where(size == 0, 0, x / size)
    if x.dtype.kind in "bu":
        return (x > 0).astype(x.dtype)
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))


def _rounding(function: Callable[[Array], Array]) -> InterpRule:
    """Return a rounding function that leaves integers unchanged."""
    return wide(lambda x: function(x) if x.dtype.kind == "f" else x)


def round_(x: Array, *, decimals: int) -> Array:
    """Round half to even. With decimals, the scaled value is first rounded to the operand's type (at least float32), as in PyTorch."""
    dtype = dtype_of(x)
    if not dtype.is_float:
        return x
    if not decimals:
        return np.rint(x.astype(np.float64))
    narrow = x if dtype is DType.FLOAT64 else x.astype(np.float32)
    scale = narrow.dtype.type(10.0 ** abs(decimals))
    if decimals > 0:
        return np.asarray(np.rint(narrow * scale) / scale)
    return np.asarray(np.rint(narrow / scale) * scale)


def isnan(x: Array) -> Array:
    """Return True for NaN; integers are never NaN."""
    return np.isnan(x) if x.dtype.kind in "fc" else np.zeros(x.shape, bool)


def isinf(x: Array, *, positive: bool, negative: bool) -> Array:
    """Return True for infinities of the selected signs; integers are never infinite."""
    if x.dtype.kind == "c":
        return np.isinf(x)
    return np.asarray(((x == np.inf) & positive) | ((x == -np.inf) & negative))


def _truth(x: Array) -> Array:
    """Return True for nonzero elements; NaN is nonzero."""
    return np.asarray(x != 0)


# ── two operands ──


def _check_divisor(x: Array, divisor: Array) -> None:
    if divisor.dtype.kind in "iu" and np.broadcast(x, divisor).size and not divisor.all():
        raise ZeroDivisionError("an integer is divided by zero")


def div(x: Operand, other: Operand, *, rounding_mode: str | None) -> Array:
    """Divide in float64. With a rounding mode, the quotient is first rounded to the operands' type (for floor, at least float32),
    so that 1 / float32(0.1) is an integer, as in PyTorch.
    """
    if rounding_mode is None:
        a, b = as_quotient((x, other))
        return np.asarray(np.divide(a, b))
    operands = together((x, other))
    a, b = (_own(o) for o in operands)
    if a.dtype.kind == "f":
        if rounding_mode == "floor":
            return np.asarray(np.floor_divide(a, b))
        return np.trunc(widen(to(np.asarray(a / b), dtype_of(operands[0]))))
    _check_divisor(a, b)
    down = np.floor_divide(a, b)
    if rounding_mode == "floor":
        return np.asarray(down)
    return np.asarray(down + ((down * b != a) & ((a < 0) != (b < 0))).astype(down.dtype))


def _own(x: Array) -> Array:
    """Convert narrow floats to float32, and sub-byte integers and bool to int64."""
    dtype = dtype_of(x)
    if dtype.is_float:
        return to(x, DType.FLOAT32) if dtype.bits < 32 else x
    return to(x, DType.INT64) if dtype.bits < 8 or dtype is DType.BOOL else x


def pow_(x: Array, other: Array) -> Array:
    """Raise to a power. Integers wrap; a negative power of an integer is 0 unless the base is 1 or -1."""
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, other))
    raised = np.power(x, np.where(other < 0, 0, other))
    unit = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (other % 2), 0))
    return np.where(other < 0, unit, raised)


def fmod(x: Array, other: Array) -> Array:
    """Return the remainder with the sign of x; exact."""
    _check_divisor(x, other)
    return np.asarray(np.fmod(x, other))


def remainder(x: Array, other: Array) -> Array:
    """Return the remainder with the sign of other."""
    _check_divisor(x, other)
    return np.asarray(np.remainder(x, other))


def shift_left(x: Array, other: Array) -> Array:
    """Shift left; shifts by at least the type's bits give 0."""
    bits = x.dtype.itemsize * 8
    inside = (other >= 0) & (other < bits)
    return np.where(inside, np.left_shift(x, np.where(inside, other, 0)), 0)


def shift_right(x: Array, other: Array) -> Array:
    """Shift right arithmetically; shifts by at least the type's bits give 0, or -1 for negative values."""
    bits = x.dtype.itemsize * 8
    inside = (other >= 0) & (other < bits)
    overflow = np.where(x < 0, -1, 0).astype(x.dtype)  # int64 with uint64 would promote to float64
    return np.where(inside, np.right_shift(x, np.where(inside, other, 0)), overflow)


def _logical(function: Callable[..., Any]) -> InterpRule:
    return wide(lambda x, other: function(np.asarray(x) != 0, np.asarray(other) != 0))


# ── three operands ──


def where(condition: Array, x: Operand, other: Operand) -> Array:
    """Select x where the condition is true, else other; both have one type."""
    a, b = together((x, other))
    return np.asarray(np.where(condition, a, b))


def clamp(x: Array, low: Array | None, high: Array | None) -> Array:
    """Compute min(max(x, low), high); NaN in any of the three propagates."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


RULES: dict[str, InterpRule] = {
    "abs": wide(np.abs),
    "neg": wide(np.negative),
    "sign": wide(sign),
    "ceil": _rounding(np.ceil),
    "floor": _rounding(np.floor),
    "trunc": _rounding(np.trunc),
    "round": plain(round_),
    "acos": real(np.arccos),
    "acosh": real(np.arccosh),
    "asin": real(np.arcsin),
    "asinh": real(np.arcsinh),
    "atan": real(np.arctan),
    "atanh": real(np.arctanh),
    "cos": real(np.cos),
    "cosh": real(np.cosh),
    "erf": real(erf),
    "exp": real(np.exp),
    "exp2": real(np.exp2),
    "expm1": real(np.expm1),
    "log": real(np.log),
    "log10": real(np.log10),
    "log1p": real(np.log1p),
    "log2": real(np.log2),
    "reciprocal": real(lambda x: 1 / x),
    "rsqrt": real(lambda x: 1 / np.sqrt(x)),
    "sin": real(np.sin),
    "sinh": real(np.sinh),
    "sqrt": real(np.sqrt),
    "tan": real(np.tan),
    "isnan": wide(isnan),
    "isinf": wide(isinf),
    "logical_not": wide(lambda x: ~_truth(x)),
    "bitwise_not": wide(np.invert),
    "add": arithmetic(np.add),
    "sub": arithmetic(np.subtract),
    "mul": arithmetic(np.multiply),
    "div": plain(div),
    "pow": arithmetic(pow_),
    "maximum": common(np.maximum),
    "minimum": common(np.minimum),
    "fmod": common(fmod),
    "remainder": common(remainder),
    "atan2": quotient(np.arctan2),
    "eq": common(np.equal),
    "ne": common(np.not_equal),
    "lt": common(np.less),
    "le": common(np.less_equal),
    "gt": common(np.greater),
    "ge": common(np.greater_equal),
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "logical_xor": _logical(np.logical_xor),
    "bitwise_and": common(np.bitwise_and),
    "bitwise_or": common(np.bitwise_or),
    "bitwise_xor": common(np.bitwise_xor),
    "bitwise_left_shift": common(shift_left),
    "bitwise_right_shift": common(shift_right),
    "where": plain(where),
    "clamp": common(clamp),
}
