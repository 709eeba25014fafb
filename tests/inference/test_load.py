"""One session under many threads, on each engine: every output right, and no memory kept after the warm-up."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt

pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="an engine is needed")

ENGINES = ("onnxruntime", "openvino", "native")
MIXED = "native + onnxruntime"  # regions of one model
INPUTS = 16  # different ones, so that an answer to another thread's question is seen
PARTS = 10
GROWTH = 8 << 20  # bytes of resident memory that may come from anywhere in a process


def resident() -> int:
    """Bytes that this process has written (Linux). Pages of files do not count: who else maps a library at the moment is not ours to say."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines[1:])
    return int(fields["Private_Dirty"].split()[0]) * 1024


def hammer(sess: xrt.InferenceSession, questions: list, answers: list, threads: int, runs: int) -> list[str]:
    """What went wrong: nothing."""
    wrong: list[str] = []
    gate = threading.Barrier(threads)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        gate.wait()
        try:
            for _ in range(runs):
                i = int(random.integers(INPUTS))
                if not np.array_equal(sess.run(input=questions[i])["output"], answers[i]):
                    wrong.append(f"thread {seed}: another answer to {i}")
        except Exception as error:
            wrong.append(repr(error))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong


def held(engine: str, path: Path, threads: int, runs: int) -> None:
    random = np.random.default_rng(0)
    questions = [random.standard_normal((2, 3, 8, 8)).astype(np.float32) for _ in range(INPUTS)]
    place = {"conv": "native"} if engine == MIXED else None
    policy = xrt.ExecutionPolicy(static_shape=True, fixed_shapes={"batch": 2}, place=place)
    named = "onnxruntime" if engine == MIXED else engine
    with xrt.InferenceSession(path, device="cpu", engine=named, exec_policy=policy, contexts=4) as sess:
        assert {r.engine for r in sess.plan.regions} == set(engine.split(" + "))
        answers = [sess.run(input=q)["output"] for q in questions]
        part = max(20, runs // PARTS)
        assert hammer(sess, questions, answers, threads, part) == []  # the warm-up
        levels = []
        for _ in range(PARTS):
            assert hammer(sess, questions, answers, threads, part) == []
            levels.append(resident())
        # Allocators take and give back megabytes when they like, so one moment says little: what leaks is there at every later one.
        grown = min(levels[-3:]) - max(levels[:3])
        assert grown < GROWTH, f"{grown} bytes more over {(PARTS - 5) * threads * part} runs: {levels}"
        assert sess._contexts.peak <= 4
        assert sess.receipt(times=False).runs == INPUTS + threads * part * (1 + PARTS)
        if engine == "native":
            assert sess._executable.counters["contexts"] <= 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", [*ENGINES, MIXED])
def test_threads_on_one_session(engine, path) -> None:
    held(engine, path, threads=16, runs=100)


@pytest.mark.conformance
@pytest.mark.parametrize("engine", [*ENGINES, MIXED])
def test_64_threads_of_2000_runs_on_one_session(engine, path) -> None:
    held(engine, path, threads=64, runs=2000)


def test_native_sessions_of_one_model_share_their_weights(path) -> None:
    """The same buffers, kept as long as one session is open; another model has its own."""

    def opened(model, batch: int) -> xrt.InferenceSession:
        policy = xrt.ExecutionPolicy(static_shape=True, fixed_shapes={"batch": batch})
        return xrt.InferenceSession(model, device="cpu", engine="native", exec_policy=policy)

    def places(sess: xrt.InferenceSession) -> set[int]:
        (executor,) = sess._executable._buckets.executors
        return {buffer.address for buffer in executor.weights.values()}

    import onnx

    changed = onnx.load(path)
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    x = np.ones((2, 3, 8, 8), np.float32)
    with opened(path, 2) as one, opened(changed, 2) as other:
        expected = one.run(input=x)["output"]
        with opened(path, 2) as two:
            assert places(two) == places(one)
            assert not places(two) & places(other)
            np.testing.assert_array_equal(two.run(input=x)["output"], expected)
        np.testing.assert_array_equal(one.run(input=x)["output"], expected)
