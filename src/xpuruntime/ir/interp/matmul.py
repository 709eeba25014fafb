"""Matrix and vector products. Integers wrap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ops.matmul import einsum_terms
from .activation import ACTIVATIONS
from .indexing import from_start
from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]


def _product(x: Array, other: Array) -> Array:
    return np.asarray(np.matmul(x, other))


def mm_wide(x: Array, other: Array, added: Array | None) -> Array:
    """Compute x @ other + added."""
    product = np.matmul(x, other)
    return np.asarray(product if added is None else product + added)


def addmm(bias: Array, x: Array, other: Array, *, beta: float, alpha: float) -> Array:
    """Compute beta * bias + alpha * (x @ other); with beta 0 the bias is not read, so that its NaNs do not propagate."""
    a, b = (_scalar(value, x) for value in (alpha, beta))
    product = a * np.matmul(x, other)
    return np.asarray(product if b == 0 else b * bias + product)


def _scalar(value: float, x: Array) -> Any:
    """Return an attribute in the type to compute with."""
    return x.dtype.type(value)


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """Compute x @ weight.T + bias."""
    product = np.matmul(x, weight.T)
    return np.asarray(product if bias is None else product + bias)


def fused_linear(x: Array, weight: Array, bias: Array | None, residual: Array | None, *, act: str) -> Array:
    """Compute act(x @ weight.T + bias + residual)."""
    product = linear(x, weight, bias)
    return ACTIVATIONS[act](product if residual is None else product + residual)


def einsum(*operands: Array, equation: str) -> Array:
    """Compute an einsum; dims of 1 and ellipses broadcast."""
    labels, result = einsum_terms(equation, [o.ndim for o in operands])
    sizes: dict[str, int] = {}
    for axes, operand in zip(labels, operands, strict=True):
        for label, size in zip(axes, operand.shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    number = {label: i for i, label in enumerate(sizes)}
    arguments: list[Any] = []
    for axes, operand in zip(labels, operands, strict=True):
        arguments += [np.broadcast_to(operand, [sizes[a] for a in axes]), [number[a] for a in axes]]
    return np.asarray(np.einsum(*arguments, [number[a] for a in result], optimize="greedy"))


def expert_linear(x: Array, weight: Array, ids: Array, *, act: str, gated: bool) -> Array:
    """Compute each slot's product with the matrix of its expert."""
    experts = from_start(ids, weight.shape[0])
    rows = np.broadcast_to(x if x.ndim == 3 else x[:, None], (*ids.shape, x.shape[-1]))
    y = np.zeros((*ids.shape, weight.shape[1]), x.dtype)
    for expert in np.unique(experts):
        slots = experts == expert
        y[slots] = np.matmul(rows[slots], weight[expert].T)
    if gated:
        gate, through = np.split(y, 2, axis=-1)
        return np.asarray(ACTIVATIONS[act](gate) * through)
    return np.asarray(ACTIVATIONS[act](y))


def det(x: Array) -> Array:
    """Return the determinant of each matrix."""
    return np.asarray(np.linalg.det(x))


def slogdet(x: Array) -> tuple[Array, Array]:
    """Return the sign of each determinant, 0 for NaN, and the logarithm of its absolute value."""
    n, lead = x.shape[-1], x.shape[:-2]
    m = np.array(x).reshape(math.prod(lead), n, n)
    swaps, _ = _eliminate(m, np.zeros((len(m), n, 0)))
    pivots = np.diagonal(m, axis1=1, axis2=2)
    sign = np.where(swaps % 2, -1.0, 1.0) * ((pivots > 0).astype(float) - (pivots < 0)).prod(1)
    return sign.reshape(lead), np.log(np.abs(pivots)).sum(1).reshape(lead)


def _eliminate(m: Array, x: Array) -> tuple[Array, Array]:
    """Make each of ``m`` upper triangular with partial pivoting, and ``x`` its right side, in place. Return the number of swaps, and ``info``."""
    count, n = m.shape[:2]
    info, each, swaps = np.zeros(count, np.int32), np.arange(count), np.zeros(count, np.int64)
    for c in range(n):
        row = np.full(count, c)
        for i in range(c + 1, n):
            row = np.where(np.abs(m[:, i, c]) > np.abs(m[each, row, c]), i, row)
        swaps += row != c
        for side in (m, x):
            side[each, c], side[each, row] = side[each, row].copy(), side[each, c].copy()
        pivot = m[:, c, None, c, None]
        info = np.where((info == 0) & (pivot[:, 0, 0] == 0), c + 1, info).astype(np.int32)
        factor = m[:, c + 1 :, c, None] / np.where(pivot == 0, 1.0, pivot)
        x[:, c + 1 :] -= factor * x[:, c, None]
        m[:, c + 1 :, c + 1 :] -= factor * m[:, c, None, c + 1 :]
    return swaps, info


def cholesky(x: Array, *, upper: bool) -> tuple[Array, Array]:
    """Factorize column by column. A block that is not positive definite gives NaN from there on."""
    half = np.swapaxes(x, -1, -2) if upper else x
    n = x.shape[-1]
    y, info = np.zeros_like(half), np.zeros(x.shape[:-2], np.int32)
    for j in range(n):
        square = half[..., j, j] - (y[..., j, :j] ** 2).sum(-1)
        info = np.where((info == 0) & ~(square > 0), j + 1, info).astype(np.int32)
        y[..., j, j] = np.sqrt(np.where(square > 0, square, np.nan))
        rest = half[..., j + 1 :, j] - np.matmul(y[..., j + 1 :, :j], y[..., j, :j, None])[..., 0]
        y[..., j + 1 :, j] = rest / y[..., j, j, None]
    return (np.swapaxes(y, -1, -2) if upper else y), info


def solve(a: Array, b: Array) -> tuple[Array, Array]:
    """Solve by elimination with partial pivoting. A pivot of 0 gives infinities and NaN."""
    n, columns, lead = a.shape[-1], b.shape[-1], np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(lead)
    m = np.array(np.broadcast_to(a, (*lead, n, n))).reshape(count, n, n)
    x = np.array(np.broadcast_to(b, (*lead, n, columns))).reshape(count, n, columns)
    _, info = _eliminate(m, x)
    for c in reversed(range(n)):
        x[:, c] -= np.matmul(m[:, c, None, c + 1 :], x[:, c + 1 :])[:, 0]
        x[:, c] /= m[:, c, c, None]
    return x.reshape(*lead, n, columns), info.reshape(lead)


def solve_triangular(a: Array, b: Array, *, upper: bool, unitriangular: bool) -> Array:
    """Solve by substitution, row by row."""
    n = a.shape[-1]
    x = np.array(np.broadcast_to(b, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])))
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        x[..., i, :] -= np.matmul(a[..., i : i + 1, known], x[..., known, :])[..., 0, :]
        if not unitriangular:
            x[..., i, :] /= a[..., i, i : i + 1]
    return x


RULES: dict[str, InterpRule] = {
    "mm": wide(_product),
    "mm_wide": wide(mm_wide),
    "bmm": wide(_product),
    "matmul": wide(_product),
    "addmm": wide(addmm),
    "linear": wide(linear),
    "fused_linear": wide(fused_linear),
    "expert_linear": wide(expert_linear),
    "einsum": wide(einsum),
    "det": wide(det),
    "cholesky": wide(cholesky),
    "slogdet": wide(slogdet),
    "solve": wide(solve),
    "solve_triangular": wide(solve_triangular),
}
