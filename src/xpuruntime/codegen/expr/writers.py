"""Writers of pointwise ops as text over the prelude. ``expression`` has the table of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...ir.ops._types import float_of
from ...types import HALF_FLOATS, DType
from .terms import (
    STORAGE,
    ExprTerm,
    PointwiseCall,
    compute_type,
    converted,
    element_type,
    literal,
    promoted_type,
)

__all__ = [
    "Write",
    "bitcast",
    "bitwise_not",
    "cast",
    "clamp",
    "common",
    "compare",
    "div",
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "isinf",
    "isnan",
    "leaky",
    "logical",
    "logical_not",
    "number_of",
    "own",
    "power",
    "prelu",
    "quotient",
    "real",
    "rounded",
    "sign",
    "silu_mul",
    "softplus",
    "where",
]


Write = Callable[[PointwiseCall], str]


def real(function: str) -> Write:
    """Write a function of a real number; integers become float32."""
    return lambda s: f"{s.function(function)}({s.real()})"


def own(function: str) -> Write:
    """Write a function in the operand's own type. Of a bool it is the identity."""

    def write(s: PointwiseCall) -> str:
        x = s.term(0)
        return x.text if x.dtype is DType.BOOL else f"{function}({x.text})"

    return write


def sign(symbol: str, logical: str = "") -> Write:
    """Write an operator in the promoted type; for bool, ``logical``."""

    def write(s: PointwiseCall) -> str:
        dtype = s.promoted
        a, b = s.together(dtype, exact=True)
        return f"{a} {logical if dtype is DType.BOOL else symbol} {b}"

    return write


def common(function: str, logical: str = "") -> Write:
    """Write a function of two operands in the promoted type; for bool, ``logical``."""

    def write(s: PointwiseCall) -> str:
        dtype = s.promoted
        a, b = s.together(dtype)
        return f"{a} {logical} {b}" if dtype is DType.BOOL and logical else f"{function}({a}, {b})"

    return write


def compare(symbol: str) -> Write:
    """Write a comparison. Bool operands are compared as 0 and 1, since true is -1 in a mask."""

    def write(s: PointwiseCall) -> str:
        dtype = s.promoted
        a, b = s.together(DType.UINT8 if dtype is DType.BOOL else dtype)
        return f"truth({a} {symbol} {b})"

    return write


def logical(symbol: str) -> Write:
    """Write an operator on truth values."""

    def write(s: PointwiseCall) -> str:
        return f" {symbol} ".join(converted(t, DType.BOOL) for t in s.terms if t is not None)

    return write


def quotient(write: str) -> Write:
    """Write a text of two real numbers ``a`` and ``b``."""

    def text(s: PointwiseCall) -> str:
        a, b = s.together(float_of(s.promoted), exact=True)
        return write.format(a=a, b=b)

    return text


def div(s: PointwiseCall) -> str:
    """Write true, truncated or floored division."""
    mode = s.attrs["rounding_mode"]
    if mode is None:
        return quotient("{a} / {b}")(s)
    dtype = s.promoted
    a, b = s.together(dtype)
    if mode == "trunc" and dtype in HALF_FLOATS:
        return f"trunc(convert<{STORAGE[dtype]}>({a} / {b}))"  # the quotient is rounded to the type first
    return f"div_{mode}({a}, {b})"


_POWERS: Mapping[float, str] = {1: "{x}", 2: "{x} * {x}", 3: "{x} * {x} * {x}", -1: "reciprocal({x})"}


def power(s: PointwiseCall) -> str:
    """Write a power; small integer exponents as products."""
    dtype, n = s.promoted, s.term(1).number
    a, b = s.together(dtype, exact=True)
    if not dtype.is_float:
        return f"int_pow({a}, {b})"
    if n is not None and n in _POWERS and s.term(0).number is None and a.isidentifier():
        return _POWERS[float(n)].format(x=a)
    return f"pow({a}, {b})"


def where(s: PointwiseCall) -> str:
    """Write a selection by a bool."""
    dtype = promoted_type(s.terms[1:])
    a, b = (converted(t, dtype) for t in s.terms[1:] if t is not None)
    return f"select({converted(s.term(0), DType.BOOL)}, {a}, {b})"


def clamp(s: PointwiseCall) -> str:
    """Write a clamp to two limits, either of which may be absent."""
    dtype = s.promoted
    x, low, high = (*s.terms, None, None)[:3]
    assert x is not None
    text = converted(x, dtype)
    for limit, either, names in ((low, "|", ("maximum", "larger")), (high, "&", ("minimum", "smaller"))):
        if limit is None:
            continue
        bound = converted(limit, dtype)
        if dtype is DType.BOOL:
            text = f"({text}) {either} {bound}"
        elif dtype.is_float and limit.number and limit.number == limit.number:
            text = f"{names[1]}({bound}, {text})"  # only the value may be NaN, and equal zeros of both signs cannot be
        else:
            text = f"{names[0]}({text}, {bound})"
    return text


def cast(s: PointwiseCall) -> str:
    """Write a cast. A cast to a narrow float rounds at once, also one of a value of this dtype."""
    x, to = s.term(0), s.dtype
    if x.dtype is to and to in HALF_FLOATS:
        return f"convert<{STORAGE[to]}>({x.text})"
    return x.text if x.dtype is to else converted(x, to)


def bitcast(s: PointwiseCall) -> str:
    """Write a reinterpretation of the bits in a type of the same size; ``why_not`` refuses floats of 16 bits."""
    x = s.term(0)
    if DType.BOOL in (x.dtype, s.dtype):
        return converted(x, s.dtype)
    return f"bitcast<{compute_type(s.dtype)}>({x.text})"


def isnan(s: PointwiseCall) -> str:
    """Write a test for NaN."""
    x = s.term(0)
    return f"truth({x.text} != {x.text})"


def isinf(s: PointwiseCall) -> str:
    """Write a test for infinity; integers are never infinite."""
    x = s.term(0)
    if not x.dtype.is_float:
        return f"truth({x.text} != {x.text})"
    tests = [
        f"({x.text} == {converted(ExprTerm('', x.dtype, 0, sign * math.inf), x.dtype)})"
        for sign, enabled in ((1, s.attrs["positive"]), (-1, s.attrs["negative"]))
        if enabled
    ]
    return f"truth({' | '.join(tests) or f'{x.text} != {x.text}'})" if tests else "splat<boolean<N>>(0)"


def logical_not(s: PointwiseCall) -> str:
    """Write a test for zero."""
    return f"negated({converted(s.term(0), DType.BOOL)})"


def bitwise_not(s: PointwiseCall) -> str:
    """Write the bitwise complement; for bool, the negation."""
    return logical_not(s) if s.term(0).dtype is DType.BOOL else f"~{s.term(0).text}"


def rounded(s: PointwiseCall) -> str:
    """Write rounding to an integer, or to decimals, with ties to even."""
    x, decimals = s.term(0), s.attrs["decimals"]
    if not x.dtype.is_float or not decimals:
        return own("rint")(s)
    kind = element_type(x.dtype)
    return f"round_to({x.text}, ({kind})1e{abs(decimals)}, {'true' if decimals > 0 else 'false'})"


def number_of(s: PointwiseCall, value: float) -> str:
    """Return a number in the type of the op's real operand."""
    dtype = float_of(s.term(0).dtype)
    return converted(ExprTerm("", dtype, 0, value), dtype, DType.FLOAT32 if dtype.bits < 32 else dtype)


def elu(s: PointwiseCall) -> str:
    """Write ELU, CELU and SELU: linear above zero, exponential below."""
    x = s.real()

    def n(value: float) -> str:
        return number_of(s, value)

    alpha, scale, inner = s.attrs["alpha"], s.attrs["scale"], s.attrs["input_scale"]
    inside = x if inner == 1 else f"{x} * {n(inner)}"
    above = x if scale == 1 else f"{x} * {n(scale)}"
    below = f"expm1({inside})" if alpha * scale == 1 else f"expm1({inside}) * {n(alpha * scale)}"
    return f"select({x} > {n(0)}, {_sure(s, above)}, {_sure(s, below)})"


def _sure(s: PointwiseCall, text: str) -> str:
    """Cast a text to the operand's C++ type, since scalars of narrow types are promoted."""
    return f"({compute_type(float_of(s.term(0).dtype))})({text})"


def leaky(s: PointwiseCall) -> str:
    """Write a leaky ReLU."""
    x, slope = s.real(), number_of(s, s.attrs["negative_slope"])
    return f"select({x} > {number_of(s, 0)}, {x}, {_sure(s, f'{x} * {slope}')})"


def hardsigmoid(s: PointwiseCall) -> str:
    """Write a linear function, clipped to 0 and 1."""
    inner = f"{s.real()} * {number_of(s, s.attrs['alpha'])} + {number_of(s, s.attrs['beta'])}"
    return f"clip({_sure(s, inner)}, {number_of(s, 0)}, {number_of(s, 1)})"


def hardswish(s: PointwiseCall) -> str:
    """Write x times a linear function that is clipped to 0 and 1; dividing first keeps large x finite."""
    x = s.real()
    clipped = f"clip({_sure(s, f'{x} + {number_of(s, 3)}')}, {number_of(s, 0)}, {number_of(s, 6)})"
    return f"{x} * ({clipped} / {number_of(s, 6)})"


def softplus(s: PointwiseCall) -> str:
    """Write log(1 + exp(beta x)) / beta; linear above a threshold."""
    kind, threshold = element_type(float_of(s.term(0).dtype)), s.attrs["threshold"]
    limit = math.inf if threshold is None else threshold
    return f"softplus({s.real()}, ({kind}){s.attrs['beta']!r}, ({kind}){literal(limit, DType.FLOAT64)})"


def prelu(s: PointwiseCall) -> str:
    """Write a leaky ReLU whose slope is an operand."""
    x, slope = s.term(0).text, converted(s.term(1), s.term(0).dtype)
    return f"select({x} > splat<decltype(+{x})>(0), {x}, ({compute_type(s.dtype)})({x} * {slope}))"


def silu_mul(s: PointwiseCall) -> str:
    """Write SiLU of the first operand times the second."""
    return f"{s.function('silu')}({s.real(0)}) * {s.real(1)}"


def gelu(s: PointwiseCall) -> str:
    """Write GELU by the error function, or by its tanh approximation."""
    return real("gelu_tanh" if s.attrs["approximate"] == "tanh" else "gelu")(s)
