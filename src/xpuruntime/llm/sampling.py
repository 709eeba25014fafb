"""Sampling: the choice of the next token from logits. Greedy unless a temperature is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..protocols import Array

__all__ = ["Sampling", "pick", "probabilities"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of sampling.

    temperature: 0 selects the most likely token.
    top_k:       sample from the ``top_k`` most likely tokens; 0: from all.
    top_p:       sample from the fewest tokens with at least this total probability.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        invalid = {
            "temperature": not 0 <= self.temperature < float("inf"),
            "top_k": self.top_k < 0,
            "top_p": not 0 < self.top_p <= 1,
        }
        for name, is_invalid in invalid.items():
            if is_invalid:
                do = "Give temperature and top_k of at least 0, and top_p above 0 and up to 1."
                raise InputError("sampling", f"has an invalid {name}", got=getattr(self, name), do=do)

    @property
    def greedy(self) -> bool:
        """Return True if no random number is drawn."""
        return self.temperature == 0

    def generator(self) -> np.random.Generator:
        """Return a random generator that yields the same numbers for a seed on every machine (PCG64)."""
        return np.random.Generator(np.random.PCG64(self.seed))


def probabilities(logits: Array, sampling: Sampling) -> NDArray[np.float64]:
    """Return the probability of each token, [vocab], in float64, after temperature, then top_k, then top_p. Ties at top_k are kept."""
    x = logits.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < x.size:
        threshold = np.partition(x, -sampling.top_k)[-sampling.top_k]
        x = np.where(x < threshold, -np.inf, x)
    p = np.exp(x - x.max())
    p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p, kind="stable")
        cumulative_before = np.cumsum(p[order]) - p[order]
        p[order[cumulative_before >= sampling.top_p]] = 0
        p /= p.sum()
    return np.asarray(p)


def pick(logits: Array, sampling: Sampling, random: np.random.Generator) -> int:
    """Sample a token; draws one random number."""
    p = np.cumsum(probabilities(logits, sampling))
    return int(min(np.searchsorted(p, random.random() * p[-1], side="right"), p.size - 1))
