"""Type promotion over specs, as PyTorch documents it (torch.result_type): tensors with dimensions before
zero-dimensional ones, those before immediate numbers; bool < integers < floats < complex.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...types import DType, TensorSpec
from ..schema import Mismatch, Operand

__all__ = ["category", "float_of", "promote", "promote_types"]

_SIGNED = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
_CATEGORY_DEFAULT = {bool: DType.BOOL, int: DType.INT64, float: DType.FLOAT32}


def category(dtype: DType) -> int:
    """Return 0 for bool, 1 for integers, 2 for floats, 3 for complex. Raises Mismatch for strings."""
    if dtype is DType.STRING:
        raise Mismatch("strings have no arithmetic", dtype.value)
    return 0 if dtype is DType.BOOL else 1 if dtype.is_integer else 2 if dtype.is_float else 3


def promote_types(a: DType, b: DType) -> DType:
    """Return the common type of two types by PyTorch's table. Raises Mismatch if PyTorch has none."""
    if a is b:
        return a
    low, high = sorted((a, b), key=category)
    low_kind, high_kind = category(low), category(high)
    if low_kind == 0:
        return high
    if high_kind == 1:
        return _promote_integers(low, high)
    if low_kind == 1:
        return high
    if high_kind == 3:
        wide = DType.COMPLEX128 in (low, high) or DType.FLOAT64 in (low, high)
        return DType.COMPLEX128 if wide else DType.COMPLEX64
    if min(low.bits, high.bits) < 16:
        raise Mismatch("no common type", f"{a.value} and {b.value}", "Cast one of them.")
    if low.bits == high.bits:  # float16 with bfloat16
        return DType.FLOAT32
    return low if low.bits > high.bits else high


def _promote_integers(a: DType, b: DType) -> DType:
    if a.is_signed == b.is_signed:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    for wide in _SIGNED:
        if wide.bits >= signed.bits and wide.bits > unsigned.bits:
            return wide
    raise Mismatch("no common type", f"{a.value} and {b.value}", "Cast one of them.")


def promote(operands: Iterable[Operand]) -> DType:
    """Return the type that a pointwise op computes in, ignoring absent operands. Raises Mismatch without any operand."""
    tensor = zero_dim = number = None
    for operand in operands:
        if operand is None:
            continue
        if isinstance(operand, TensorSpec):
            if operand.rank:
                tensor = operand.dtype if tensor is None else promote_types(tensor, operand.dtype)
            else:
                zero_dim = operand.dtype if zero_dim is None else promote_types(zero_dim, operand.dtype)
        else:
            kind = _CATEGORY_DEFAULT[type(operand)]
            number = kind if number is None else promote_types(number, kind)
    result = _combine(tensor, _combine(zero_dim, number))
    if result is None:
        raise Mismatch("needs at least one operand")
    return result


def _combine(high: DType | None, low: DType | None) -> DType | None:
    """Return the stronger operand's type, unless the weaker one is of a higher category."""
    if high is None or low is None:
        return low if high is None else high
    if category(low) > category(high):
        if category(low) == 3 and category(high) == 2:
            return DType.COMPLEX128 if high is DType.FLOAT64 else DType.COMPLEX64
        return low
    return high


def float_of(dtype: DType) -> DType:
    """Return the result type of a floating-point function: floats and complex stay, integers become float32."""
    return DType.FLOAT32 if category(dtype) < 2 else dtype


def agrees(spec: TensorSpec | None, inferred: TensorSpec) -> bool:
    """Return True for the same dtype and rank, and dims that are equal or an integer against a symbol (which a frontend resolved)."""
    if spec is None or spec.dtype is not inferred.dtype or spec.rank != inferred.rank:
        return False
    return all(
        a == b or isinstance(a, int) != isinstance(b, int)
        for a, b in zip(spec.shape, inferred.shape, strict=True)
    )
