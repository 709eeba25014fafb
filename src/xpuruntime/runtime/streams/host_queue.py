"""Streams of the host: a thread that runs queued work in order, and ``HostEvent``, the event of such a stream.

After an error a queue skips all later work, and every wait raises the error. Nobody can therefore read an output that was not written.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..memory.buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..execution.executor import Executor

__all__ = ["HostEvent", "HostQueue", "wait_for"]

Work = Callable[[], object]


class _QueueState:
    """State shared by a queue's thread and its owners. ``handle``: a number unique in this process."""

    __slots__ = ("__weakref__", "ending", "error", "handle", "lock", "thread", "unfinished", "works")

    def __init__(self) -> None:
        self.handle = next(_HANDLES)
        self.works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.unfinished = 0  # number of works that are queued or running
        self.ending = False  # True: no more work is accepted
        # Reentrant: the garbage collector may finalize a queue, which calls `end`, in the middle of `put`.
        self.lock = threading.RLock()
        self.thread = threading.Thread(
            target=_do, args=(self,), name=f"xpu-stream-{self.handle}", daemon=True
        )

    def put(self, work: Work) -> bool:
        """Queue work. Return False if the thread is ending."""
        with self.lock:
            if not self.ending:
                self.unfinished += 1
                self.works.put(work)
            return not self.ending

    def end(self) -> None:
        """End the thread after all queued work."""
        with self.lock:
            self.ending = True
            self.works.put(None)


_HANDLES = itertools.count(1)
_QUEUES: weakref.WeakValueDictionary[int, _QueueState] = weakref.WeakValueDictionary()
_FAILED: dict[
    int, BaseException
] = {}  # errors by handle, kept after the queue is deleted: its outputs were not written


def _do(state: _QueueState) -> None:
    while (work := state.works.get()) is not None:
        if state.error is None:
            try:
                work()
            except BaseException as error:
                state.error = _FAILED[state.handle] = error
        elif isinstance(work, HostEvent):
            work()  # an event is reached after an error, too
        with state.lock:
            state.unfinished -= 1


class HostEvent:
    """A position in a queue. ``time_ns``: time at which the queue reached it, by ``time.perf_counter_ns``; None before."""

    def __init__(self) -> None:
        self.time_ns: int | None = None
        self._reached = threading.Event()
        self._state: _QueueState | None = None

    def __call__(self) -> None:
        self.time_ns = time.perf_counter_ns()
        self._reached.set()

    def record(self, to: HostQueue) -> None:
        """Record the event after all work queued so far."""
        self._state = to._state
        to._state.put(self)

    def synchronize(self) -> None:
        """Wait until the queue reaches the event. Raises the queue's error."""
        if self._state is not None and threading.current_thread() is not self._state.thread:
            self._reached.wait()
            _raise(self._state.handle)

    def since(self, start: HostEvent) -> float:
        """Return the milliseconds since another event."""
        assert self.time_ns is not None
        assert start.time_ns is not None
        return (self.time_ns - start.time_ns) / 1e6

    @property
    def done(self) -> bool:
        """Return True once the queue has reached the event."""
        return self._state is None or self._reached.is_set()


class HostQueue:
    """A thread that runs queued programs in order. It ends when the queue is deleted and its work is done."""

    def __init__(self) -> None:
        self._state = _QueueState()
        _QUEUES[self._state.handle] = self._state
        weakref.finalize(self, self._state.end).atexit = False
        self._state.thread.start()

    @property
    def handle(self) -> int:
        """Return the queue's number."""
        return self._state.handle

    def run(
        self,
        executor: Executor,
        inputs: Mapping[str, Any],
        weights: Any,
        out: Mapping[str, DeviceBuffer] | None,
    ) -> dict[str, DeviceBuffer]:
        """Queue a run. Return its outputs, which are written when the run executes."""
        outputs = {
            s.name: out[s.name]
            if out is not None and s.name in out
            else DeviceBuffer.empty(s, executor.backend)
            for s in executor.entry.outputs
        }
        arguments = dict(inputs)
        self._state.put(lambda: executor.run(arguments, weights=weights, out=outputs))
        for buffer in outputs.values():
            buffer.pending = self._state.handle
        return outputs

    def wait(self, mark: HostEvent) -> None:
        """Make later work wait for an event."""
        self._state.put(mark.synchronize)

    def synchronize(self) -> None:
        """Wait for all queued work. Raises the queue's error."""
        _wait(self._state)

    @property
    def done(self) -> bool:
        """Return True if all queued work is done."""
        return not self._state.unfinished


def wait_for(handle: int) -> None:
    """Wait for the queue with this handle. Return at once if the queue ended without an error."""
    state = _QUEUES.get(handle)
    if state is None:
        _raise(handle)
    else:
        _wait(state)


def _wait(state: _QueueState) -> None:
    if threading.current_thread() is state.thread:
        return  # the caller is the queue's own work: everything before it is done
    reached = HostEvent()
    if state.put(reached):
        reached._reached.wait()
    else:
        state.thread.join()
    _raise(state.handle)


def _raise(handle: int) -> None:
    error = _FAILED.get(handle)
    if error is not None:
        raise error
