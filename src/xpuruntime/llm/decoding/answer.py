"""AnswerState: one text while it is generated. It chooses tokens on the host, and turns tokens into pieces of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import RunError
from ...ir.interp.sampling import NO_TOKEN
from ...protocols import Array
from ..answers import Completion, Piece, Source, SpokenSegment, TokenLogprob
from ..checkpoint.text import TextCodec, TextStream
from ..sampling import pick
from .grammar import GrammarMatcher
from .processors import initial_counts, process
from .sources import source_rows
from .stops import StopStrings
from .timestamps import segments_of
from .words import GenerationOptions

__all__ = ["AnswerState", "checked_token"]

_ALL_TOKENS = 2**31 - 1  # a top_k that no vocabulary exceeds


class AnswerState:
    """The state of one text.

    seed, sample: seed of the text, and number of the answer to its prompt.
    source:       what the encoder of an encoder-decoder reads: tokens, or frames of audio; ``prompt`` is what its decoder's text begins with.
    counts:       counts of tokens for ``sample_token``; None if no option needs them.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        *,
        seed: int,
        sample: int,
        vocab: int,
        capacity: int,
        text: TextCodec | None,
        matcher: GrammarMatcher | None,
        source: Source | None = None,
    ) -> None:
        self.source = source
        self.prompt, self.options, self.seed, self.sample = list(prompt), options, seed, sample
        self.tokens: list[int] = []
        self.counts: NDArray[np.int32] | None = (
            initial_counts(options, prompt, vocab) if options.counts else None
        )
        self._text = text
        self._limit, self._capacity = options.limit(len(prompt)), capacity
        self._stream = None if text is None else TextStream(text)
        self._stops = StopStrings(options.stop_strings)
        self._matcher = matcher

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the row of ``numbers`` of the op ``sample_token`` for the next token."""
        top_k = min(int(self.options.sampling.top_k), _ALL_TOKENS)
        return (self.seed, len(self.tokens), self.sample, top_k, int(self.counts is not None))

    def numbers_after(self, drafts: int) -> tuple[int, ...]:
        """Return ``numbers`` of the token that follows so many guesses."""
        seed, position, *rest = self.numbers
        return (seed, position + drafts, *rest)

    def room(self, most: int) -> int:
        """Return how many of ``most`` guesses a run can check, next to the token that it reads anyway."""
        length = len(self.tokens)
        return max(0, min(most, self._capacity - len(self.prompt) - length, self._limit - length - 1))

    @property
    def forced(self) -> int | None:
        """Return the next token if a word of the generation says which it is."""
        return self.options.forced(len(self.prompt), len(self.tokens))

    def next_token(self, selected: int | None, logits: Array | None) -> int:
        """Return the next token: the forced one, else the one that a step selected, else one chosen on the host from logits.

        logits: those of the step; None if it sampled and returned none. Raises RunError if there is no token.
        """
        if (forced := self.forced) is not None:
            return forced
        if selected is None:
            assert logits is not None
            return self.pick(logits)
        # argmax returns a token even if logits are NaN.
        lost = logits is not None and not math.isfinite(logits[selected])
        return checked_token(NO_TOKEN if lost else selected)

    def pick(self, logits: Array) -> int:
        """Return the next token, chosen on the host. Raises RunError for logits that are not finite."""
        x = process(logits, self.options, self.prompt, self.tokens, self.counts)
        if self._matcher is not None:
            self._matcher.constrain(x)
        return checked_token(pick(x, self.options.sampling, self.seed, len(self.tokens), self.sample))

    def accept(self, token: int, logits: Array | None = None) -> Piece:
        """Append a token and return its piece. ``logits``: those that it was chosen from, if the options ask for log probabilities."""
        options = self.options
        logprob = None
        if options.logprobs is not None and logits is not None:
            logprob = _logprob(logits, token, options.logprobs)
        self.tokens.append(token)
        if self.counts is not None:
            self.counts[token] += 2
        stop, length = token in options.stop_tokens, len(self.tokens)
        if self._matcher is not None:
            self._matcher.accept(token)
        finish = "stop" if stop else "length" if length == self._limit else ""
        finish = finish or ("capacity" if len(self.prompt) + length - 1 >= self._capacity else "")
        text = ""
        if self._stream is not None:
            times = options.timestamps
            hidden = stop or (times is not None and token >= times.first)
            shown = "" if hidden else self._stream.add(token)
            text = self._stops.add(shown + self._stream.end() if finish else shown)
            if self._stops.stopped:
                finish = "stop"
            elif finish:
                text += self._stops.end()
        return Piece(token, text, finish, logprob)

    def completion(
        self, pieces: Sequence[Piece], finish: str, prefill_s: float, decode_s: float
    ) -> Completion:
        """Return the answer so far. A stop token is no part of it. ``pieces``: those of its tokens."""
        stopped = bool(self.tokens) and self.tokens[-1] in self.options.stop_tokens
        count = len(self.tokens) - stopped
        logprobs = tuple(p.logprob for p in pieces[:count] if p.logprob is not None)
        rows = len(self.prompt) if self.source is None else source_rows(self.source)
        text = "".join(p.text for p in pieces)
        segments: tuple[SpokenSegment, ...] = ()
        if (times := self.options.timestamps) is not None:
            decode = (lambda tokens: "") if self._text is None else self._text.decode
            segments = segments_of(self.tokens[:count], times, decode)
        return Completion(
            tuple(self.tokens[:count]), text, rows, finish, prefill_s, decode_s, logprobs, segments=segments
        )


def checked_token(token: int) -> int:
    """Return a token. Raises RunError for ``NO_TOKEN``."""
    if token == NO_TOKEN:
        do = (
            "Compute in bfloat16 or float32 if the model overflows; check the weights,"
            " and that suppressed tokens, minimum lengths and grammars leave a token."
        )
        raise RunError("generation", "has no token: logits are NaN, or none of them is finite", do=do)
    return token


def _logprob(logits: Array, token: int, count: int) -> TokenLogprob:
    """Return log probabilities before penalties and temperature: of the token, and of the ``count`` most likely ones."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    count = min(count, x.size)
    most: list[int] = np.argpartition(-x, count - 1)[:count].tolist() if count else []
    top = ((t, float(x[t])) for t in sorted(most, key=lambda t: (-x[t], t)))
    return TokenLogprob(token, float(x[token]), tuple(top))
