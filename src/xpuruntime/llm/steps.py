"""Steps: prefill and decode of a program over its KV cache, for a fixed batch of texts.

A prompt is prefilled in chunks of the prefill lengths. Rows beyond the end of a text repeat its last token at its position, so they
write the same values to the cache again. The texts of a batch may therefore differ in length, and a finished text keeps its position.

Some lengths have an entry point for the first chunk, whose rows are at positions 0, 1, 2 ... There, rows beyond the end of a text write to
positions behind it, which no token sees before it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import InputError, OutOfMemory
from ..printable import logger
from ..program.program import CompiledProgram
from ..protocols import Array
from ..runtime import Communicator, Executor, Weights, empty_pinned
from ..runtime.backends.base import RuntimeBackend
from ..runtime.execution.demands import SETTLED
from ..storage.store import Store
from ..types import DType
from .build import (
    DECODE,
    ENCODE,
    FIRST,
    SAMPLE,
    VERIFY,
    encode_name,
    first_name,
    prefill_name,
    verify_name,
)
from .chunks import chunk_length
from .decoder import COUNTS, SOURCE
from .decoding.sources import source_inputs, source_rows
from .reorder import reorder_program

__all__ = ["Further", "Steps", "fetched_array"]

_log = logger("xpuruntime.session")

Further: TypeAlias = "Callable[[str], tuple[CompiledProgram, Weights]]"

_CACHES = ("keys", "values", "latent")
"""Kinds of states that belong to the decoder's texts."""
_IDLE_SETTINGS, _IDLE_NUMBERS = (0.0, 1.0, float("inf"), 1.0, 0.0, 0.0), (0, 0, 0, 0, 0)
"""Operands of ``sample_token`` for rows without a text."""


def fetched_array(shape: tuple[int, ...], dtype: DType, backend: RuntimeBackend) -> Array:
    """Return an array of zeros that runs of this backend fetch large outputs into: page-locked where the device copies into it directly."""
    if not backend.stages:
        return np.zeros(shape, dtype.numpy)
    array = empty_pinned(shape, dtype, backend)
    array.fill(0)
    return array


def _length(entry: str) -> int:
    """Return the length of an entry point that is named by it."""
    return int(entry.rpartition("_")[2])


def _lengths(names: Collection[str], named: Callable[[int], str]) -> list[int]:
    """Return the lengths of the entry points of one kind, ascending."""
    lengths = (_length(n) for n in names if "_" in n)
    return sorted(n for n in lengths if named(n) in names)


class Steps:
    """Executors of every entry point over shared states.

    token, logits: the most likely next token of each text, [batch], and its logits, [batch, vocab], after the last step.
    device, threads: as for ``Executor``.
    target: what further programs are compiled for.
    communicator: the rank of a decoder that is divided over several devices.
    further: returns the program and the weights of an entry point that the program lacks (``sample``, ``verify_N``).
    store:   as for ``Executor``.
    later:   entry points of further prefill lengths, which are made when a prompt first needs them.
    fixed:   the time of a chunk apart from its tokens, as for ``chunk_length``.
    last:    the inputs of the last run of each entry point.
    """

    def __init__(
        self, program: CompiledProgram, weights: Weights, *, batch: int, vocab: int, dtype: DType, device: Any = "cpu",
        threads: int | None = None, target: Any = None, further: Further | None = None, communicator: Communicator | None = None,
        store: Store | None = None, later: Sequence[str] = (), fixed: int = 0,
    ) -> None:  # fmt: skip
        self.batch, self._vocab, self._dtype = batch, vocab, dtype
        self._target, self._device, self._threads = target, device, threads
        self._communicator, self._store = communicator, store
        self._reorders: dict[tuple[str, ...], Executor] = {}
        self._further = further
        self._opened: dict[str, Executor] = {}
        self.last: dict[str, list[Any]] = {}
        self.decode = Executor(
            program,
            device,
            threads=threads,
            entry=DECODE,
            contexts=1,
            policy=SETTLED,
            communicator=communicator,
            store=store,
        )
        self.states = self.decode.states
        self._opened[DECODE] = self.decode
        for entry in program.entries:
            if entry.name != DECODE and not entry.is_body:
                self._open(program, entry.name)
        lengths = _lengths(self._opened, prefill_name)
        self.prefill = {n: self._opened[prefill_name(n)] for n in lengths}
        self._readers = {*self._opened, *later}
        self._later, self._fixed = frozenset(later), fixed
        self.encoders = {n: self._opened[encode_name(n)] for n in _lengths(self._opened, encode_name)}
        for executor in self.executors:
            executor.bind(weights)
        self._source: list[Array] = [np.ones(batch, np.int64)] if self.encoders else []
        self.token = np.zeros(batch, np.int64)
        self.logits = fetched_array((batch, vocab), dtype, self.decode.backend)
        self._checked = np.zeros((0, vocab), dtype.numpy)

    def _open(self, program: CompiledProgram, entry: str) -> Executor:
        self.states.include(program, self.decode.backend)
        executor = self._opened[entry] = Executor(
            program,
            self._device,
            threads=self._threads,
            entry=entry,
            contexts=1,
            states=self.states,
            policy=SETTLED,
            communicator=self._communicator,
            store=self._store,
        )
        return executor

    def executor(self, entry: str) -> Executor:
        """Return the executor of an entry point. One that the program lacks is made at the first call. Raises InputError, BuildError."""
        if entry not in self._opened:
            if self._further is None:
                raise InputError(
                    "language model",
                    f"has no program {entry}",
                    do="Open the model with the capacity and buckets that the call needs.",
                )
            program, weights = self._further(entry)
            self._open(program, entry).bind(weights)
        return self._opened[entry]

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Return the executors that are open: that of decode, those of the prefill lengths, those of first chunks, then those that were made when needed."""
        return tuple(self._opened.values())

    def unit(self, entry: str) -> str:
        """Return what one run of an entry point computes."""
        units = {
            VERIFY: "several tokens of one text",
            ENCODE: "a source",
            "prefill": "a chunk",
            FIRST: "a first chunk",
        }
        return units.get(entry.partition("_")[0], "a token of each text")

    def encode(self, sources: Sequence[Sequence[int] | Array]) -> list[Array]:
        """Encode a text, or frames of audio, [features, frames], for each text of the batch. Return the encoder's outputs, [length, hidden].

        A source that several texts share (the same object) is encoded once.
        """
        first = [next(i for i, s in enumerate(sources) if s is source) for source in sources]
        outputs = {i: self._encoded(sources[i], i) for i in dict.fromkeys(first)}
        counts = [len(outputs[i]) for i in first]
        self._source = [np.array([*counts, *[1] * (self.batch - len(counts))], np.int64)]
        if first != list(range(len(first))):
            self._gather(first, SOURCE)
        return [outputs[i] for i in first]

    def _encoded(self, source: Sequence[int] | Array, row: int) -> Array:
        """Encode one source for the text of a row."""
        length, *inputs = source_inputs(source, self.encoders, self.logits.dtype)
        executor = self.encoders[length]
        encoded = np.zeros((1, length, self._hidden(executor)), self.logits.dtype)
        self._run(executor, [*inputs, np.array([row], np.int64)], [encoded])
        return encoded[0, : source_rows(source)]

    @staticmethod
    def _hidden(executor: Executor) -> int:
        """Return the size of a row of the encoder's output."""
        return int(executor.entry.outputs[0].shape[2])  # type: ignore[arg-type]

    def read(self, texts: Sequence[Sequence[int]], start: int = 0) -> Array:
        """Prefill texts from position ``start``. Return the logits of the next token of each (valid until the next step)."""
        texts = self._padded(texts)
        position, longest = 0, max(map(len, texts))
        while position < longest:
            length = chunk_length(longest - position, _lengths(self._readers, prefill_name), self._fixed)
            is_first = start + position == 0 and first_name(length) in self._readers
            entry = DECODE if length == 1 else first_name(length) if is_first else prefill_name(length)
            rows = [np.minimum(position + np.arange(length), len(t) - 1) for t in texts]
            tokens = np.array([np.asarray(t, np.int64)[r] for t, r in zip(texts, rows, strict=True)])
            last = np.arange(1, self.batch + 1, dtype=np.int64) * length - 1
            positions = np.array(rows, np.int64) + start
            if is_first:
                positions = np.tile(np.arange(length, dtype=np.int64), (self.batch, 1))
                last -= [max(0, length - len(t)) for t in texts]
            if self._prefilled(entry, [tokens, positions, *self._source, last]):
                position += length
        return self.logits

    def _prefilled(self, entry: str, inputs: list[Any]) -> bool:
        """Prefill a chunk. Return False if there is no memory for an entry point that is made later: those of its length and above that are not open are then given up."""
        try:
            self._run(self.executor(entry), inputs, [self.token, self.logits])
        except OutOfMemory as error:
            if entry not in self._later:
                raise
            _log.warning("language model: long prompts are read in shorter chunks; %s", error)
            absent = self._later - self._opened.keys()
            self._readers -= {name for name in absent if _length(name) >= _length(entry)}
            return False
        return True

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Array:
        """Decode one token of each text. Return the logits of the next tokens (valid until the next step)."""
        idle = [0] * (self.batch - len(tokens))
        columns = [np.array([*x, *idle], np.int64)[:, None] for x in (tokens, positions)]
        last = np.arange(self.batch, dtype=np.int64)
        self._run(self.decode, [*columns, *self._source, last], [self.token, self.logits])
        return self.logits

    def verify(self, tokens: Sequence[int], start: int, length: int) -> Array:
        """Read tokens of the first text from position ``start``, in a run of ``length`` tokens. Return the logits after each (valid until the
        next call).
        """
        executor, count = self.executor(verify_name(length)), len(tokens)
        rows = np.minimum(np.arange(length), count - 1)
        inputs = [np.zeros((self.batch, length), np.int64) for _ in range(2)]
        inputs[0][0], inputs[1][0] = np.asarray(tokens, np.int64)[rows], rows + start
        last = np.arange(1, self.batch + 1, dtype=np.int64) * length - 1
        if len(self._checked) != self.batch * length:
            shape = (self.batch * length, self._vocab)
            self._checked = fetched_array(shape, self._dtype, self.decode.backend)
        self._run(executor, [*inputs, last], [self.token, self._checked])
        return self._checked[:count]

    def _run(self, executor: Executor, inputs: list[Any], out: list[Any]) -> None:
        self.last[executor.entry.name] = inputs
        executor.run_arrays(inputs, out)

    def sample(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        settings: Sequence[Sequence[float]],
        numbers: Sequence[Sequence[int]],
    ) -> Array:
        """Decode one token of each text, and return the sampled next tokens. ``settings``, ``numbers``: as for ``sample_token``."""
        idle = self.batch - len(tokens)
        columns = [np.array([*x, *[0] * idle], np.int64)[:, None] for x in (tokens, positions)]
        rows = [
            np.array([*settings, *[_IDLE_SETTINGS] * idle], np.float32),
            np.array([*numbers, *[_IDLE_NUMBERS] * idle], np.int64),
        ]
        last = np.arange(self.batch, dtype=np.int64)
        self._run(self.executor(SAMPLE), [*columns, *self._source, last, *rows], [self.token])
        return self.token

    def write_counts(self, rows: Sequence[Array]) -> None:
        """Set the counts of each text for ``sample``."""
        self.executor(SAMPLE)  # has these states
        counts = np.zeros(self.states[COUNTS].shape, np.int32)
        counts[: len(rows)] = rows
        self.states.write(COUNTS, counts)

    def reorder(self, rows: Sequence[int]) -> None:
        """Give text i the cache of text ``rows[i]``, but not the encoder's output. Texts beyond ``rows`` keep theirs."""
        if list(rows) == list(range(len(rows))):
            return
        self._gather(rows, _CACHES)

    def _gather(self, rows: Sequence[int], kinds: tuple[str, ...]) -> None:
        """Give text i the states of these kinds of text ``rows[i]``."""
        if kinds not in self._reorders:
            refs = [s for s in self.decode.program.states if s.name.partition(".")[0] in kinds]
            program = reorder_program(refs, self.batch, self._target)
            self._reorders[kinds] = Executor(
                program,
                self._device,
                threads=self._threads,
                contexts=1,
                states=self.states,
                policy=SETTLED,
                store=self._store,
            )
        everyone = [*rows, *range(len(rows), self.batch)]
        self._reorders[kinds].run_arrays([np.array(everyone, np.int64)], [])

    def close(self) -> None:
        """Close the executors."""
        for executor in (*self.executors, *self._reorders.values()):
            executor.close()

    def _padded(self, texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Pad the list of texts to the batch size with texts of one token."""
        return [*texts, *([[0]] * (self.batch - len(texts)))]
