"""Streams, events and pools: order, times, errors, memory; on the host, and on a simulated CUDA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import DeviceUnavailable, InputError, RunError
from xpuruntime.ir import GraphBuilder
from xpuruntime.runtime import DeviceBuffer, Event, Executor, MemoryPool, PythonBackend, Stream

DRIVER = Path(__file__).resolve().parents[2] / "cpp" / "tests" / "libraries" / "simulated_driver.cpp"


def executor(side: int = 8) -> Executor:
    """y = x @ x + 1."""
    b = GraphBuilder("square")
    x = b.input("x", f"float32[{side}, {side}]")
    b.output("y", b.add(b.matmul(x, x), 1.0))
    return Executor(xrt.compile(b.build()))


@pytest.fixture(scope="module")
def small() -> Executor:
    return executor()


def held(stream: Stream, until: threading.Event) -> None:
    """Keep a stream of the host busy."""
    stream._queue._state.put(until.wait)


def test_runs_of_one_stream_follow_each_other(small: Executor) -> None:
    x = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32) / 4
    go, stream = threading.Event(), Stream()
    held(stream, go)
    values = {"x": x}
    want = x
    for _ in range(5):
        values = {"x": stream.run(small, values)["y"]}
        want = want @ want + 1
    assert not stream.done
    go.set()
    np.testing.assert_allclose(values["x"].to_numpy(), want, rtol=1e-3)
    stream.synchronize()
    while not stream.done:  # its thread has still to say so
        time.sleep(0.001)


def test_a_run_comes_back_at_once_and_reading_waits(small: Executor) -> None:
    go, stream = threading.Event(), Stream()
    held(stream, go)
    out = stream.run(small, {"x": np.eye(8, dtype=np.float32)})["y"]
    threading.Timer(0.05, go.set).start()
    np.testing.assert_array_equal(out.to_numpy(), np.eye(8) + 1)
    assert go.is_set()


def test_a_stream_waits_for_an_event_of_another(small: Executor) -> None:
    go, first, second = threading.Event(), Stream(), Stream()
    held(first, go)
    made = first.run(small, {"x": np.eye(8, dtype=np.float32)})
    event = first.record()
    second.wait(event)
    later = second.record()
    assert not event.done
    assert not later.done
    go.set()
    later.synchronize()
    assert event.done
    assert later.elapsed_ms(event) >= 0
    np.testing.assert_array_equal(made["y"].to_numpy(), np.eye(8) + 1)


def test_another_stream_s_output_is_waited_for_by_who_reads_it(small: Executor) -> None:
    go, first, second = threading.Event(), Stream(), Stream()
    held(first, go)
    made = first.run(small, {"x": np.eye(8, dtype=np.float32)})
    after = second.run(small, {"x": made["y"]})["y"]
    threading.Timer(0.02, go.set).start()
    want = np.eye(8) + 1
    np.testing.assert_array_equal(after.to_numpy(), want @ want + 1)


def test_outputs_may_be_given(small: Executor) -> None:
    stream = Stream()
    out = DeviceBuffer.zeros(small.entry.outputs[0])
    made = stream.run(small, {"x": np.eye(8, dtype=np.float32)}, out={"y": out})
    assert made["y"] is out
    assert out.to_numpy()[0, 0] == 2


def test_events_tell_how_long_work_took() -> None:
    stream, begin, end = Stream(), Event(), Event()
    started = time.perf_counter()
    assert begin.done  # nothing was recorded
    stream.record(begin)
    stream._queue._state.put(lambda: time.sleep(0.03))
    stream.record(end)
    with pytest.raises(RunError, match=r"was not reached yet\. Call synchronize"):
        end.elapsed_ms(begin)
    end.synchronize()
    assert (
        29 < end.elapsed_ms(begin) < 1000 * (time.perf_counter() - started) + 1
    )  # what this thread's clock says
    stream.synchronize()


def test_an_event_may_be_recorded_again() -> None:
    go, stream, event = threading.Event(), Stream(), Event()
    stream.record(event)
    event.synchronize()
    held(stream, go)
    stream.record(event)
    assert not event.done
    go.set()
    event.synchronize()


def test_work_that_fails_ends_its_stream_and_nobody_reads_what_was_not_written(small: Executor) -> None:
    stream = Stream()
    out = stream.run(small, {"x": np.zeros((3, 3), np.float32)})["y"]
    later = stream.run(small, {"x": np.eye(8, dtype=np.float32)})["y"]
    for wait in (stream.synchronize, out.to_numpy, later.to_numpy, stream.record().synchronize):
        with pytest.raises(InputError, match=r"input 'x' must be float32\[8, 8\]"):
            wait()
    other = Stream()
    assert other.run(small, {"x": np.eye(8, dtype=np.float32)})["y"].to_numpy()[0, 0] == 2
    del stream
    with pytest.raises(InputError, match=r"input 'x' must be float32\[8, 8\]"):
        later.to_numpy()


def test_a_stream_that_nobody_holds_ends_when_its_work_is_done(small: Executor) -> None:
    before = threading.active_count()
    outs = []
    for _ in range(20):
        stream = Stream()
        outs.append(stream.run(small, {"x": np.eye(8, dtype=np.float32)})["y"])
        del stream
    for out in outs:
        assert out.to_numpy()[0, 0] == 2
    end = time.perf_counter() + 10
    while threading.active_count() > before and time.perf_counter() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_streams_run_beside_each_other() -> None:
    gate = threading.Barrier(2, timeout=20)
    first, second = Stream(), Stream()
    for stream in (first, second):  # each waits for the other: one after the other would never end
        stream._queue._state.put(gate.wait)
    first.synchronize()
    second.synchronize()


# ── pools ──


@pytest.mark.usefixtures("no_garbage")
def test_buffers_come_from_the_pool_and_go_back() -> None:
    pool = MemoryPool("cpu")
    pool.trim()
    before = pool.statistics()
    buffer = pool.allocate((1 << 20,), "float32")
    during = pool.statistics()
    assert during.live_bytes - before.live_bytes >= 4 << 20
    assert during.peak_bytes >= during.live_bytes
    assert "bytes in use" in repr(pool)
    del buffer
    after = pool.statistics()
    assert after.live_bytes <= during.live_bytes - (4 << 20)
    assert after.cached_bytes >= 4 << 20
    again = pool.allocate((1 << 20,), "float32")
    assert pool.statistics().reuses == after.reuses + 1
    del again
    assert pool.trim() >= 4 << 20
    assert pool.statistics().cached_bytes == 0
    assert set(pool.statistics().to_json()) == {
        "live_bytes",
        "peak_bytes",
        "cached_bytes",
        "allocations",
        "reuses",
    }


def test_a_device_without_them_says_so() -> None:
    class Bare(PythonBackend):
        kind = "cpu"

        def allocate(self, size_bytes: int) -> Any:
            return np.empty(size_bytes, np.uint8)

        def upload(self, handle: Any, data: Any) -> None:
            handle[: data.size] = data

        def download(self, handle: Any, size_bytes: int) -> Any:
            return handle[:size_bytes]

        def prepare(self, *_: Any) -> Any:
            return None

        def submit(self, *_: Any) -> None:
            return None

    made = Bare()
    for thing, what in ((Stream, "streams"), (Event, "events"), (MemoryPool, "memory pool")):
        with pytest.raises(DeviceUnavailable) as error:
            thing(made)
        assert f"has no {what} in this release; got Bare. Use cuda." in str(error.value)


# ── CUDA ──

CUDA = """
import numpy as np
from xpuruntime.runtime import DeviceBuffer, Event, MemoryPool, Stream
from xpuruntime.types import TensorSpec
from xpuruntime.errors import InputError, RunError
stream, other = Stream("cuda:0"), Stream("cuda:0")
assert stream.handle != other.handle and str(stream.device) == "cuda"[:4] or str(stream.device) == "cuda:0"
begin, end = Event("cuda:0"), Event("cuda:0")
assert begin.done
stream.record(begin); stream.record(end)
other.wait(end)
other.synchronize(); stream.synchronize()
assert end.done and stream.done and end.elapsed_ms(begin) >= 0
handle = stream.handle
del stream
assert Stream("cuda:0").handle == handle
Stream("cpu").wait(end)
try:
    Stream("cpu").record(end)
except InputError as error:
    assert "can be recorded on streams of its own device only" in str(error), error
pool = MemoryPool("cuda:0")
before = pool.statistics().live_bytes
buffer = pool.allocate((1024,))
assert pool.statistics().live_bytes >= before + 4096
buffer.write(np.arange(1024, dtype=np.float32))
assert buffer.to_numpy()[1023] == 1023
print("good")
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated driver is compiled here")
def test_the_same_on_cuda(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    build = [
        "g++",
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        str(DRIVER),
        "-o",
        str(library),
        "-ldl",
        "-pthread",
    ]
    subprocess.run(build, check=True, timeout=300)
    done = subprocess.run(
        [sys.executable, "-c", CUDA],
        env={
            "XPU_LIBCUDA": str(library),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr
