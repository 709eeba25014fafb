"""Pointwise ops of the IR as C++ expressions over the prelude. One text serves scalars and vectors of ``N`` lanes.

An ``ExprTerm`` is the text of a value and its dtype. bfloat16 and float16 are computed in float and rounded when they are stored or ``cast``;
a plan (``loops/body``) also rounds those that a cast, a test, a step or a wider type reads.
Bool is a mask. Each op prepares its operands as the reference interpreter does (``ir/interp/rule.py``): ``real`` functions convert integers to
float32, others promote to a common dtype. How a number next to a tensor is rounded depends on the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...ir.attributes import Attrs
from ...types import HALF_FLOATS, DType
from . import writers as to
from .terms import COMPUTED, ExprTerm, PointwiseCall
from .writers import Write

__all__ = ["FUNCTIONS", "POINTWISE", "Expression", "expression", "why_not"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A text, and the parts of the prelude that it needs."""

    text: str
    parts: frozenset[str]


@dataclass(frozen=True, slots=True)
class _OpTemplate:
    """The writer of an op's text.

    part:     parts of the prelude that the text needs.
    function: the op's function in the prelude, if there is one.
    supports_bool: whether the op supports bool.
    """

    write: Write
    part: str = "arith"
    function: str = ""
    supports_bool: bool = True


def _templates(write: Callable[[str], Write], part: str, names: str) -> dict[str, _OpTemplate]:
    return {name: _OpTemplate(write(name), part, name) for name in names.split()}


_TABLE: dict[str, _OpTemplate] = {
    **_templates(to.real, "arith", "sqrt rsqrt reciprocal"),
    **_templates(to.real, "exp", "exp exp2 expm1 sigmoid silu tanh sinh cosh"),
    **_templates(to.real, "log", "log log2 log10 log1p"),
    **_templates(to.real, "trig", "sin cos tan asin acos atan"),
    **_templates(to.real, "inverse", "asinh acosh atanh"),
    **_templates(to.real, "softplus", "mish"),
    **_templates(to.real, "erf", "erf"),
    **_templates(to.own, "arith", "abs sign ceil floor trunc relu"),
    "neg": _OpTemplate(lambda s: f"-{s.term(0).text}", supports_bool=False),
    "round": _OpTemplate(to.rounded),
    "gelu": _OpTemplate(to.gelu, "erf", "gelu"),
    "elu": _OpTemplate(to.elu, "exp"),
    "leaky_relu": _OpTemplate(to.leaky),
    "hardsigmoid": _OpTemplate(to.hardsigmoid),
    "hardswish": _OpTemplate(to.hardswish),
    "softplus": _OpTemplate(to.softplus, "softplus", "softplus"),
    "softsign": _OpTemplate(lambda s: f"{s.real()} / (abs({s.real()}) + {to.number_of(s, 1)})"),
    "prelu": _OpTemplate(to.prelu, supports_bool=False),
    "silu_mul": _OpTemplate(to.silu_mul, "exp", "silu"),
    "isnan": _OpTemplate(to.isnan),
    "isinf": _OpTemplate(to.isinf),
    "logical_not": _OpTemplate(to.logical_not),
    "bitwise_not": _OpTemplate(to.bitwise_not),
    "add": _OpTemplate(to.sign("+", "|")),
    "sub": _OpTemplate(to.sign("-"), supports_bool=False),
    "mul": _OpTemplate(to.sign("*", "&")),
    "div": _OpTemplate(to.div, "division"),
    "pow": _OpTemplate(to.power, "pow division", "pow", supports_bool=False),
    "maximum": _OpTemplate(to.common("maximum", "|"), "arith", "maximum"),
    "minimum": _OpTemplate(to.common("minimum", "&"), "arith", "minimum"),
    "fmod": _OpTemplate(to.common("fmod"), "division", "fmod", supports_bool=False),
    "remainder": _OpTemplate(to.common("remainder"), "division", "remainder", supports_bool=False),
    "atan2": _OpTemplate(to.quotient("atan2({a}, {b})"), "trig", "atan2"),
    "eq": _OpTemplate(to.compare("==")),
    "ne": _OpTemplate(to.compare("!=")),
    "lt": _OpTemplate(to.compare("<")),
    "le": _OpTemplate(to.compare("<=")),
    "gt": _OpTemplate(to.compare(">")),
    "ge": _OpTemplate(to.compare(">=")),
    "logical_and": _OpTemplate(to.logical("&")),
    "logical_or": _OpTemplate(to.logical("|")),
    "logical_xor": _OpTemplate(to.logical("^")),
    "bitwise_and": _OpTemplate(to.sign("&", "&")),
    "bitwise_or": _OpTemplate(to.sign("|", "|")),
    "bitwise_xor": _OpTemplate(to.sign("^", "^")),
    "bitwise_left_shift": _OpTemplate(to.common("shift_left"), "division", "shift_left", supports_bool=False),
    "bitwise_right_shift": _OpTemplate(
        to.common("shift_right"), "division", "shift_right", supports_bool=False
    ),
    "where": _OpTemplate(to.where),
    "clamp": _OpTemplate(to.clamp),
    "cast": _OpTemplate(to.cast),
    "bitcast": _OpTemplate(to.bitcast),
}

POINTWISE = frozenset(_TABLE)
"""Ops that ``expression`` supports."""

FUNCTIONS: Mapping[str, tuple[str, str]] = {
    op: (row.function, row.part.split()[0]) for op, row in _TABLE.items() if row.function
}
"""An op's function in the prelude, and the part that defines it."""


def why_not(op: str, operands: Sequence[DType], result: DType, attrs: Attrs) -> str:
    """Return why an op cannot be generated for these dtypes; empty if it can."""
    template = _TABLE.get(op)
    if template is None:
        return f"{op} is not a pointwise op"
    for dtype in (*operands, result):
        if dtype not in COMPUTED:
            return f"{op} on {dtype.value}: generated code supports bool, integers of 8 to 64 bits and floats of 16 to 64 bits"
    if op == "bitcast" and not HALF_FLOATS.isdisjoint((*operands, result)):
        return "generated code computes 16-bit floats in float32, which changes the bits of a signaling NaN"
    if result is DType.BOOL and not template.supports_bool:
        return f"{op} is not defined for bool"
    if op == "div" and result is DType.BOOL:
        return "div of bool with a rounding mode is not supported"
    if op == "silu_mul" and not result.is_float:
        return f"silu_mul needs a float dtype, got {result.value}"
    return ""


def expression(
    op: str,
    terms: Sequence[ExprTerm | None],
    attrs: Attrs,
    dtype: DType,
    functions: Mapping[str, str] = MappingProxyType({}),
) -> Expression:
    """Return the text of one op. Raises KeyError for an op that is not in the table.

    dtype:     the result's, from type inference.
    functions: names to use instead of functions of the prelude.
    """
    template = _TABLE[op]
    call = PointwiseCall(op, tuple(terms), attrs, dtype, functions)
    return Expression(template.write(call), frozenset(template.part.split()))
