"""Lowerings of ops on the bits of floats, of views in another type, and of common divisors of integers."""

from __future__ import annotations

import numpy as np

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_WORDS = {8: DType.UINT8, 16: DType.INT16, 32: DType.INT32, 64: DType.INT64}
_MANTISSA_BITS = {DType.FLOAT32: 23, DType.FLOAT64: 52}
_EUCLID_STEPS = {8: 14, 16: 26, 32: 48, 64: 94}
"""Steps of Euclid's algorithm for integers of these bits: two consecutive Fibonacci numbers need the most."""


def _nextafter(n: AtenLoweringContext) -> Results:
    """Lower nextafter: the bits of a float, taken as an integer, count away from zero."""
    b, result = n.b, n.out().dtype
    word = _WORDS.get(result.bits)
    if word is None or result.bits < 16:
        raise NotLowered(f"{result.value} is not supported")
    x, y = n.cast(n.x, result), n.cast(n.t("other"), result)
    equal, is_zero = b.eq(x, y), b.eq(x, 0.0)
    bits = b.bitcast(x, dtype=word)
    away = b.eq(b.lt(x, y), b.gt(x, 0.0))
    step = b.where(away, b.add(bits, 1), b.sub(bits, 1))
    none = b.mul(bits, 0)
    smallest = b.where(b.gt(y, 0.0), b.add(none, 1), b.add(none, 1 - 2 ** (word.bits - 1)))
    moved = b.bitcast(b.where(is_zero, smallest, step), dtype=result)
    ordered = b.where(equal, y, moved)
    return str(b.where(b.logical_or(b.isnan(x), b.isnan(y)), b.add(x, y), ordered))


def _frexp(n: AtenLoweringContext) -> Results:
    """Lower frexp: x is mantissa * 2 ** exponent, with a mantissa in [0.5, 1). Subnormal numbers are scaled to normal ones first."""
    b, result = n.b, n.out().dtype
    wide = DType.FLOAT32 if result.bits < 32 else result
    mantissa_bits = _MANTISSA_BITS[wide]
    word, x = _WORDS[wide.bits], n.cast(n.x, wide)
    bias = 2 ** (wide.bits - mantissa_bits - 2) - 1
    size = b.abs(x)
    subnormal = b.lt(size, 2.0 ** (1 - bias))
    bits = b.bitcast(b.where(subnormal, b.mul(x, 2.0**64), x), dtype=word)
    field = (2 * bias + 1) << mantissa_bits
    stored = b.div(b.bitwise_and(bits, field), 2**mantissa_bits, rounding_mode="trunc")
    exponent = b.sub(b.sub(stored, bias - 1), b.mul(b.cast(subnormal, dtype=word), 64))
    mantissa = b.bitwise_or(b.bitwise_and(bits, ~field), (bias - 1) << mantissa_bits)
    special = b.logical_or(b.eq(x, 0.0), b.logical_not(b.eq(b.sub(x, x), 0.0)))
    mantissa = b.where(special, x, b.bitcast(mantissa, dtype=wide))
    exponent = b.where(special, b.mul(exponent, 0), exponent)
    return [n.cast(str(mantissa), result), n.cast(str(exponent), DType.INT32)]


def _common_divisor(n: AtenLoweringContext) -> tuple[str, str, str]:
    """Return both operands and their greatest common divisor by Euclid's algorithm, whose last steps change nothing."""
    b, result = n.b, n.out().dtype
    if result.bits not in _EUCLID_STEPS or not result.is_integer:
        raise NotLowered(f"{result.value} is not supported")
    x, y = n.cast(n.x, result), n.cast(n.t("other"), result)
    small, large = str(b.abs(x)), str(b.abs(y))
    for _ in range(_EUCLID_STEPS[result.bits]):
        done = b.eq(small, 0)
        rest = str(b.fmod(large, b.where(done, b.add(b.mul(small, 0), 1), small)))
        small, large = str(b.where(done, small, rest)), str(b.where(done, large, small))
    return x, y, large


def _gcd(n: AtenLoweringContext) -> Results:
    return _common_divisor(n)[2]


def _lcm(n: AtenLoweringContext) -> Results:
    """Lower lcm. As in C++, products of less than 32 bits are computed in 32 bits, and those that overflow are wrapped."""
    b, result = n.b, n.out().dtype
    x, y, divisor = _common_divisor(n)
    wide = DType.INT32 if result.bits < 32 else result
    none = b.eq(divisor, 0)
    one = b.where(none, b.add(b.mul(divisor, 0), 1), divisor)
    x, one, y = (n.cast(str(v), wide) for v in (x, one, y))
    return n.cast(str(b.abs(b.mul(b.div(x, one, rounding_mode="trunc"), y))), result)


def _as_type(n: AtenLoweringContext, value: str, to: DType) -> str:
    return value if n.spec(value).dtype is to else str(n.b.bitcast(value, dtype=to))


def _view(n: AtenLoweringContext) -> Results:
    """Lower a view in another type. Elements are split into smaller ones, or joined to larger ones, the low bits first."""
    n.ignore("dtype")
    b, spec, to = n.b, n.spec(), n.dtype()
    few, many = sorted((spec.dtype.bits, to.bits))
    if few == many:
        return _as_type(n, n.x, to)
    if few not in _WORDS or many not in _WORDS or spec.dtype.is_complex or to.is_complex or not spec.rank:
        raise NotLowered(f"elements of {spec.dtype.value} as {to.value} are not supported")
    ratio, mask, wide = many // few, (1 << few) - 1, DType.INT64 if many == 64 else DType.INT32
    shifts = n.like(np.arange(ratio) * few, wide)
    *batch, last = spec.shape
    if to.bits == few:
        word = n.cast(_as_type(n, n.x, _WORDS[many]), wide)
        parts = b.bitwise_right_shift(b.unsqueeze(word, dims=[spec.rank]), shifts)
        narrow = n.cast(str(b.bitwise_and(parts, mask)), _WORDS[few])
        return _as_type(n, str(b.view(narrow, size=[*batch, last * ratio])), to)
    word = n.cast(_as_type(n, n.x, _WORDS[few]), wide)
    parts = b.view(b.bitwise_and(word, mask), size=[*batch, last // ratio, ratio])
    joined = str(b.sum(b.bitwise_left_shift(parts, shifts), dim=[spec.rank], dtype=wide))
    return _as_type(n, n.cast(joined, _WORDS[many]), to)


LOWERINGS: dict[str, OpLowering] = {
    "frexp.Tensor": _frexp,
    "gcd": _gcd,
    "lcm": _lcm,
    "nextafter": _nextafter,
    "view.dtype": _view,
}
