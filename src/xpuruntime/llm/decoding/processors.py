"""Processors: what earlier tokens change in the logits of the next one, in the order of transformers.

Penalties; repeated n-grams; bad words; stop tokens before the minimum length; suppressed tokens; times of speech; forced tokens.
Temperature, top_k, top_p and min_p follow in ``sampling``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...ir.interp.sampling import SUPPRESSED
from ...protocols import Array
from .words import GenerationOptions

__all__ = ["initial_counts", "process"]


def initial_counts(options: GenerationOptions, prompt: Sequence[int], vocab: int) -> NDArray[np.int32]:
    """Return the counts of a text before its answer; ``sample_token`` says what they mean."""
    counts = np.zeros(vocab, np.int32)
    counts[np.asarray(prompt, np.int64)] = 1
    counts[[*options.suppressed, *(w[0] for w in options.bad_words if len(w) == 1)]] = SUPPRESSED
    return counts


def process(
    logits: Array,
    options: GenerationOptions,
    prompt: Sequence[int],
    answer: Sequence[int],
    counts: NDArray[np.int32] | None,
) -> NDArray[np.float32]:
    """Return the processed logits of one text, [vocab], in float32. ``counts``: those of the text, if the options need them."""
    x = options.sampling.processed(logits, counts)
    forbidden: list[int] = []
    text = [*prompt, *answer]
    if options.no_repeat_ngram_size:
        forbidden += _repeated(text, options.no_repeat_ngram_size)
    for word in options.bad_words:
        if 1 < len(word) <= len(text) and tuple(text[1 - len(word) :]) == word[:-1]:
            forbidden.append(word[-1])
    if options.begin_suppressed and len(answer) == options.begins_at(len(prompt)):
        forbidden += options.begin_suppressed
    if len(answer) < options.least(len(prompt)):
        forbidden += options.stop_tokens
    if forbidden:
        x[[t for t in forbidden if 0 <= t < x.size]] = -np.inf
    if options.timestamps is not None:
        options.timestamps.constrain(x, answer)
    if (forced := options.forced(len(prompt), len(answer))) is not None:
        x[:] = -np.inf
        x[forced] = 0
    return x


def _repeated(text: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would complete an n-gram of the text a second time."""
    if len(text) + 1 < size:
        return []
    start = tuple(text[len(text) + 1 - size :])
    return [text[i + size - 1] for i in range(len(text) - size + 1) if tuple(text[i : i + size - 1]) == start]
