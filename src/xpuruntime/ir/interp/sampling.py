"""Sampling of tokens: the reference of the op ``sample_token``.

A row is computed in float32: penalties, temperature, then d = (largest logit) - (logit). Probabilities are proportional to exp(-d), in units of
2**-40, as integers: sums of them are exact, so that they do not depend on an order. top_k, top_p and min_p (cutoff) each keep the tokens up to some d.
Equal logits are kept or removed together. The random number of a row is Philox4x32-10 of (seed; step, sample) (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011), so it depends on no other row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .numbers import Array
from .rule import InterpRule, plain

__all__ = [
    "NO_TOKEN",
    "RULES",
    "SUPPRESSED",
    "kept_weights",
    "penalized",
    "philox",
    "sample_row",
    "sample_token",
    "uniform",
]

NO_TOKEN = -1
"""The token of a row without one: a logit is NaN, or the largest one is infinite."""
SUPPRESSED = -(1 << 31)
"""The count of a token that is never selected."""
_UNITS = np.float32(2.0**40)
_FARTHEST = np.float32(28.4)  # from here on weights are zero; before it, at least one
_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four random words of 32 bits: Philox4x32 with ten rounds."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        p, q = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & _LOW, (p >> 32) ^ d ^ k1, p & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return a, b, c, d


def uniform(seed: int, step: int, sample: int) -> float:
    """Return the random number of a step, in [0, 1), with 53 bits."""
    low, high, _, _ = philox((step & _LOW, sample & _LOW, 0, 0), (seed & _LOW, seed >> 32 & _LOW))
    return float(((high << 32 | low) >> 11) * 2.0**-53)


def penalized(
    logits: Array, counts: NDArray[np.int32] | None, repetition: float, presence: float, frequency: float
) -> NDArray[np.float32]:
    """Return logits in float32 after penalties.

    counts: twice the number of times that each token was generated, plus one if it is in the prompt; ``SUPPRESSED``: never select it.
            None: no penalties.
    """
    x = logits.astype(np.float32)
    if counts is None:
        return x
    factor = np.float32(repetition)
    x = np.where(counts != 0, np.where(x < 0, x * factor, x / factor), x)
    generated = counts >> 1
    x = x - np.float32(frequency) * generated.astype(np.float32)
    x = np.where(generated > 0, x - np.float32(presence), x)
    return np.where(counts < 0, np.float32(-np.inf), x).astype(np.float32)


def kept_weights(
    x: Array, top_k: int, top_p: float, cutoff: float
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]] | None:
    """Return which tokens are kept, and the weight of each: in units of 2**-40 of the most likely one's, zero where it is removed.

    x: logits in float32, divided by the temperature. cutoff: largest distance from the largest logit, which is -log(min_p).
    None if there is no token.
    """
    top = x.max() if x.size else np.float32(-np.inf)
    if not np.isfinite(top):  # NaN is the largest
        return None
    d = (top - x).astype(np.float32)
    weights = np.where(d < _FARTHEST, np.rint(np.exp(-d, dtype=np.float32) * _UNITS), 0).astype(np.uint64)
    keep = d < np.inf
    if 0 < top_k < d.size:
        keep &= d <= np.partition(d, top_k - 1)[top_k - 1]
    if top_p < 1:
        keep &= d <= _nucleus(d[keep], weights[keep], float(np.float32(top_p)))
    keep &= d <= np.float32(cutoff)
    return keep, np.where(keep, weights, np.uint64(0))


def _nucleus(d: NDArray[np.float32], weights: NDArray[np.uint64], top_p: float) -> np.float32:
    """Return the largest d that top_p keeps: the total weight of all smaller ones is below top_p. Only likely tokens are sorted."""
    target = np.uint64(np.ceil(top_p * float(weights.sum())))
    for bound in (4.0, 8.0, np.inf):
        near = d <= bound
        rows = d[near]
        order = np.argsort(rows)
        cumulative = np.cumsum(weights[near][order])
        if cumulative[-1] >= target:
            break
    return np.float32(rows[order[np.searchsorted(cumulative, target)]])


def sample_row(weights: NDArray[np.uint64], number: float) -> int:
    """Return the token at ``number``, in [0, 1), of the cumulative distribution in the order of the vocabulary."""
    cumulative = np.cumsum(weights)
    total = int(cumulative[-1])
    return int(np.searchsorted(cumulative, np.uint64(min(int(number * float(total)), total - 1)), "right"))


def sample_token(
    logits: Array, counts: Array, settings: Array, numbers: Array
) -> tuple[NDArray[np.int64], Array]:
    """Return one token per row, and the counts after it."""
    tokens, after = np.full(len(logits), NO_TOKEN, np.int64), counts.copy()
    for i, row in enumerate(logits):
        temperature, top_p, cutoff, repetition, presence, frequency = (float(v) for v in settings[i])
        seed, step, sample, top_k, counted = (int(v) for v in numbers[i])
        x = penalized(row, counts[i] if counted else None, repetition, presence, frequency)
        with np.errstate(invalid="ignore", divide="ignore"):
            x = x / np.float32(temperature) if temperature > 0 else x
            kept = kept_weights(x, top_k, top_p, cutoff)
        if kept is None:
            continue
        tokens[i] = sample_row(kept[1], uniform(seed, step, sample)) if temperature > 0 else int(x.argmax())
        if counted:
            after[i, tokens[i]] += 2
    return tokens, after


RULES: dict[str, InterpRule] = {"sample_token": plain(sample_token)}
