"""BatchSteps: executors of a batch's program over one paged cache, and the arrays of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...program.program import CompiledProgram
from ...runtime import Executor, Weights
from ...runtime.execution.demands import SETTLED
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

    further: returns the program of more entry points, and its weights.
    last:    the inputs of the last run of each entry point.

    token, logits: results of the last step, one row for each chunk that ends, in their order.
    """

    def __init__(
        self, program: CompiledProgram, weights: Weights, cache: PagedCache, *, sizes: Sequence[int], texts: int, vocab: int,
        dtype: DType, device: Any, threads: int | None, further: Callable[..., tuple[CompiledProgram, Weights]],
    ) -> None:  # fmt: skip
        self.cache, self.sizes, self.texts = cache, tuple(sizes), texts
        self._device, self._threads, self._further = device, threads, further
        self._opened: dict[str, Executor] = {}
        self.last: dict[str, list[Any]] = {}
        self._open(DECODE, program, weights)
        self.token = np.zeros(texts, np.int64)
        self.logits = np.zeros((texts, vocab), dtype.numpy)

    def _open(self, kind: str, program: CompiledProgram, weights: Weights) -> None:
        first = next(iter(self._opened.values()), None)
        if first is not None:
            first.states.include(program, first.backend)
        for size in self.sizes:
            entry = entry_name(kind, size)
            states = None if first is None else first.states
            executor = Executor(
                program, self._device, threads=self._threads, entry=entry, contexts=1, states=states, policy=SETTLED
            )  # fmt: skip
            executor.bind(weights)
            self._opened[entry], first = executor, first or executor

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Return the executors that are open, that of the smallest step first."""
        return tuple(self._opened.values())

    def unit(self, entry: str) -> str:
        """Return what one run of an entry point computes."""
        return f"up to {entry.rpartition('_')[2]} tokens of any texts"

    def open_sampling(self) -> None:
        """Open the steps that sample, if they are not open. Raises the errors of ``compile``."""
        entries = [entry_name(SAMPLE, size) for size in self.sizes]
        if entries[0] not in self._opened:
            self._open(SAMPLE, *self._further(*entries))

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
