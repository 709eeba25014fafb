"""A bounded pool of contexts, with time limits and cancellation of runs.

A run takes the context that was used last, because its memory is warm. Otherwise it makes one while there are fewer than ``limit``, or waits.
The common case is a ``deque.pop``, a few attributes and one uncontended lock. A context whose run was stopped is discarded, because the
vendor's state in it is unknown.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ...arguments import check_count
from ...errors import RunCancelled, RunError, RunTimeout
from ...faults import of_plugin
from ...protocols import Array, Cancellable, Executable, RunContext, Stoppable
from ...runtime.device import cpu

__all__ = ["DEADLINES", "Contexts", "Deadlines", "contexts_limit"]

_TIMED_OUT, _CANCELLED = "timed out", "cancelled"

_MOST = 1024  # each may need a thread and an arena, and ``close`` visits each of them


def contexts_limit(limit: int | None) -> int:
    """Return how many runs may be in progress. Raises InputError."""
    if limit is None:
        return cpu().usable_cores
    return check_count("session", "contexts", limit, 1, _MOST)


class _Plain:
    """A context of an engine that cannot stop a run."""

    def __init__(self, executable: Executable) -> None:
        self._run = executable.run

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run as the executable does."""
        return self._run(feeds)

    def stop(self) -> None:
        """Do nothing: the engine cannot stop a run."""


class _Unnamed:
    """The token of a run that its caller cannot cancel."""

    def cancelled(self) -> bool:
        """Return False."""
        return False


class _Slot:
    """A context, the token of its current run (None: no token), and the reason why that run was stopped.

    current: the context in use: the slot's own, or a bound one in its place.
    """

    __slots__ = ("context", "current", "lock", "reason", "token")

    def __init__(self, context: RunContext) -> None:
        self.context = self.current = context
        self.lock = threading.Lock()
        self.token: object = None
        self.reason = ""

    def stop(self, reason: str, token: object = None) -> None:
        """Stop the run in progress; with a token, only the run of that token."""
        with self.lock:  # the run cannot end meanwhile, so the next one on this context is never hit
            if self.token is None or (token is not None and token is not self.token):
                return
            self.reason = self.reason or reason
            self.current.stop()

    def leave(self) -> str:
        """Mark the run as finished and return why it was stopped, or an empty text."""
        with self.lock:
            self.token = None
            return self.reason


class Contexts:
    """Runs of one executable.

    At most ``limit`` runs are in progress. Each takes at most ``timeout_s`` seconds, waiting included; None means no limit.

    Counters: ``made`` is the number of contexts that exist, ``peak`` the highest number so far.
    """

    def __init__(self, who: str, executable: Executable, limit: int, timeout_s: float | None = None) -> None:
        self._who, self.limit, self.timeout_s = who, limit, timeout_s
        self._executable = executable
        self._make: Callable[[], RunContext] = (
            executable.context if isinstance(executable, Stoppable) else partial(_Plain, executable)
        )
        self._free: deque[_Slot] = deque()
        self._all: set[_Slot] = set()
        self._changed = threading.Condition()
        self._waiting = 0
        self._closed = False
        self.peak = 0

    @property
    def stoppable(self) -> bool:
        """Return True if runs can be stopped."""
        return isinstance(self._executable, Stoppable)

    @property
    def made(self) -> int:
        """Return how many contexts exist."""
        return len(self._all)

    def run(
        self, feeds: dict[str, Array], token: Cancellable | None = None, bound: RunContext | None = None
    ) -> Sequence[Array]:
        """Run once. ``stop`` finds the run by ``token``; ``token.cancelled()`` tells that it is no longer wanted.
        ``bound``: a context of the caller to run in. It takes the place of a pooled one during the run.

        Raises RunTimeout, RunCancelled, and what the executable raises.
        """
        if self.timeout_s is not None:
            return self._timed(feeds, token, bound, self.timeout_s)
        try:
            slot = self._free.pop()
        except IndexError:
            slot = self._take(None)
        return self._run_in(slot, feeds, token, bound)

    def _timed(
        self, feeds: dict[str, Array], token: Cancellable | None, bound: RunContext | None, seconds: float
    ) -> Sequence[Array]:
        end = time.monotonic() + seconds
        try:
            slot = self._free.pop()
        except IndexError:
            slot = self._take(end)
        token = token if token is not None else _Unnamed()
        with DEADLINES.after(end - time.monotonic(), partial(slot.stop, _TIMED_OUT, token)):
            return self._run_in(slot, feeds, token, bound)

    def _run_in(
        self, slot: _Slot, feeds: dict[str, Array], token: Cancellable | None, bound: RunContext | None
    ) -> Sequence[Array]:
        slot.current = bound or slot.context
        slot.token = token if token is not None else True
        try:
            if self._closed or (token is not None and token.cancelled()):
                raise self._ended()
            return slot.current.run(feeds, token is not None)
        except RunError as error:
            raise self._why(slot.reason, error) from error
        except Exception as error:
            if (failed := of_plugin(error, self._who)) is not None:
                raise failed from error
            raise
        finally:
            if slot.leave():
                self._drop(slot)
            else:
                self._free.append(slot)
            if self._waiting:
                with self._changed:
                    self._changed.notify()

    def _why(self, reason: str, error: RunError) -> RunError:
        """Return the error for a run that was stopped, otherwise the run's own error."""
        if reason == _TIMED_OUT:
            return self._late("a run took longer than run_timeout_s and was ended")
        if reason and not isinstance(error, RunCancelled):
            return self._ended()
        return error

    def _ended(self) -> RunError:
        if self._closed:
            return RunCancelled(self._who, "the session is closed", do="Make a new one.")
        return RunCancelled(self._who, "the run was cancelled")

    def _late(self, what: str) -> RunTimeout:
        do = "Allow more time, or smaller inputs; the session stays usable."
        return RunTimeout(self._who, what, got=f"{self.timeout_s} s", do=do)

    def _take(self, end: float | None) -> _Slot:
        """Return a free slot, a new one, or the next one that is released. Raises RunTimeout at the time ``end``."""
        with self._changed:
            self._waiting += 1  # before the look-up, so that a slot released after it notifies this thread
            try:
                while True:
                    if self._closed:
                        raise self._ended()
                    if self._free:
                        try:
                            return self._free.pop()
                        except IndexError:  # another run took it
                            continue
                    if len(self._all) < self.limit:
                        slot = _Slot(self._make())
                        self._all.add(slot)
                        self.peak = max(self.peak, len(self._all))
                        return slot
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        raise self._late(f"none of {self.limit} contexts became free within run_timeout_s")
                    self._changed.wait(left)
            finally:
                self._waiting -= 1

    def _drop(self, slot: _Slot) -> None:
        with self._changed:
            self._all.discard(slot)

    def stop(self, token: object = None) -> None:
        """Stop every run in progress, or the one with this token."""
        for slot in tuple(self._all):
            slot.stop(_CANCELLED, token)

    def close(self) -> None:
        """Stop every run, wait for them and drop the contexts. Later runs raise RunError. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.stop()
        with self._changed:
            self._waiting += 1
            try:
                while len(self._free) < len(self._all):
                    self._changed.wait(1.0)
                    for slot in tuple(self._all):  # a run that started before it could see the pool close
                        slot.stop(_CANCELLED)
            finally:
                self._waiting -= 1
            self._free.clear()
            self._all.clear()


_SWEEP = 256  # after so many appointments, abandoned ones are removed


class _Appointment:
    """One callback at one time. Leaving the ``with`` block cancels it. ``over``: the callback was made."""

    __slots__ = ("call", "over")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        self.over = False

    def __enter__(self) -> _Appointment:
        return self

    def __exit__(self, *_: object) -> None:
        self.call = None


class Deadlines:
    """Callbacks at given times, made by one thread per process that starts with the first of them."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a forked child does not inherit the thread

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _Appointment]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._sweep_at = _SWEEP

    def after(self, seconds: float, call: Callable[[], None]) -> _Appointment:
        """Call ``call`` after ``seconds``, unless the appointment is left before."""
        appointment = _Appointment(call)
        with self._changed:
            if (
                len(self._heap) >= self._sweep_at
            ):  # runs that end in time leave their appointments on the heap
                self._heap = [entry for entry in self._heap if entry[2].call is not None]
                heapq.heapify(self._heap)
                self._sweep_at = max(_SWEEP, 2 * len(self._heap))
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), appointment))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="xpu-deadlines", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is appointment:  # earlier than the time that the thread waits for
                self._changed.notify()
        return appointment

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._heap and self._heap[0][2].call is None:
                    heapq.heappop(self._heap)
                left = self._heap[0][0] - time.monotonic() if self._heap else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                due = heapq.heappop(self._heap)[2]
                due.over, call = True, due.call
            if call is not None:
                call()
            del due, call  # otherwise they live until the next appointment


DEADLINES = Deadlines()
