"""BatchAnswer: the answer to one prompt of a batch, while it is generated and after that."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from ..answers import Completion, Piece, Source
from ..decoding.answer import AnswerState
from ..decoding.words import GenerationOptions
from ..speculation import PromptLookup
from .scheduler import BatchText

__all__ = ["CANCELLED", "HOST", "MOST_LIKELY", "SAMPLED", "AnswerOwner", "BatchAnswer", "choice_of"]

CANCELLED = "cancelled"
"""The reason why a cancelled answer ends."""
MOST_LIKELY, SAMPLED, HOST = "most likely", "sampled", "host"
"""How the tokens of an answer are chosen: by a step's argmax, by a step that samples, or on the host from logits."""


def choice_of(options: GenerationOptions, *, first: bool = False) -> str:
    """Return how a token is chosen. Counts of tokens are on the host, as texts change their rows. ``first``: it is the answer's first one."""
    if options.most_likely:
        return MOST_LIKELY
    on_host = options.counts or (first and options.begin_suppressed)
    return SAMPLED if options.on_device and not on_host else HOST


class AnswerOwner(Protocol):
    """The batch of an answer."""

    def advance(self, answer: BatchAnswer) -> None:
        """Run a step, unless the answer has a piece or is done by then."""
        ...

    def cancel(self, answer: BatchAnswer) -> None:
        """End an answer."""
        ...


class BatchAnswer:
    """The answer to a prompt of ``BatchGenerator.submit``.

        for piece in answer: ...            # the pieces as they are generated; runs steps of the batch while there is none
        answer.result().text                # the whole answer
        answer.cancel()

    score:  of a beam search, once it has ended, as in ``Completion``.
    finish: why the answer ended: ``stop``, ``length``, ``capacity`` or ``cancelled``; empty before that.

    Several threads may read different answers of one batch. Each runs steps, which advance all of them.
    """

    def __init__(self, owner: AnswerOwner, state: AnswerState, text: BatchText) -> None:
        self.state, self.text = state, text
        self.finish = ""
        self.score: float | None = None
        self._lookup = PromptLookup(state.options.max_matching_ngram_size) if state.options.drafts else None
        self._owner = owner
        self._pieces: list[Piece] = []
        self._unread: deque[Piece] = deque()
        self._error: Exception | None = None
        self._submitted = time.perf_counter()
        self._first: float | None = None
        self._ended = self._submitted

    @property
    def done(self) -> bool:
        """Return True if no further piece will come."""
        return bool(self.finish) or self._error is not None

    @property
    def choice(self) -> str:
        """Return how the next token is chosen."""
        return choice_of(self.state.options, first=not self.state.tokens)

    @property
    def unread(self) -> int:
        """Return the number of pieces that were not read yet."""
        return len(self._unread)

    @property
    def preemptions(self) -> int:
        """Return how often the text lost its blocks and was computed again."""
        return self.text.preemptions

    def cancel(self) -> None:
        """End the answer with what there is, and release its blocks. Pieces that were generated can still be read."""
        self._owner.cancel(self)

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces that were not read yet. Raises the error of this answer, or that of a step."""
        while True:
            if self._unread:
                yield self._unread.popleft()
            elif self._error is not None:
                raise self._error
            elif self.finish:
                return
            else:
                self._owner.advance(self)

    def result(self) -> Completion:
        """Return the whole answer, and generate what is missing. Raises the error of this answer, or that of a step."""
        while not self.done:
            self._owner.advance(self)
            self._unread.clear()
        if self._error is not None:
            raise self._error
        first = self._ended if self._first is None else self._first
        seconds = (first - self._submitted, self._ended - first)
        return replace(self.state.completion(self._pieces, self.finish, *seconds), score=self.score)

    # ── for the batch ──

    @property
    def texts(self) -> list[BatchText]:
        """Return the texts that compute it."""
        return [self.text]

    @property
    def source(self) -> Source | None:
        """Return what the encoder reads."""
        return self.state.source

    @property
    def answers(self) -> list[BatchAnswer]:
        """Return the answers that its text computes."""
        return [self]

    def draft(self) -> None:
        """Guess the tokens that follow, if the options ask for it, for the next step to check."""
        self.text.drafts = []
        if (
            self._lookup is not None
            and self.state.tokens
            and (room := self.state.room(self.state.options.drafts))
        ):
            self.text.drafts = self._lookup.draft(self.state, room)

    def begin(self) -> None:
        """Note that the prompt has been read: prefill ends, decoding begins."""
        if self._first is None:
            self._first = time.perf_counter()

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.begin()
        self._pieces.append(piece)
        self._unread.append(piece)
        self._ended = time.perf_counter()
        self.finish = piece.finish

    def end(self, finish: str) -> None:
        """End the answer without a further piece."""
        self.finish, self._ended = finish, time.perf_counter()

    def fail(self, error: Exception) -> None:
        """End the answer with an error, which whoever reads it gets."""
        self._error = error
