"""Lowerings of reductions. Axes are an attribute in older opsets and an input in newer ones."""

from __future__ import annotations

from typing import Any

from ....types import DType
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _axes(n: OnnxLoweringContext) -> dict[str, Any]:
    """Return ``dim`` and ``keepdim``. Without axes, ``dim`` is None (all), or empty under ``noop_with_empty_axes``."""
    axes = n.attr_or_input("axes", 1, "axes")
    if not axes:
        axes = [] if n.attr("noop_with_empty_axes", 0) else None
    return {"dim": axes, "keepdim": bool(n.attr("keepdims", 1))}


def _wide(n: OnnxLoweringContext) -> str:
    """Return the operand in a type for roots and logarithms."""
    return n.cast(n.x, DType.FLOAT64) if n.spec().dtype.is_integer else n.x


def _back(n: OnnxLoweringContext, value: Any) -> Results:
    return n.cast(str(value), n.spec().dtype)


def _same(op: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, **_axes(n)))


def _total(op: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, **_axes(n), dtype=n.spec().dtype))


def _sum_of(n: OnnxLoweringContext, value: str) -> str:
    return str(n.b.sum(value, **_axes(n), dtype=n.spec_of(value).dtype))


def _mean(n: OnnxLoweringContext) -> Results:
    return _back(n, n.b.mean(_wide(n), **_axes(n)))


def _l1(n: OnnxLoweringContext) -> Results:
    if n.spec().dtype.is_integer:
        return _sum_of(n, n.b.abs(n.x))
    return str(n.b.vector_norm(n.x, ord=1.0, **_axes(n)))


def _l2(n: OnnxLoweringContext) -> Results:
    return _back(n, n.b.vector_norm(_wide(n), ord=2.0, **_axes(n)))


def _log_sum(n: OnnxLoweringContext) -> Results:
    return _back(n, n.b.log(_sum_of(n, _wide(n))))


def _arg(op: str) -> OpLowering:
    def lower(n: OnnxLoweringContext) -> Results:
        last = bool(n.attr("select_last_index", 0))
        return str(n.b.call(op, n.x, dim=n.axis(0), keepdim=bool(n.attr("keepdims", 1)), last=last))

    return lower


def _running(op: str) -> OpLowering:
    def lower(n: OnnxLoweringContext) -> Results:
        flags: dict[str, Any] = {
            "exclusive": bool(n.attr("exclusive", 0)),
            "reverse": bool(n.attr("reverse", 0)),
        }
        dim = int(n.number(1, "axis"))
        return str(n.b.call(op, n.x, dim=dim, dtype=n.spec().dtype, **flags))

    return lower


def _spatial(n: OnnxLoweringContext) -> dict[str, Any]:
    return {"dim": list(range(2, n.spec().rank)), "keepdim": True}


LOWERINGS: dict[str, OpLowering] = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumProd": _running("cumprod"),
    "CumSum": _running("cumsum"),
    "GlobalAveragePool": lambda n: str(n.b.mean(n.x, **_spatial(n))),
    "GlobalLpPool": lambda n: str(n.b.vector_norm(n.x, ord=float(n.attr("p", 2)), **_spatial(n))),
    "GlobalMaxPool": lambda n: str(n.b.amax(n.x, **_spatial(n))),
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": lambda n: _back(n, n.b.logsumexp(_wide(n), **_axes(n))),
    "ReduceMax": _same("amax"),
    "ReduceMean": _mean,
    "ReduceMin": _same("amin"),
    "ReduceProd": _total("prod"),
    "ReduceSum": _total("sum"),
    "ReduceSumSquare": lambda n: _sum_of(n, n.b.mul(n.x, n.x)),
}
