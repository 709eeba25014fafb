"""A rule: the NumPy function of one op, and how its operands are prepared.

A function takes the op's operands by position (absent ones as None) and, as keywords, those of the op's attributes that it
reads; it gives one array or as many as the op has outputs. ``apply`` rounds them to the inferred dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...types import DType, TensorSpec
from ..ops._types import float_of, promote
from ..schema import Scalar
from .numbers import Array, dtype_of, to, widen

__all__ = [
    "Function",
    "Operand",
    "Rule",
    "arithmetic",
    "common",
    "plain",
    "quotient",
    "real",
    "same_type",
    "wide",
]

Operand: TypeAlias = "Array | Scalar | None"
Function: TypeAlias = Callable[..., Any]
Prepare: TypeAlias = "Callable[[Sequence[Operand]], list[Any]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """``function`` after ``prepare``; ``reads`` names the attributes it takes."""

    function: Function
    prepare: Prepare
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "reads", () if isinstance(self.function, np.ufunc) else _keywords(self.function)
        )


def _keywords(function: Function) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


def plain(function: Function) -> Rule:
    """Operands as they are: elements move, or the function does its own rounding."""
    return Rule(function, list)


def wide(function: Function) -> Rule:
    """Floats in float64; integers in their own type."""
    return Rule(function, lambda operands: [widen(o) if isinstance(o, np.ndarray) else o for o in operands])


def real(function: Function) -> Rule:
    """Return a function to the real numbers: integers become float32 (as PyTorch's do), then all floats float64."""
    return Rule(function, lambda operands: [_real(o) if isinstance(o, np.ndarray) else o for o in operands])


def _real(x: Array) -> Array:
    return widen(to(x, float_of(dtype_of(x))))


def arithmetic(function: Function) -> Rule:
    """Operands in their promoted type, widened. A number beside float16 or bfloat16 is rounded to float32 only: PyTorch's
    kernels hold it in the type that they compute with.
    """
    return Rule(function, lambda operands: [widen(o) for o in together(operands, exact_numbers=True)])


def quotient(function: Function) -> Rule:
    """Return as ``arithmetic``, with integers in float32 first."""
    return Rule(function, as_quotient)


def as_quotient(operands: Sequence[Operand]) -> list[Any]:
    """Operands in the float type that true division of them gives, widened."""
    dtype = float_of(promoted(operands))
    return [widen(o) for o in together(operands, dtype, exact_numbers=True)]


def common(function: Function) -> Rule:
    """Operands in their promoted type (numbers rounded to it), then widened; text as it is."""
    return Rule(function, lambda operands: [o if o is None else widen(o) for o in together(operands)])


def same_type(function: Function) -> Rule:
    """Operands in their promoted type; text as it is."""
    return Rule(function, together)


def promoted(operands: Sequence[Operand]) -> DType:
    """Return the type that the op's inference promotes the operands to."""
    return promote([TensorSpec(o.shape, dtype_of(o)) if isinstance(o, np.ndarray) else o for o in operands])


def together(
    operands: Sequence[Operand], dtype: DType | None = None, *, exact_numbers: bool = False
) -> list[Any]:
    """Operands in one type: ``dtype``, else the promoted one. Text stays; absent operands stay None.

    exact_numbers: immediate numbers beside floats narrower than float32 are rounded to float32, not to those.
    """
    if any(isinstance(o, np.ndarray) and o.dtype == object for o in operands):
        return list(operands)
    dtype = promoted(operands) if dtype is None else dtype
    number = DType.FLOAT32 if exact_numbers and dtype.is_float and dtype.bits < 32 else dtype
    return [
        o if o is None else to(o, dtype) if isinstance(o, np.ndarray) else to(np.asarray(o), number)
        for o in operands
    ]
