"""A bounded cache of executors by shapes, with least-recently-used eviction."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ...runtime.execution.executor import Executor

__all__ = ["Buckets", "Shapes"]

Shapes = tuple[tuple[str, int], ...]


class Buckets:
    """Executors by shapes, safe from several threads.

    An evicted executor is not closed: a run in progress finishes, and then the memory is freed.

    limit: the highest number of executors.
    dropped: how many were evicted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dropped = 0
        self._live: OrderedDict[Shapes, Executor] = OrderedDict()
        self._gone: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._live)

    def get(self, shapes: Shapes) -> Executor | None:
        """Return the executor for these shapes and mark it as the most recently used."""
        with self._lock:
            executor = self._live.get(shapes)
            if executor is not None:
                self._live.move_to_end(shapes)
            return executor

    def put(self, shapes: Shapes, executor: Executor) -> None:
        """Add an executor and evict those over the limit."""
        with self._lock:
            self._live[shapes] = executor
            while len(self._live) > self.limit:
                _, old = self._live.popitem(last=False)
                self.dropped += 1
                self._gone = _sum(self._gone, old.counters)

    @property
    def executors(self) -> list[Executor]:
        """Return the cached executors, the least recently used one first."""
        with self._lock:
            return list(self._live.values())

    def take_all(self) -> list[Executor]:
        """Remove and return every executor."""
        with self._lock:
            live = list(self._live.values())
            self._live.clear()
            return live

    @property
    def counters(self) -> dict[str, int]:
        """Return the sums of ``Executor.counters`` over all shapes. An evicted executor counts with its values at eviction."""
        with self._lock:
            total = dict(self._gone)
            for executor in self._live.values():
                total = _sum(total, executor.counters)
            return total

    def note(self) -> str:
        """Return the counts as part of a receipt's sentence."""
        return f"{len(self)} of at most {self.limit} kept, {self.dropped} evicted"


def _sum(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + value for name, value in b.items()}
