"""Beam search: the answers with the largest sums of log probabilities, with the rules of transformers.

Each step extends every open beam by the most likely tokens. Candidates that end are kept if they are among the best ``num_beams``; the others
stay open. Scores of ended ones are divided by length ** length_penalty.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir.interp.sampling import NO_TOKEN
from ...protocols import Array
from .answer import checked_token
from .processors import initial_counts, process
from .words import GenerationOptions

__all__ = ["Beam", "beam_limit", "beam_search"]

_NEVER = np.float32(-1.0e9)
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer of a beam search: its tokens, its score, and whether it has ended."""

    tokens: tuple[int, ...]
    score: float
    ended: bool


def beam_search(
    prompt: Sequence[int], options: GenerationOptions, limit: int, logits: Array
) -> Generator[tuple[list[int], list[int]], Array, list[Beam]]:
    """Search step by step: yield rows, and a token that continues the text of each; take the next logits. Return the best ``num_beams``
    answers, the best first. Raises RunError for logits that are not finite, or if words of the generation leave fewer answers than requested.

    limit:   maximum number of tokens of an answer.
    logits:  logits of the first token, [at least num_beams, vocab], equal rows.
    """
    beams, vocab = options.num_beams, logits.shape[1]
    kept = max(2, 1 + len(options.stop_tokens)) * beams
    open_beams: list[tuple[int, ...]] = [()] * beams
    scores = np.array([0, *[_NEVER] * (beams - 1)], np.float32)
    best = [Beam((), float(_NEVER), False)] * beams
    first = initial_counts(options, prompt, vocab) if options.counts else None
    improves, length = True, 0
    while True:
        rows = [
            process(_log_softmax(logits[i]), options, prompt, open_beams[i], _counts(first, open_beams[i]))
            for i in range(beams)
        ]
        totals = (np.stack(rows) + scores[:, None]).astype(np.float32).reshape(-1)
        at = _largest(totals, kept)
        found, parents, tokens = totals[at], at // vocab, at % vocab
        texts = [(*open_beams[p], int(t)) for p, t in zip(parents, tokens, strict=True)]
        ends = np.array([t in options.stop_tokens or length + 1 >= limit for t in tokens.tolist()])
        # Ended candidates: only those among the best may be answers.
        ranked = found / np.float32(float(length + 1) ** options.length_penalty)
        full = options.early_stopping is True and all(b.ended for b in best)
        ended = ends & (np.arange(at.size) < beams)
        ranked = (
            ranked
            + _NEVER * np.float32(int(full) + int(not improves))
            + np.where(ended, np.float32(0), _NEVER)
        )
        candidates = [
            *best,
            *(Beam(t, float(s), bool(e)) for t, s, e in zip(texts, ranked, ended, strict=True)),
        ]
        order = _largest(np.array([b.score for b in candidates], np.float32), beams)
        best = [candidates[i] for i in order]
        # Open beams: the best that have not ended.
        remaining = (found + np.where(ends, _NEVER, np.float32(0))).astype(np.float32)
        order = _largest(remaining, beams)
        open_beams, scores = [texts[i] for i in order], remaining[order]
        length += 1
        improves = improves and _may_improve(options, float(scores[0]), best, limit, length)
        if not improves or ends.all() or (options.early_stopping is True and all(b.ended for b in best)):
            if not all(b.ended for b in best[: options.samples]):
                checked_token(NO_TOKEN)
            return best
        logits = yield [int(parents[i]) for i in order], [int(tokens[i]) for i in order]


def beam_limit(options: GenerationOptions, prompt_tokens: int, capacity: int) -> int:
    """Return the maximum number of tokens of an answer, within a cache of ``capacity`` positions."""
    return min(options.limit(prompt_tokens), capacity - prompt_tokens + 1)


def _may_improve(
    options: GenerationOptions, score: float, best: Sequence[Beam], limit: int, length: int
) -> bool:
    """Return whether the best open beam can still become better than an answer."""
    never = options.early_stopping == "never" and options.length_penalty > 0
    possible = np.float32(score) / np.float32(float(limit if never else length) ** options.length_penalty)
    worst = min(b.score for b in best)
    return any(possible > (worst if b.ended else float(_NEVER)) for b in best)


def _counts(first: NDArray[np.int32] | None, answer: Sequence[int]) -> NDArray[np.int32] | None:
    if first is None:
        return None
    counts = first.copy()
    np.add.at(counts, list(answer), 2)
    return counts


def _log_softmax(logits: Array) -> Any:
    x = logits.astype(np.float32)
    if not np.isfinite(x.max()):  # NaN is the largest
        checked_token(NO_TOKEN)
    x = x - x.max()
    return x - np.log(np.exp(x).sum(dtype=np.float32))


def _largest(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the positions of the largest values, the largest first; the first of equal ones precedes."""
    count = min(count, values.size)
    at = np.argpartition(-values, count - 1)[:count]
    at.sort()
    return at[np.argsort(-values[at], kind="stable")]
