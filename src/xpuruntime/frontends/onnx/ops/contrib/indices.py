"""Indices and lengths of ONNX Runtime's ops: one that is negative or too large is an error of the run, as there."""

from __future__ import annotations

from .....types import DimLike
from ..context import OnnxLoweringContext

__all__ = ["checked", "not_negative"]


def checked(n: OnnxLoweringContext, index: str, size: DimLike) -> str:
    """Return indices of a dim of ``size``. The run reports one outside."""
    places = n.b.arange(start=0, end=size, step=1, dtype=n.spec_of(index).dtype)
    return str(n.b.index_select(places, index, dim=0, wrap=False))


def not_negative(n: OnnxLoweringContext, lengths: str, most: DimLike) -> str:
    """Return lengths, longer ones as ``most``. The run reports a negative one."""
    places = n.b.arange(start=0, end=most + 1, step=1, dtype=n.spec_of(lengths).dtype)
    last = n.b.call("slice", places, dim=0, start=most, end=most + 1, step=1)
    return str(n.b.index_select(places, str(n.b.minimum(lengths, last)), dim=0, wrap=False))
