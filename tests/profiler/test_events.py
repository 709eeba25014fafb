"""The event ring through Python: against a model, under threads, and its clock."""

from __future__ import annotations

import threading
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime import _core
from xpuruntime.profiler.events import EVENT_DTYPE, EventKind, EventRing, now_ns


def test_a_span_is_one_complete_event() -> None:
    ring = EventRing(16)
    before = time.perf_counter_ns()
    with ring.span("matmul", step=3, payload=4096):
        time.sleep(0.002)
    after = time.perf_counter_ns()
    (event,) = ring.drain()
    assert ring.names()[event["name"]] == "matmul"
    assert event["kind"] == EventKind.COMPLETE
    assert (event["step"], event["payload"]) == (3, 4096)
    assert event["thread"] == threading.get_native_id()
    assert 2_000_000 <= event["duration_ns"] <= after - before
    assert before <= event["time_ns"] <= after


def test_a_span_is_recorded_when_its_block_raises() -> None:
    ring = EventRing(16)
    with pytest.raises(ZeroDivisionError), ring.span("bad"):
        _ = 1 // 0
    assert len(ring.drain()) == 1


def test_the_clock_is_pythons() -> None:
    before = time.perf_counter_ns()
    middle = now_ns()
    assert before <= middle <= time.perf_counter_ns()


def test_the_array_owns_its_memory_and_has_the_documented_layout() -> None:
    ring = EventRing(4)
    ring.record(EventKind.INSTANT, "a", step=-(2**63), payload=2**63 - 1)
    events = ring.drain()
    ring.record(EventKind.BEGIN, "b")
    del ring
    assert events.dtype == EVENT_DTYPE
    assert events.dtype.itemsize == _core.EVENT_BYTES == 48
    assert (events["step"][0], events["payload"][0]) == (-(2**63), 2**63 - 1)


def test_an_empty_ring_drains_to_an_empty_array() -> None:
    assert EventRing(4).drain().shape == (0,)


def test_full_means_dropped_and_counted() -> None:
    ring = EventRing(4)
    assert [ring.record(EventKind.INSTANT, "x", step=i) for i in range(6)] == [True] * 4 + [False] * 2
    assert (ring.capacity, ring.pending, ring.dropped) == (4, 4, 2)
    assert ring.drain()["step"].tolist() == [0, 1, 2, 3]
    assert ring.record(EventKind.INSTANT, "x")


@given(
    st.integers(0, 20), st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.just("drain")), max_size=80)
)
def test_the_ring_behaves_as_a_bounded_queue(capacity: int, actions: list[int | str]) -> None:
    ring = EventRing(capacity)
    model: deque[int] = deque()
    dropped = 0
    for action in actions:
        if action == "drain":
            assert ring.drain()["payload"].tolist() == list(model)
            model.clear()
            continue
        room = len(model) < ring.capacity
        assert ring.record(EventKind.INSTANT, "x", payload=int(action)) == room
        if room:
            model.append(int(action))
        dropped += not room
        assert (ring.pending, ring.dropped) == (len(model), dropped)
    assert ring.drain()["payload"].tolist() == list(model)


def test_threads_write_while_one_drains() -> None:
    ring = EventRing(256)
    each, writers = 4000, 4
    accepted = [0] * writers

    def write(number: int) -> None:
        for i in range(each):
            accepted[number] += ring.record(EventKind.INSTANT, f"writer {number}", step=number, payload=i)
            if i % 50 == 0:
                time.sleep(0)  # let the reader have the GIL

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    parts = []
    while any(thread.is_alive() for thread in threads):
        parts.append(ring.drain())
    parts.append(ring.drain())
    events = np.concatenate(parts)
    assert len(events) == sum(accepted)
    assert ring.dropped == each * writers - sum(accepted)
    assert len(events) > 256, "the reader came to its turn while writers ran"
    for number in range(writers):
        mine = events[events["step"] == number]
        assert len(mine) == accepted[number]
        assert (np.diff(mine["payload"]) > 0).all()
        assert (np.diff(mine["time_ns"]) >= 0).all()
        assert {ring.names()[i] for i in mine["name"]} <= {f"writer {number}"}


def test_bad_arguments_are_refused() -> None:
    ring = _core.EventRing(4)
    with pytest.raises(ValueError, match="kind must be 0, 1, 2 or 3"):
        ring.record(4, 0, 0, 0)
    with pytest.raises(ValueError, match="whole records of 48 bytes"):
        ring.drain(np.empty(47, dtype=np.uint8))
    read_only = np.empty(48, dtype=np.uint8)
    read_only.setflags(write=False)
    with pytest.raises(TypeError):
        ring.drain(read_only)
    with pytest.raises(ValueError, match="at most 2\\*\\*28"):
        EventRing(2**29)
