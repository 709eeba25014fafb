"""Helpers of ``supports``: sets of dtypes, and the first refusal of several checks."""

from __future__ import annotations

from collections.abc import Callable

from ...decisions import Reason, Support
from ...types import DType
from ..kernel import NodeCall

__all__ = ["FLOATS", "INTEGERS", "NUMBERS", "computes", "first", "refuse"]


FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


INTEGERS = frozenset(d for d in DType if d.is_integer and d.bits >= 8)


NUMBERS = FLOATS | INTEGERS


def refuse(dtype: DType, what: str) -> Support:
    """Return no for a dtype."""
    return Support.no(Reason.DTYPE_UNSUPPORTED, f"{what} of {dtype.value}")


def computes(*positions: int, dtypes: frozenset[DType] = FLOATS) -> Callable[[NodeCall], Support | None]:
    """Return a check that the operands at these positions (none: every tensor) have one of the dtypes."""

    def why_not(call: NodeCall) -> Support | None:
        tensors = [call.optional(p) for p in positions] if positions else list(call.tensors)
        wrong = next((t for t in tensors if t is not None and t.spec.dtype not in dtypes), None)
        return None if wrong is None else refuse(wrong.spec.dtype, call.op)

    return why_not


def first(*answers: Support | None) -> Support | None:
    """Return the first refusal, or None."""
    return next((a for a in answers if a is not None), None)
