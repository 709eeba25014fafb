"""Events from many threads, in a fixed-size lock-free ring.

Recording never waits: when the ring is full the event is dropped and counted, so that watching cannot slow down
what is watched. ``drain`` hands the events out as one NumPy record array::

    ring = EventRing(capacity=65536)
    with ring.span("matmul", step=3):
        ...
    events = ring.drain()
    events["duration_ns"], [ring.names()[i] for i in events["name"]]
"""

from __future__ import annotations

import enum
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..printable import line

__all__ = ["EVENT_DTYPE", "EventKind", "EventRing", "EventSpan", "now_ns"]


class EventKind(enum.IntEnum):
    """The kind of an event."""

    BEGIN = 0
    END = 1
    INSTANT = 2
    COMPLETE = 3


#: One event: 48 bytes, laid out as the core's ``Event`` (include/xpurt/profiler.h).
#: time_ns and duration_ns: nanoseconds of :func:`now_ns`'s clock; duration_ns is 0 but for COMPLETE.
#: step: step of the plan, -1 = none. payload: what the event counts. name: index into ``names()``.
#: thread: the operating system's thread id. kind: :class:`EventKind`.
EVENT_DTYPE = np.dtype(
    {
        "names": ["time_ns", "duration_ns", "step", "payload", "name", "thread", "kind"],
        "formats": ["<i8", "<i8", "<i8", "<i8", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 36, 40],
        "itemsize": _core.EVENT_BYTES,
    }
)


def now_ns() -> int:
    """Return the monotonic clock of event times, in nanoseconds; on Linux it is ``time.perf_counter_ns``'s."""
    return _core.now_ns()


class EventSpan:
    """One use of :meth:`EventRing.span`. It is a class because a generator costs more than the code that it times."""

    __slots__ = ("_name", "_payload", "_ring", "_start", "_step")

    def __init__(self, ring: _core.EventRing, name: int, step: int, payload: int) -> None:
        self._ring, self._name, self._step, self._payload = ring, name, step, payload
        self._start = 0

    def __enter__(self) -> EventSpan:
        self._start = _core.now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ring.complete(self._name, self._start, _core.now_ns() - self._start, self._step, self._payload)


class EventRing:
    """A ring of at most ``capacity`` undrained events (rounded up to a power of two; 64 bytes an event).

    Any number of threads may record; drains are serialized. Order in the array is the order of arrival; sort by
    ``time_ns`` to compare threads. Raises ValueError for a capacity above 2**28.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._core = _core.EventRing(capacity)
        self._ids: dict[str, int] = {}

    @property
    def core(self) -> _core.EventRing:
        """Return the core's ring, into which an executor's run records its kernels."""
        return self._core

    def _id(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = self._core.intern(line(name))
        return number

    def record(self, kind: EventKind, name: str, *, step: int = -1, payload: int = 0) -> bool:
        """Record an event of this thread, now. Return False if the ring was full and the event was dropped.

        ``step`` and ``payload`` are 64-bit integers.
        """
        return self._core.record(int(kind), self._id(name), step, payload)

    def complete(
        self, name: str, start_ns: int, duration_ns: int, *, step: int = -1, payload: int = 0
    ) -> bool:
        """Record a finished span that began at ``start_ns``. Return False if the ring was full."""
        return self._core.complete(self._id(name), start_ns, duration_ns, step, payload)

    def span(self, name: str, *, step: int = -1, payload: int = 0) -> EventSpan:
        """Return a context manager that records the enclosed block as one COMPLETE event, also if it raises."""
        return EventSpan(self._core, self._id(name), step, payload)

    def drain(self) -> npt.NDArray[Any]:
        """Remove and return the ring's events: a 1-d array of :data:`EVENT_DTYPE`, in order of arrival.

        Events that other threads record meanwhile may stay for the next drain. The core writes straight into the
        array's memory; nothing is copied twice.
        """
        events = np.empty(self._core.pending, dtype=EVENT_DTYPE)
        count = self._core.drain(events.view(np.uint8))
        return events[:count]

    def names(self) -> list[str]:
        """Return all recorded names; an event's ``name`` is an index into them."""
        return self._core.names()

    @property
    def capacity(self) -> int:
        """Return the maximum number of undrained events."""
        return self._core.capacity

    @property
    def pending(self) -> int:
        """Return the number of events recorded and not yet drained."""
        return self._core.pending

    @property
    def dropped(self) -> int:
        """Return the number of events dropped because the ring was full."""
        return self._core.dropped
