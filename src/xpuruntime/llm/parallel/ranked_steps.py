"""RankedSteps: the steps of a decoder that is divided over several devices.

All ranks are threads of one process. The caller's thread is rank 0: it decides what runs, and every rank runs it at the same time on its own
part of the weights and of the cache. The core releases the GIL during a run, so the threads do not hinder each other; a process for each rank
would need a launcher, and a copy of every input and of every decision.

A thread takes some time to wake. On GPUs, an entry point that has run before is therefore queued on all devices by the caller's thread, and the
other threads only wait for the end on their devices, so that a rank that fails ends the wait of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...protocols import Array
from ...runtime import Executor, Weights, empty_pinned
from ...runtime.collectives.rank_threads import RankThreads
from ..steps import Steps

__all__ = ["RankedSteps"]


_OWN_THREAD_RUNS = 2
"""Runs of an entry point in a thread for each rank: libraries initialize themselves in the first, and the second records a graph."""


class _Queued:
    """Runs of an executor that are queued on a stream of its own, with page-locked arrays for their inputs and outputs."""

    def __init__(self, executor: Executor) -> None:
        def array(spec: Any) -> Array:
            return empty_pinned(spec.shape, spec.dtype, executor.backend)

        self._executor, self._stream = executor, executor.backend.new_stream()
        self._inputs = [array(s) for s in executor.entry.inputs]
        self._outputs = [array(s) for s in executor.entry.outputs]

    def run(self, inputs: Sequence[Any]) -> None:
        """Queue a run. The previous one has ended."""
        for own, given in zip(self._inputs, inputs, strict=True):
            np.copyto(own, given)
        self._executor.run_arrays(self._inputs, self._outputs, stream=self._stream.handle)

    def wait(self) -> None:
        """Wait for the run."""
        self._executor.backend.wait(self._stream.handle)


class RankedSteps(Steps):
    """The steps of rank 0, which the other ranks take, too.

    ranks: the threads. others: the steps of the other ranks, whose programs are equal. The other parameters are those of ``Steps``.
    """

    def __init__(
        self,
        program: Any,
        weights: Weights,
        *,
        ranks: RankThreads,
        others: Sequence[Steps],
        **words: Any,
    ) -> None:
        self.ranks, self._others = ranks, tuple(others)
        self._outputs: dict[tuple[int, str], list[Array]] = {}
        self._runs: dict[str, int] = {}
        self._queued: dict[tuple[int, str], _Queued] = {}
        super().__init__(program, weights, communicator=ranks.communicators[0], **words)

    def executor(self, entry: str) -> Executor:
        """Return the executor of an entry point on rank 0. One that the program lacks is made on every rank at the first call."""
        for steps in self._others:
            steps.executor(entry)
        return super().executor(entry)

    def _run(self, executor: Executor, inputs: list[Any], out: list[Any]) -> None:
        entry = executor.entry.name
        self.last[entry] = inputs
        runs = self._runs[entry] = self._runs.get(entry, 0) + 1

        def work(rank: int) -> None:
            if rank == 0:
                executor.run_arrays(inputs, out)
                return
            outputs = self._outputs.get((rank, entry))
            self._outputs[rank, entry] = self._other(rank, entry).run_arrays(inputs, outputs)

        def wait(rank: int) -> None:
            if rank == 0:
                executor.run_arrays(inputs, out)
            else:
                self._queued[rank, entry].wait()

        if runs <= _OWN_THREAD_RUNS or not executor.backend.stages:
            self.ranks.run(work)
            return
        for rank in range(1, len(self._others) + 1):
            key = (rank, entry)
            if key not in self._queued:
                self._queued[key] = _Queued(self._other(rank, entry))
        self.ranks.run(wait, lambda rank: self._queued[rank, entry].run(inputs))

    def _other(self, rank: int, entry: str) -> Executor:
        return self._others[rank - 1]._opened[entry]

    def write_counts(self, rows: Sequence[Array]) -> None:
        """Set the counts of each text for ``sample``."""
        super().write_counts(rows)
        for steps in self._others:
            steps.write_counts(rows)

    def _gather(self, rows: Sequence[int], kinds: tuple[str, ...]) -> None:
        super()._gather(rows, kinds)
        for steps in self._others:
            steps._gather(rows, kinds)

    def close(self) -> None:
        """Close the executors of all ranks, and the group."""
        super().close()
        for steps in self._others:
            steps.close()
        self.ranks.close()
