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
from ..build import DECODE, SAMPLE
from ..paged import PagedCache
from .build import entry_name
from .scheduler import Chunk

__all__ = ["BatchSteps"]

_IDLE_SETTINGS, _IDLE_NUMBERS = (0.0, 1.0, float("inf"), 1.0, 0.0, 0.0), (0, 0, 0, 0, 0)
"""Operands of ``sample_token`` for rows without a text."""


class BatchSteps:
    """Steps of several sizes. A step runs in the smallest one that it fits.

    further: returns a program with more entry points, and its weights. store: as for ``Executor``.

    token, logits: results of the last step, one row for each chunk that ends, in their order.
    """

    def __init__(
        self, program: CompiledProgram, weights: Weights, cache: PagedCache, *, sizes: Sequence[int], texts: int, vocab: int,
        dtype: DType, device: Any, threads: int | None, further: Callable[[Sequence[str]], tuple[CompiledProgram, Weights]],
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.cache, self.sizes, self.texts = cache, tuple(sizes), texts
        self._device, self._threads, self._further, self._store = device, threads, further, store
        self.executors: dict[str, Executor] = {}
        self._open(DECODE, program, weights)
        self.token = np.zeros(texts, np.int64)
        self.logits = np.zeros((texts, vocab), dtype.numpy)

    def _open(self, kind: str, program: CompiledProgram, weights: Weights) -> None:
        first = next(iter(self.executors.values()), None)
        if first is not None:
            first.states.include(program, first.backend)
        for size in self.sizes:
            entry = entry_name(kind, size)
            states = None if first is None else first.states
            executor = Executor(
                program, self._device, threads=self._threads, entry=entry, contexts=1, states=states, policy=SETTLED,
                store=self._store,
            )  # fmt: skip
            executor.bind(weights)
            self.executors[entry], first = executor, first or executor

    def open_sampling(self) -> None:
        """Open the steps that sample, if they are not open. Raises the errors of ``compile``."""
        entries = [entry_name(SAMPLE, size) for size in self.sizes]
        if entries[0] not in self.executors:
            self._open(SAMPLE, *self._further(entries))

    def run(
        self,
        chunks: Sequence[Chunk],
        settings: Sequence[Sequence[float]] = (),
        numbers: Sequence[Sequence[int]] = (),
    ) -> None:
        """Compute the chunks. With ``settings`` and ``numbers`` of each chunk that ends, tokens are sampled, and there are no logits."""
        total = sum(c.count for c in chunks)
        size = next(s for s in self.sizes if s >= total)
        rows = min(size, self.texts)
        tokens, positions = np.zeros((size, 1), np.int64), np.zeros((size, 1), np.int64)
        places, last = np.zeros(size, np.int64), np.zeros(rows, np.int64)
        tables = np.zeros((size, self.cache.listed), np.int32)
        block_size, at, ends = self.cache.block_size, 0, []
        for chunk in chunks:
            start, to, text = chunk.start, at + chunk.count, chunk.text
            tokens[at:to, 0] = text.tokens[start : start + chunk.count]
            positions[at:to, 0] = range(start, start + chunk.count)
            tables[at:to, : len(text.blocks)] = text.table[: len(text.blocks)]
            if chunk.ends:
                ends.append(to - 1)
            at = to
        last[: len(ends)] = ends
        used = np.arange(at)
        place = positions[:at, 0]
        places[:at] = tables[used, place // block_size] * block_size + place % block_size
        inputs = [tokens, positions, places, tables, last]
        if not settings:
            executor = self.executors[entry_name(DECODE, size)]
            executor.run_arrays(inputs, [self.token[:rows], self.logits[:rows]])
            return
        idle = rows - len(settings)
        inputs.append(np.array([*settings, *[_IDLE_SETTINGS] * idle], np.float32))
        inputs.append(np.array([*numbers, *[_IDLE_NUMBERS] * idle], np.int64))
        self.executors[entry_name(SAMPLE, size)].run_arrays(inputs, [self.token[:rows]])

    def close(self) -> None:
        """Close the executors."""
        for executor in self.executors.values():
            executor.close()
