"""Lowerings of matrix products."""

from __future__ import annotations

from .context import AtenLoweringContext, OpLowering, Results
from .elementwise import call

__all__ = ["LOWERINGS"]


def _addmm(n: AtenLoweringContext) -> Results:
    factors = {k: float(n[k]) for k in ("beta", "alpha")}
    return str(n.b.addmm(n.x, n.t("mat1"), n.t("mat2"), **factors))


def _plus_product(matrix: str, second: str, *, summed: bool = False) -> OpLowering:
    """Return the lowering of ``beta * self + alpha * product``; summed: over the batch of products. With beta 0, self is not read."""

    def lower(n: AtenLoweringContext) -> Results:
        beta, alpha = n["beta"], n["alpha"]
        y = str(n.b.matmul(n.t(matrix), n.t(second)))
        y = str(n.b.sum(y, dim=[0], dtype=n.out().dtype)) if summed else y
        y = str(n.b.mul(y, alpha)) if alpha != 1 else y
        if beta == 0:
            return y
        return str(n.b.add(n.x if beta == 1 else n.b.mul(n.x, beta), y))

    return lower


def _einsum(n: AtenLoweringContext) -> Results:
    n.ignore("path")  # the order of contractions, which does not affect the result
    return str(n.b.einsum(*n.ts("tensors"), equation=n["equation"]))


LOWERINGS: dict[str, OpLowering] = {
    "addbmm": _plus_product("batch1", "batch2", summed=True),
    "addmm": _addmm,
    "addmv": _plus_product("mat", "vec"),
    "bmm": call("bmm", "self", "mat2"),
    "einsum": _einsum,
    "linalg_det": call("det", "A"),
    "linear": call("linear", "input", "weight", "bias"),
    "matmul": call("matmul", "self", "other"),
    "mm": call("mm", "self", "mat2"),
}
