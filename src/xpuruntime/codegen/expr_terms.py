"""Values in pointwise texts: terms, their C++ types, numbers as literals, and how operands come to one type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..ir.attributes import Attrs
from ..ir.ops._types import float_of, promote
from ..types import DType, TensorSpec

__all__ = [
    "COMPUTED",
    "STORAGE",
    "Site",
    "Term",
    "compute_type",
    "constant",
    "converted",
    "element_type",
    "literal",
    "promoted_type",
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


def converted(term: Term, dtype: DType, number: DType | None = None) -> str:
    """A term's text in another dtype; immediate numbers in ``number``, where it is given."""
    if term.number is not None:
        exact = number or dtype
        return constant(term.number, exact)
    if term.dtype is dtype or (dtype is DType.FLOAT32 and term.dtype in (DType.FLOAT16, DType.BFLOAT16)):
        return term.text
    if term.dtype is DType.BOOL:
        return f"convert_bool<{STORAGE[dtype]}>({term.text})"
    return f"convert<{STORAGE[dtype]}>({term.text})"


def promoted_type(terms: Sequence[Term | None]) -> DType:
    """The type in which operands meet."""
    return promote([_promotes_as(t) for t in terms if t is not None])


def _promotes_as(term: Term) -> TensorSpec | bool | int | float:
    return TensorSpec((2,) * term.rank, term.dtype) if term.number is None else term.number


@dataclass(frozen=True, slots=True)
class Site:
    """An op where it is written: its operands, attributes and result."""

    op: str
    terms: tuple[Term | None, ...]
    attrs: Attrs
    dtype: DType
    """of the result"""
    functions: Mapping[str, str] = field(default_factory=dict)
    """names to use instead of functions of the prelude"""

    def function(self, name: str) -> str:
        """Return the name of a function of the prelude."""
        return self.functions.get(name, name)

    def term(self, position: int) -> Term:
        found = self.terms[position]
        assert found is not None
        return found

    @property
    def promoted(self) -> DType:
        return promoted_type(self.terms)

    def real(self, position: int = 0) -> str:
        """An operand of a function to the real numbers."""
        term = self.term(position)
        return converted(term, float_of(term.dtype))

    def together(self, dtype: DType | None = None, *, exact: bool = False) -> list[str]:
        """Operands in one type. ``exact``: a number beside a narrow float stays in float32."""
        common = dtype or self.promoted
        number = DType.FLOAT32 if exact and common.is_float and common.bits < 32 else common
        return [converted(t, common, number) for t in self.terms if t is not None]
