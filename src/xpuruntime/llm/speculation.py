"""Speculative decoding: cheap guesses of the next tokens, which the model checks in one run (Leviathan et al., 2023; Chen et al., 2023).

A guess is accepted if it is the token that the model itself selects at that position: the most likely one, or the one drawn with the random
number of that position. For a single guess per position this is rejection sampling: a guess is accepted with its probability under the model,
and otherwise the token has the distribution of the others. So the text is the one that the same seed gives without guesses, as far as
runs of one token and of several round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..protocols import Array
from .answers import Piece
from .decoding.answer import AnswerState
from .sampling import pick
from .steps import Steps

__all__ = ["DraftModel", "Drafter", "Drafts", "PromptLookup", "checked_drafts", "speculated"]


class Drafter(Protocol):
    """A source of guesses."""

    def draft(self, state: AnswerState, most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow the text."""
        ...


@dataclass(slots=True)
class Drafts:
    """Counts. rounds: runs that checked guesses; drafted, accepted: guesses; steps: runs without any; tokens: of the answers."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    tokens: int = 0

    @property
    def text(self) -> str:
        """Return the counts as a sentence for receipts."""
        share = f" ({self.accepted / self.drafted:.0%})" if self.drafted else ""
        return (
            f"{self.accepted} of {self.drafted} drafted tokens{share} were accepted in {self.rounds} runs; "
            f"{self.tokens} tokens of answers, {self.steps} runs without a draft"
        )


class PromptLookup:
    """Guesses from the text itself: what followed the last occurrence of its last tokens, of the longest sequence of up to ``ngram``."""

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._text: list[int] = []
        self._after: dict[
            tuple[int, ...], int
        ] = {}  # sequence -> index of the token after its last occurrence

    def draft(self, state: AnswerState, most: int) -> list[int]:
        """Return what followed, possibly nothing."""
        for token in [*state.prompt, *state.tokens][len(self._text) :]:
            at = len(self._text)
            for size in range(1, min(self._ngram, at) + 1):
                self._after[tuple(self._text[at - size :])] = at
            self._text.append(token)
        for size in range(min(self._ngram, len(self._text)), 0, -1):
            at = self._after.get(tuple(self._text[-size:]), 0)
            if at:
                guessed = self._text[at : at + most]
                while len(guessed) < most:  # the text repeats its end, so the guess does, too
                    guessed.append(guessed[len(guessed) - (len(self._text) - at)])
                return guessed
        return []


class DraftModel:
    """Guesses of a smaller model with the same tokens. It draws with the random numbers of the positions that it guesses.

    steps, vocab, capacity: of that model. tokens: number of tokens of the model that checks.
    """

    def __init__(self, steps: Steps, vocab: int, capacity: int, tokens: int) -> None:
        self._steps, self._vocab, self._capacity, self._tokens = steps, vocab, capacity, tokens
        self._read: list[int] = []  # the tokens whose keys and values are in the cache
        self._settled = 0  # as many of them are part of the text

    def draft(self, state: AnswerState, most: int) -> list[int]:
        """Return what the model generates after the text; nothing beyond its cache or its tokens."""
        text = [*state.prompt, *state.tokens]
        most = min(most, self._capacity - len(text))
        if most < 1 or max(text[self._settled :]) >= self._vocab:
            return []
        known = self._settled
        while known < min(len(self._read), len(text) - 1) and self._read[known] == text[known]:
            known += 1
        if len(text) - known > 1:
            logits = self._steps.read([text[known:]], known)[0]
        else:
            logits = self._steps.step([text[-1]], [len(text) - 1])[0]
        drafts: list[int] = []
        options, position = state.options, len(state.tokens)
        while True:
            x = logits.astype(np.float32)[: self._tokens]
            token = pick(x, options.sampling, state.seed, position + len(drafts), state.sample)
            if token < 0:  # no logit is finite
                break
            drafts.append(token)
            if len(drafts) == most or token in options.stop_tokens:
                break
            logits = self._steps.step([token], [len(text) + len(drafts) - 1])[0]
        self._read, self._settled = [*text, *drafts[:-1]], len(text) - 1
        return drafts


def checked_drafts(
    state: AnswerState,
    drafts: Sequence[int],
    result: Callable[[int], tuple[int | None, Array | None]],
    counts: Drafts,
) -> Iterator[Piece]:
    """Yield the pieces of the guesses that are accepted, and of the token after them. ``counts`` is updated.

    result: returns the token that a run selected after so many guesses, if it did, and its logits, if it returned them.
    """
    for i in range(len(drafts) + 1):
        selected, logits = result(i)
        token = state.next_token(selected, logits)
        piece = state.accept(token, logits)
        accepted = i < len(drafts) and token == drafts[i]
        counts.accepted += accepted
        counts.tokens += 1
        yield piece
        if piece.finish or not accepted:
            return


def speculated(
    steps: Steps, state: AnswerState, drafter: Drafter, most: int, counts: Drafts
) -> Iterator[Piece]:
    """Yield the pieces of one answer. ``most``: guesses per run. ``counts`` is updated."""
    rows = steps.read([state.prompt])[:1]
    drafts: list[int] = []
    while True:
        for piece in checked_drafts(state, drafts, lambda i, rows=rows: (None, rows[i]), counts):  # type: ignore[misc]
            yield piece
            if piece.finish:
                return
        position = len(state.prompt) + len(state.tokens) - 1  # of the last token, which no run has read
        room = state.room(most)
        drafts = drafter.draft(state, room) if room else []
        if drafts:
            counts.rounds += 1
            counts.drafted += len(drafts)
            rows = steps.verify([state.tokens[-1], *drafts], position, most + 1)
        else:
            counts.steps += 1
            rows = steps.step(state.tokens[-1:], [position])[:1]
