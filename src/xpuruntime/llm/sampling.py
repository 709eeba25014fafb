"""Sampling: the choice of the next token from logits. Greedy unless a temperature is given."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..ir.interp.sampling import NO_TOKEN, kept_weights, penalized, sample_row, uniform
from ..protocols import Array

__all__ = ["Sampling", "kept_tokens", "pick", "probabilities"]

_INF = float("inf")
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 1e30, True),
    "top_k": (0, _INF, True),
    "top_p": (0, 1, False),
    "min_p": (0, 1, True),
    "repetition_penalty": (0, _INF, False),
    "presence_penalty": (-_INF, _INF, False),
    "frequency_penalty": (-_INF, _INF, False),
}
"""Word -> lower and upper limit, and whether the lower limit is allowed. Infinity is not."""
_LEAST_TEMPERATURE = 1e-30
"""Smallest temperature above 0: logits divided by less may overflow float32."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of sampling, in the order in which they are applied to logits.

    repetition_penalty: divides the positive logits of tokens of the prompt and the answer, and multiplies the negative ones.
    presence_penalty:   is subtracted from the logits of tokens of the answer.
    frequency_penalty:  is subtracted once for each time that the token is in the answer.
    temperature: divides logits; 0 selects the most likely token.
    top_k:       sample from the ``top_k`` most likely tokens; 0: from all.
    top_p:       sample from the fewest tokens with at least this total probability.
    min_p:       sample from tokens with at least this share of the probability of the most likely one.

    Equally likely tokens are kept or removed together.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            low, high, inclusive = _RANGES[field.name]
            value = getattr(self, field.name)
            number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
            finite = number and abs(value) < _INF
            whole = field.name != "top_k" or (finite and value == int(value))
            if (
                not finite
                or not whole
                or not (low < value or (inclusive and value == low))
                or not value <= high
            ):
                do = f"Give a {'whole ' * (field.name == 'top_k')}number {_interval(low, high, inclusive)}."
                raise InputError("sampling", f"has an invalid {field.name}", got=repr(value)[:80], do=do)
        if 0 < self.temperature < _LEAST_TEMPERATURE:
            do = f"Give 0 for the most likely token, or at least {_LEAST_TEMPERATURE:g}."
            raise InputError("sampling", "has an invalid temperature", got=self.temperature, do=do)

    @property
    def greedy(self) -> bool:
        """Return True if no random number is drawn."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Return True if logits depend on earlier tokens."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def cutoff(self) -> float:
        """Return the largest distance from the largest logit that ``min_p`` keeps."""
        return float(-np.log(self.min_p)) if self.min_p > 0 else _INF

    @property
    def settings(self) -> tuple[float, ...]:
        """Return the row of ``settings`` of the op ``sample_token``."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return (self.temperature, self.top_p, self.cutoff, *penalties)

    def processed(self, logits: Array, counts: NDArray[np.int32] | None) -> NDArray[np.float32]:
        """Return logits in float32 after the penalties. ``counts``: as for ``penalized``."""
        return penalized(
            logits, counts, self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        )


def _interval(low: float, high: float, inclusive: bool) -> str:
    lower = "" if low == -_INF else f"of at least {low:g}" if inclusive else f"above {low:g}"
    upper = "" if high == _INF else f"up to {high:g}"
    return " and ".join(t for t in (lower, upper) if t) or "that is finite"


def _kept(x: NDArray[np.float32], sampling: Sampling) -> tuple[NDArray[np.bool_], NDArray[np.uint64]] | None:
    with np.errstate(invalid="ignore"):
        x = (x / np.float32(sampling.temperature)).astype(np.float32)
        return kept_weights(x, int(sampling.top_k), sampling.top_p, sampling.cutoff)


def _checked(
    logits: Array, sampling: Sampling, counts: NDArray[np.int32] | None
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    kept = _kept(sampling.processed(logits, counts), sampling)
    if kept is None:
        raise InputError(
            "sampling",
            "needs logits that are not NaN, with a finite largest one",
            do="Check the weights and the precision: the model computed NaN or Inf.",
        )
    return kept


def probabilities(
    logits: Array, sampling: Sampling, counts: NDArray[np.int32] | None = None
) -> NDArray[np.float64]:
    """Return the probability of each token, [vocab], in float64. Raises InputError for logits that are not finite.

    Weights are multiples of 2**-40 of the largest one, so that tokens with about half of that or less are never drawn.
    """
    _, weights = _checked(logits, sampling, counts)
    return np.asarray(weights / float(weights.sum()))


def kept_tokens(
    logits: Array, sampling: Sampling, counts: NDArray[np.int32] | None = None
) -> NDArray[np.int64]:
    """Return the tokens that top_k, top_p and min_p keep. Raises InputError for logits that are not finite."""
    return np.flatnonzero(_checked(logits, sampling, counts)[0])


def pick(x: NDArray[np.float32], sampling: Sampling, seed: int, step: int, sample: int = 0) -> int:
    """Return a token for processed logits; ``NO_TOKEN`` if they are not finite. It depends on the logits and the numbers alone.

    seed, step, sample: seed of the text, number of the token in the answer, and number of the answer to its prompt.
    """
    if sampling.greedy:
        return int(x.argmax()) if np.isfinite(x.max()) else NO_TOKEN
    kept = _kept(x, sampling)
    return NO_TOKEN if kept is None else sample_row(kept[1], uniform(seed, step, sample))
