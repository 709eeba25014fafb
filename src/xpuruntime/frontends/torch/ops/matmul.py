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


def _trilinear(n: AtenLoweringContext) -> Results:
    """Lower the sum of products of three tensors (``nn.Bilinear``) as two products, the first of which is summed where it can be."""
    n.ignore("unroll_dim")
    operands = [n.t(f"i{k}") for k in (1, 2, 3)]
    rank = n.spec(operands[0]).rank + len(n["expand1"])
    of = [[chr(97 + d) for d in range(rank) if d not in n[f"expand{k}"]] for k in (1, 2, 3)]
    result = [chr(97 + d) for d in range(rank) if d not in n["sumdim"]]
    between = [d for d in sorted({*of[0], *of[1]}) if d in of[2] or d in result]
    first, second, third, partial, last = map("".join, (*of, between, result))
    product = n.b.einsum(operands[0], operands[1], equation=f"{first},{second}->{partial}")
    return str(n.b.einsum(product, operands[2], equation=f"{partial},{third}->{last}"))


def _solve_triangular(n: AtenLoweringContext) -> Results:
    """Lower a system; one with the unknowns on the left is the transposed system."""
    a, b, upper = n.x, n.t("B"), bool(n["upper"])
    left, unitriangular = bool(n["left"]), bool(n["unitriangular"])
    if not left:
        a, b, upper = _transposed(n, a), _transposed(n, b), not upper
    x = str(n.b.solve_triangular(a, b, upper=upper, unitriangular=unitriangular))
    return x if left else _transposed(n, x)


def _transposed(n: AtenLoweringContext, value: str) -> str:
    rank = n.spec(value).rank
    return str(n.b.permute(value, dims=[*range(rank - 2), rank - 1, rank - 2]))


LOWERINGS: dict[str, OpLowering] = {
    "_trilinear": _trilinear,
    "addbmm": _plus_product("batch1", "batch2", summed=True),
    "addmm": _addmm,
    "addmv": _plus_product("mat", "vec"),
    "bmm": call("bmm", "self", "mat2"),
    "einsum": _einsum,
    "linalg_det": call("det", "A"),
    "linalg_solve_triangular": _solve_triangular,
    "linear": call("linear", "input", "weight", "bias"),
    "matmul": call("matmul", "self", "other"),
    "mm": call("mm", "self", "mat2"),
}
