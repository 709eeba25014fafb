"""BatchSteps: executors of a batch's program over one paged cache, and the arrays of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...program.program import CompiledProgram
from ...runtime import Executor, Weights
from ...runtime.execution.demands import SETTLED
from ...storage.store import Store
from ...types import DType
from ..answers import Source
from ..build import DECODE, ENCODE, SAMPLE
from ..decoding.sources import source_inputs
from ..paged import PagedCache
from ..steps import fetched_array
from .build import entry_name
from .scheduler import Chunk

__all__ = ["BatchSteps"]

_IDLE_SETTINGS, _IDLE_NUMBERS = (0.0, 1.0, float("inf"), 1.0, 0.0, 0.0), (0, 0, 0, 0, 0)
"""Operands of ``sample_token`` for rows without a text."""


class BatchSteps:
    """Steps of several sizes. A step runs in the smallest one that it fits.

    further: returns the program of more entry points, and its weights. store: as for ``Executor``.
    source_capacity: rows of a source of an encoder-decoder; 0 without an encoder.
    results: maximum tokens of a step after which another one is chosen.

    token, logits: results of the last step, one row for each of these tokens, in their order.
    last:          the inputs of the last run of each entry point.
    """

    def __init__(
        self, program: CompiledProgram, weights: Weights, cache: PagedCache, *, sizes: Sequence[int], results: int, vocab: int,
        dtype: DType, device: Any, threads: int | None, source_capacity: int, further: Callable[..., tuple[CompiledProgram, Weights]],
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.cache, self.sizes, self.results = cache, tuple(sizes), results
        self._device, self._threads, self._further, self._store = device, threads, further, store
        self._opened: dict[str, Executor] = {}
        self.last: dict[str, list[Any]] = {}
        self._source_capacity = source_capacity
        self._open([entry_name(DECODE, size) for size in self.sizes], program, weights)
        encoders = [e.name for e in program.entries if e.name.startswith(ENCODE)]
        self._open(encoders, program, weights)
        self._encoders = {int(name.rpartition("_")[2]): name for name in encoders}
        self.token = np.zeros(results, np.int64)
        self.logits = fetched_array((results, vocab), dtype, next(iter(self._opened.values())).backend)

    def _open(self, entries: Sequence[str], program: CompiledProgram, weights: Weights) -> None:
        first = next(iter(self._opened.values()), None)
        if first is not None:
            first.states.include(program, first.backend)
        for entry in entries:
            states = None if first is None else first.states
            executor = Executor(
                program, self._device, threads=self._threads, entry=entry, contexts=1, states=states, policy=SETTLED,
                store=self._store,
            )  # fmt: skip
            executor.bind(weights)
            self._opened[entry], first = executor, first or executor

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Return the executors that are open, that of the smallest step first."""
        return tuple(self._opened.values())

    def unit(self, entry: str) -> str:
        """Return what one run of an entry point computes."""
        if entry.startswith(ENCODE):
            return "a source"
        return f"up to {entry.rpartition('_')[2]} tokens of any texts"

    def open_sampling(self) -> None:
        """Open the steps that sample, if they are not open. Raises the errors of ``compile``."""
        entries = [entry_name(SAMPLE, size) for size in self.sizes]
        if entries[0] not in self._opened:
            self._open(entries, *self._further(*entries))

    def encode(self, source: Source, slot: int) -> None:
        """Encode a source into a slot."""
        length, *inputs = source_inputs(source, self._encoders, self.logits.dtype)
        entry = self._encoders[length]
        hidden = int(self._opened[entry].entry.outputs[0].shape[2])  # type: ignore[arg-type]
        encoded = np.zeros((1, length, hidden), self.logits.dtype)
        places = slot * self._source_capacity + np.arange(length)
        self._run(entry, [*inputs, places], [encoded])

    def run(
        self,
        chunks: Sequence[Chunk],
        settings: Sequence[Sequence[float]] = (),
        numbers: Sequence[Sequence[int]] = (),
    ) -> None:
        """Compute the chunks. With ``settings`` and ``numbers`` of each result, tokens are sampled, and there are no logits."""
        total = sum(c.count + len(c.drafts) for c in chunks)
        size = next(s for s in self.sizes if s >= total)
        rows = min(size, self.results)
        tokens, positions = np.zeros((size, 1), np.int64), np.zeros((size, 1), np.int64)
        places, last = np.zeros(size, np.int64), np.zeros(rows, np.int64)
        tables = np.zeros((size, self.cache.listed), np.int32)
        source_ends, source_tables = np.full((size, 1), -1, np.int64), np.zeros((size, 1), np.int32)
        ends: list[int] = []
        block_size, at = self.cache.block_size, 0
        for chunk in chunks:
            text, read = chunk.text, chunk.tokens
            to = at + len(read)
            tokens[at:to, 0] = read
            positions[at:to, 0] = range(chunk.start, chunk.start + len(read))
            tables[at:to, : len(text.blocks)] = text.table[: len(text.blocks)]
            source_ends[at:to], source_tables[at:to] = text.source_rows - 1, max(text.slot, 0)
            ends += range(to - chunk.results, to)
            at = to
        last[: len(ends)] = ends
        used = np.arange(at)
        place = positions[:at, 0]
        places[:at] = tables[used, place // block_size] * block_size + place % block_size
        sources = [source_ends, source_tables] if self._encoders else []
        inputs = [tokens, positions, *sources, places, tables, last]
        if not settings:
            self._run(entry_name(DECODE, size), inputs, [self.token[:rows], self.logits[:rows]])
            return
        idle = rows - len(settings)
        inputs.append(np.array([*settings, *[_IDLE_SETTINGS] * idle], np.float32))
        inputs.append(np.array([*numbers, *[_IDLE_NUMBERS] * idle], np.int64))
        self._run(entry_name(SAMPLE, size), inputs, [self.token[:rows]])

    def _run(self, entry: str, inputs: list[Any], out: list[Any]) -> None:
        self.last[entry] = inputs
        self._opened[entry].run_arrays(inputs, out)

    def close(self) -> None:
        """Close the executors."""
        for executor in self._opened.values():
            executor.close()
