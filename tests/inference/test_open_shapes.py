"""Native sessions with open shapes: bounds are held, few programs are kept, each is compiled once for all starts."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.inference.native import engine as native
from xpuruntime.storage.store import Store


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)


def opened(path: Path, cache: Path, *, kept: int | None = None, **more: Any) -> xrt.InferenceSession:
    options = {} if kept is None else {"native": {"shape_buckets": kept}}
    policy = xrt.ExecutionPolicy(engine_options=options, **more)
    return xrt.InferenceSession(path, device="cpu", engine="native", exec_policy=policy, cache_dir=cache)


def note(sess: xrt.InferenceSession) -> str:
    (text,) = sess.receipt(times=False).evidence["r0"].notes
    return text


@pytest.fixture(scope="module")
def right(path: Path) -> dict[int, np.ndarray]:
    """Answers of another engine by batch size."""
    pytest.importorskip("onnxruntime")
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime") as sess:
        return {n: sess.run(input=images(n))["output"] for n in range(1, 8)}


def agrees(sess: xrt.InferenceSession, batch: int, right: dict[int, np.ndarray]) -> None:
    np.testing.assert_allclose(sess.run(input=images(batch))["output"], right[batch], rtol=1e-4, atol=1e-5)


# ── how many are kept ──


def test_the_least_recently_used_program_goes(
    path: Path, tmp_path: Path, right: dict[int, np.ndarray]
) -> None:
    with opened(path, tmp_path, kept=2) as sess:
        agrees(sess, 1, right)
        first = weakref.ref(sess._executable._last)
        agrees(sess, 2, right)
        agrees(sess, 1, right)
        agrees(sess, 3, right)  # 2 is evicted
        assert first() is not None
        assert (
            note(sess)
            == "3 sets of shapes met: 3 compiled, 0 taken from the store; 2 of at most 2 kept, 1 evicted"
        )
        agrees(sess, 4, right)  # 1 is evicted
        gc.collect()
        assert first() is None
        agrees(sess, 1, right)  # comes back from the store
        assert (
            note(sess)
            == "5 sets of shapes met: 4 compiled, 1 taken from the store; 2 of at most 2 kept, 3 evicted"
        )
        assert sess._executable.counters["runs"] == 6


@pytest.mark.sampled(one_in=3)
def test_many_shapes_keep_memory_bounded(path: Path, tmp_path: Path, right: dict[int, np.ndarray]) -> None:
    with opened(path, tmp_path) as sess:
        alive: list[weakref.ref[Any]] = []
        for batch in range(1, 20):
            sess.run(input=images(batch))
            alive.append(weakref.ref(sess._executable._last))
        gc.collect()
        assert sum(ref() is not None for ref in alive) == 16
        agrees(sess, 1, right)


def test_threads_with_more_shapes_than_are_kept(
    path: Path, tmp_path: Path, right: dict[int, np.ndarray]
) -> None:
    wrong: list[str] = []
    with opened(path, tmp_path, kept=2) as sess:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            try:
                for _ in range(40):
                    agrees(sess, int(random.integers(1, 8)), right)
                    sess.receipt(times=False)
            except BaseException as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(sess._executable._buckets) == 2
        assert sess.receipt(times=False).runs == 6 * 40


@pytest.mark.parametrize("count", ["0", "many", "99999", "-1"])
def test_a_number_of_programs_that_is_none_is_refused(path: Path, tmp_path: Path, count: str) -> None:
    with pytest.raises(xrt.PolicyError) as error:
        opened(path, tmp_path, kept=count)  # type: ignore[arg-type]
    assert f"shape_buckets must be a number from 1 to 4096, got '{count}'" in str(error.value)
    assert "how many programs a session with open shapes keeps" in str(error.value)


# ── the store ──


def test_a_second_start_compiles_no_shape_that_was_met(
    path: Path, tmp_path: Path, right: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path, tmp_path) as sess:
        first = {n: sess.run(input=images(n))["output"] for n in (2, 3)}
    monkeypatch.setattr(native, "compiled", lambda *_: pytest.fail("compiled again"))
    with opened(path, tmp_path) as sess:
        for batch, want in first.items():
            np.testing.assert_array_equal(sess.run(input=images(batch))["output"], want)
        assert (
            note(sess)
            == "2 sets of shapes met: 0 compiled, 2 taken from the store; 2 of at most 16 kept, 0 evicted"
        )


def test_without_a_store_each_start_compiles(path: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with opened(path, tmp_path, caching=False) as sess:
            sess.run(input=images(2))
            assert note(sess).startswith("1 set of shapes met: 1 compiled, 0 taken")


def test_another_policy_finds_no_program_of_this_one(path: Path, tmp_path: Path) -> None:
    with opened(path, tmp_path) as sess:
        sess.run(input=images(2))
    with opened(path, tmp_path, precision="bfloat16") as sess:
        sess.run(input=images(2))
        assert note(sess).startswith("1 set of shapes met: 1 compiled")


def test_a_kept_program_that_cannot_be_read_is_compiled_again(
    path: Path, tmp_path: Path, right: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store.put

    def damaged(self: Store, kind: str, what: Any, blob: bytes) -> str:
        return put(self, kind, what, b"another release" if kind == "artifact" else blob)

    monkeypatch.setattr(Store, "put", damaged)
    with opened(path, tmp_path) as sess:
        sess.run(input=images(2))
    monkeypatch.undo()
    with opened(path, tmp_path) as sess:
        agrees(sess, 2, right)
        assert note(sess).startswith("1 set of shapes met: 1 compiled, 0 taken")
    with opened(path, tmp_path) as sess:
        agrees(sess, 2, right)
        assert note(sess).startswith("1 set of shapes met: 0 compiled, 1 taken")


# ── the receipt ──


def test_the_receipt_is_of_the_shapes_that_ran_last(path: Path, tmp_path: Path) -> None:
    with opened(path, tmp_path) as sess:
        sess.run(input=images(2))
        two = sess.receipt(times=False)
        sess.run(input=images(7))
        seven = sess.receipt(times=False)
        sess.run(input=images(2))
        again = sess.receipt(times=False)
        timed = sess.receipt()
    rows = [r.evidence["r0"].rows for r in (two, seven, again)]
    assert rows[0] == rows[2] != rows[1]
    assert [r.kernel for r in timed.evidence["r0"].rows] == [r.kernel for r in rows[0]]
    kernels = [d for d in two.plan.decisions if d.question.startswith("kernel ")]
    assert kernels
    assert [d for d in again.plan.decisions if d.question.startswith("kernel ")] == kernels


# ── bounds ──


@pytest.fixture(scope="module")
def bounded() -> dict[str, Any]:
    """A module whose batch may be 2 to 4, and what it is traced with."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU()).eval()
    shapes = {"input": {0: torch.export.Dim("n", min=2, max=4)}}
    return {"model": net, "example_inputs": torch.zeros(3, 3), "dynamic_shapes": shapes}


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_sizes_out_of_bounds_are_refused_before_anything_runs(
    bounded: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    if engine != "native":
        pytest.importorskip(engine)
    with xrt.InferenceSession(**bounded, engine=engine, device="cpu", cache_dir=tmp_path) as sess:
        name = sess.input_info[0].name
        for size in (2, 4):
            assert next(iter(sess.run([np.zeros((size, 3), np.float32)]).values())).shape == (size, 5)
        for size, bound in ((1, "min=1"), (5, "max=5"), (0, "min=0")):
            with pytest.raises(xrt.InputError) as error:
                sess.run([np.zeros((size, 3), np.float32)])
            text = str(error.value)
            assert (
                f"input {name!r} axis 0] n must be from 2 to 4, the sizes that the model was exported for"
                in text
            )
            assert (
                f"got {size}. Change the array, or export the model with wider bounds: torch.export.Dim('n', {bound})."
                in text
            )
        binding = sess.io_binding()
        binding.bind_input(name, np.zeros((5, 3), np.float32))
        with pytest.raises(xrt.InputError, match="n must be from 2 to 4"):
            sess.run_with_iobinding(binding)
        assert sess.receipt(times=False).runs == 2


def test_programs_are_compiled_within_bounds_only(bounded: dict[str, Any]) -> None:
    graph = xrt.extract_ir(**bounded, model_name="bounded")
    assert len(xrt.compile(graph, shapes=[{"n": 2}, {"n": 4}]).entries) == 2
    with pytest.raises(xrt.errors.IrError) as error:
        xrt.compile(graph, shapes={"n": 5})
    assert "n must be from 2 to 4, the sizes that the model was exported for; got 5" in str(error.value)
