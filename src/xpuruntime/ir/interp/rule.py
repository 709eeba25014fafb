"""Interpreter rules: the NumPy function of one op, and the preparation of its operands.

A function takes the op's operands by position (absent ones as None) and the attributes that it reads as keywords. It returns one
array, or one per output. ``apply`` rounds them to the inferred dtypes.
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
    "InterpRule",
    "Operand",
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
class InterpRule:
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


def plain(function: Function) -> InterpRule:
    """Pass operands unchanged: the op moves elements, or its function does the rounding."""
    return InterpRule(function, list)


def wide(function: Function) -> InterpRule:
    """Widen floats to float64; integers stay."""
    return InterpRule(
        function, lambda operands: [widen(o) if isinstance(o, np.ndarray) else o for o in operands]
    )


def real(function: Function) -> InterpRule:
    """Convert integers to float32 (as PyTorch does), then all floats to float64."""
    return InterpRule(
        function, lambda operands: [_real(o) if isinstance(o, np.ndarray) else o for o in operands]
    )


def _real(x: Array) -> Array:
    return widen(to(x, float_of(dtype_of(x))))


def arithmetic(function: Function) -> InterpRule:
    """Convert operands to their promoted type and widen them. A number next to float16 or bfloat16 is only rounded to float32,
    because PyTorch's kernels keep it in their compute type.
    """
    return InterpRule(function, lambda operands: [widen(o) for o in together(operands, exact_numbers=True)])


def quotient(function: Function) -> InterpRule:
    """Prepare as ``arithmetic``, with integers converted to float32 first."""
    return InterpRule(function, as_quotient)


def as_quotient(operands: Sequence[Operand]) -> list[Any]:
    """Convert operands to the float type of their true division, and widen them."""
    dtype = float_of(promoted(operands))
    return [widen(o) for o in together(operands, dtype, exact_numbers=True)]


def common(function: Function) -> InterpRule:
    """Convert operands, also numbers, to their promoted type, and widen them; strings stay."""
    return InterpRule(function, lambda operands: [o if o is None else widen(o) for o in together(operands)])


def same_type(function: Function) -> InterpRule:
    """Convert operands to their promoted type; strings stay."""
    return InterpRule(function, together)


def promoted(operands: Sequence[Operand]) -> DType:
    """Return the type that the op's inference promotes the operands to."""
    return promote([TensorSpec(o.shape, dtype_of(o)) if isinstance(o, np.ndarray) else o for o in operands])


def together(
    operands: Sequence[Operand], dtype: DType | None = None, *, exact_numbers: bool = False
) -> list[Any]:
    """Convert operands to one type: ``dtype``, else the promoted one. Strings and absent operands stay.

    exact_numbers: immediate numbers next to floats narrower than float32 are rounded to float32 instead.
    """
    if any(isinstance(o, np.ndarray) and o.dtype == object for o in operands):
        return list(operands)
    dtype = promoted(operands) if dtype is None else dtype
    number = DType.FLOAT32 if exact_numbers and dtype.is_float and dtype.bits < 32 else dtype
    return [
        o if o is None else to(o, dtype) if isinstance(o, np.ndarray) else to(np.asarray(o), number)
        for o in operands
    ]
