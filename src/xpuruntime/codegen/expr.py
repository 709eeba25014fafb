"""Pointwise ops of the IR as C++ expressions over the prelude: one text serves scalars and vectors of ``N`` lanes.

A ``Term`` is the text of a value and its dtype. bfloat16 and float16 compute in float and are rounded when they are stored, or
where a ``cast`` says so; bool is a mask. Each op prepares its operands as the reference interpreter does (``ir/interp/rule.py``):
``real`` functions turn integers into float32, the others promote to one type, and what a number beside a tensor is rounded to
depends on the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..ir.attributes import Attrs
from ..types import DType
from . import expr_writers as to
from .expr_terms import COMPUTED, Site, Term
from .expr_writers import Write

__all__ = ["FUNCTIONS", "POINTWISE", "Expression", "expression", "why_not"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A text and the parts of the prelude that it needs."""

    text: str
    parts: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Row:
    write: Write
    part: str = "arith"
    function: str = ""
    bool_too: bool = True


def _rows(write: Callable[[str], Write], part: str, names: str) -> dict[str, _Row]:
    return {name: _Row(write(name), part, name) for name in names.split()}


_TABLE: dict[str, _Row] = {
    **_rows(to.real, "arith", "sqrt rsqrt reciprocal"),
    **_rows(to.real, "exp", "exp exp2 expm1 sigmoid silu tanh sinh cosh"),
    **_rows(to.real, "log", "log log2 log10 log1p"),
    **_rows(to.real, "trig", "sin cos tan asin acos atan"),
    **_rows(to.real, "inverse", "asinh acosh atanh"),
    **_rows(to.real, "softplus", "mish"),
    **_rows(to.real, "erf", "erf"),
    **_rows(to.own, "arith", "abs sign ceil floor trunc relu"),
    "neg": _Row(lambda s: f"-{s.term(0).text}", bool_too=False),
    "round": _Row(to.rounded),
    "gelu": _Row(to.gelu, "erf", "gelu"),
    "elu": _Row(to.elu, "exp"),
    "leaky_relu": _Row(to.leaky),
    "hardsigmoid": _Row(to.hardsigmoid),
    "hardswish": _Row(to.hardswish),
    "softplus": _Row(to.softplus, "softplus", "softplus"),
    "softsign": _Row(lambda s: f"{s.real()} / (abs({s.real()}) + {to.number_of(s, 1)})"),
    "prelu": _Row(to.prelu, bool_too=False),
    "silu_mul": _Row(to.silu_mul, "exp", "silu"),
    "isnan": _Row(to.isnan),
    "isinf": _Row(to.isinf),
    "logical_not": _Row(to.logical_not),
    "bitwise_not": _Row(to.bitwise_not),
    "add": _Row(to.sign("+", "|")),
    "sub": _Row(to.sign("-"), bool_too=False),
    "mul": _Row(to.sign("*", "&")),
    "div": _Row(to.div, "division"),
    "pow": _Row(to.power, "pow division", "pow", bool_too=False),
    "maximum": _Row(to.common("maximum", "|"), "arith", "maximum"),
    "minimum": _Row(to.common("minimum", "&"), "arith", "minimum"),
    "fmod": _Row(to.common("fmod"), "division", "fmod", bool_too=False),
    "remainder": _Row(to.common("remainder"), "division", "remainder", bool_too=False),
    "atan2": _Row(to.quotient("atan2({a}, {b})"), "trig", "atan2"),
    "eq": _Row(to.compare("==")),
    "ne": _Row(to.compare("!=")),
    "lt": _Row(to.compare("<")),
    "le": _Row(to.compare("<=")),
    "gt": _Row(to.compare(">")),
    "ge": _Row(to.compare(">=")),
    "logical_and": _Row(to.logical("&")),
    "logical_or": _Row(to.logical("|")),
    "logical_xor": _Row(to.logical("^")),
    "bitwise_and": _Row(to.sign("&", "&")),
    "bitwise_or": _Row(to.sign("|", "|")),
    "bitwise_xor": _Row(to.sign("^", "^")),
    "bitwise_left_shift": _Row(to.common("shift_left"), "division", "shift_left", bool_too=False),
    "bitwise_right_shift": _Row(to.common("shift_right"), "division", "shift_right", bool_too=False),
    "where": _Row(to.where),
    "clamp": _Row(to.clamp),
    "cast": _Row(to.cast),
    "bitcast": _Row(to.bitcast),
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


def expression(
    op: str,
    terms: Sequence[Term | None],
    attrs: Attrs,
    dtype: DType,
    functions: Mapping[str, str] = MappingProxyType({}),
) -> Expression:
    """Return the text of one op. Raises KeyError for an op that is not in the table.

    dtype:     of the result, as inference gives it.
    functions: names to use instead of functions of the prelude.
    """
    row = _TABLE[op]
    site = Site(op, tuple(terms), attrs, dtype, functions)
    return Expression(row.write(site), frozenset(row.part.split()))
