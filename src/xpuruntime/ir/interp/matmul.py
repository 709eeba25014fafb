"""Matrix and vector products. Integers wrap."""

from __future__ import annotations

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
    "solve_triangular": wide(solve_triangular),
}
