"""Schedule: steps that read and write named values. Each runs as soon as its inputs exist.

A step is a function, and this module knows no graphs or engines. Independent steps run concurrently. The caller's thread runs steps,
too, so a chain of steps stays on one thread.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Schedule", "Step"]

Values: TypeAlias = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work: its name, the values it reads and the values it writes. after: values that must exist, although it does not read them."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    after: tuple[str, ...] = ()


class Schedule:
    """Steps in topological order, and threads to run them. Several threads may call ``run`` at once.

    keep: values to keep after a run. Every other value is dropped after its last reader.
    """

    def __init__(
        self, steps: Sequence[Step], keep: Sequence[str] = (), *, threads: int | None = None
    ) -> None:
        self.steps = tuple(steps)
        producer = {v: i for i, s in enumerate(self.steps) for v in s.outputs}
        waits = [{producer[v] for v in (*s.inputs, *s.after) if v in producer} for s in self.steps]
        self._waits = tuple(len(w) for w in waits)
        self._next: tuple[tuple[int, ...], ...] = tuple(
            tuple(j for j, w in enumerate(waits) if i in w) for i in range(len(self.steps))
        )
        self._readers = Counter(v for s in self.steps for v in dict.fromkeys(s.inputs))
        self._readers.update(keep)
        self.width = _width(waits)
        self._pool: ThreadPoolExecutor | None = None
        self._threads = min(self.width, threads or os.cpu_count() or 1) - 1
        self._lock = threading.Lock()

    def run(self, values: Values, work: Callable[[int, Mapping[str, Any]], Sequence[Any]]) -> None:
        """Run every step. ``work(index, values)`` returns the step's results in the order of its outputs.

        values: initial values by name; at the end it holds the kept results. After the first error of a step no further step starts; the
        error is raised here when the running steps have ended.
        """
        if not self._threads:
            remaining_reads = Counter(self._readers)
            for index in range(len(self.steps)):
                self._store(index, work(index, values), values, remaining_reads)
            return
        _Run(self, values, work).wait()

    def close(self) -> None:
        """Shut the threads down; a later run starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def pool(self) -> ThreadPoolExecutor:
        """Return the pool of further threads, in addition to the caller's."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "xpuruntime-dag")
            return self._pool

    def _store(
        self, index: int, results: Sequence[Any], values: Values, remaining_reads: Counter[str]
    ) -> None:
        """Store the results that a later step reads, and drop values after their last reader."""
        step = self.steps[index]
        for value, result in zip(step.outputs, results, strict=True):
            if remaining_reads[value]:
                values[value] = result
        for value in dict.fromkeys(step.inputs):
            remaining_reads[value] -= 1
            if not remaining_reads[value]:
                del values[value]


class _Run:
    """One run on several threads."""

    def __init__(
        self, schedule: Schedule, values: Values, work: Callable[[int, Mapping[str, Any]], Sequence[Any]]
    ) -> None:
        self.schedule, self.values, self.work = schedule, values, work
        self.left = Counter(schedule._readers)
        self.waits = list(schedule._waits)
        self.active = 0
        self.error: BaseException | None = None
        self.lock, self.done = threading.Lock(), threading.Event()

    def wait(self) -> None:
        first = [i for i, n in enumerate(self.waits) if not n]
        self.active = len(first)
        for index in first[1:]:
            self.schedule.pool().submit(self._chain, index)
        if first:
            self._chain(first[0])
            self.done.wait()
        if self.error is not None:
            raise self.error

    def _chain(self, index: int) -> None:
        """Run a step, then one step that it made ready, and so on. The other ready steps are submitted to other threads."""
        following: int | None = index
        while following is not None:
            following = self._step(following)

    def _step(self, index: int) -> int | None:
        ready: list[int] = []
        try:
            if self.error is None:
                results = self.work(index, self.values)
                with self.lock:
                    self.schedule._store(index, results, self.values, self.left)
                    for later in self.schedule._next[index]:
                        self.waits[later] -= 1
                        if not self.waits[later]:
                            ready.append(later)
                    self.active += len(ready)
        except BaseException as error:  # also KeyboardInterrupt: run() raises it in the caller's thread
            with self.lock:
                self.error = self.error or error
        for step in ready[1:]:
            self.schedule.pool().submit(self._chain, step)
        with self.lock:
            self.active -= 1
            if not self.active:
                self.done.set()
        return ready[0] if ready else None


def _width(waits: Sequence[set[int]]) -> int:
    """Return the largest number of steps at one depth, an estimate of the available parallelism."""
    depth: list[int] = []
    for w in waits:
        depth.append(1 + max((depth[i] for i in w), default=-1))
    return max(Counter(depth).values(), default=1)
