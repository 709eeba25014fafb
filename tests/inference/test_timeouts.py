"""Limits that really stop, on every engine, and sessions that go on afterwards."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.child_calls import call_within
from xpuruntime.errors import BuildError, BuildTimeout, RunCancelled, RunError, RunTimeout
from xpuruntime.storage.store import Store

onnx = pytest.importorskip("onnx", reason="models are made with it")
pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="an engine is needed")

ENGINES = ("onnxruntime", "openvino", "native")
STEPS, SIZE = 100, 512


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of products that runs for seconds on full input and for a moment on one row."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for i in range(STEPS):
        nodes.append(helper.make_node("MatMul", [f"v{i}", "w"], [f"m{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"v{i + 1}"], name=f"tanh{i}"))
    w = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) / SIZE**0.5).astype(np.float32)
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["rows", SIZE])
    y = helper.make_tensor_value_info(f"v{STEPS}", TensorProto.FLOAT, ["rows", SIZE])
    graph = helper.make_graph(nodes, "slow", [x], [y], [numpy_helper.from_array(w, "w")])
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


LONG = np.ones((2048, SIZE), np.float32)
SHORT = LONG[:1]


def opened(path: Path, engine: str, **limits: float) -> xrt.InferenceSession:
    policy = xrt.ExecutionPolicy(caching=False, **limits)
    return xrt.InferenceSession(path, device="cpu", engine=engine, exec_policy=policy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_is_ended_and_the_session_goes_on(engine, slow) -> None:
    with opened(slow, engine, run_timeout_s=100) as sess:
        expected = sess.run(v0=SHORT)[f"v{STEPS}"]
        sess.receipt()
        began = time.monotonic()
        sess.run(v0=LONG)
        whole = time.monotonic() - began
        sess._contexts.timeout_s = whole / 10
        with pytest.raises(RunTimeout, match="longer than run_timeout_s and was ended") as caught:
            sess.run(v0=LONG)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.exit_code == 8
        sess._contexts.timeout_s = 100  # what follows may have to be built again (OpenVINO)
        np.testing.assert_array_equal(sess.run(v0=SHORT)[f"v{STEPS}"], expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_future_is_cancelled_in_mid_run_and_others_are_not(engine, slow) -> None:
    with opened(slow, engine) as sess:
        expected = sess.run(v0=SHORT)[f"v{STEPS}"]
        if engine == "native":
            sess.run(v0=LONG)  # compiles
        doomed = sess.run_async(v0=LONG)
        time.sleep(0.1)
        assert doomed.cancel()
        assert doomed.cancelled()
        kept = sess.run_async({"v0": SHORT})
        np.testing.assert_array_equal(kept.result(60)[f"v{STEPS}"], expected)
        with pytest.raises(concurrent.futures.CancelledError):
            doomed.result()
        assert concurrent.futures.wait([doomed, kept], 60).not_done == set()
        with pytest.raises(xrt.InputError, match="no input of that name"):
            sess.run_async(x=SHORT).result(60)


@pytest.mark.parametrize("engine", ENGINES)
def test_cancel_and_close_end_runs_of_other_threads(engine, slow) -> None:
    sess = opened(slow, engine)
    sess.run(v0=LONG[:64])
    if engine == "native":
        sess.run(v0=LONG)  # compiles
    for end, text in ((sess.cancel, "the run was cancelled"), (sess.close, "the session is closed")):
        caught: list[RunError] = []

        def work(caught: list[RunError] = caught) -> None:
            try:
                sess.run(v0=LONG)
            except RunError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.2)
        end()
        thread.join(30)
        assert not thread.is_alive()
        assert [type(e) for e in caught] == [RunCancelled]
        assert text in str(caught[0])
    with pytest.raises(RunError, match="the session is closed"):
        sess.run(v0=SHORT)


def children() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_compilation_is_ended_and_leaves_no_process(engine, slow) -> None:
    before = children()
    with pytest.raises(BuildTimeout, match="longer than compile_timeout_s and was ended") as caught:
        opened(slow, engine, compile_timeout_s=0.001)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.decision.rejected[0].code is xrt.Reason.TIMED_OUT
    assert children() <= before
    with opened(slow, engine, compile_timeout_s=100) as sess, opened(slow, engine) as free:
        np.testing.assert_array_equal(sess.run(v0=SHORT)[f"v{STEPS}"], free.run(v0=SHORT)[f"v{STEPS}"])


def test_native_compiles_each_shape_under_the_limit(slow) -> None:
    with opened(slow, "native", compile_timeout_s=100) as sess:
        sess._executable.limit_compiles(0.01)
        with pytest.raises(BuildTimeout, match="longer than compile_timeout_s"):
            sess.run(v0=SHORT)
        sess._executable.limit_compiles(100)
        assert np.isfinite(sess.run(v0=SHORT)[f"v{STEPS}"]).all()


def test_a_timed_out_compilation_may_fall_back(slow, tmp_path) -> None:
    """To an engine whose artifact is in the store: taking it from there is no compilation."""
    ask = {"device": "cpu", "cache_dir": tmp_path}
    xrt.InferenceSession(slow, engine="openvino", **ask).close()
    policy = xrt.ExecutionPolicy(
        compile_timeout_s=0.001, allow_fallback="cpu", engine_order={"cpu": ["openvino"]}
    )
    with xrt.InferenceSession(slow, engine="native", exec_policy=policy, **ask) as sess:
        assert sess.plan.decision("engine").chosen.name == "openvino on cpu"
        assert sess.plan.decision("engine").rejected[0].code is xrt.Reason.TIMED_OUT


def test_waiting_for_another_process_that_builds_counts(path, tmp_path) -> None:
    """The lock is held elsewhere, so this start cannot even begin."""
    hold = (
        "import sys, fcntl, time, os\n"
        "files = [os.open(p, os.O_RDWR) for p in sys.argv[1:]]\n"
        "[fcntl.flock(f, fcntl.LOCK_EX) for f in files]\n"
        "print('held', flush=True); time.sleep(60)"
    )
    ask = {"device": "cpu", "engine": "openvino", "cache_dir": tmp_path}
    xrt.InferenceSession(path, **ask).close()
    Store(tmp_path).trim(1)  # all entries, and no lock
    locks = [str(p) for p in tmp_path.rglob("*.lock")]
    with subprocess.Popen([sys.executable, "-c", hold, *locks], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        policy = xrt.ExecutionPolicy(compile_timeout_s=0.2)
        with pytest.raises(BuildTimeout, match="waited longer than compile_timeout_s"):
            xrt.InferenceSession(path, exec_policy=policy, **ask)
        holder.kill()
    xrt.InferenceSession(path, exec_policy=xrt.ExecutionPolicy(compile_timeout_s=60), **ask).close()


# The child itself


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_a_child_gives_its_value_or_its_error() -> None:
    assert call_within("math:hypot", (3.0, 4.0), 60, "test") == 5.0
    with pytest.raises(ValueError, match="math domain error"):
        call_within("math:sqrt", (-1.0,), 60, "test")
    with pytest.raises(BuildError, match="its process died"):
        call_within("os:abort", (), 60, "test")
    with pytest.raises(BuildError, match="cannot be sent"):
        call_within("math:sqrt", (threading.Lock(),), 60, "test")


def test_what_a_child_started_dies_with_it(tmp_path) -> None:
    note = tmp_path / "pid"
    script = f"import os, subprocess, time; p = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    with pytest.raises(BuildTimeout):
        call_within("builtins:exec", (script,), 2.0, "test")
    assert gone(int(note.read_text()))


def test_a_child_ends_when_its_parent_is_killed(tmp_path) -> None:
    note = tmp_path / "pid"
    inner = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    outer = f"from xpuruntime.child_calls import call_within; call_within('builtins:exec', ({inner!r},), 60, 'test')"
    with subprocess.Popen([sys.executable, "-c", outer]) as parent:
        end = time.monotonic() + 30
        while not (note.exists() and note.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        parent.kill()
    assert gone(int(note.read_text()))


@pytest.mark.sampled(one_in=2)
def test_runs_beside_and_after_one_that_was_ended_are_right(slow) -> None:
    """OpenVINO's compiled models with open shapes give wrong outputs after a cancelled run; ours are renewed."""
    with opened(slow, "openvino") as sess:
        inputs = [LONG[:1], LONG[:3] * 0.5]
        expected = [sess.run(v0=x)[f"v{STEPS}"] for x in inputs]
        for turn in range(6):
            x, y = inputs[turn % 2], expected[turn % 2]
            sess.run(v0=x)
            doomed = sess.run_async(v0=LONG)
            time.sleep(0.05)
            beside = sess.run_async(v0=x) if turn < 3 else None
            time.sleep(0.02)
            doomed.cancel()
            if beside:
                np.testing.assert_array_equal(beside.result(60)[f"v{STEPS}"], y)
            for _ in range(2):
                np.testing.assert_array_equal(sess.run(v0=x)[f"v{STEPS}"], y)
