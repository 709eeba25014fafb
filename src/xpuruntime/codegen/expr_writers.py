"""How each pointwise op is written over the prelude (``expr`` has the table of them). Each prepares its operands as the reference interpreter
does (``ir/interp/rule.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..ir.ops._types import float_of
from ..types import DType
from .expr_terms import STORAGE, Site, Term, compute_type, converted, element_type, literal, promoted_type

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


Write = Callable[[Site], str]


def real(function: str) -> Write:
    """A function of a real number; whole ones become float32."""
    return lambda s: f"{s.function(function)}({s.real()})"


def own(function: str) -> Write:
    """Within the operand's own type; bool is whole and positive already."""

    def write(s: Site) -> str:
        x = s.term(0)
        return x.text if x.dtype is DType.BOOL else f"{function}({x.text})"

    return write


def sign(symbol: str, logical: str = "") -> Write:
    """``+`` and the like in the promoted type; of bool what ``logical`` says."""

    def write(s: Site) -> str:
        dtype = s.promoted
        a, b = s.together(dtype, exact=True)
        return f"{a} {logical if dtype is DType.BOOL else symbol} {b}"

    return write


def common(function: str, logical: str = "") -> Write:
    """A function of two in the promoted type; of bool what ``logical`` says."""

    def write(s: Site) -> str:
        dtype = s.promoted
        a, b = s.together(dtype)
        return f"{a} {logical} {b}" if dtype is DType.BOOL and logical else f"{function}({a}, {b})"

    return write


def compare(symbol: str) -> Write:
    """Bool as 0 and 1, since true is -1 in a mask."""

    def write(s: Site) -> str:
        dtype = s.promoted
        a, b = s.together(DType.UINT8 if dtype is DType.BOOL else dtype)
        return f"truth({a} {symbol} {b})"

    return write


def logical(symbol: str) -> Write:
    """Of truth values."""

    def write(s: Site) -> str:
        return f" {symbol} ".join(converted(t, DType.BOOL) for t in s.terms if t is not None)

    return write


def quotient(write: str) -> Write:
    """A text of two real numbers ``a`` and ``b``."""

    def text(s: Site) -> str:
        a, b = s.together(float_of(s.promoted), exact=True)
        return write.format(a=a, b=b)

    return text


def div(s: Site) -> str:
    """True, truncated or floored division."""
    mode = s.attrs["rounding_mode"]
    if mode is None:
        return quotient("{a} / {b}")(s)
    dtype = s.promoted
    a, b = s.together(dtype)
    if mode == "trunc" and dtype in (DType.FLOAT16, DType.BFLOAT16):
        return f"trunc(convert<{STORAGE[dtype]}>({a} / {b}))"  # the quotient is rounded to the type first
    return f"div_{mode}({a}, {b})"


_POWERS: Mapping[float, str] = {1: "{x}", 2: "{x} * {x}", 3: "{x} * {x} * {x}", -1: "reciprocal({x})"}


def power(s: Site) -> str:
    """A power; small whole exponents as products."""
    dtype, n = s.promoted, s.term(1).number
    a, b = s.together(dtype, exact=True)
    if not dtype.is_float:
        return f"int_pow({a}, {b})"
    if n is not None and n in _POWERS and s.term(0).number is None and a.isidentifier():
        return _POWERS[float(n)].format(x=a)
    return f"pow({a}, {b})"


def where(s: Site) -> str:
    """One of two by a bool."""
    dtype = promoted_type(s.terms[1:])
    a, b = (converted(t, dtype) for t in s.terms[1:] if t is not None)
    return f"select({converted(s.term(0), DType.BOOL)}, {a}, {b})"


def clamp(s: Site) -> str:
    """Between two limits, either of which may be absent."""
    dtype = s.promoted
    x, low, high = (None if t is None else converted(t, dtype) for t in (*s.terms, None, None)[:3])
    above = x if low is None else f"{x} | {low}" if dtype is DType.BOOL else f"maximum({x}, {low})"
    return str(
        above
        if high is None
        else f"({above}) & {high}"
        if dtype is DType.BOOL
        else f"minimum({above}, {high})"
    )


def cast(s: Site) -> str:
    """To a narrow float it rounds, there and then."""
    x, to = s.term(0), s.dtype
    return x.text if x.dtype is to else converted(x, to)


def bitcast(s: Site) -> str:
    """The same bits in a type of the same size."""
    x, narrow = s.term(0), (DType.FLOAT16, DType.BFLOAT16)
    if DType.BOOL in (x.dtype, s.dtype):
        return converted(x, s.dtype)
    text = f"encode<N>({x.text}, (const {STORAGE[x.dtype]} *)0)" if x.dtype in narrow else x.text
    if s.dtype in narrow:
        return f"decode<N>(bitcast<vec<uint16_t, N>>({text}), (const {STORAGE[s.dtype]} *)0)"
    return f"bitcast<{compute_type(s.dtype)}>({text})"


def isnan(s: Site) -> str:
    """Whether it is no number."""
    x = s.term(0)
    return f"truth({x.text} != {x.text})"


def isinf(s: Site) -> str:
    """Whether it is infinite; whole numbers never are."""
    x = s.term(0)
    if not x.dtype.is_float:
        return f"truth({x.text} != {x.text})"
    tests = [
        f"({x.text} == {converted(Term('', x.dtype, 0, sign * math.inf), x.dtype)})"
        for sign, asked in ((1, s.attrs["positive"]), (-1, s.attrs["negative"]))
        if asked
    ]
    return f"truth({' | '.join(tests) or f'{x.text} != {x.text}'})" if tests else "splat<boolean<N>>(0)"


def logical_not(s: Site) -> str:
    """Whether it is zero."""
    return f"negated({converted(s.term(0), DType.BOOL)})"


def bitwise_not(s: Site) -> str:
    """Every bit turned; of bool the other one."""
    return logical_not(s) if s.term(0).dtype is DType.BOOL else f"~{s.term(0).text}"


def rounded(s: Site) -> str:
    """To the nearest whole number, or to decimals, halves to even."""
    x, decimals = s.term(0), s.attrs["decimals"]
    if not x.dtype.is_float or not decimals:
        return own("rint")(s)
    kind = element_type(x.dtype)
    return f"round_to({x.text}, ({kind})1e{abs(decimals)}, {'true' if decimals > 0 else 'false'})"


def number_of(s: Site, value: float) -> str:
    """A number in the type of the op's real operand."""
    dtype = float_of(s.term(0).dtype)
    return converted(Term("", dtype, 0, value), dtype, DType.FLOAT32 if dtype.bits < 32 else dtype)


def elu(s: Site) -> str:
    """ELU, CELU and SELU: linear above zero, exponential below."""
    x = s.real()

    def n(value: float) -> str:
        return number_of(s, value)

    alpha, scale, inner = s.attrs["alpha"], s.attrs["scale"], s.attrs["input_scale"]
    inside = x if inner == 1 else f"{x} * {n(inner)}"
    above = x if scale == 1 else f"{x} * {n(scale)}"
    below = f"expm1({inside})" if alpha * scale == 1 else f"expm1({inside}) * {n(alpha * scale)}"
    return f"select({x} > {n(0)}, {_sure(s, above)}, {_sure(s, below)})"


def _sure(s: Site, text: str) -> str:
    """A text whose C++ type is that of the operand: scalars of narrow types would widen."""
    return f"({compute_type(float_of(s.term(0).dtype))})({text})"


def leaky(s: Site) -> str:
    """A slope below zero."""
    x, slope = s.real(), number_of(s, s.attrs["negative_slope"])
    return f"select({x} > {number_of(s, 0)}, {x}, {_sure(s, f'{x} * {slope}')})"


def hardsigmoid(s: Site) -> str:
    """A line, clipped to 0 and 1."""
    inner = f"{s.real()} * {number_of(s, s.attrs['alpha'])} + {number_of(s, s.attrs['beta'])}"
    return f"clip({_sure(s, inner)}, {number_of(s, 0)}, {number_of(s, 1)})"


def hardswish(s: Site) -> str:
    """X times a line that is clipped to 0 and 1."""
    x = s.real()
    return f"{x} * clip({_sure(s, f'{x} + {number_of(s, 3)}')}, {number_of(s, 0)}, {number_of(s, 6)}) / {number_of(s, 6)}"


def softplus(s: Site) -> str:
    """log(1 + exp(beta x)) / beta; the line itself from a threshold on."""
    kind, threshold = element_type(float_of(s.term(0).dtype)), s.attrs["threshold"]
    limit = math.inf if threshold is None else threshold
    return f"softplus({s.real()}, ({kind}){s.attrs['beta']!r}, ({kind}){literal(limit, DType.FLOAT64)})"


def prelu(s: Site) -> str:
    """A slope below zero that is an operand."""
    x, slope = s.term(0).text, converted(s.term(1), s.term(0).dtype)
    return f"select({x} > splat<decltype(+{x})>(0), {x}, ({compute_type(s.dtype)})({x} * {slope}))"


def silu_mul(s: Site) -> str:
    """Silu of the first times the second."""
    return f"{s.function('silu')}({s.real(0)}) * {s.real(1)}"


def gelu(s: Site) -> str:
    """By the error function, or by its approximation with tanh."""
    return real("gelu_tanh" if s.attrs["approximate"] == "tanh" else "gelu")(s)
