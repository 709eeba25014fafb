"""Operands of pointwise expressions in generated C++: their types, literals, and conversion to a common dtype.

The text computes N elements at a time, in vectors of the prelude (``vec<float, N>``, ``boolean<N>``). 16-bit floats are computed in float.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir.attributes import Attrs
from ...ir.ops._types import float_of, promote
from ...types import HALF_FLOATS, DType, TensorSpec
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
"""The dtypes that generated expressions compute with."""


@dataclass(frozen=True, slots=True)
class ExprTerm:
    """An operand: the C++ text of a vector, or a number.

    rank:   rank of the tensor, for type promotion.
    number: the value of a number, such as the 2 in ``x * 2``. Its text is empty until its dtype is known (``converted``).
    """

    text: str
    dtype: DType
    rank: int = 1
    number: bool | int | float | None = None


def compute_type(dtype: DType, lanes: str = "N") -> str:
    """Return the C++ type of a vector in registers: after a load and before a store."""
    if dtype is DType.BOOL:
        return f"boolean<{lanes}>"
    return f"vec<{element_type(dtype)}, {lanes}>"


def element_type(dtype: DType) -> str:
    """Return the C++ type of one element of such a vector. Not for bool, whose vectors are masks."""
    return "float" if dtype in HALF_FLOATS else STORAGE[dtype]


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a number as a C++ literal, rounded to the dtype as a cast rounds it."""
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
    """Return the C++ text of a vector with a number in every element."""
    if dtype is DType.BOOL:
        return f"splat<boolean<N>>({-1 if value else 0})"
    text = literal(value, dtype)
    return f"number<N>({text})" if dtype.is_float else f"number<N>(({element_type(dtype)}){text})"


def converted(term: ExprTerm, dtype: DType, number_dtype: DType | None = None) -> str:
    """Return a term's text in a dtype. number_dtype: the dtype of a number instead."""
    if term.number is not None:
        return constant(term.number, number_dtype or dtype)
    if term.dtype is dtype:
        return term.text
    if dtype is DType.FLOAT32 and term.dtype in HALF_FLOATS:
        return term.text  # in registers it is a float already
    if term.dtype is DType.BOOL:
        return f"convert_bool<{STORAGE[dtype]}>({term.text})"
    return f"convert<{STORAGE[dtype]}>({term.text})"


def promoted_type(terms: Sequence[ExprTerm | None]) -> DType:
    """Return the dtype that operands are promoted to, as in PyTorch."""
    return promote([_promotes_as(t) for t in terms if t is not None])


def _promotes_as(term: ExprTerm) -> TensorSpec | bool | int | float:
    # The rules depend on the rank, but not on sizes.
    return TensorSpec((2,) * term.rank, term.dtype) if term.number is None else term.number


@dataclass(frozen=True, slots=True)
class PointwiseCall:
    """A call of a pointwise op, from which a writer makes the C++ text of the result.

    dtype:     dtype of the result.
    functions: name of a function of the prelude -> name of the function to call instead.
    """

    op: str
    terms: tuple[ExprTerm | None, ...]
    attrs: Attrs
    dtype: DType
    functions: Mapping[str, str] = field(default_factory=dict)

    def function(self, name: str) -> str:
        """Return the name to call a function of the prelude by."""
        return self.functions.get(name, name)

    def term(self, position: int) -> ExprTerm:
        """Return a required operand."""
        term = self.terms[position]
        assert term is not None
        return term

    @property
    def promoted(self) -> DType:
        """The dtype that the operands are promoted to."""
        return promoted_type(self.terms)

    def real(self, position: int = 0) -> str:
        """Return the text of an operand of a function that computes in floats, such as exp: integers become float32."""
        term = self.term(position)
        return converted(term, float_of(term.dtype))

    def together(self, dtype: DType | None = None, *, exact: bool = False) -> list[str]:
        """Return the texts of the operands in a common dtype. None: the promoted dtype.

        exact: do not round a number to a 16-bit dtype, because the op is computed in float32.
        """
        common = dtype or self.promoted
        number_dtype = DType.FLOAT32 if exact and common.is_float and common.bits < 32 else common
        return [converted(t, common, number_dtype) for t in self.terms if t is not None]
