"""profile(): runs of every thread on one timeline, nothing recorded outside, nothing half-written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.errors import StoreError, XpuError
from xpuruntime.profiler import trace as module

pytest.importorskip("onnxruntime", reason="an engine is needed")
X = np.zeros((1, 3, 8, 8), np.float32)


@pytest.fixture(scope="module")
def session():
    with xrt.InferenceSession(small_classifier(), device="cpu", engine="onnxruntime", threads=1) as sess:
        yield sess


def test_every_run_of_every_thread_is_a_span(session) -> None:
    session.run(input=X)  # before: not recorded
    with xrt.profile() as trace:
        workers = [
            threading.Thread(target=lambda: [session.run(input=X) for _ in range(5)]) for _ in range(3)
        ]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    session.run(input=X)  # after: not recorded
    assert len(trace.spans) == 15
    assert {s.name for s in trace.spans} == {"onnxruntime on cpu: g"}
    assert all(s.duration_ns > 0 for s in trace.spans)
    assert [s.start_ns for s in trace.spans] == sorted(s.start_ns for s in trace.spans)
    assert trace.dropped == 0
    assert module.RING is None


def test_a_full_ring_counts_what_it_drops(session) -> None:
    with xrt.profile(capacity=4) as trace:
        for _ in range(10):
            session.run(input=X)
    assert (len(trace.spans), trace.dropped) == (4, 6)


def test_the_file_is_chromes_trace_format(session, tmp_path: Path) -> None:
    with xrt.profile() as trace:
        session.run(input=X)
    trace.save(tmp_path / "t.json")
    (event,) = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert event["ph"] == "X"
    assert event["dur"] == pytest.approx(trace.spans[0].duration_ns / 1e3)


def test_an_unwritable_file_is_a_clear_error(session, tmp_path: Path) -> None:
    with xrt.profile() as trace:
        session.run(input=X)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        trace.save(tmp_path / "file" / "t.json")


def test_two_at_once_are_refused_and_an_error_inside_ends_the_recording(session) -> None:
    with xrt.profile(), pytest.raises(XpuError, match="already recording"), xrt.profile():
        pass
    with pytest.raises(RuntimeError), xrt.profile() as trace:
        raise RuntimeError(len(session.run(input=X)))
    assert len(trace.spans) == 1
    assert module.RING is None


def test_a_failed_run_is_a_span_too(session) -> None:
    with xrt.profile() as trace, pytest.raises(xrt.InputError):
        session.run(wrong=X)
    assert not trace.spans  # refused before the engine
