"""BatchBeams: the beams of one search, which are texts of a batch.

A step computes beams like other texts: some may wait, or be preempted, while others are computed. When the logits of all beams are there, the
search continues. If two beams continue the same text, one keeps its cache blocks. The other shares the full blocks, and computes the tokens of
the last block again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

import numpy as np

from ...protocols import Array
from ..answers import Piece, Source
from ..decoding.beams import Beam, beam_limit, beam_search
from .answer import HOST, BatchAnswer
from .scheduler import BatchText, Scheduler

__all__ = ["BatchBeams"]


class BatchBeams:
    """The search for the answers to one prompt.

    answers: as many as ``n``. They have no pieces before the search ends.
    texts:   the beams. There is one until the prompt has been read.
    """

    choice = HOST

    def __init__(self, answers: Sequence[BatchAnswer], scheduler: Scheduler) -> None:
        self.answers, self.texts = list(answers), [answers[0].text]
        self._state, self._scheduler = answers[0].state, scheduler
        self._options = self._state.options
        prompt = self._state.prompt
        self.limit = beam_limit(self._options, len(prompt), scheduler.cache.capacity)
        self._logits: dict[BatchText, Array] = {}
        self._search: Generator[tuple[list[int], list[int]], Array, list[Beam]] | None = None

    @property
    def blocks(self) -> int:
        """Return the blocks that all beams may need together."""
        cache, tokens = self._scheduler.cache, len(self._state.prompt) + self.limit - 1
        return self._options.num_beams * math.ceil(min(tokens, cache.capacity) / cache.block_size)

    @property
    def source(self) -> Source | None:
        """Return what the encoder reads."""
        return self._state.source

    def draft(self) -> None:
        """Do nothing: beams have no draft tokens."""

    def read(self, text: BatchText, logits: Array) -> list[tuple[BatchAnswer, Piece]]:
        """Take the logits of a beam. Return the pieces of all answers if the search ends, and none before.

        Raises RunError if the options of the generation allow no answer.
        """
        self._logits[text] = logits.copy()
        if len(self._logits) < len(self.texts):
            return []
        rows = np.stack([self._logits[t] for t in self.texts])
        self._logits.clear()
        try:
            if self._search is None:
                for answer in self.answers:
                    answer.begin()
                rows = np.repeat(rows, self._options.num_beams, axis=0)
                self._search = beam_search(self._state.prompt, self._options, self.limit, rows)
                self._continue(*next(self._search))
            else:
                self._continue(*self._search.send(rows))
        except StopIteration as end:
            return self._ended(end.value)
        return []

    def _continue(self, parents: list[int], tokens: list[int]) -> None:
        """Continue the texts of some beams. One beam of each text keeps its blocks."""
        if len(self.texts) == 1:  # all beams begin with the prompt
            (first,) = self.texts
            others = [
                BatchText(
                    list(first.tokens), first.arrival + i, root=first.root, source_rows=first.source_rows
                )
                for i in range(1, len(tokens))
            ]
            self.texts += others
            for text, token in zip(self.texts, tokens, strict=True):
                text.tokens.append(token)
            for text in others:
                self._scheduler.add(text)
            return
        rest = set(range(len(self.texts))) - set(parents)
        texts: list[BatchText] = []
        copies: list[tuple[BatchText, BatchText]] = []
        for parent in parents:
            text = self.texts[parent]
            if text in texts:
                copy = self.texts[rest.pop()]
                copies.append((copy, text))
                text = copy
            texts.append(text)
        for copy, text in copies:
            self._scheduler.fork(copy, text)
        for text, token in zip(texts, tokens, strict=True):
            text.tokens.append(token)
        self.texts = texts

    def _ended(self, best: Sequence[Beam]) -> list[tuple[BatchAnswer, Piece]]:
        pieces = []
        for answer, beam in zip(self.answers, best, strict=False):
            if answer.done:  # cancelled
                continue
            answer.score = beam.score
            for token in beam.tokens:
                piece = answer.state.accept(token)
                answer.add(piece)
                pieces.append((answer, piece))
        return pieces
