"""Indices and lengths of ONNX Runtime's ops: one that is negative or too large is an error of the run, as there."""

from __future__ import annotations

from .....types import DimLike
from ..context import OnnxLoweringContext

__all__ = ["checked", "from_start", "not_negative"]

_FAR = 1 << 30


def from_start(n: OnnxLoweringContext, index: str, size: DimLike) -> str:
    """Return indices of a dim of ``size`` for an op that reports those outside. Negative ones, which would count from the end, become such."""
    kind = n.spec_of(index).dtype
    below = n.b.full(size=[], value=size if isinstance(size, int) else _FAR, dtype=kind)
    negative = n.b.lt(index, n.b.full(size=[], value=0, dtype=kind))
    return str(n.b.where(negative, n.b.sub(index, below), index))


def checked(n: OnnxLoweringContext, index: str, size: DimLike) -> str:
    """Return indices of a dim of ``size``. The run reports one outside."""
    places = n.b.arange(start=0, end=size, step=1, dtype=n.spec_of(index).dtype)
    return str(n.b.index_select(places, from_start(n, index, size), dim=0))


def not_negative(n: OnnxLoweringContext, lengths: str, most: DimLike) -> str:
    """Return lengths, longer ones as ``most``. The run reports a negative one."""
    places = n.b.arange(start=0, end=most + 1, step=1, dtype=n.spec_of(lengths).dtype)
    last = n.b.call("slice", places, dim=0, start=most, end=most + 1, step=1)
    return str(n.b.index_select(places, from_start(n, str(n.b.minimum(lengths, last)), most + 1), dim=0))
