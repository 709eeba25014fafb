"""Terms of pointwise expressions: C++ types, literals, and conversion of operands to a common type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir.attributes import Attrs
from ...ir.ops._types import float_of, promote
from ...types import DType, TensorSpec
from ..c_types import STORAGE

__all__ = [
    "COMPUTED",
    "STORAGE",
    "ExprTerm",
    "PointwiseCall",
    "compute_type",
    "constant",
    "converted",
    "element_type",
    "literal",
    "promoted_type",
]

COMPUTED = frozenset(STORAGE)


@dataclass(frozen=True, slots=True)
class ExprTerm:
    """A value in the text.

    rank:   the tensor's, for type promotion.
    number: the value of an immediate number, whose text is unused.
    """

    text: str
    dtype: DType
    rank: int = 1
    number: bool | int | float | None = None


def compute_type(dtype: DType, lanes: str = "N") -> str:
    """Return the C++ type of a value between load and store."""
    if dtype is DType.BOOL:
        return f"boolean<{lanes}>"
    return f"vec<{element_type(dtype)}, {lanes}>"


def element_type(dtype: DType) -> str:
    """Return the C++ type of one lane; bool has none."""
    return "float" if dtype in (DType.FLOAT16, DType.BFLOAT16) else STORAGE[dtype]


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a number of a dtype as a C++ constant, rounded like a cast."""
    from ...ir.interp.numbers import to  # imported here: the interpreter's definition of a cast

    rounded = to(np.asarray(value), dtype)
    if dtype is DType.BOOL:
        return "true" if rounded else "false"
    if dtype.is_float:
        exact = float(rounded.astype(np.float64))
        single = element_type(dtype) == "float"
        if math.isnan(exact):
            return '__builtin_nanf("")' if single else '__builtin_nan("")'
        if math.isinf(exact):
            return ("-" if exact < 0 else "") + ("__builtin_inff()" if single else "__builtin_inf()")
        return f"{np.float32(exact)!s}f" if single else repr(exact)
    integer = int(rounded)
    if integer == -(2**63):
        return "(-9223372036854775807 - 1)"
    return (
        f"{integer}u" if 2**31 <= integer < 2**32 else f"{integer}ull" if integer >= 2**63 else f"{integer}"
    )


def constant(value: bool | int | float, dtype: DType) -> str:
    """Return a number broadcast to every lane."""
    if dtype is DType.BOOL:
        return f"splat<boolean<N>>({-1 if value else 0})"
    text = literal(value, dtype)
    return f"number<N>({text})" if dtype.is_float else f"number<N>(({element_type(dtype)}){text})"


def converted(term: ExprTerm, dtype: DType, number: DType | None = None) -> str:
    """Return a term's text in another dtype. An immediate number gets dtype ``number`` if that is given."""
    if term.number is not None:
        exact = number or dtype
        return constant(term.number, exact)
    if term.dtype is dtype or (dtype is DType.FLOAT32 and term.dtype in (DType.FLOAT16, DType.BFLOAT16)):
        return term.text
    if term.dtype is DType.BOOL:
        return f"convert_bool<{STORAGE[dtype]}>({term.text})"
    return f"convert<{STORAGE[dtype]}>({term.text})"


def promoted_type(terms: Sequence[ExprTerm | None]) -> DType:
    """Return the promoted type of operands."""
    return promote([_promotes_as(t) for t in terms if t is not None])


def _promotes_as(term: ExprTerm) -> TensorSpec | bool | int | float:
    return TensorSpec((2,) * term.rank, term.dtype) if term.number is None else term.number


@dataclass(frozen=True, slots=True)
class PointwiseCall:
    """An op with its operands, attributes and result dtype, for the writers of its text.

    functions: names to use instead of functions of the prelude.
    """

    op: str
    terms: tuple[ExprTerm | None, ...]
    attrs: Attrs
    dtype: DType
    functions: Mapping[str, str] = field(default_factory=dict)

    def function(self, name: str) -> str:
        """Return the name of a function of the prelude."""
        return self.functions.get(name, name)

    def term(self, position: int) -> ExprTerm:
        term = self.terms[position]
        assert term is not None
        return term

    @property
    def promoted(self) -> DType:
        return promoted_type(self.terms)

    def real(self, position: int = 0) -> str:
        """Return an operand of a real function, converted to float."""
        term = self.term(position)
        return converted(term, float_of(term.dtype))

    def together(self, dtype: DType | None = None, *, exact: bool = False) -> list[str]:
        """Return the operands in a common dtype. ``exact``: a number next to a 16-bit float stays float32."""
        common = dtype or self.promoted
        number = DType.FLOAT32 if exact and common.is_float and common.bits < 32 else common
        return [converted(t, common, number) for t in self.terms if t is not None]
