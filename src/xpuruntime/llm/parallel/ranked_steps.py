"""RankedSteps: the steps of a decoder that is divided over several devices.

All ranks are threads of one process. The caller's thread is rank 0: it decides what runs, and every rank runs it at the same time on its own
part of the weights and of the cache. The core releases the GIL during a run, so the threads do not hinder each other; a process for each rank
would need a launcher, and a copy of every input and of every decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...protocols import Array
from ...runtime import Executor, Weights
from ...runtime.collectives.rank_threads import RankThreads
from ..steps import Steps, fetched_array

__all__ = ["RankedSteps"]


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
        self._arrays: dict[tuple[Any, ...], Array] = {}
        super().__init__(program, weights, communicator=ranks.communicators[0], **words)

    def executor(self, entry: str) -> Executor:
        """Return the executor of an entry point on rank 0. One that the program lacks is made on every rank at the first call."""
        for steps in self._others:
            steps.executor(entry)
        return super().executor(entry)

    def _run(self, executor: Executor, inputs: list[Any], out: list[Any]) -> None:
        entry = executor.entry.name
        self.last[entry] = inputs

        def work(rank: int) -> None:
            if rank == 0:
                executor.run_arrays(inputs, out)
                return
            other = self._others[rank - 1]._opened[entry]
            outputs = self._outputs.get((rank, entry))
            if outputs is None:
                outputs = self._outputs[rank, entry] = self._unread_outputs(rank, other)
            other.run_arrays(inputs, outputs)

        self.ranks.run(work)

    def _unread_outputs(self, rank: int, executor: Executor) -> list[Array]:
        """Return arrays for the outputs of another rank, which nobody reads. Entry points with equal outputs share them."""
        arrays = []
        for index, spec in enumerate(executor.entry.outputs):
            shape = tuple(int(d) for d in spec.shape)  # type: ignore[arg-type]
            key = (rank, index, shape, spec.dtype)
            if key not in self._arrays:
                self._arrays[key] = fetched_array(shape, spec.dtype, executor.backend)
            arrays.append(self._arrays[key])
        return arrays

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
        self._outputs.clear()
        self._arrays.clear()
