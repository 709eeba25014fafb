"""profile(): runs of every thread on one timeline, nothing recorded outside, nothing half-written."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.errors import StoreError, XpuError
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.profiler import trace as module
from xpuruntime.profiler.events import EventRing

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


def test_a_span_has_the_time_that_its_thread_waited(session, tmp_path: Path) -> None:
    with xrt.profile() as trace:
        session.run(input=X)
        module.timed("asleep", time.sleep, 0.02)
    run, asleep = trace.spans
    assert 0 <= run.waited_ns <= run.duration_ns
    assert asleep.duration_ns / 2 < asleep.waited_ns <= asleep.duration_ns
    trace.save(tmp_path / "t.json")
    event = json.loads((tmp_path / "t.json").read_text())["traceEvents"][-1]
    assert event["args"] == {"waited_us": asleep.waited_ns / 1e3}
    page = Path(__file__).parents[2] / "docs" / "get-started" / "quickstart.md"
    assert "`waited_ns` of a run, a region or a copy (in `trace.json` it is `waited_us`" in page.read_text()


def test_a_full_ring_counts_what_it_drops(session) -> None:
    with xrt.profile(capacity=4) as trace:
        for _ in range(10):
            session.run(input=X)
    assert (len(trace.spans), trace.dropped) == (4, 6)


def test_the_file_is_chromes_trace_format(session, tmp_path: Path) -> None:
    with xrt.profile() as trace:
        session.run(input=X)
    trace.save(tmp_path / "t.json")
    process, thread, event = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert event["dur"] == pytest.approx(trace.spans[0].duration_ns / 1e3)
    assert (event["pid"], event["tid"]) == (process["pid"], thread["tid"])
    assert process["args"] == {"name": "xpuruntime"}
    # The fields and types that the format demands of complete and metadata events.
    demands = {"X": {"name": str, "cat": str, "ts": float, "dur": float}, "M": {"name": str, "args": dict}}
    for e in (process, thread, event):
        for field, kind in {**demands[e["ph"]], "pid": int, "tid": int}.items():
            assert type(e[field]) is kind, (field, e)


def test_kernels_of_the_native_engine_are_within_their_run(tmp_path: Path) -> None:
    """Recordings follow each other: the core must not take a new ring for an old one that had its address."""
    graph = ir.GraphBuilder("net")
    x, w = graph.input("x", "float32[4, 8]"), graph.weight("w", "float32[6, 8]")
    graph.output("y", graph.softmax(graph.linear(x, w), dim=-1))
    array = np.ones((4, 8), np.float32)
    with xrt.Executor(xrt.compile(graph.build(), target="cpu"), "cpu") as executor:
        kernels = [c.kernel for c in executor.plan.calls]
        executor.bind({"w": np.ones((6, 8), np.float32)})
        for _ in range(3):
            ring = EventRing(64)
            executor.run_arrays([array], ring=ring.core)
            names = ring.names()
            assert [names[e["name"]] for e in ring.drain()] == kernels
    model = to_onnx(graph.build(), {"w": np.ones((6, 8), np.float32)})
    with xrt.InferenceSession(model, engine="native", device="cpu", threads=1) as native:
        for _ in range(3):
            with xrt.profile() as trace:
                native.run(x=array)
            run = next(s for s in trace.spans if s.name.startswith("native on cpu"))
            inside = [s for s in trace.spans if s is not run]
            assert [s.name for s in inside] == kernels
            assert all(run.start_ns <= s.start_ns for s in inside)
            assert all(s.start_ns + s.duration_ns <= run.start_ns + run.duration_ns for s in inside)


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
