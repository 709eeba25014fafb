"""Draws that steps of random graphs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xpuruntime.errors import IrError
from xpuruntime.ir import GraphBuilder
from xpuruntime.types import TensorSpec

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

__all__ = ["choose", "is_float", "is_ranked", "pick"]


def pick(draw: DrawFn, b: GraphBuilder, where: Callable[[TensorSpec], bool] = lambda _: True) -> str:
    """Return one of the existing values that fits. Raises IrError if none does."""
    from hypothesis import strategies as st

    fitting = [n for n, v in b.values.items() if v.spec is not None and where(v.spec)]
    if not fitting:
        raise IrError("random graph", "nothing fits")
    return draw(st.sampled_from(fitting))


def choose(draw: DrawFn, options: Sequence[Any]) -> Any:
    """Return one of the options."""
    from hypothesis import strategies as st

    return draw(st.sampled_from(list(options)))


def is_float(spec: TensorSpec) -> bool:
    """Return True if its elements are floats."""
    return spec.dtype.is_float


def is_ranked(spec: TensorSpec) -> bool:
    """Return True if it has dims."""
    return spec.rank > 0
