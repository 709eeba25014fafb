"""The non-linear functions of neural networks, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...types import DType
from .elementwise import erf
from .numbers import Array, to, widen
from .rule import InterpRule, plain, real, wide

__all__ = ["ACTIVATIONS", "RULES", "sigmoid", "silu", "softmax_wide"]


def relu(x: Array) -> Array:
    """Compute max(x, 0); NaN propagates."""
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def sigmoid(x: Array) -> Array:
    """Compute 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array, *, approximate: str) -> Array:
    """Compute x times the normal CDF, or its approximation by tanh (Hendrycks and Gimpel, 2016)."""
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def silu(x: Array) -> Array:
    """Compute x * sigmoid(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def elu(x: Array, *, alpha: float, scale: float, input_scale: float) -> Array:
    """Compute scale * (x if x > 0 else alpha * expm1(x * input_scale))."""
    return np.where(x > 0, scale * x, scale * alpha * np.expm1(x * input_scale))


def leaky_relu(x: Array, *, negative_slope: float) -> Array:
    """Compute x, or negative_slope * x below zero."""
    return np.where(x > 0, x, x * negative_slope)


def hardsigmoid(x: Array, *, alpha: float, beta: float) -> Array:
    """Compute alpha * x + beta, clipped to [0, 1]."""
    return np.clip(alpha * x + beta, 0.0, 1.0)


def hardswish(x: Array) -> Array:
    """Compute x * (clip(x + 3, 0, 6) / 6)."""
    return np.asarray(x * (np.clip(x + 3, 0.0, 6.0) / 6))


def softplus(x: Array, *, beta: float, threshold: float | None) -> Array:
    """Compute log(1 + exp(beta * x)) / beta, and x where beta * x is above the threshold."""
    scaled = beta * x
    smooth = np.logaddexp(0.0, scaled) / beta
    return smooth if threshold is None else np.where(scaled > threshold, x, smooth)


def mish(x: Array) -> Array:
    """Compute x * tanh(softplus(x))."""
    return np.asarray(x * np.tanh(np.logaddexp(0.0, x)))


def prelu(x: Array, slope: Array) -> Array:
    """Compute x, or slope * x below zero."""
    return np.where(x > 0, x, x * slope)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": relu,
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "gelu": lambda x: gelu(x, approximate="none"),
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "hardswish": hardswish,
    "leaky_relu": lambda x: leaky_relu(x, negative_slope=0.01),
}
"""Functions that a fused op may apply to its result; float64 in and out."""

# ── softmax ──


def softmax_wide(x: Array, dim: int) -> Array:
    """Compute the softmax of float64 values; a row of only -inf gives NaN."""
    shifted = x - np.max(x, axis=dim, keepdims=True, initial=-np.inf)
    raised = np.exp(shifted)
    return np.asarray(raised / np.sum(raised, axis=dim, keepdims=True))


def softmax(x: Array, *, dim: int, dtype: DType | None) -> Array:
    """Compute exp(x) divided by its sum along dim; x is cast to dtype first."""
    values, axis = _rows(x, dim, dtype)
    return softmax_wide(values, axis).reshape(x.shape)


def log_softmax(x: Array, *, dim: int, dtype: DType | None) -> Array:
    """Compute x - log(sum(exp(x))) along dim."""
    values, axis = _rows(x, dim, dtype)
    shifted = values - np.max(values, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))).reshape(x.shape)


def _rows(x: Array, dim: int, dtype: DType | None) -> tuple[Array, int]:
    """Convert to float64 with at least one dim; integers are rounded to float32 first."""
    values = to(x, dtype) if dtype is not None else x
    values = widen(values)
    return np.atleast_1d(
        values if values.dtype.kind in "fc" else to(values, DType.FLOAT32).astype(np.float64)
    ), dim


def hardmax(x: Array, *, dim: int) -> Array:
    """Return one at the first maximum along dim, else zero."""
    rows = np.atleast_1d(x)
    first = np.expand_dims(np.argmax(rows, axis=dim), dim)
    indices = np.arange(rows.shape[dim]).reshape([-1 if i == dim else 1 for i in range(rows.ndim)])
    return np.asarray((indices == first).astype(x.dtype).reshape(x.shape))


RULES: dict[str, InterpRule] = {
    "relu": wide(relu),
    "sigmoid": real(sigmoid),
    "tanh": real(np.tanh),
    "gelu": real(gelu),
    "silu": real(silu),
    "elu": real(elu),
    "leaky_relu": real(leaky_relu),
    "hardsigmoid": real(hardsigmoid),
    "hardswish": real(hardswish),
    "mish": real(mish),
    "softplus": real(softplus),
    "softsign": real(lambda x: x / (1 + np.abs(x))),
    "prelu": wide(prelu),
    "silu_mul": wide(lambda gate, up: silu(gate) * up),
    "softmax": plain(softmax),
    "log_softmax": plain(log_softmax),
    "hardmax": wide(hardmax),
}
