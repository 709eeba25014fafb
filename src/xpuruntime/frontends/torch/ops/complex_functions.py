"""Functions of complex numbers in real and imaginary parts, with the branch cuts of C99."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ....types import DType, TensorSpec
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, ComplexPair
from .special import is_negative

__all__ = ["FUNCTIONS", "REAL", "absolute", "power", "quotient", "real_form", "reciprocal", "sgn"]

ComplexFunction: TypeAlias = Callable[[AtenLoweringContext, str, str], ComplexPair]

REAL: Mapping[DType, DType] = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}
"""The type of each part."""


def real_form(spec: TensorSpec) -> TensorSpec:
    """Return the type of each part of a pair. Raise NotLowered for a real type."""
    if spec.dtype not in REAL:
        raise NotLowered("it converts a complex tensor to a real one")
    return TensorSpec(spec.shape, REAL[spec.dtype])


def _pair(x: Any, y: Any) -> ComplexPair:
    return ComplexPair(str(x), str(y))


def absolute(n: AtenLoweringContext, x: str, y: str) -> str:
    """Lower abs without overflow: the larger part times a root between 1 and 1.5; infinite if a part is, even if the other is NaN."""
    b = n.b
    u, v = b.abs(x), b.abs(y)
    larger = b.maximum(u, v)
    ratio = b.div(b.minimum(u, v), b.where(b.eq(larger, 0.0), 1.0, larger))
    finite = b.mul(larger, b.sqrt(b.add(b.mul(ratio, ratio), 1.0)))
    return str(b.where(b.logical_or(b.isinf(x), b.isinf(y)), float("inf"), finite))


def quotient(n: AtenLoweringContext, a: Any, ai: Any, c: Any, ci: Any) -> ComplexPair:
    """Lower a division by a complex number: by its larger part first, so that nothing overflows (Smith, 1962)."""
    b, (shape, kind) = n.b, (real_form(n.out()).shape, real_form(n.out()).dtype)
    a, ai, c, ci = (part if isinstance(part, str) else n.like(part, kind) for part in (a, ai, c, ci))
    wide = b.ge(b.abs(c), b.abs(ci))
    larger, smaller = b.where(wide, c, ci), b.where(wide, ci, c)
    ratio = b.div(smaller, larger)
    scale = b.reciprocal(b.add(larger, b.mul(smaller, ratio)))
    real = b.where(wide, b.add(b.mul(ratio, ai), a), b.add(b.mul(ratio, a), ai))
    imaginary = b.where(wide, b.sub(ai, b.mul(ratio, a)), b.sub(b.mul(ratio, ai), a))
    results = []
    for product, part, by in ((b.mul(real, scale), a, c), (b.mul(imaginary, scale), ai, ci)):
        value = b.where(b.eq(larger, 0.0), b.div(part, b.abs(by)), product)
        results.append(str(value) if n.spec(value).shape == shape else str(b.expand(value, size=shape)))
    return ComplexPair(*results)


def reciprocal(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    """Lower 1 / z."""
    return quotient(n, 1.0, 0.0, x, y)


def sgn(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    """Lower z / abs(z), and 0 of 0."""
    size = absolute(n, x, y)
    size = str(n.b.where(n.b.eq(size, 0.0), 1.0, size))
    return _pair(n.b.div(x, size), n.b.div(y, size))


def _exp(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    b = n.b
    size = b.exp(x)
    # an infinite size times the sine of 0 is NaN
    return _pair(b.mul(size, b.cos(y)), b.where(b.eq(y, 0.0), y, b.mul(size, b.sin(y))))


def _log(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    return _pair(n.b.log(absolute(n, x, y)), n.b.atan2(y, x))


def _log1p(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    """Lower log(1 + z). Near z = 0 its real part is log1p(abs(1 + z) ** 2 - 1) / 2."""
    b = n.b
    moved = str(b.add(x, 1.0))
    near = b.mul(b.log1p(b.add(b.mul(x, b.add(x, 2.0)), b.mul(y, y))), 0.5)
    far = b.log(absolute(n, moved, y))
    is_near = b.lt(b.maximum(b.abs(x), b.abs(y)), 0.5)
    return _pair(b.where(is_near, near, far), b.atan2(y, moved))


def _expm1(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    b = n.b
    half = b.sin(b.mul(y, 0.5))
    real = b.sub(b.mul(b.expm1(x), b.cos(y)), b.mul(b.mul(half, half), 2.0))
    return _pair(real, _exp(n, x, y).imaginary)


def _sqrt(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    """Lower the root with a real part of 0 and more: the larger part from the sum of abs(x) and abs(z), the other from y."""
    b = n.b
    larger = b.sqrt(b.add(b.mul(b.abs(x), 0.5), b.mul(absolute(n, x, y), 0.5)))
    smaller = b.mul(b.div(b.abs(y), b.where(b.eq(larger, 0.0), 1.0, larger)), 0.5)
    right = b.ge(x, 0.0)
    endless = b.isinf(y)
    size = b.where(endless, float("inf"), b.where(right, smaller, larger))
    real = b.where(endless, float("inf"), b.where(right, larger, smaller))
    return _pair(real, b.where(is_negative(n, y), b.neg(size), size))


def _rsqrt(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    root = _sqrt(n, x, y)
    return reciprocal(n, root.value, root.imaginary)


def _sinh(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    b = n.b
    return _pair(b.mul(b.sinh(x), b.cos(y)), b.mul(b.cosh(x), b.sin(y)))


def _cosh(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    b = n.b
    return _pair(b.mul(b.cosh(x), b.cos(y)), b.mul(b.sinh(x), b.sin(y)))


_TANH_IS_ONE = 22.0
"""From here on tanh is 1 in float64, and the squares below do not overflow in float32."""


def _tanh(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    """Lower tanh by tan(y) and sinh(x) (Kahan, Branch Cuts for Complex Elementary Functions, 1987)."""
    b = n.b
    tangent = b.tan(y)
    sine = b.sinh(b.clamp(x, -_TANH_IS_ONE, _TANH_IS_ONE))
    beta, squared = b.add(b.mul(tangent, tangent), 1.0), b.mul(sine, sine)
    under = b.add(b.mul(beta, squared), 1.0)
    real = b.div(b.mul(b.mul(beta, b.sqrt(b.add(squared, 1.0))), sine), under)
    return _pair(real, b.div(tangent, under))


def _turned(function: ComplexFunction) -> ComplexFunction:
    """Return f of -i g(iz), as sine and tangent are of their hyperbolic forms."""

    def lower(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
        result = function(n, str(n.b.neg(y)), x)
        return _pair(result.imaginary, n.b.neg(result.value))

    return lower


def _cos(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    return _cosh(n, str(n.b.neg(y)), x)


def _sigmoid(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    half = _tanh(n, str(n.b.mul(x, 0.5)), str(n.b.mul(y, 0.5)))
    return _pair(n.b.add(n.b.mul(half.value, 0.5), 0.5), n.b.mul(half.imaginary, 0.5))


def _log_of_base(base: float) -> ComplexFunction:
    def lower(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
        natural, scale = _log(n, x, y), 1 / math.log(base)
        return _pair(n.b.mul(natural.value, scale), n.b.mul(natural.imaginary, scale))

    return lower


def _exp2(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    return _exp(n, str(n.b.mul(x, math.log(2))), str(n.b.mul(y, math.log(2))))


def _times(n: AtenLoweringContext, z: ComplexPair, w: ComplexPair) -> ComplexPair:
    b = n.b
    real = b.sub(b.mul(z.value, w.value), b.mul(z.imaginary, w.imaginary))
    return _pair(real, b.add(b.mul(z.value, w.imaginary), b.mul(z.imaginary, w.value)))


def _square(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    b = n.b
    return _pair(b.mul(b.sub(x, y), b.add(x, y)), b.mul(b.mul(x, y), 2.0))


def _cube(n: AtenLoweringContext, x: str, y: str) -> ComplexPair:
    return _times(n, _square(n, x, y), ComplexPair(x, y))


_POWERS: Mapping[complex, ComplexFunction] = {
    1: lambda n, x, y: ComplexPair(x, y),
    2: _square,
    3: _cube,
    -1: reciprocal,
    0.5: _sqrt,
    -0.5: _rsqrt,
}
"""Exponents that PyTorch computes without logarithms."""


def power(n: AtenLoweringContext, base: tuple[Any, Any], exponent: tuple[Any, Any]) -> ComplexPair:
    """Lower a power of numbers or tensors; None is the imaginary part of a real operand. Powers of 0 are 0 or not finite, as in PyTorch."""
    b, (shape, kind) = n.b, (real_form(n.out()).shape, real_form(n.out()).dtype)
    if base[1] is not None and not isinstance(exponent[0], str):
        simple = _POWERS.get(complex(exponent[0], exponent[1] or 0.0))
        if simple is not None:
            return simple(n, *base)
    (x, y), (p, q) = (
        tuple(n.like(v or 0.0, kind) if not isinstance(v, str) else v for v in pair)
        for pair in (base, exponent)
    )
    size, angle = b.log(absolute(n, x, y)), b.atan2(y, x)
    # a size of -inf, of a base of 0, times an imaginary part of 0 is NaN
    turns = b.mul(angle, p) if exponent[1] is None else b.add(b.mul(angle, p), b.mul(size, q))
    grows = b.mul(size, p) if exponent[1] is None else b.sub(b.mul(size, p), b.mul(angle, q))
    result = _exp(n, str(grows), str(turns))
    vanishes = b.logical_and(b.logical_and(b.eq(x, 0.0), b.eq(y, 0.0)), b.gt(p, 0.0))
    parts = (b.where(vanishes, 0.0, part) for part in (result.value, result.imaginary))
    return _pair(*(part if n.spec(part).shape == shape else b.expand(part, size=shape) for part in parts))


FUNCTIONS: Mapping[str, ComplexFunction] = {
    "cos": _cos,
    "cosh": _cosh,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log10": _log_of_base(10.0),
    "log1p": _log1p,
    "log2": _log_of_base(2.0),
    "reciprocal": reciprocal,
    "rsqrt": _rsqrt,
    "sgn": sgn,
    "sigmoid": _sigmoid,
    "sin": _turned(_sinh),
    "sinh": _sinh,
    "sqrt": _sqrt,
    "tan": _turned(_tanh),
    "tanh": _tanh,
}
"""ATen name -> the function."""
