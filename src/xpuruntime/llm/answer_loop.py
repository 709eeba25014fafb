"""AnswerLoop: the answers of texts, decoded token by token with the steps of one model.

Texts of a batch are decoded together, one answer with guesses of its next tokens, or the answers of a beam search.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..errors import InputError
from ..faults import foreign
from ..protocols import Array
from .answers import Completion, Piece, Source
from .checkpoint.data import Checkpoint
from .decoding.answer import AnswerState
from .decoding.beams import beam_limit, beam_search
from .decoding.texts import AnswerTexts
from .decoding.words import GenerationOptions
from .speculation import Drafter, Drafts, PromptLookup, speculated
from .steps import Steps

__all__ = ["AnswerLoop"]

_T = TypeVar("_T")


class AnswerLoop:
    """The loop over the steps of one model. One text, or one batch of texts, has the KV cache at a time.

    texts:       prompts as tokens, and the states of their answers.
    speculation: words of speculative decoding that apply unless a call has its own.
    draft_model: opens the draft model of ``assistant_model``, for one answer.
    drafts:      counts of speculative decoding.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        steps: Steps,
        capacity: int,
        *,
        speculation: Mapping[str, Any],
        draft_model: Callable[[Any], contextlib.AbstractContextManager[Drafter]],
    ) -> None:
        self.checkpoint, self.steps, self.capacity = checkpoint, steps, capacity
        self.texts = AnswerTexts(checkpoint, capacity, self._most_likely, speculation)
        self.drafts = Drafts()
        self._draft_model = draft_model
        self._lock = threading.Lock()
        self._holder: int | None = None  # id of the thread that holds the lock

    def options(self, words: Mapping[str, Any]) -> GenerationOptions:
        """Return the checked options of a call. Raises InputError."""
        return self.texts.options(words)

    def answers(
        self,
        texts: Sequence[Source],
        options: GenerationOptions,
        on_piece: Callable[[str], object] | None = None,
    ) -> list[Completion]:
        """Return the answers to texts, those of one text together. ``on_piece`` receives each piece of text."""
        if options.num_beams > 1:
            several = [self.texts.states([text], options) for text in texts]
            return [c for states in several for c in self._held(lambda s=states: self._beams(s, options))]  # type: ignore[misc]
        states, size = self.texts.states(texts, options), 1 if options.drafts else self.steps.batch
        groups = [states[i : i + size] for i in range(0, len(states), size)]
        return [completion for group in groups for completion in self._together(group, on_piece)]

    def stream(self, text: Source, options: GenerationOptions) -> Iterator[Piece]:
        """Return the pieces of one answer as they are generated."""
        states = self.texts.states([text], options)
        return (piece for _, piece in self._held(lambda: self._pieces(states)))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let other threads wait, because a text changes the cache. Raises InputError if this thread has an active stream."""
        me = threading.get_ident()
        if self._holder == me:  # waiting for the lock would be a deadlock
            do = "Read it to its end, or call its close()."
            raise InputError(
                f"language model {self.checkpoint.name}", "has another active stream on this thread", do=do
            )
        with self._lock:
            self._holder = me
            try:
                yield
            finally:
                self._holder = None

    def _together(
        self, states: list[AnswerState], on_piece: Callable[[str], object] | None
    ) -> list[Completion]:
        """Return the answers of texts that are decoded together."""
        start = first_token_time = time.perf_counter()
        pieces: list[list[Piece]] = [[] for _ in states]
        ended = [start] * len(states)
        started = False
        for row, piece in self._held(lambda: self._pieces(states)):
            if not started:
                first_token_time, started = time.perf_counter(), True
            pieces[row].append(piece)
            if on_piece is not None and piece.text:
                with foreign():
                    on_piece(piece.text)
            if piece.finish:
                ended[row] = time.perf_counter()
        return [
            state.completion(answer, answer[-1].finish, first_token_time - start, end - first_token_time)
            for state, answer, end in zip(states, pieces, ended, strict=True)
        ]

    def _held(self, work: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        """Yield what ``work`` yields while other threads wait."""
        with self.exclusive():
            yield from work()

    def _pieces(self, states: list[AnswerState]) -> Iterator[tuple[int, Piece]]:
        """Yield (index of a text, piece of its answer)."""
        if states[0].options.drafts:
            yield from ((0, piece) for piece in self._speculated(states[0]))
            return
        # Token and position of the next cache row of each text. Those of a finished text no longer change.
        tokens, positions = [s.prompt[-1] for s in states], [len(s.prompt) - 1 for s in states]
        live = set(range(len(states)))
        if sources := [s.source for s in states if s.source is not None]:
            self.steps.encode(sources)
        self.steps.read([s.prompt for s in states])
        options = states[0].options
        most_likely, on_device, counts = options.most_likely, options.on_device, options.counts
        settings = [options.sampling.settings] * len(states)
        selected = most_likely  # the tokens of the last step are there
        while True:
            for row in sorted(live):
                state = states[row]
                logits = self.steps.logits[row] if most_likely or not selected else None
                token = state.next_token(int(self.steps.token[row]) if selected else None, logits)
                piece = state.accept(token, logits)
                if piece.finish:
                    live.discard(row)
                else:
                    tokens[row], positions[row] = token, len(state.prompt) + len(state.tokens) - 1
                yield row, piece
            if not live:
                return
            if most_likely or not on_device:
                self.steps.step(tokens, positions)
                continue
            if counts and not selected:
                self.steps.write_counts([s.counts for s in states if s.counts is not None])
            selected = True
            self.steps.sample(tokens, positions, settings, [s.numbers for s in states])

    def _speculated(self, state: AnswerState) -> Iterator[Piece]:
        """Yield the pieces of one answer, with guesses of the next tokens that runs of several tokens check."""
        options = state.options
        if options.assistant_model is None:
            drafter: Drafter = PromptLookup(options.max_matching_ngram_size)
            yield from speculated(self.steps, state, drafter, options.drafts, self.drafts)
            return
        with self._draft_model(options.assistant_model) as drafter:
            yield from speculated(self.steps, state, drafter, options.drafts, self.drafts)

    def _beams(self, states: list[AnswerState], options: GenerationOptions) -> Iterator[Completion]:
        """Yield the best answers of a beam search. ``states``: those of the answers to one text."""
        prompt, source = states[0].prompt, states[0].source
        who, beams = f"language model {self.checkpoint.name}", options.num_beams
        if beams > self.steps.batch:
            do = f"Open the model with batch={beams} or more."
            raise InputError(
                who, f"decodes {self.steps.batch} texts together, fewer than num_beams", got=beams, do=do
            )
        start = first_token_time = time.perf_counter()
        if source is not None:
            self.steps.encode([source] * beams)
        logits = self.steps.read([prompt] * beams)
        first_token_time = time.perf_counter()
        search = beam_search(prompt, options, beam_limit(options, len(prompt), self.capacity), logits)
        position, best = len(prompt) - 1, []
        try:
            rows, tokens = next(search)
            while True:
                position += 1
                self.steps.reorder(rows)
                rows, tokens = search.send(self.steps.step(tokens, [position] * beams))
        except StopIteration as end:
            best = end.value
        seconds = (first_token_time - start, time.perf_counter() - first_token_time)
        for state, beam in zip(states, best, strict=False):
            pieces = [state.accept(token) for token in beam.tokens]
            yield replace(state.completion(pieces, pieces[-1].finish, *seconds), score=beam.score)

    def _most_likely(self, source: Source, start: int, tokens: Sequence[int]) -> int:
        """Return the most likely of some tokens after a source and a first token."""

        def read() -> Iterator[Array]:
            self.steps.encode([source])
            yield self.steps.read([[start]])[0, list(tokens)]

        (logits,) = self._held(read)
        return tokens[int(np.argmax(logits))]
