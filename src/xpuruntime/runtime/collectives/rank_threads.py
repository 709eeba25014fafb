"""RankThreads: the threads of a group in one process. The caller's thread is rank 0."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from ...errors import RankLost, RunError
from .communicator import Communicator
from .peer_boxes import PeerBoxes

__all__ = ["RankThreads"]

_T = TypeVar("_T")
_Work = tuple[Callable[[int], Any], "Future[Any]"]


class RankThreads:
    """One thread for each rank but the first, which is the caller's. A thread waits for work without using a core.

    communicators: of the group, by rank. They are closed by ``close``.
    """

    def __init__(self, communicators: Sequence[Communicator]) -> None:
        self.communicators = tuple(communicators)
        self._queues: list[SimpleQueue[_Work | None]] = [SimpleQueue() for _ in self.communicators[1:]]
        self._threads = [
            threading.Thread(target=_serve, args=(rank, queue), name=f"xpuruntime-rank-{rank}", daemon=True)
            for rank, queue in enumerate(self._queues, start=1)
        ]
        for thread in self._threads:
            thread.start()
        self._boxes: PeerBoxes | None = None
        self._closed = False

    def open_boxes(self, largest: int) -> PeerBoxes:
        """Return boxes on all GPUs, which must reach each other. They end with the group."""
        self._boxes = PeerBoxes([c.backend for c in self.communicators], largest)
        return self._boxes

    def run(self, work: Callable[[int], _T]) -> list[_T]:
        """Call ``work`` with each rank at the same time, and return the results by rank. If one fails, the group ends; its error is raised."""
        if self._closed:
            raise RunError("group of ranks", "is closed", do="Open the model or make the group again.")
        futures: list[Future[_T]] = [Future() for _ in self.communicators]
        for queue, future in zip(self._queues, futures[1:], strict=True):
            future.add_done_callback(self._ended)
            queue.put((work, future))
        futures[0].add_done_callback(self._ended)
        _do(work, 0, futures[0])
        errors = [error for f in futures if (error := f.exception()) is not None]
        if errors:  # the first cause, not the ranks that could not go on without it
            raise next((e for e in errors if not isinstance(e, RankLost)), errors[0])
        return [f.result() for f in futures]

    def _ended(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            if self._boxes is not None:  # first: an abort may wait for a kernel that waits for a box
                self._boxes.end()
            for communicator in self.communicators:
                communicator.abort(f"a rank failed: {error}"[:500])

    def close(self) -> None:
        """End the threads and the group. May be called again."""
        if self._closed:
            return
        self._closed = True
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        for communicator in self.communicators:
            communicator.close()


def _serve(rank: int, queue: SimpleQueue[_Work | None]) -> None:
    while (item := queue.get()) is not None:
        _do(item[0], rank, item[1])


def _do(work: Callable[[int], Any], rank: int, future: Future[Any]) -> None:
    try:
        result = work(rank)
    except BaseException as error:  # also KeyboardInterrupt: the other ranks must not wait
        future.set_exception(error)
    else:
        future.set_result(result)
