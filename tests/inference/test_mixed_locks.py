"""Locks of models on several engines: exactly the locked regions, nothing measured or chosen, and errors that name what changed."""

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
from support.onnx_models import save_small_mlp

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.engines import lookup
from xpuruntime.errors import FormatError, LockError
from xpuruntime.program.lock import Lock, LockedRegion, plan_digest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = np.random.default_rng(2).standard_normal((2, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products fc1 and fc2, a relu and a softmax; ``x`` float32[batch, 16]."""
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    return path


def policy(*, batch: int | None = 2, place: Any = None, rules: Any = (), **execution: Any) -> dict[str, Any]:
    execution["place"] = {"fc2": "native"} if place is None else place
    if batch is not None:
        execution["fixed_shapes"] = {"batch": batch}
    return {"version": 1, "kernel": {"rules": list(rules)} if rules else {}, "execution": execution}


def locked(model: Path, demands: dict[str, Any], engine: str | None = "onnxruntime") -> tuple[Lock, Any]:
    """Return the lock of a session on several engines, and its output for X."""
    with xrt.InferenceSession(model, engine=engine, device="cpu", policy=demands, threads=1) as session:
        y = session.run({"x": X})["y"]
        return session.lock(), y


@pytest.fixture(scope="module")
def lock(model: Path) -> Lock:
    return locked(model, policy())[0]


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_two_cold_processes_run_the_same_regions_and_measure_nothing(
    model: Path, tmp_path: Path, engine: str
) -> None:
    pytest.importorskip(engine)
    lock, y = locked(model, policy(), engine)
    assert [r.engine for r in lock.regions] == [engine, "native", engine]
    lock.save(tmp_path / "p.lock")
    for run in ("first", "second"):
        environment = os.environ | {"XPU_CACHE_DIR": str(tmp_path / run), "XPU_ENGINE": "native"}
        command = [sys.executable, "-c", SCRIPT, str(model), str(tmp_path / "p.lock")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["plan"] == lock.plan
        assert seen["y"] == hashlib.sha256(y.tobytes()).hexdigest()
        assert seen["events"]  # the run itself
        assert [e for e in seen["events"] if e.startswith("measure: ")] == []


def test_no_region_is_chosen_and_none_has_an_alternative(model: Path, lock: Lock) -> None:
    with xrt.InferenceSession(model, lock=lock) as session:
        session.run({"x": X})
        plan, again = session.plan, session.lock()
        assert session.receipt().confirmed
    engines = [d for d in plan.decisions if d.question == "engine"]
    assert len(engines) == 1 + len(lock.regions)
    assert {(d.chosen.code, d.rejected) for d in engines if d.chosen} == {(Reason.LOCKED, ())}
    assert all(not r.alternatives for r in plan.regions)
    assert plan_digest(plan) == lock.plan == again.plan
    assert (again.regions, again.programs) == (lock.regions, lock.programs)


def test_a_measured_placement_is_not_measured_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_AUTO_SECONDS", "0.2")
    order = {"engine_order": {"cpu": ["onnxruntime", "native"]}}
    demands = policy(place={"*": "auto", "fc2": "native", "fc1": "onnxruntime"}, **order)
    lock, y = locked(model, demands, None)
    assert {r.engine for r in lock.regions} == {"native", "onnxruntime"}
    with xrt.profile() as trace, xrt.InferenceSession(model, lock=lock, cache_dir=tmp_path) as session:
        assert session.run({"x": X})["y"].tobytes() == y.tobytes()
    assert not any(s.name.startswith("measure: ") for s in trace.spans)


def test_a_forced_kernel_is_locked_in_its_region(model: Path) -> None:
    rule = {"node": "fc2", "use": "gemv"}
    lock, y = locked(model, policy(place={}, rules=[rule]))
    (program,) = lock.programs
    assert [c.kernel for c in program.calls] == ["matmul/gemv"]
    assert {n["name"]: n["kernel"] for n in lock.nodes}["fc2"] == "matmul/gemv"
    assert program.region == next(r.id for r in lock.regions if r.engine == "native")
    with xrt.InferenceSession(model, lock=lock) as session:
        assert session.run({"x": X})["y"].tobytes() == y.tobytes()


def test_open_shapes_are_locked_for_the_sizes_that_were_run(model: Path) -> None:
    with xrt.InferenceSession(
        model, engine="onnxruntime", device="cpu", policy=policy(batch=None, self_check="off"), threads=1
    ) as session:
        with pytest.raises(LockError, match="no shapes were run"):
            session.lock()
        y = session.run({"x": X})["y"]
        lock = session.lock()
    with xrt.InferenceSession(model, lock=lock) as session:
        assert session.run({"x": X})["y"].tobytes() == y.tobytes()
        with pytest.raises(LockError, match=r"fc2|r1"):
            session.run({"x": X[:1]})
        assert session.run({"x": X})["y"].tobytes() == y.tobytes()


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_changed_version_of_a_region_s_engine_is_refused_with_its_name(
    model: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    pytest.importorskip(engine)
    lock, _ = locked(model, policy(), engine)
    module: Any = lookup(engine).load()
    monkeypatch.setattr(module, "version", lambda: "9.9.9")
    with pytest.raises(LockError, match=rf"{engine}: {lock.validators[engine]} in the lock, 9\.9\.9 here"):
        xrt.InferenceSession(model, lock=lock)


def test_every_validator_is_compared(model: Path, lock: Lock) -> None:
    assert {"model", "native.compiler", "onnxruntime", "processor"} <= set(lock.validators)
    for name in lock.validators:
        changed = dataclasses.replace(lock, validators={**lock.validators, name: "other"})
        with pytest.raises(LockError, match="other in the lock") as raised:
            xrt.InferenceSession(model, lock=changed)
        assert [c[0] for c in raised.value.changes] == [name]


def test_code_of_a_region_that_differs_is_refused(model: Path, lock: Lock) -> None:
    (program,) = lock.programs
    calls = tuple(dataclasses.replace(c, code="other_0000") for c in program.calls)
    changed = dataclasses.replace(lock, programs=(dataclasses.replace(program, calls=calls),))
    with pytest.raises(LockError, match="code of fc2: other_0000 in the lock"):
        xrt.InferenceSession(model, lock=changed)


def test_a_kernel_that_is_gone_is_an_error_and_not_another_engine(model: Path, lock: Lock) -> None:
    (program,) = lock.programs
    changed = dataclasses.replace(lock, programs=(dataclasses.replace(program, kernels={}),))
    with pytest.raises(LockError, match="fc2"):
        xrt.InferenceSession(model, lock=changed)


def moved(regions: tuple[LockedRegion, ...], index: int, **fields: Any) -> tuple[LockedRegion, ...]:
    return tuple(dataclasses.replace(r, **fields) if i == index else r for i, r in enumerate(regions))


WRONG: dict[str, tuple[Callable[[tuple[LockedRegion, ...]], tuple[LockedRegion, ...]], str]] = {
    "a node twice": (lambda r: moved(r, 1, nodes=(*r[1].nodes, *r[0].nodes)), "two regions have the same node"),
    "an unknown node": (lambda r: moved(r, 1, nodes=("nowhere",)), "names a node that the model does not have"),
    "a node less": (lambda r: moved(r, 0, nodes=r[0].nodes[:1]), "no region has the node"),
    "another order": (lambda r: moved(moved(r, 0, nodes=r[2].nodes), 2, nodes=r[0].nodes), "reads a value of a later region"),
    "other borders": (lambda r: moved(r, 1, inputs=("x",)), "the inputs of region r1"),
    "other names": (lambda r: moved(r, 1, id="r7"), "regions must be r0, r1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_regions_that_are_no_partition_of_the_model_are_refused(model: Path, lock: Lock, name: str) -> None:
    change, text = WRONG[name]
    changed = dataclasses.replace(lock, regions=change(lock.regions))
    with pytest.raises(FormatError, match=text):
        xrt.InferenceSession(model, lock=changed)


def test_another_engine_of_a_region_is_another_plan(model: Path, lock: Lock) -> None:
    pytest.importorskip("openvino")
    changed = dataclasses.replace(lock, regions=moved(lock.regions, 0, engine="openvino"))
    with pytest.raises(LockError, match="openvino"):
        xrt.InferenceSession(model, lock=changed)


def test_options_of_the_native_engine_hold_in_its_regions(model: Path) -> None:
    demands = policy(engine_options={"native": {"without_passes": "no_such_pass"}})
    with pytest.raises(xrt.XpuError, match="no_such_pass"):
        xrt.InferenceSession(model, engine="onnxruntime", device="cpu", policy=demands)
