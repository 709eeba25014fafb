"""Random ops. Shapes, types and distributions follow the op; the generator is NumPy's PCG64, which matches no other library.

Runs with the same seed are equal; without a seed each run differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]


def rand(*, size: Sequence[int], low: float, high: float, seed: int | None) -> Array:
    """Draw uniformly from [low, high)."""
    return np.random.default_rng(seed).uniform(low, high, tuple(size))


def randn(*, size: Sequence[int], mean: float, std: float, seed: int | None) -> Array:
    """Draw from a normal distribution."""
    return np.random.default_rng(seed).normal(mean, std, tuple(size))


def randperm(*, n: int, seed: int | None) -> Array:
    """Return a random permutation of 0 to n - 1."""
    return np.random.default_rng(seed).permutation(n)


def bernoulli(x: Array, *, seed: int | None) -> Array:
    """Return one with probability x, else zero."""
    return np.random.default_rng(seed).random(x.shape) < x


def multinomial(x: Array, *, samples: int, seed: int | None) -> Array:
    """Draw classes per row with replacement, with probabilities proportional to exp(x)."""
    rows = np.atleast_2d(x)
    weight = np.exp(rows - rows.max(axis=1, keepdims=True))
    edges = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    uniform = np.random.default_rng(seed).random((rows.shape[0], samples))
    classes = (uniform[:, :, None] >= edges[:, None, :]).sum(axis=2)
    return np.asarray(np.minimum(classes, rows.shape[1] - 1).reshape(*x.shape[:-1], samples))


def dropout(x: Array, *, p: float, train: bool, seed: int | None) -> tuple[Array, Array]:
    """Drop elements with probability p and scale the rest by 1 / (1 - p); also return the mask. Outside training, return x."""
    if not train or p == 0:
        return x, np.ones(x.shape, bool)
    mask = np.random.default_rng(seed).random(x.shape) >= p
    return np.where(mask, x / max(1 - p, np.finfo(np.float64).tiny), 0.0), mask


RULES: dict[str, InterpRule] = {
    "rand": wide(rand),
    "randn": wide(randn),
    "randperm": wide(randperm),
    "bernoulli": wide(bernoulli),
    "multinomial": wide(multinomial),
    "dropout": wide(dropout),
}
