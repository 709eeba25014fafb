"""Pointwise ops of the IR as C++ expressions over the prelude: one text serves scalars and vectors of ``N`` lanes.

A ``Term`` is the text of a value and its dtype. bfloat16 and float16 compute in float and are rounded when they are stored, or
where a ``cast`` says so; bool is a mask. Each op prepares its operands as the reference interpreter does (``ir/interp/rule.py``):
``real`` functions turn integers into float32, the others promote to one type, and what a number beside a tensor is rounded to
depends on the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.attributes import Attrs
from ..ir.ops._types import float_of, promote
from ..types import DType, TensorSpec

__all__ = [
    "COMPUTED",
    "FUNCTIONS",
    "POINTWISE",
    "STORAGE",
    "Expression",
    "Term",
    "compute_type",
    "constant",
    "element_type",
    "expression",
    "literal",
    "why_not",
]

STORAGE: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
} | {d: f"{d.value}_t" for d in DType if d.is_integer and d.bits >= 8}
"""The prelude's type of an element in memory."""

COMPUTED = frozenset(STORAGE)


@dataclass(frozen=True, slots=True)
class Term:
    """A value in the text. ``number``: its value where it is an immediate one (then the text is not used).

    rank: of the tensor, which type promotion asks for.
    """

    text: str
    dtype: DType
    rank: int = 1
    number: bool | int | float | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """A text and the parts of the prelude that it needs."""

    text: str
    parts: frozenset[str]


def compute_type(dtype: DType, lanes: str = "N") -> str:
    """The C++ type of a value between load and store."""
    if dtype is DType.BOOL:
        return f"boolean<{lanes}>"
    return f"vec<{element_type(dtype)}, {lanes}>"


def element_type(dtype: DType) -> str:
    """The C++ type of one lane of it; bool has no such type."""
    return "float" if dtype in (DType.FLOAT16, DType.BFLOAT16) else STORAGE[dtype]


def literal(value: bool | int | float, dtype: DType) -> str:
    """A number of a dtype as a C++ constant, rounded as a cast rounds it."""
    from ..ir.interp.numbers import to  # NumPy only; the one place that says what a cast of a number gives

    given = to(np.asarray(value), dtype)
    if dtype is DType.BOOL:
        return "true" if given else "false"
    if dtype.is_float:
        exact = float(given.astype(np.float64))
        single = element_type(dtype) == "float"
        if math.isnan(exact):
            return '__builtin_nanf("")' if single else '__builtin_nan("")'
        if math.isinf(exact):
            return ("-" if exact < 0 else "") + ("__builtin_inff()" if single else "__builtin_inf()")
        return f"{np.float32(exact)!s}f" if single else repr(exact)
    whole = int(given)
    if whole == -(2**63):
        return "(-9223372036854775807 - 1)"
    return f"{whole}u" if 2**31 <= whole < 2**32 else f"{whole}ull" if whole >= 2**63 else f"{whole}"


def constant(value: bool | int | float, dtype: DType) -> str:
    """A number in every lane."""
    if dtype is DType.BOOL:
        return f"splat<boolean<N>>({-1 if value else 0})"
    text = literal(value, dtype)
    return f"number<N>({text})" if dtype.is_float else f"number<N>(({element_type(dtype)}){text})"


def _in(term: Term, dtype: DType, number: DType | None = None) -> str:
    """A term's text in another dtype; immediate numbers in ``number``, where it is given."""
    if term.number is not None:
        exact = number or dtype
        return constant(term.number, exact)
    if term.dtype is dtype or (dtype is DType.FLOAT32 and term.dtype in (DType.FLOAT16, DType.BFLOAT16)):
        return term.text
    if term.dtype is DType.BOOL:
        return f"convert_bool<{STORAGE[dtype]}>({term.text})"
    return f"convert<{STORAGE[dtype]}>({term.text})"


def _promoted(terms: Sequence[Term | None]) -> DType:
    return promote([_promotes_as(t) for t in terms if t is not None])


def _promotes_as(term: Term) -> TensorSpec | bool | int | float:
    return TensorSpec((2,) * term.rank, term.dtype) if term.number is None else term.number


@dataclass(frozen=True, slots=True)
class _Site:
    """An op where it is written: its operands, attributes and result."""

    op: str
    terms: tuple[Term | None, ...]
    attrs: Attrs
    dtype: DType
    """of the result"""

    def term(self, position: int) -> Term:
        found = self.terms[position]
        assert found is not None
        return found

    @property
    def promoted(self) -> DType:
        return _promoted(self.terms)

    def real(self, position: int = 0) -> str:
        """An operand of a function to the real numbers."""
        term = self.term(position)
        return _in(term, float_of(term.dtype))

    def together(self, dtype: DType | None = None, *, exact: bool = False) -> list[str]:
        """Operands in one type. ``exact``: a number beside a narrow float stays in float32."""
        common = dtype or self.promoted
        number = DType.FLOAT32 if exact and common.is_float and common.bits < 32 else common
        return [_in(t, common, number) for t in self.terms if t is not None]


_Write = Callable[[_Site], str]


def _real(function: str) -> _Write:
    return lambda s: f"{function}({s.real()})"


def _own(function: str) -> _Write:
    """Within the operand's own type; bool is whole and positive already."""

    def write(s: _Site) -> str:
        x = s.term(0)
        return x.text if x.dtype is DType.BOOL else f"{function}({x.text})"

    return write


def _sign(symbol: str, logical: str = "") -> _Write:
    """``+`` and the like in the promoted type; of bool what ``logical`` says."""

    def write(s: _Site) -> str:
        dtype = s.promoted
        a, b = s.together(dtype, exact=True)
        return f"{a} {logical if dtype is DType.BOOL else symbol} {b}"

    return write


def _common(function: str, logical: str = "") -> _Write:
    def write(s: _Site) -> str:
        dtype = s.promoted
        a, b = s.together(dtype)
        return f"{a} {logical} {b}" if dtype is DType.BOOL and logical else f"{function}({a}, {b})"

    return write


def _compare(symbol: str) -> _Write:
    """Bool as 0 and 1, since true is -1 in a mask."""

    def write(s: _Site) -> str:
        dtype = s.promoted
        a, b = s.together(DType.UINT8 if dtype is DType.BOOL else dtype)
        return f"truth({a} {symbol} {b})"

    return write


def _logical(symbol: str) -> _Write:
    def write(s: _Site) -> str:
        return f" {symbol} ".join(_in(t, DType.BOOL) for t in s.terms if t is not None)

    return write


def _quotient(write: str) -> _Write:
    def text(s: _Site) -> str:
        a, b = s.together(float_of(s.promoted), exact=True)
        return write.format(a=a, b=b)

    return text


def _div(s: _Site) -> str:
    mode = s.attrs["rounding_mode"]
    if mode is None:
        return _quotient("{a} / {b}")(s)
    dtype = s.promoted
    a, b = s.together(dtype)
    if mode == "trunc" and dtype in (DType.FLOAT16, DType.BFLOAT16):
        return f"trunc(convert<{STORAGE[dtype]}>({a} / {b}))"  # the quotient is rounded to the type first
    return f"div_{mode}({a}, {b})"


_POWERS: Mapping[float, str] = {1: "{x}", 2: "{x} * {x}", 3: "{x} * {x} * {x}", -1: "reciprocal({x})"}


def _pow(s: _Site) -> str:
    dtype, n = s.promoted, s.term(1).number
    a, b = s.together(dtype, exact=True)
    if not dtype.is_float:
        return f"int_pow({a}, {b})"
    if n is not None and n in _POWERS and s.term(0).number is None and a.isidentifier():
        return _POWERS[float(n)].format(x=a)
    return f"pow({a}, {b})"


def _where(s: _Site) -> str:
    dtype = _promoted(s.terms[1:])
    a, b = (_in(t, dtype) for t in s.terms[1:] if t is not None)
    return f"select({_in(s.term(0), DType.BOOL)}, {a}, {b})"


def _clamp(s: _Site) -> str:
    dtype = s.promoted
    x, low, high = (None if t is None else _in(t, dtype) for t in (*s.terms, None, None)[:3])
    above = x if low is None else f"{x} | {low}" if dtype is DType.BOOL else f"maximum({x}, {low})"
    return str(
        above
        if high is None
        else f"({above}) & {high}"
        if dtype is DType.BOOL
        else f"minimum({above}, {high})"
    )


def _cast(s: _Site) -> str:
    """To a narrow float it rounds, there and then."""
    x, to = s.term(0), s.dtype
    return x.text if x.dtype is to else _in(x, to)


def _bitcast(s: _Site) -> str:
    x, narrow = s.term(0), (DType.FLOAT16, DType.BFLOAT16)
    if DType.BOOL in (x.dtype, s.dtype):
        return _in(x, s.dtype)
    text = f"encode<N>({x.text}, (const {STORAGE[x.dtype]} *)0)" if x.dtype in narrow else x.text
    if s.dtype in narrow:
        return f"decode<N>(bitcast<vec<uint16_t, N>>({text}), (const {STORAGE[s.dtype]} *)0)"
    return f"bitcast<{compute_type(s.dtype)}>({text})"


def _isnan(s: _Site) -> str:
    x = s.term(0)
    return f"truth({x.text} != {x.text})"


def _isinf(s: _Site) -> str:
    x = s.term(0)
    if not x.dtype.is_float:
        return f"truth({x.text} != {x.text})"
    tests = [
        f"({x.text} == {_in(Term('', x.dtype, 0, sign * math.inf), x.dtype)})"
        for sign, asked in ((1, s.attrs["positive"]), (-1, s.attrs["negative"]))
        if asked
    ]
    return f"truth({' | '.join(tests) or f'{x.text} != {x.text}'})" if tests else "splat<boolean<N>>(0)"


def _logical_not(s: _Site) -> str:
    return f"negated({_in(s.term(0), DType.BOOL)})"


def _bitwise_not(s: _Site) -> str:
    return _logical_not(s) if s.term(0).dtype is DType.BOOL else f"~{s.term(0).text}"


def _round(s: _Site) -> str:
    x, decimals = s.term(0), s.attrs["decimals"]
    if not x.dtype.is_float or not decimals:
        return _own("rint")(s)
    kind = element_type(x.dtype)
    return f"round_to({x.text}, ({kind})1e{abs(decimals)}, {'true' if decimals > 0 else 'false'})"


def _number(s: _Site, value: float) -> str:
    dtype = float_of(s.term(0).dtype)
    return _in(Term("", dtype, 0, value), dtype, DType.FLOAT32 if dtype.bits < 32 else dtype)


def _elu(s: _Site) -> str:
    x = s.real()

    def n(value: float) -> str:
        return _number(s, value)

    alpha, scale, inner = s.attrs["alpha"], s.attrs["scale"], s.attrs["input_scale"]
    inside = x if inner == 1 else f"{x} * {n(inner)}"
    above = x if scale == 1 else f"{x} * {n(scale)}"
    below = f"expm1({inside})" if alpha * scale == 1 else f"expm1({inside}) * {n(alpha * scale)}"
    return f"select({x} > {n(0)}, {_sure(s, above)}, {_sure(s, below)})"


def _sure(s: _Site, text: str) -> str:
    """A text whose C++ type is that of the operand: scalars of narrow types would widen."""
    return f"({compute_type(float_of(s.term(0).dtype))})({text})"


def _leaky(s: _Site) -> str:
    x, slope = s.real(), _number(s, s.attrs["negative_slope"])
    return f"select({x} > {_number(s, 0)}, {x}, {_sure(s, f'{x} * {slope}')})"


def _hardsigmoid(s: _Site) -> str:
    inner = f"{s.real()} * {_number(s, s.attrs['alpha'])} + {_number(s, s.attrs['beta'])}"
    return f"clip({_sure(s, inner)}, {_number(s, 0)}, {_number(s, 1)})"


def _hardswish(s: _Site) -> str:
    x = s.real()
    return f"{x} * clip({_sure(s, f'{x} + {_number(s, 3)}')}, {_number(s, 0)}, {_number(s, 6)}) / {_number(s, 6)}"


def _softplus(s: _Site) -> str:
    kind, threshold = element_type(float_of(s.term(0).dtype)), s.attrs["threshold"]
    limit = math.inf if threshold is None else threshold
    return f"softplus({s.real()}, ({kind}){s.attrs['beta']!r}, ({kind}){literal(limit, DType.FLOAT64)})"


def _prelu(s: _Site) -> str:
    x, slope = s.term(0).text, _in(s.term(1), s.term(0).dtype)
    return f"select({x} > splat<decltype(+{x})>(0), {x}, ({compute_type(s.dtype)})({x} * {slope}))"


def _silu_mul(s: _Site) -> str:
    return f"silu({s.real(0)}) * {s.real(1)}"


def _gelu(s: _Site) -> str:
    return _real("gelu_tanh" if s.attrs["approximate"] == "tanh" else "gelu")(s)


@dataclass(frozen=True, slots=True)
class _Row:
    write: _Write
    part: str = "arith"
    function: str = ""
    bool_too: bool = True


def _rows(write: Callable[[str], _Write], part: str, names: str) -> dict[str, _Row]:
    return {name: _Row(write(name), part, name) for name in names.split()}


_TABLE: dict[str, _Row] = {
    **_rows(_real, "arith", "sqrt rsqrt reciprocal"),
    **_rows(_real, "exp", "exp exp2 expm1 sigmoid silu tanh sinh cosh"),
    **_rows(_real, "log", "log log2 log10 log1p"),
    **_rows(_real, "trig", "sin cos tan asin acos atan"),
    **_rows(_real, "inverse", "asinh acosh atanh"),
    **_rows(_real, "softplus", "mish"),
    **_rows(_real, "erf", "erf"),
    **_rows(_own, "arith", "abs sign ceil floor trunc relu"),
    "neg": _Row(lambda s: f"-{s.term(0).text}", bool_too=False),
    "round": _Row(_round),
    "gelu": _Row(_gelu, "erf", "gelu"),
    "elu": _Row(_elu, "exp"),
    "leaky_relu": _Row(_leaky),
    "hardsigmoid": _Row(_hardsigmoid),
    "hardswish": _Row(_hardswish),
    "softplus": _Row(_softplus, "softplus", "softplus"),
    "softsign": _Row(lambda s: f"{s.real()} / (abs({s.real()}) + {_number(s, 1)})"),
    "prelu": _Row(_prelu, bool_too=False),
    "silu_mul": _Row(_silu_mul, "exp", "silu"),
    "isnan": _Row(_isnan),
    "isinf": _Row(_isinf),
    "logical_not": _Row(_logical_not),
    "bitwise_not": _Row(_bitwise_not),
    "add": _Row(_sign("+", "|")),
    "sub": _Row(_sign("-"), bool_too=False),
    "mul": _Row(_sign("*", "&")),
    "div": _Row(_div, "division"),
    "pow": _Row(_pow, "pow division", "pow", bool_too=False),
    "maximum": _Row(_common("maximum", "|"), "arith", "maximum"),
    "minimum": _Row(_common("minimum", "&"), "arith", "minimum"),
    "fmod": _Row(_common("fmod"), "division", "fmod", bool_too=False),
    "remainder": _Row(_common("remainder"), "division", "remainder", bool_too=False),
    "atan2": _Row(_quotient("atan2({a}, {b})"), "trig", "atan2"),
    "eq": _Row(_compare("==")),
    "ne": _Row(_compare("!=")),
    "lt": _Row(_compare("<")),
    "le": _Row(_compare("<=")),
    "gt": _Row(_compare(">")),
    "ge": _Row(_compare(">=")),
    "logical_and": _Row(_logical("&")),
    "logical_or": _Row(_logical("|")),
    "logical_xor": _Row(_logical("^")),
    "bitwise_and": _Row(_sign("&", "&")),
    "bitwise_or": _Row(_sign("|", "|")),
    "bitwise_xor": _Row(_sign("^", "^")),
    "bitwise_left_shift": _Row(_common("shift_left"), "division", "shift_left", bool_too=False),
    "bitwise_right_shift": _Row(_common("shift_right"), "division", "shift_right", bool_too=False),
    "where": _Row(_where),
    "clamp": _Row(_clamp),
    "cast": _Row(_cast),
    "bitcast": _Row(_bitcast),
}

POINTWISE = frozenset(_TABLE)
"""Ops that ``expression`` writes."""

FUNCTIONS: Mapping[str, tuple[str, str]] = {
    op: (row.function, row.part.split()[0]) for op, row in _TABLE.items() if row.function
}
"""An op's function in the prelude, and the part that has it."""


def why_not(op: str, operands: Sequence[DType], result: DType, attrs: Attrs) -> str:
    """Why an op cannot be written for these dtypes; empty when it can."""
    row = _TABLE.get(op)
    if row is None:
        return f"{op} is no pointwise op of the generated kernels"
    for dtype in (*operands, result):
        if dtype not in COMPUTED:
            return f"{op} on {dtype.value}: generated CPU code computes with bool, whole integers and floats of 16 to 64 bits"
    if result is DType.BOOL and not row.bool_too:
        return f"{op} has no meaning for bool"
    if op == "div" and result is DType.BOOL:
        return "division of bool with a rounding mode"
    if op == "silu_mul" and not result.is_float:
        return f"silu of {result.value}"
    return ""


def expression(op: str, terms: Sequence[Term | None], attrs: Attrs, dtype: DType) -> Expression:
    """The text of one op. ``dtype``: of the result, as inference gives it. Raises KeyError for an op that is not in the table."""
    row = _TABLE[op]
    site = _Site(op, tuple(terms), attrs, dtype)
    return Expression(row.write(site), frozenset(row.part.split()))
