"""Executors by the shapes that they were compiled for: as many as are kept, the least recently used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ...runtime.executor import Executor

__all__ = ["Buckets", "Shapes"]

Shapes = tuple[tuple[str, int], ...]


class Buckets:
    """Safe from several threads. An executor that goes is not closed: a run that is in it ends as it would, and then its memory is freed.

    limit: how many are kept.
    dropped: how many were let go.
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
        """The executor for these shapes, from now on the most recently used one."""
        with self._lock:
            found = self._live.get(shapes)
            if found is not None:
                self._live.move_to_end(shapes)
            return found

    def put(self, shapes: Shapes, executor: Executor) -> None:
        """Keep one more, and let go of what is over the limit."""
        with self._lock:
            self._live[shapes] = executor
            while len(self._live) > self.limit:
                _, old = self._live.popitem(last=False)
                self.dropped += 1
                self._gone = _sum(self._gone, old.counters)

    @property
    def executors(self) -> list[Executor]:
        """Those that are kept, the least recently used one first."""
        with self._lock:
            return list(self._live.values())

    def take_all(self) -> list[Executor]:
        """Every executor; none is kept after that."""
        with self._lock:
            live = list(self._live.values())
            self._live.clear()
            return live

    @property
    def counters(self) -> dict[str, int]:
        """Those of ``Executor.counters``, over all sets of shapes; of one that was let go, as they were then."""
        with self._lock:
            total = dict(self._gone)
            for executor in self._live.values():
                total = _sum(total, executor.counters)
            return total

    def note(self) -> str:
        """What became of them, as part of a receipt's sentence."""
        return f"{len(self)} of at most {self.limit} kept, {self.dropped} let go"


def _sum(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + value for name, value in b.items()}
