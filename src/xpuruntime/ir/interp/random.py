"""Random ops. Shapes, types and distributions follow the op; the generator is NumPy's PCG64, which matches no other library.

Runs with the same seed are equal; without a seed each run differs. ``random_bits`` is exact: generated kernels give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .numbers import Array
from .rule import InterpRule, plain, wide

__all__ = ["RULES"]


def rand(*, size: Sequence[int], low: float, high: float, seed: int | None) -> Array:
    """Draw uniformly from [low, high)."""
    return np.random.default_rng(seed).uniform(low, high, tuple(size))


def randn(*, size: Sequence[int], mean: float, std: float, seed: int | None) -> Array:
    """Draw from a normal distribution."""
    return np.random.default_rng(seed).normal(mean, std, tuple(size))


_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def random_bits(state: Array | None, *, count: int, bits: int, seed: int, stream: int) -> Array:
    """Return integers of 32 or 53 random bits. One counter gives four words: four integers, or two of two words each."""
    key, run = (seed, 0) if state is None else (int(state[0]), int(state[1]))
    per = 4 if bits == 32 else 2
    place = np.arange(-(-count // per), dtype=np.uint64)
    words = [place, *(np.full_like(place, w & 0xFFFFFFFF) for w in (stream, run, run >> 32))]
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32 & 0xFFFFFFFF)
    for _ in range(10):
        p, q = _MULTIPLIERS[0] * words[0], _MULTIPLIERS[1] * words[2]
        words = [(q >> _HALF) ^ words[1] ^ k0, q & _LOW, (p >> _HALF) ^ words[3] ^ k1, p & _LOW]
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    if bits == 53:
        words = [(high << _HALF | low) >> np.uint64(11) for low, high in (words[:2], words[2:])]
    return np.stack(words, -1).reshape(-1)[:count].astype(np.int64)


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
    """Multiply by 0 with probability p, otherwise by 1 / (1 - p); also return the mask. Outside training, return x."""
    if not train or p == 0:
        return x, np.ones(x.shape, bool)
    mask = np.random.default_rng(seed).random(x.shape) >= p
    return x * np.where(mask, 1 / max(1 - p, np.finfo(np.float64).tiny), 0.0), mask


RULES: dict[str, InterpRule] = {
    "rand": wide(rand),
    "randn": wide(randn),
    "random_bits": plain(random_bits),
    "randperm": wide(randperm),
    "bernoulli": wide(bernoulli),
    "multinomial": wide(multinomial),
    "dropout": wide(dropout),
}
