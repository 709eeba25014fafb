"""Lowerings of matrix products."""

from __future__ import annotations

import math

from ....types import DType
from ...lowered_parts import MAX_ROWS
from ...not_lowered import NotLowered
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
            n.ignore("self")
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


def _small(n: AtenLoweringContext) -> None:
    """Raise NotLowered for more rows than are lowered. Kernels refuse a symbolic number that turns out larger."""
    size = n.spec().shape[-1]
    if isinstance(size, int) and size > n.max_rows:
        raise NotLowered(f"a matrix of {size} rows is left to PyTorch; at most {n.max_rows} are supported")
    if not isinstance(size, int) and n.max_rows < MAX_ROWS:
        raise NotLowered("a matrix of a symbolic number of rows is left to PyTorch")


def _checked(n: AtenLoweringContext, value: str, info: str) -> str:
    """Return the value if ``info`` is 0 for each matrix. Otherwise the run fails where PyTorch raises: an index of the value is outside its dim."""
    b, shape = n.b, n.spec(value).shape
    failed = b.sum(b.cast(info, dtype=DType.INT64), dim=None, keepdim=False)
    one = b.index_select(b.view(value, size=[1, *shape]), b.view(failed, size=[1]), dim=0)
    return str(b.view(one, size=shape))


def _systems(n: AtenLoweringContext) -> Results:
    """Lower linalg.solve with a matrix or a vector on the right, and unknowns on either side."""
    _small(n)
    a, b, left = n.x, n.t("B"), bool(n["left"])
    spec, other = n.spec(a), n.spec(b)
    vector = other.rank == 1 or (other.rank == spec.rank - 1 and other.shape == spec.shape[:-1])
    if vector:
        b = str(n.b.unsqueeze(b, dims=[other.rank]))
    elif not left:
        a, b = _transposed(n, a), _transposed(n, b)
    x, info = (str(v) for v in n.b.solve(a, b, outputs=2))
    if vector:
        x = str(n.b.squeeze(x, dims=[n.spec(x).rank - 1]))
    elif not left:
        x = _transposed(n, x)
    if n.op == "linalg_solve":
        return _checked(n, x, info)
    x = _checked(n, x, info) if n["check_errors"] else x
    if n.has_readers(3) and n.spec(info).shape != spec.shape[:-2]:  # one matrix for several right sides
        column = n.b.full(size=[spec.shape[-1], 1], value=1.0, dtype=spec.dtype)
        info = str(n.b.solve(a, column, outputs=2)[1])
    return [x, None, None, info]


def _inverse(n: AtenLoweringContext) -> Results:
    _small(n)
    spec = n.spec()
    ones = n.b.eye(rows=spec.shape[-1], columns=spec.shape[-1], dtype=spec.dtype)
    x, info = (str(v) for v in n.b.solve(n.x, ones, outputs=2))
    if n.op == "linalg_inv_ex":
        return [_checked(n, x, info) if n["check_errors"] else x, info]
    return _checked(n, x, info)


def _cholesky(n: AtenLoweringContext) -> Results:
    _small(n)
    y, info = (str(v) for v in n.b.cholesky(n.x, upper=bool(n["upper"]), outputs=2))
    if n.op == "linalg_cholesky_ex":
        return [_checked(n, y, info) if n["check_errors"] else y, info]
    return _checked(n, y, info)


def _by_factor(n: AtenLoweringContext, right: str, factor: str, upper: bool) -> str:
    """Return x with ``a @ x = right`` of a Cholesky factor of ``a``."""
    lower, above = (_transposed(n, factor), factor) if upper else (factor, _transposed(n, factor))
    half = str(n.b.solve_triangular(lower, right, upper=False))
    return str(n.b.solve_triangular(above, half, upper=True))


def _cholesky_solve(n: AtenLoweringContext) -> Results:
    return _by_factor(n, n.x, n.t("input2"), bool(n["upper"]))


def _cholesky_inverse(n: AtenLoweringContext) -> Results:
    size = n.spec().shape[-1]
    ones = str(n.b.eye(rows=size, columns=size, dtype=n.spec().dtype))
    return _by_factor(n, ones, n.x, bool(n["upper"]))


def _triangular_solve(n: AtenLoweringContext) -> Results:
    a, upper = n.t("A"), bool(n["upper"])
    if n["transpose"]:
        a, upper = _transposed(n, a), not upper
    return [str(n.b.solve_triangular(a, n.x, upper=upper, unitriangular=bool(n["unitriangular"]))), None]


def _slogdet(n: AtenLoweringContext) -> Results:
    _small(n)
    return [*(str(v) for v in n.b.slogdet(n.x)), None, None]


_SQUARINGS = 20
"""Squarings of an exponential: the largest sum of a column is 2**19, far beyond what float32 can hold."""
_TERMS = 12
"""Terms of the series of a scaled matrix, whose columns sum to at most 0.5: the rest is below 2e-14."""


def _matrix_exp(n: AtenLoweringContext) -> Results:
    """Lower the exponential of matrices: a series of the matrix divided by a power of two, squared as often."""
    b, result = n.b, n.spec()
    size = result.shape[-1]
    if not isinstance(size, int) or not size:
        raise NotLowered("a matrix of no rows or of a symbolic size is not supported")
    wide = DType.FLOAT32 if result.dtype.bits < 32 else result.dtype
    x = n.cast(n.x, wide)
    sums = b.sum(b.abs(x), dim=[-2], keepdim=True)
    norm = b.amax(sums, dim=[-1], keepdim=True)
    times = b.clamp(b.add(b.ceil(b.log2(norm)), 1.0), 0.0, float(_SQUARINGS))
    x = b.mul(x, b.exp2(b.neg(times)))
    one = b.eye(rows=size, columns=size, dtype=wide)
    # The series times _TERMS!: ONNX Runtime rounds a scalar factor before or after a product to float32, so there is none.
    y = b.add(x, b.mul(one, float(_TERMS)))
    for k in reversed(range(_TERMS - 1)):
        y = b.add(b.matmul(x, y), b.mul(one, float(math.perm(_TERMS, _TERMS - k))))
    y = b.div(y, b.full(size=[size, size], value=float(math.factorial(_TERMS)), dtype=wide))
    for k in range(_SQUARINGS):
        y = b.where(b.gt(times, float(k)), b.matmul(y, y), y)
    return n.cast(str(y), result.dtype)


def _transposed(n: AtenLoweringContext, value: str) -> str:
    rank = n.spec(value).rank
    return str(n.b.permute(value, dims=[*range(rank - 2), rank - 1, rank - 2]))


LOWERINGS: dict[str, OpLowering] = {
    "_trilinear": _trilinear,
    "_linalg_det": lambda n: [str(n.b.det(n.x)), None, None],
    "_linalg_slogdet": _slogdet,
    "_linalg_solve_ex": _systems,
    "addbmm": _plus_product("batch1", "batch2", summed=True),
    "addmm": _addmm,
    "addmv": _plus_product("mat", "vec"),
    **dict.fromkeys(("cholesky", "linalg_cholesky", "linalg_cholesky_ex"), _cholesky),
    "cholesky_inverse": _cholesky_inverse,
    "cholesky_solve": _cholesky_solve,
    **dict.fromkeys(("inverse", "linalg_inv", "linalg_inv_ex"), _inverse),
    "linalg_matrix_exp": _matrix_exp,
    "linalg_solve": _systems,
    "triangular_solve": _triangular_solve,
    "bmm": call("bmm", "self", "mat2"),
    "einsum": _einsum,
    "linalg_det": call("det", "A"),
    "linalg_solve_triangular": _solve_triangular,
    "linear": call("linear", "input", "weight", "bias"),
    "matmul": call("matmul", "self", "other"),
    "mm": call("mm", "self", "mat2"),
}
