"""Lowerings of ONNX Runtime's ops (``com.microsoft``) that the default domain has too, under another name or with another signature."""

from __future__ import annotations

from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results
from ..create import LOWERINGS as CREATION
from ..indexing import LOWERINGS as INDEXING
from ..movement import LOWERINGS as MOVEMENT
from ..resize import LOWERINGS as RESIZE

__all__ = ["LOWERINGS"]


def _expand_dims(n: OnnxLoweringContext) -> Results:
    return str(n.b.unsqueeze(n.x, dims=[int(n.number(1, "axis"))]))


def _cdist(n: OnnxLoweringContext) -> Results:
    y = n.b.cdist(n.x, n.input(1), p=2.0)
    metric = n.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotLowered(f"the metric {metric!r} is not supported")
    return str(y) if metric == "euclidean" else str(n.b.mul(y, y))


LOWERINGS: dict[str, OpLowering] = {
    "CDist": _cdist,
    "ExpandDims": _expand_dims,
    "GatherND": INDEXING["GatherND"],
    "GridSample": RESIZE["GridSample"],
    "Pad": MOVEMENT["Pad"],
    "Range": CREATION["Range"],
    "Trilu": MOVEMENT["Trilu"],
}
