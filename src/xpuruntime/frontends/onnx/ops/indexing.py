"""Lowerings of gather, scatter, and search by value."""

from __future__ import annotations

from typing import Any

from ....types import Dim
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_REDUCE = {"none": "none", "add": "add", "mul": "mul", "max": "amax", "min": "amin"}


def _scatter(n: OnnxLoweringContext) -> Results:
    reduce = _REDUCE[n.attr("reduction", "none")]
    return str(n.b.scatter(n.x, n.input(1), n.input(2), dim=n.attr("axis", 0), reduce=reduce))


def _scatter_nd(n: OnnxLoweringContext) -> Results:
    return str(n.b.scatter_nd(n.x, n.input(1), n.input(2), reduce=_REDUCE[n.attr("reduction", "none")]))


def _tensor_scatter(n: OnnxLoweringContext) -> Results:
    return str(
        n.b.tensor_scatter(n.x, n.input(1), n.opt(2), dim=n.attr("axis", -2), mode=n.attr("mode", "linear"))
    )


def _topk(n: OnnxLoweringContext) -> Results:
    k: Any = n.attr("k") if "k" in n.attrs else n.dims(1, "k")[0]
    flags = {"largest": bool(n.attr("largest", 1)), "sorted": bool(n.attr("sorted", 1))}
    return tuple(n.b.topk(n.x, k=k, dim=n.attr("axis", -1), **flags))


def _one_hot(n: OnnxLoweringContext) -> Results:
    """Lower OneHot; indices may be of any number type, the depth a number or a list of one."""
    (depth,) = n.dims(1, "depth")
    indices = n.x
    if not n.spec().dtype.is_integer:
        indices = n.cast(indices, n.dtype(7))
    return str(n.b.one_hot(indices, n.input(2), depth=depth, dim=n.attr("axis", -1)))


def _count(n: OnnxLoweringContext) -> Dim:
    """Return a fresh symbol for the number of elements that a search finds."""
    (symbol,) = n.b.sizes(1)
    return symbol


def _nonzero(n: OnnxLoweringContext) -> Results:
    if not n.spec().rank:
        raise NotLowered("NonZero of a scalar is not supported")
    return str(n.b.permute(n.b.nonzero(n.x, count=_count(n)), dims=[1, 0]))


def _compress(n: OnnxLoweringContext) -> Results:
    return str(n.b.compress(n.x, n.input(1), count=_count(n), dim=n.attr("axis")))


def _unique(n: OnnxLoweringContext) -> Results:
    last = max((i for i in range(4) if n.has_readers(i)), default=0)
    outputs = n.b.call(
        "unique", n.x, count=_count(n), dim=n.attr("axis"), sorted=bool(n.attr("sorted", 1)), outputs=last + 1
    )
    return outputs if isinstance(outputs, str) else tuple(outputs)


def _nms(n: OnnxLoweringContext) -> Results:
    operands = [n.opt(i) for i in range(2, 5)]
    box = bool(n.attr("center_point_box", 0))
    return str(
        n.b.call("non_max_suppression", n.x, n.input(1), *operands, count=_count(n), center_point_box=box)
    )


LOWERINGS: dict[str, OpLowering] = {
    "Compress": _compress,
    "Gather": lambda n: str(n.b.index_select(n.x, n.input(1), dim=n.attr("axis", 0))),
    "GatherElements": lambda n: str(n.b.gather(n.x, n.input(1), dim=n.attr("axis", 0))),
    "GatherND": lambda n: str(n.b.gather_nd(n.x, n.input(1), batch_dims=n.attr("batch_dims", 0))),
    "NonMaxSuppression": _nms,
    "NonZero": _nonzero,
    "OneHot": _one_hot,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _topk,
    "Unique": _unique,
}
