"""Matrix and vector products: plain, batched, einsum, fused."""

from __future__ import annotations

import re

from ...types import HALF_FLOATS, DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like, same, text

__all__ = ["ACTIVATIONS", "ROWS", "einsum_terms", "matmul_shape"]

ACTIVATIONS = "none|relu|relu6|gelu|gelu_tanh|silu|sigmoid|tanh|hardswish|leaky_relu"
"""Activations that a fused op may apply to its result."""


def _rank(spec: TensorSpec, rank: int, who: str) -> TensorSpec:
    if spec.rank != rank:
        raise Mismatch(f"{who} must have rank {rank}", str(spec))
    return spec


def one_dtype(*specs: TensorSpec | None) -> DType:
    """Return the dtype that all operands share."""
    dtypes = {s.dtype for s in specs if s is not None}
    if len(dtypes) != 1:
        raise Mismatch("operands must have one dtype", ", ".join(sorted(d.value for d in dtypes)))
    return dtypes.pop()


def matmul_shape(a: TensorSpec, b: TensorSpec) -> tuple[DimLike, ...]:
    """Return the shape of NumPy's matmul: vectors are rows on the left and columns on the right, batches broadcast."""
    if not a.rank or not b.rank:
        raise Mismatch("a scalar cannot be an operand of a matrix product", f"{a} and {b}")
    same(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "the inner dims")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return (*batch, *(a.shape[-2:-1] if a.rank > 1 else ()), *(b.shape[-1:] if b.rank > 1 else ()))


def _matmul(c: OpCall) -> TensorSpec:
    a, b = c.tensor(0), c.tensor(1)
    return TensorSpec(matmul_shape(a, b), one_dtype(a, b))


def _mm(c: OpCall) -> TensorSpec:
    _rank(c.tensor(0), 2, "x"), _rank(c.tensor(1), 2, "other")
    return _matmul(c)


def _mm_wide(c: OpCall) -> TensorSpec:
    a, b, added = _rank(c.tensor(0), 2, "x"), _rank(c.tensor(1), 2, "other"), c.optional(2)
    if (dtype := one_dtype(a, b)) not in HALF_FLOATS:
        raise Mismatch("operands must have 16 bits", f"{a} and {b}")
    result = TensorSpec(matmul_shape(a, b), DType.FLOAT32)
    if added is not None and (added.dtype is not DType.FLOAT32 or added.shape != result.shape):
        raise Mismatch(
            f"what is added to a product of {dtype.value} must be as the product", f"{added} and {result}"
        )
    return result


def _bmm(c: OpCall) -> TensorSpec:
    a, b = _rank(c.tensor(0), 3, "x"), _rank(c.tensor(1), 3, "other")
    batch = same(a.shape[0], b.shape[0], "the batch dims")
    return TensorSpec((batch, *matmul_shape(like(a, a.shape[1:]), like(b, b.shape[1:]))), one_dtype(a, b))


def _addmm(c: OpCall) -> TensorSpec:
    bias, a, b = c.tensor(0), _rank(c.tensor(1), 2, "x"), _rank(c.tensor(2), 2, "other")
    product = matmul_shape(a, b)
    shape = broadcast(bias.shape, product)  # fixed rows of a bias fix a symbol, and the run checks it
    if len(shape) > 2 or any(isinstance(d, int) and d != s for d, s in zip(product, shape, strict=True)):
        raise Mismatch("the bias must broadcast to the product", f"{bias} to {text(product)}")
    return TensorSpec(shape, one_dtype(bias, a, b))


def _linear(c: OpCall) -> TensorSpec:
    x, weight, bias = c.tensor(0), _rank(c.tensor(1), 2, "the weight"), c.optional(2)
    if not x.rank:
        raise Mismatch("x must have a dim", str(x))
    same(x.shape[-1], weight.shape[1], "x's last dim and the weight's")
    if bias is not None:
        same(_rank(bias, 1, "the bias").shape[0], weight.shape[0], "the bias's dim and the weight's")
    shape = (*x.shape[:-1], weight.shape[0])
    residual = c.optional(3) if len(c.operands) > 3 else None
    if residual is not None and broadcast(residual.shape, shape) != shape:
        raise Mismatch("the residual must broadcast to the product", f"{residual} to {text(shape)}")
    return TensorSpec(shape, one_dtype(x, weight, bias, residual))


_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand's axes and of the result's axes. Axes of an ellipsis are ``.0`` (outermost), ``.1`` ... Raises Mismatch."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or not all(_TERM.fullmatch(t) for t in [*terms, right]):
        raise Mismatch(f"not an equation for {len(ranks)} operands", repr(equation))
    widest = max(
        (r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    labels = []
    for term, rank in zip(terms, ranks, strict=True):
        num_labels = len(term.replace("...", ""))
        if num_labels > rank or ("..." not in term and num_labels != rank):
            raise Mismatch(f"term {term!r} does not fit rank {rank}", repr(equation))
        labels.append(_labels(term, rank - num_labels, widest))
    if arrow:
        result = _labels(right, widest, widest)
    else:
        all_labels = [label for axis in labels for label in axis]
        result = [f".{i}" for i in range(widest)] + sorted(
            a for a in set(all_labels) if all_labels.count(a) == 1 and a[0] != "."
        )
    if len(set(result)) != len(result) or not set(result) <= {label for axis in labels for label in axis}:
        raise Mismatch("the result has an axis twice, or one that no operand has", repr(equation))
    return labels, result


def _labels(term: str, ellipsis: int, widest: int) -> list[str]:
    """Return the labels of a term. ``ellipsis``: number of axes of its ellipsis, of which the widest one of all terms has ``widest``."""
    head, dots, tail = term.partition("...")
    return [*head, *(f".{i}" for i in range(widest - ellipsis, widest) if dots), *tail]


def _einsum(c: OpCall) -> TensorSpec:
    specs = c.tensors()
    labels, result = einsum_terms(c["equation"], [s.rank for s in specs])
    sizes: dict[str, DimLike] = {}
    for spec, axes in zip(specs, labels, strict=True):
        for axis, d in zip(axes, spec.shape, strict=True):
            (sizes[axis],) = broadcast((sizes.get(axis, 1),), (d,))
    return TensorSpec(tuple(sizes[a] for a in result), one_dtype(*specs))


def _expert_linear(c: OpCall) -> TensorSpec:
    x, weight, ids = c.tensor(0), _rank(c.tensor(1), 3, "the weight"), _rank(c.tensor(2), 2, "ids")
    if x.rank not in (2, 3):
        raise Mismatch("x must be [rows, k], or [rows, slots, k]", str(x))
    same(x.shape[-1], weight.shape[2], "x's last dim and the weight's")
    for d in range(x.rank - 1):
        same(x.shape[d], ids.shape[d], f"dim {d} of x and ids")
    if ids.dtype not in (DType.INT32, DType.INT64):
        raise Mismatch("ids must be int32 or int64", str(ids))
    n = weight.shape[1]
    if c["gated"]:
        if not isinstance(n, int) or n % 2:
            raise Mismatch("gated needs a weight of two halves", str(weight))
        n //= 2
    return TensorSpec((*ids.shape, n), one_dtype(x, weight))


def _det(c: OpCall) -> TensorSpec:
    x = c.tensor()
    if x.rank < 2:
        raise Mismatch("needs matrices", str(x))
    same(x.shape[-1], x.shape[-2], "rows and columns")
    return like(x, x.shape[:-2])


def _slogdet(c: OpCall) -> list[TensorSpec]:
    return [_det(c)] * 2


def _cholesky(c: OpCall) -> list[TensorSpec]:
    x = c.tensor()
    return [like(x), TensorSpec(_det(c).shape, DType.INT32)]


def _solve(c: OpCall) -> list[TensorSpec]:
    x = _solve_triangular(c)
    return [x, TensorSpec(x.shape[:-2], DType.INT32)]


def _solve_triangular(c: OpCall) -> TensorSpec:
    a, b = c.tensor(0), c.tensor(1)
    if a.rank < 2 or b.rank < 2:
        raise Mismatch("needs matrices", f"{a} and {b}")
    same(a.shape[-1], a.shape[-2], "rows and columns")
    same(a.shape[-1], b.shape[-2], "the rows of both sides")
    dtype = one_dtype(a, b)
    if not (dtype.is_float or dtype.is_complex):
        raise Mismatch("operands must be floating-point or complex", f"{a} and {b}")
    return TensorSpec((*broadcast(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), dtype)


ROWS: tuple[OpEntry, ...] = (
    op("mm(x, other) -> y", "matmul", _mm, aten="mm"),
    op(
        "mm_wide(x, other, added?) -> y",
        "matmul",
        _mm_wide,
        meaning="x @ other + added in float32, of 16-bit matrices",
    ),
    op("bmm(x, other) -> y", "matmul", _bmm, aten="bmm"),
    op("matmul(x, other) -> y", "matmul", _matmul, aten="matmul", onnx="MatMul", meaning="NumPy's matmul"),
    op(
        "addmm(bias, x, other; beta: float = 1.0, alpha: float = 1.0) -> y",
        "matmul",
        _addmm,
        aten="addmm",
        onnx="Gemm",
        meaning="beta * bias + alpha * (x @ other); with beta 0 the bias is not read",
    ),
    op("linear(x, weight, bias?) -> y", "matmul", _linear, aten="linear", meaning="x @ weight.T + bias"),
    op(
        f"fused_linear(x, weight, bias?, residual?; act: {ACTIVATIONS} = none) -> y",
        "matmul",
        _linear,
        meaning="act(x @ weight.T + bias + residual)",
    ),
    op(
        f"expert_linear(x, weight, ids; act: {ACTIVATIONS} = none, gated: bool = false) -> y",
        "matmul",
        _expert_linear,
        meaning="y[r, s] = act(weight[ids[r, s]] @ x[r], or x[r, s]), of a weight [experts, n, k]; gated: the first half of n computes gate, the"
        " second half up, and the result is act(gate) * up",
    ),
    op("einsum(operands*; equation: str) -> y", "matmul", _einsum, aten="einsum", onnx="Einsum"),
    op("det(x) -> y", "other", _det, aten="linalg_det", onnx="Det"),
    op(
        "slogdet(x) -> sign, logabsdet",
        "other",
        _slogdet,
        aten="_linalg_slogdet",
        meaning="the sign of the determinant, and the logarithm of its absolute value",
    ),
    op(
        "cholesky(x; upper: bool = false) -> y, info?",
        "other",
        _cholesky,
        aten="linalg_cholesky_ex",
        meaning="lower triangular y with y @ y.T = x, or upper with y.T @ y = x; the other half of x is not read. info: 0, or the size of"
        " the first leading block that is not positive definite",
    ),
    op(
        "solve(a, b) -> x, info?",
        "other",
        _solve,
        aten="linalg_solve",
        meaning="x with a @ x = b, by elimination with partial pivoting. info: 0, or the number of the first pivot that is 0",
    ),
    op(
        "solve_triangular(a, b; upper: bool = false, unitriangular: bool = false) -> x",
        "other",
        _solve_triangular,
        aten="linalg_solve_triangular",
        meaning="x with a @ x = b, of a triangular a whose other half is not read; unitriangular: nor is its diagonal, which is 1",
    ),
)
