"""Locks: replay without measuring or choosing, validators, fallback, shape buckets, and files that are no locks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.onnx_models import save_small_mlp

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.engines import lookup
from xpuruntime.errors import FormatError, LockError, PolicyError
from xpuruntime.inference.lock_checks.programs import pinned_word
from xpuruntime.inference.locks.making import _with_kernels
from xpuruntime.program.lock import Lock, LockedCall, LockedProgram, LockedRegion, plan_digest
from xpuruntime.program.plan import Plan, PlanNode

onnx = pytest.importorskip("onnx")

ORDER = {"engine_order": {"cpu": ["onnxruntime", "native"]}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products, a relu and a softmax; ``x`` float32[batch, 16]."""
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    return path


def policy(*rules: dict[str, Any], batch: int | None = 2, **execution: Any) -> dict[str, Any]:
    if batch is not None:
        execution["fixed_shapes"] = {"batch": batch}
    return {"version": 1, "kernel": {"rules": list(rules)} if rules else {}, "execution": execution}


def x_of(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)


def locked(model: Path, demands: dict[str, Any], **options: Any) -> tuple[Lock, np.ndarray[Any, Any]]:
    """Return the lock of a native session, and its output for two rows."""
    options = {"engine": "native", "device": "cpu", "threads": 1} | options
    with xrt.InferenceSession(model, policy=demands, **options) as session:
        y = session.run({"x": x_of(2)})["y"]
        return session.lock(), y


@pytest.fixture(scope="module")
def gemv(model: Path) -> tuple[Lock, np.ndarray[Any, Any]]:
    return locked(model, policy({"node": "fc2", "use": "gemv"}))


# ── replay ──


def test_a_session_under_a_lock_repeats_plan_and_bits(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    lock, y = gemv
    lock.save(tmp_path / "p.lock")
    with xrt.InferenceSession(model, lock=tmp_path / "p.lock") as session:
        assert session.run({"x": x_of(2)})["y"].tobytes() == y.tobytes()
        plan = session.plan
        assert session.receipt().confirmed
        again = session.lock()
    assert plan_digest(plan) == lock.plan
    assert {n.name: n.kernel for n in plan.nodes}["fc2"] == "matmul/gemv"
    assert again.kernels == lock.kernels
    assert again.programs == lock.programs


def test_under_a_lock_no_candidate_is_weighed(model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]]) -> None:
    with xrt.InferenceSession(model, lock=gemv[0]) as session:
        decisions = session.plan.decisions
    about = [d for d in decisions if d.question == "engine" or d.question.startswith("kernel ")]
    assert len(about) >= 3
    assert {(d.chosen.code, d.rejected) for d in about if d.chosen} == {(Reason.LOCKED, ())}
    assert [d.chosen.code for d in decisions if d.question == "lock" and d.chosen] == [Reason.LOCKED]


SCRIPT = """
import hashlib, json, sys
import numpy as np
import xpuruntime as xrt
from xpuruntime.program.lock import plan_digest
model, lock = sys.argv[1:]
x = np.random.default_rng(2).standard_normal((2, 16)).astype(np.float32)
with xrt.profile() as trace, xrt.InferenceSession(model, lock=lock) as session:
    y = session.run({"x": x})["y"]
    plan = plan_digest(session.plan)
print(json.dumps({"plan": plan, "y": hashlib.sha256(y.tobytes()).hexdigest(), "events": [s.name for s in trace.spans]}))
"""


def test_two_cold_processes_with_wiped_caches_do_the_same_and_measure_nothing(
    model: Path, tmp_path: Path
) -> None:
    lock, y = locked(model, policy({"node": "fc2", "use": "gemv"}))
    lock.save(tmp_path / "p.lock")
    seen = []
    for run in ("first", "second"):
        environment = os.environ | {
            "XPU_CACHE_DIR": str(tmp_path / run),
            "XPU_ENGINE": "openvino",
            "XPU_NUM_THREADS": "2",
        }
        command = [sys.executable, "-c", SCRIPT, str(model), str(tmp_path / "p.lock")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    assert seen[0]["plan"] == seen[1]["plan"] == lock.plan
    assert seen[0]["y"] == seen[1]["y"] == hashlib.sha256(y.tobytes()).hexdigest()
    for events in (s["events"] for s in seen):
        assert events  # the run itself
        assert [e for e in events if e.startswith("measure: ")] == []


def test_a_measured_choice_is_not_measured_again(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with xrt.profile() as trace:
        lock, y = locked(model, policy(**ORDER), engine="auto", cache_dir=tmp_path / "a")
    assert any(s.name.startswith("measure: ") for s in trace.spans)
    with xrt.profile() as trace, xrt.InferenceSession(model, lock=lock, cache_dir=tmp_path / "b") as session:
        assert session.run({"x": x_of(2)})["y"].tobytes() == y.tobytes()
    assert trace.spans
    assert not any(s.name.startswith("measure: ") for s in trace.spans)


def test_a_vendor_s_engine_is_locked_by_its_version_and_options(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    lock, y = locked(model, policy(batch=None), engine="onnxruntime")
    assert lock.programs == ()
    assert lock.validators["onnxruntime"] == lookup("onnxruntime").load().version()
    with xrt.InferenceSession(model, lock=lock) as session:
        assert session.run({"x": x_of(2)})["y"].tobytes() == y.tobytes()
        assert session.plan.regions[0].engine == "onnxruntime"


def test_open_shapes_are_locked_by_bucket(model: Path) -> None:
    with xrt.InferenceSession(model, engine="native", device="cpu", threads=1) as session:
        with pytest.raises(LockError, match="no shapes were run"):
            session.lock()
        outputs = {n: session.run({"x": x_of(n)})["y"] for n in (2, 7)}
        lock = session.lock()
    assert {p.shapes["batch"] for p in lock.programs} == {2, 7}
    with xrt.InferenceSession(model, lock=lock) as session:
        for n in (7, 2):
            assert session.run({"x": x_of(n)})["y"].tobytes() == outputs[n].tobytes()
        with pytest.raises(LockError, match="is not in the lock"):
            session.run({"x": x_of(3)})
        assert session.run({"x": x_of(2)})["y"].tobytes() == outputs[2].tobytes()


def test_a_compiled_program_is_locked(model: Path) -> None:
    program = model.with_suffix(".npubin")  # it refers to the model's weights
    xrt.compile(xrt.load_onnx(model), target="cpu", shapes={"batch": 2}).save(program)
    with xrt.InferenceSession(program, device="cpu", threads=1) as session:
        y = session.run({"x": x_of(2)})["y"]
        lock = session.lock()
    with xrt.InferenceSession(program, lock=lock) as session:
        assert session.run({"x": x_of(2)})["y"].tobytes() == y.tobytes()


# ── what changed is named ──


def test_a_changed_version_is_refused_by_name(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = lookup("native").load()
    monkeypatch.setattr(engine, "version", lambda: "9.9.9")
    with pytest.raises(LockError, match=r"native: 0\.\S+ in the lock, 9\.9\.9 here") as raised:
        xrt.InferenceSession(model, lock=gemv[0])
    assert raised.value.changes == (("native", gemv[0].validators["native"], "9.9.9"),)
    assert raised.value.to_json()["changes"] == [
        {"name": "native", "locked": gemv[0].validators["native"], "here": "9.9.9"}
    ]
    assert raised.value.exit_code == 6


def test_every_validator_is_compared(model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]]) -> None:
    lock = gemv[0]
    assert {"model", "xpuruntime", "native", "native.target", "native.compiler"} <= set(lock.validators)
    for name in lock.validators:
        changed = dataclasses.replace(lock, validators={**lock.validators, name: "other"})
        with pytest.raises(LockError, match=f"{name}: other in the lock") as raised:
            xrt.InferenceSession(model, lock=changed)
        assert [c[0] for c in raised.value.changes] == [name]


def test_a_declared_fallback_runs_under_the_policy_with_one_warning(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    demands = policy({"node": "fc2", "use": "gemv"})
    with xrt.InferenceSession(model, engine="native", device="cpu", policy=demands, threads=1) as session:
        lock = session.lock(on_mismatch="policy")
    changed = dataclasses.replace(lock, validators={**lock.validators, "native.target": "cpu:other"})
    with xrt.InferenceSession(model, lock=changed) as session:
        session.run({"x": x_of(2)})
        assert [w for w in session.plan.warnings if "is not used: native.target: cpu:other in the lock" in w]
        assert {n.name: n.kernel for n in session.plan.nodes}["fc2"] == "matmul/gemv"
        assert [d for d in session.plan.decisions if d.question == "lock"] == []
    assert sum("is not used" in r.getMessage() for r in caplog.records) == 1


def test_another_model_is_refused(gemv: tuple[Lock, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    save_small_mlp(tmp_path / "other.onnx", np.random.default_rng(1))
    with pytest.raises(LockError, match="model: ") as raised:
        xrt.InferenceSession(tmp_path / "other.onnx", lock=gemv[0])
    assert [c[0] for c in raised.value.changes] == ["model"]


def changed_call(lock: Lock, node: str, **fields: Any) -> Lock:
    (program,) = lock.programs
    calls = tuple(dataclasses.replace(c, **fields) if node in c.nodes else c for c in program.calls)
    return dataclasses.replace(lock, programs=(dataclasses.replace(program, calls=calls),))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"code": "gemv_0000000000"}, "code of fc2: gemv_0000000000 in the lock"),
        ({"implementation": "algorithm 3"}, "library's implementation of fc2: algorithm 3 in the lock"),
        ({"config": {"tasks": "0"}}, "configuration of fc2"),
    ],
)
def test_code_that_differs_from_the_lock_is_refused(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(LockError, match="names another program") as raised:
        xrt.InferenceSession(model, lock=changed_call(gemv[0], "fc2", **fields))
    assert text in str(raised.value)


def test_a_kernel_that_is_gone_is_named(model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]]) -> None:
    (program,) = gemv[0].programs
    kernels = {k: "gone" if w == "gemv" else w for k, w in program.kernels.items()}
    lock = dataclasses.replace(gemv[0], programs=(dataclasses.replace(program, kernels=kernels),))
    with pytest.raises(LockError, match="the lock names kernel 'gone', which is not available"):
        xrt.InferenceSession(model, lock=lock)


def test_what_a_lock_decides_cannot_be_an_argument(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]]
) -> None:
    for argument in (
        {"engine": "native"},
        {"device": "cpu"},
        {"policy": {"version": 1}},
        {"threads": 2},
        {"fp16": True},
    ):
        with pytest.raises(PolicyError, match=f"a lock decides.*got {next(iter(argument))}"):
            xrt.InferenceSession(model, lock=gemv[0], **argument)


def test_policies_around_a_locked_session_do_not_apply(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_ENGINE", "openvino")
    monkeypatch.setenv("XPU_NUM_THREADS", "2")
    with (
        xrt.with_policy({"version": 1, "kernel": {"matmul": "generated"}}),
        xrt.InferenceSession(model, lock=gemv[0]) as session,
    ):
        assert session.run({"x": x_of(2)})["y"].tobytes() == gemv[1].tobytes()
        assert session.plan.regions[0].threads == 1


def test_another_word_for_a_mismatch_is_an_error(model: Path) -> None:
    with (
        xrt.InferenceSession(model, engine="native", device="cpu", policy=policy(), threads=1) as session,
        pytest.raises(PolicyError, match="on_mismatch must be error or policy"),
    ):
        session.lock(on_mismatch="warn")


@pytest.mark.parametrize(
    ("kernel", "implementation", "word"),
    [
        ("cublasLt", "cublasLtMatmul algorithm 21, tile 5, stages 3, split-k 1, workspace 0", "cublasLt[algorithm=21]"),
        ("cudnn", "cudnnBackendExecute engine 38, heuristic, workspace 4096", "cudnn[engine=38]"),
        ("generated", "", "generated"),
        ("cublas", "cublasGemmEx", "cublas"),
    ],
)  # fmt: skip
def test_algorithms_that_libraries_report_are_pinned(kernel: str, implementation: str, word: str) -> None:
    assert pinned_word(kernel, implementation) == word


def test_the_digest_covers_the_algorithm_that_a_library_chose():
    """A session under the lock compiles with the pinned word, so the digest must be of a plan that has it."""
    nodes = (
        PlanNode("a", "Conv", "conv", "r0", kernel="conv/cudnn"),
        PlanNode("b", "Relu", "activation", "r0"),
    )
    plan = Plan({"name": "m", "digest": "0"}, {}, (), (), (), nodes)
    pinned = _with_kernels(plan, {"a": "conv/cudnn[engine=44]", "b": "elementwise/generated"})
    assert [n.kernel for n in pinned.nodes] == ["conv/cudnn[engine=44]", ""]
    assert plan_digest(pinned) != plan_digest(plan)


# ── files ──

words = st.text(max_size=6)
maps = st.dictionaries(words, words, max_size=3)
calls = st.builds(
    LockedCall, st.lists(words, max_size=2).map(tuple), st.lists(words, max_size=2).map(tuple), words, words, words, maps, words
)  # fmt: skip
programs = st.builds(
    LockedProgram, st.dictionaries(words, st.integers(0, 1 << 40), max_size=2), words, words, st.lists(words, max_size=2).map(tuple),
    st.lists(calls, max_size=2).map(tuple), st.integers(0, 1 << 40), st.integers(0, 1 << 40), maps, words,
)  # fmt: skip
names = st.lists(words, max_size=2).map(tuple)
regions = st.builds(LockedRegion, words, words, words, words, words, maps, names, names, names)
pinned = {"version": 1, "execution": {"engine": "native", "target": "cpu"}}
locks = st.builds(
    Lock, st.fixed_dictionaries({"name": words, "digest": words, "format": words}), words, st.just(pinned), st.just({"version": 1}),
    st.integers(0, 64), maps, st.lists(programs, max_size=2).map(tuple), st.just(({"name": "a"},)), st.none() | st.integers(0, 64),
    st.sampled_from(["", "float16"]),
    st.sampled_from(["error", "policy"]), words, maps, st.lists(regions, max_size=2).map(tuple),
)  # fmt: skip


@given(lock=locks)
@settings(max_examples=40)
def test_locks_round_trip(lock: Lock) -> None:
    assert Lock.from_json(json.loads(json.dumps(lock.to_json()))) == lock


def resigned(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Change fields of a lock and give it the digest of its new content."""
    from xpuruntime.program.lock import _digest

    plain = {k: v for k, v in (document | fields).items() if k not in ("format", "format_version", "digest")}
    return {**document, **fields, "digest": _digest(plain)}


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no lock": lambda d: {"format": "other"},
    "a list": lambda d: [d],
    "a newer version": lambda d: d | {"format_version": 3},
    "edited by hand": lambda d: d | {"threads": 64},
    "an unknown field": lambda d: resigned(d, more=1),
    "threads that are text": lambda d: resigned(d, threads="4"),
    "a program that is a number": lambda d: resigned(d, programs=[1]),
    "kernels that are a list": lambda d: resigned(d, programs=[d["programs"][0] | {"kernels": []}]),
    "a word that is no reaction": lambda d: resigned(d, on_mismatch="ignore"),
    "a model without a digest": lambda d: resigned(d, model={"name": "m"}),
    "a policy without an engine": lambda d: resigned(d, policy={"version": 1}),
    "a policy without a device": lambda d: resigned(
        d, policy={"version": 1, "execution": {"engine": "native"}}
    ),
    "a policy whose section is a list": lambda d: resigned(d, policy=d["policy"] | {"execution": []}),
    "a permit that is no dtype": lambda d: resigned(d, permit="half"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_lock_is_a_named_error(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "bad.lock"
    path.write_text(json.dumps(BROKEN[name](gemv[0].to_json())))
    with pytest.raises(FormatError, match=r"\[lock .*bad\.lock\]"):
        xrt.InferenceSession(model, lock=path)


def test_a_policy_that_this_release_does_not_read_is_named(
    model: Path, gemv: tuple[Lock, np.ndarray[Any, Any]]
) -> None:
    lock = dataclasses.replace(gemv[0], policy={"version": 1, "kernel": {"matmul": "from_the_future"}})
    with pytest.raises(FormatError, match=r"has a policy that this release does not read.*from_the_future"):
        xrt.InferenceSession(model, lock=lock)


def test_a_half_written_lock_is_never_read(gemv: tuple[Lock, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    path = tmp_path / "p.lock"
    gemv[0].save(path)
    data = path.read_bytes()
    for end in range(0, len(data) - 2, 97):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError):
            Lock.load(path)
    assert list(tmp_path.iterdir()) == [path]  # no temporary file stays


def test_a_model_that_is_imported_for_each_set_of_shapes_is_locked_by_bucket(tmp_path: Path) -> None:
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["r"], name="range"),
        helper.make_node("Cast", ["r"], ["f"], to=1),
        helper.make_node("Add", ["x", "f"], ["y"], name="add"),
    ]
    numbers = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("zero", 0), ("one", 1))]
    ports = [helper.make_tensor_value_info(n, 1, ["n"]) for n in "xy"]
    graph = helper.make_graph(nodes, "count", ports[:1], ports[1:], numbers)
    path = tmp_path / "count.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    inputs = {n: np.random.default_rng(n).standard_normal(n).astype(np.float32) for n in (3, 5)}
    with xrt.InferenceSession(path, engine="native", device="cpu", threads=1) as session:
        outputs = {n: session.run({"x": x})["y"] for n, x in inputs.items()}
        lock = session.lock()
    assert sorted(p.shapes["n"] for p in lock.programs) == [3, 5]
    with xrt.InferenceSession(path, lock=lock) as session:
        for n, x in inputs.items():
            assert np.array_equal(outputs[n], x + np.arange(n, dtype=np.float32))
            assert session.run({"x": x})["y"].tobytes() == outputs[n].tobytes()
        with pytest.raises(LockError):
            session.run({"x": np.zeros(4, np.float32)})
