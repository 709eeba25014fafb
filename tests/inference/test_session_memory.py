"""Memory of native sessions: it is reported, shared by programs of all shapes, and held to a policy's limit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import EngineUnavailable, OutOfMemory, PolicyError
from xpuruntime.inference.native.run_memory import RunMemory
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.runtime import NullBackend


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)


def opened(path: Path, cache: Path, **policy: Any) -> xrt.InferenceSession:
    words = {"device": "cpu", "engine": "native", "cache_dir": cache}
    return xrt.InferenceSession(path, exec_policy=xrt.ExecutionPolicy(**policy) if policy else None, **words)


@pytest.fixture(scope="module")
def right(path: Path) -> dict[int, np.ndarray]:
    """Answers of another engine by batch size."""
    pytest.importorskip("onnxruntime")
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime") as sess:
        return {n: sess.run(input=images(n))["output"] for n in (1, 2, 4, 64)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def agrees(sess: xrt.InferenceSession, batch: int, right: dict[int, np.ndarray]) -> None:
    np.testing.assert_allclose(sess.run(input=images(batch))["output"], right[batch], rtol=1e-4, atol=1e-5)


def test_programs_of_all_shapes_run_in_one_arena(
    path: Path, cache: Path, right: dict[int, np.ndarray]
) -> None:
    with opened(path, cache) as sess:
        for batch in (1, 4, 2, 1, 4):
            agrees(sess, batch, right)
        pool = sess.executable._memory.arenas
        executors = sess.executable._buckets.executors
        assert len(executors) == 3
        assert pool.arenas == 1
        largest = max(e.run_bytes for e in executors)
        assert pool.peak_bytes == largest > min(e.run_bytes for e in executors)
        memory = sess.memory
        assert memory["runs"] == largest
        one = {id(b): b.size_bytes for b in executors[0].weights.values()}
        assert memory["weights"] >= sum(one.values()) > 0
        assert memory["peak"] == memory["weights"] + memory["states"] + memory["runs"] >= memory["bound"]
        assert memory["limit"] == 0
    assert pool.held_bytes == 0


def test_a_receipt_has_the_memory(path: Path, cache: Path) -> None:
    with opened(path, cache) as sess:
        sess.run(input=images(2))
        receipt = sess.receipt(times=False)
        memory = receipt.evidence["r0"].memory
        assert memory == sess.memory
        assert f"bytes of memory: weights {memory['weights']}, runs {memory['runs']}" in str(receipt)
        assert Receipt.from_json(receipt.to_json()).evidence["r0"].memory == memory
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime", cache_dir=cache) as other:
        assert other.memory == {}


@pytest.mark.usefixtures(
    "no_garbage"
)  # earlier sessions of the model that are not collected yet have equal weights
def test_sessions_of_one_model_share_their_weights(path: Path, cache: Path) -> None:
    with opened(path, cache) as first, opened(path, cache) as second:
        for sess in (first, second):
            sess.run(input=images(2))
        a, b = (s.executable._last.weights for s in (first, second))
        assert all(a[name] is b[name] for name in a)


def test_runs_at_a_time_wait_for_the_memory_of_a_limit(
    path: Path, cache: Path, right: dict[int, np.ndarray]
) -> None:
    with opened(path, cache) as sess:
        sess.run(input=images(64))
        needed = sess.memory["peak"]
    with opened(path, cache, memory_bytes=needed) as sess:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(10):
                    agrees(sess, 64, right)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert sess.memory["peak"] == sess.memory["limit"] == needed
        assert sess.executable._memory.arenas.arenas == 1


def test_shapes_over_the_limit_are_refused_and_others_run(
    path: Path, cache: Path, right: dict[int, np.ndarray]
) -> None:
    with opened(path, cache) as sess:
        sess.run(input=images(4))
        needed = sess.memory["peak"]
    with opened(path, cache, memory_bytes=needed) as sess:
        agrees(sess, 4, right)
        with pytest.raises(OutOfMemory, match=f"memory_bytes is {needed}.*Raise memory_bytes"):
            sess.run(input=images(64))
        agrees(sess, 4, right)
        assert sess.memory["peak"] <= needed


def test_a_limit_that_weights_exceed_is_an_error_at_opening(path: Path, cache: Path) -> None:
    fixed = {"fixed_shapes": {"input": [2, 3, 8, 8]}, "static_shape": True}
    with pytest.raises(
        OutOfMemory, match=r"does not fit the memory that its policy allows; got \d+ bytes of weights"
    ):
        opened(path, cache, memory_bytes=64, **fixed)
    opened(path, cache, memory_bytes="1MiB", **fixed).close()


def test_an_engine_that_allocates_memory_itself_is_refused(path: Path, cache: Path) -> None:
    with pytest.raises(
        PolicyError, match=r"the engine allocates memory itself; got onnxruntime on cpu.*engine='native'"
    ):
        xrt.InferenceSession(
            path, device="cpu", engine="onnxruntime", exec_policy=xrt.ExecutionPolicy(memory_bytes="1GiB")
        )
    with pytest.raises(PolicyError, match="memory_bytes"):
        xrt.compile(
            xrt.load_onnx(path), target="cpu", policy={"version": 1, "execution": {"memory_bytes": 1000}}
        )


def test_auto_chooses_among_engines_that_can_hold_the_limit(path: Path, cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    policy = xrt.ExecutionPolicy(memory_bytes="1GiB")
    with xrt.InferenceSession(path, device="cpu", engine="auto", exec_policy=policy, cache_dir=cache) as sess:
        decision = sess.plan.decision("engine")
        assert decision is not None
        assert decision.chosen is not None
        assert decision.chosen.name == "native on cpu"
        refused = {c.name: c.reason for c in decision.rejected}
        assert "allocates memory itself" in refused["onnxruntime on cpu"]


def test_a_device_without_shared_memory_of_runs_is_refused_with_a_remedy() -> None:
    memory = RunMemory("the session", NullBackend())
    assert memory.report([]) == {}
    with pytest.raises(
        EngineUnavailable, match=r"got device .*Drop memory_bytes, or use device='cpu' or 'cuda'"
    ):
        memory.limit(1000, [])
