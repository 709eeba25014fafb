"""profile(): every run of every session of this process on one timeline, for chrome://tracing or Perfetto.

    with xrt.profile() as trace:
        session.run(inputs)
    trace.save("trace.pftrace")  # or trace.json

Without a recording, a run only checks one variable. With ``nvtx_ranges=True`` the same spans go to NVIDIA's tools too.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ..arguments import check_count
from ..errors import XpuError
from ..storage.store import write_atomic
from . import nvtx
from .events import EventKind, EventRing, now_ns
from .perfetto import perfetto_bytes

__all__ = ["RING", "Profiler", "Trace", "TraceSpan", "mark", "profile", "timed"]

RING: EventRing | None = None  # read on every run, so it is a plain global
_MAX_EVENTS = 1 << 28  # of the core's ring
_switch = threading.Lock()
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One finished span: name, operating-system thread, start (ns of the monotonic clock) and duration (ns).

    step: number of the kernel call in its plan; -1 if it is none.
    waited_ns: time in the span during which its thread was on no processor: it waited for other threads or for the device, or the system
    ran another program. It is measured for runs, regions and copies, and so also inside vendors, which do not tell when they wait. A
    thread that waits in a loop (a spinning wait for a GPU) counts as running.
    """

    name: str
    thread: int
    start_ns: int
    duration_ns: int
    step: int = -1
    waited_ns: int = 0


class Trace:
    """A recording. ``spans`` are sorted by start; ``dropped`` counts events lost because the ring was full."""

    def __init__(self) -> None:
        self.spans: tuple[TraceSpan, ...] = ()
        self.dropped = 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Perfetto's format to a file ``.pftrace``, otherwise Chrome's trace event format (JSON, microseconds), with the names of the
        process and its threads. Raises StoreError.
        """
        from pathlib import Path

        process = os.getpid()
        if Path(path).suffix == ".pftrace":
            write_atomic(Path(path), perfetto_bytes(self.spans, process, "xpuruntime"))
            return
        threads = {s.thread: None for s in self.spans}
        names = [("process_name", 0, "xpuruntime"), *(("thread_name", t, f"thread {t}") for t in threads)]
        events: list[dict[str, Any]] = [
            {"name": n, "ph": "M", "pid": process, "tid": t, "args": {"name": text}} for n, t, text in names
        ]
        events += [
            {
                "name": s.name,
                "cat": "xpuruntime",
                "ph": "X",
                "pid": process,
                "tid": s.thread,
                "ts": s.start_ns / 1e3,
                "dur": s.duration_ns / 1e3,
                **({"args": {"waited_us": s.waited_ns / 1e3}} if s.waited_ns else {}),
            }
            for s in self.spans
        ]
        document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped": self.dropped}}
        write_atomic(Path(path), json.dumps(document).encode())

    def take(self, ring: EventRing) -> None:
        """Move the events of the ring into this trace."""
        names, events = ring.names(), ring.drain()
        spans = (
            TraceSpan(
                names[e["name"]],
                int(e["thread"]),
                int(e["time_ns"]),
                int(e["duration_ns"]),
                int(e["step"]),
                int(e["payload"]) if e["step"] < 0 else 0,
            )
            for e in events
        )
        self.spans = tuple(sorted((*self.spans, *spans), key=lambda s: s.start_ns))
        self.dropped = ring.dropped


@contextlib.contextmanager
def profile(*, capacity: int = 1 << 16, nvtx_ranges: bool = False) -> Iterator[Trace]:
    """Record every run inside the block, on any thread. A nested or concurrent recording raises XpuError.

    capacity:    events that fit; more are dropped and counted.
    nvtx_ranges: also open an NVTX range per run, if the library is installed.
    """
    global RING
    capacity = check_count("profile", "capacity", capacity, 1, _MAX_EVENTS)
    trace, ring = Trace(), EventRing(capacity)
    with _switch:
        if RING is not None:
            raise XpuError(
                "profile", "is already recording in this process", do="Leave the other block first."
            )
        RING = ring
    try:
        if nvtx_ranges:
            nvtx.enable()
        yield trace
    finally:
        RING = None
        trace.take(ring)


Profiler = profile
"""The architecture's name: ``with runtime.Profiler() as trace``."""


def mark(name: str) -> None:
    """Record an event without a duration in the recording ring, if there is one: ``measure: engines for resnet50``."""
    ring = RING
    if ring is not None:
        ring.record(EventKind.INSTANT, name)


def timed(name: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function, as a span of the recording ring (and as an NVTX range if ranges are enabled), with the time that the thread waited."""
    ring = RING
    if ring is None:  # the recording ended after the caller's check
        return call(*arguments)
    with nvtx.range(name):
        start, ran = now_ns(), time.thread_time_ns()
        try:
            return call(*arguments)
        finally:
            duration = now_ns() - start
            waited = duration - (time.thread_time_ns() - ran)
            ring.complete(name, start, duration, payload=min(max(waited, 0), duration))
