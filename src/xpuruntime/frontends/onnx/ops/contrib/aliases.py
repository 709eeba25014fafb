"""Lowerings of ONNX Runtime's ops (``com.microsoft``) that the default domain has too, under another name or with another signature."""

from __future__ import annotations

from .....types import DType
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results
from ..create import LOWERINGS as CREATION
from ..indexing import LOWERINGS as INDEXING
from ..movement import LOWERINGS as MOVEMENT

__all__ = ["LOWERINGS"]


def _expand_dims(n: OnnxLoweringContext) -> Results:
    return str(n.b.unsqueeze(n.x, dims=[int(n.number(1, "axis"))]))


def _cdist(n: OnnxLoweringContext) -> Results:
    y = n.b.cdist(n.x, n.input(1), p=2.0)
    metric = n.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotLowered(f"the metric {metric!r} is not supported")
    return str(y) if metric == "euclidean" else str(n.b.mul(y, y))


def _sum_integers(n: OnnxLoweringContext) -> Results:
    """Lower ReduceSumInteger: sums of bytes in int32."""
    axes = [int(a) % n.spec().rank for a in n.attr("axes") or range(n.spec().rank)]
    return str(n.b.sum(n.cast(n.x, DType.INT32), dim=axes, keepdim=bool(n.attr("keepdims", 1))))


def _bias_dropout(n: OnnxLoweringContext) -> Results:
    """Lower BiasDropout outside training: data + bias + residual."""
    if n.opt(4) is not None and bool(n.number(4, "training mode")):
        raise NotLowered("training mode is not supported")
    if n.has_readers(1):
        raise NotLowered("its mask as an output is not supported")
    total = n.b.add(n.x, n.input(1))
    return [str(total if n.opt(2) is None else n.b.add(total, n.input(2))), None]


LOWERINGS: dict[str, OpLowering] = {
    "BiasDropout": _bias_dropout,
    "CDist": _cdist,
    "ExpandDims": _expand_dims,
    "GatherND": INDEXING["GatherND"],
    "Pad": MOVEMENT["Pad"],
    "Range": CREATION["Range"],
    "ReduceSumInteger": _sum_integers,
}
