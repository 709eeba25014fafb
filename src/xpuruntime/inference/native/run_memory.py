"""RunMemory: the memory of one executable's runs, which its executors share, and its limit."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import EngineUnavailable, OutOfMemory
from ...program.live_bytes import peak_bytes
from ...runtime.backends.base import RuntimeBackend
from ...runtime.execution.executor import Executor

__all__ = ["RunMemory"]


class RunMemory:
    """Arenas for the runs of several executors, as many as there are runs at a time. ``arenas``: None on a device without shared ones."""

    def __init__(self, who: str, backend: RuntimeBackend) -> None:
        self._who, self._backend = who, backend
        self.arenas = backend.arena_pool()
        self._limit = 0

    def report(self, executors: Sequence[Executor]) -> dict[str, int]:
        """Return the bytes of weights, states and runs of these executors, and the least that they need."""
        if self.arenas is None:
            return {}
        weights, states = self._fixed(executors)
        runs = self.arenas.peak_bytes
        least = max((self._least(e) for e in executors), default=0)
        return {
            "weights": weights,
            "states": states,
            "runs": runs,
            "peak": weights + states + runs,
            "bound": weights + states + least,
            "limit": self._limit,
        }

    def limit(self, size: int, executors: Sequence[Executor]) -> None:
        """Limit the bytes of all. Raises OutOfMemory if they do not fit, EngineUnavailable for executors whose runs cannot be limited."""
        if self.arenas is None:
            problem = "memory_bytes cannot be enforced: runs have memory of their own"
            got, do = f"device {self._backend.device}", "Drop memory_bytes, or use device='cpu' or 'cuda'."
            raise EngineUnavailable(self._who, problem, got=got, do=do)
        self._limit = max(size, 1)
        for executor in executors:
            self._check(executor, executors)
        self.arenas.trim()

    def admit(self, executor: Executor, others: Sequence[Executor]) -> None:
        """Count in a new executor. Close it and raise the errors of ``limit`` if it does not fit."""
        if not self._limit:
            return
        try:
            self._check(executor, [*others, executor])
        except (OutOfMemory, EngineUnavailable):
            executor.close()
            raise

    def close(self) -> None:
        """Free the memory of runs, which have ended."""
        if self.arenas is not None:
            self.arenas.trim()

    def _check(self, executor: Executor, executors: Sequence[Executor]) -> None:
        if executor.has_bodies:
            problem = "memory_bytes cannot be enforced: branches and loops have memory of their own"
            raise EngineUnavailable(self._who, problem, do="Drop memory_bytes for this model.")
        fixed = sum(self._fixed(executors))
        if fixed + executor.run_bytes > self._limit:
            got = f"{fixed} bytes of weights and states, {executor.run_bytes} for a run; memory_bytes is {self._limit}"
            do = "Raise memory_bytes, or use smaller shapes or a precision of fewer bits."
            raise OutOfMemory(self._who, "does not fit the memory that its policy allows", got=got, do=do)
        assert self.arenas is not None
        self.arenas.set_limit(max(self._limit - fixed, 1))

    @staticmethod
    def _fixed(executors: Sequence[Executor]) -> tuple[int, int]:
        """Return the bytes of weights and of states, each buffer once."""
        weights = {id(b): b.size_bytes for e in executors for b in (e.weights or {}).values()}
        states = {id(b): b.size_bytes for e in executors for b in e.states.values()}
        return sum(weights.values()), sum(states.values())

    def _least(self, executor: Executor) -> int:
        """Return the bytes that one run needs without gaps between its values: with copies of host arrays, if there were any."""
        entry, staged = executor.entry, executor.counters["sent"] + executor.counters["fetched"]
        specs = (*entry.inputs, *entry.outputs) if staged else ()
        return peak_bytes(executor.plan) + sum(s.size_bytes or 0 for s in specs)
