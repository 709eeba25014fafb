"""Products of matrices."""

from __future__ import annotations

from .elementwise import call
from .site import Results, Row, Site

__all__ = ["ROWS"]


def _addmm(n: Site) -> Results:
    factors = {k: float(n[k]) for k in ("beta", "alpha")}
    return str(n.b.addmm(n.x, n.t("mat1"), n.t("mat2"), **factors))


def _einsum(n: Site) -> Results:
    n.ignore("path")  # the order of products, which the equation does not need
    return str(n.b.einsum(*n.ts("tensors"), equation=n["equation"]))


ROWS: dict[str, Row] = {
    "addmm": _addmm,
    "bmm": call("bmm", "self", "mat2"),
    "einsum": _einsum,
    "linalg_det": call("det", "A"),
    "linear": call("linear", "input", "weight", "bias"),
    "matmul": call("matmul", "self", "other"),
    "mm": call("mm", "self", "mat2"),
}
