"""Locks of a DAGExecutor: exactly the locked regions and kernels, nothing measured or chosen, and errors that name what changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import EdgeTarget
from xpuruntime.cli.app import app
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.partition.partitioner import PartitionPlan, partition
from xpuruntime.decisions import Reason
from xpuruntime.engines import lookup
from xpuruntime.errors import FormatError, LockError, PolicyError
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.inference.session import InferenceSession
from xpuruntime.ir import Graph, GraphBuilder, save
from xpuruntime.program.lock import Lock, plan_digest

from .conftest import small_network

pytest.importorskip("onnxruntime")

GRAPH, WEIGHTS = small_network()
X = np.random.default_rng(4).standard_normal((2, 3, 16, 16)).astype(np.float32)
PLACE = {"max_pool*": "onnxruntime", "mean*": "interpreter on cpu:1"}


def run(dag: DAGExecutor, weights: Any = None) -> bytes:
    dag.load_weights(WEIGHTS if weights is None else weights)
    return bytes(dag.execute({"x": X})["y"].tobytes())


def placed(place: Any) -> PartitionPlan:
    return partition(GRAPH, place=place, absorb=False)


def locked(place: Any = None, **arguments: Any) -> tuple[Lock, bytes]:
    """Return the lock of an executor on several engines, and its output for X."""
    with DAGExecutor(placed(place or PLACE), threads=1, **arguments) as dag:
        y = run(dag)
        return dag.lock(), y


@pytest.fixture(scope="module")
def lock() -> Lock:
    return locked()[0]


SCRIPT = """
import hashlib, json, sys
import numpy as np
import xpuruntime as xrt
from xpuruntime.ir import Graph
from xpuruntime.program.lock import plan_digest
graph, weights, x, lock = sys.argv[1:]
with xrt.profile() as trace, xrt.DAGExecutor(Graph.load(graph), lock=lock) as dag:
    dag.load_weights(dict(np.load(weights)))
    y = dag.execute({"x": np.load(x)})["y"]
    plan = plan_digest(dag.plan)
print(json.dumps({"plan": plan, "y": hashlib.sha256(y.tobytes()).hexdigest(), "events": [s.name for s in trace.spans]}))
"""


@pytest.mark.sampled(one_in=2)
def test_two_cold_processes_run_the_same_regions_and_measure_nothing(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    lock, y = locked({"max_pool*": "onnxruntime", "linear*": "openvino"})
    assert [r.engine for r in lock.regions] == ["native", "onnxruntime", "native", "openvino", "native"]
    lock.save(tmp_path / "dag.lock")
    save(GRAPH, tmp_path / "graph.json")
    np.savez(tmp_path / "weights.npz", **WEIGHTS)
    np.save(tmp_path / "x.npy", X)
    for cache in ("first", "second"):
        environment = os.environ | {
            "XPU_CACHE_DIR": str(tmp_path / cache),
            "XPU_NUM_THREADS": "2",
            "XPU_POLICY": str(tmp_path / "none.yaml"),
        }
        files = [str(tmp_path / n) for n in ("graph.json", "weights.npz", "x.npy", "dag.lock")]
        command = [sys.executable, "-c", SCRIPT, *files]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["plan"] == lock.plan
        assert seen["y"] == hashlib.sha256(y).hexdigest()
        assert seen["events"]  # the regions
        assert [e for e in seen["events"] if e.startswith("measure: ")] == []


def test_no_region_is_chosen_and_none_has_an_alternative(lock: Lock) -> None:
    with DAGExecutor(GRAPH, lock=lock) as dag:
        run(dag)
        plan, again = dag.plan, dag.lock()
        assert dag.receipt().confirmed
    assert {(d.chosen.code, d.rejected) for d in plan.decisions if d.chosen} == {(Reason.LOCKED, ())}
    assert len(plan.decisions) == len(lock.regions)
    assert all(not r.alternatives for r in plan.regions)
    assert plan_digest(plan) == lock.plan
    assert again == lock


def test_a_plan_next_to_the_lock_must_have_its_regions(lock: Lock) -> None:
    with DAGExecutor(placed(PLACE), lock=lock) as dag:
        run(dag)
    other = placed({**PLACE, "linear*": "onnxruntime"})
    with pytest.raises(LockError, match="has other regions than the plan") as raised:
        DAGExecutor(other, lock=lock)
    node = next(n for n in GRAPH.nodes if n.op == "linear").name
    home = next(r for r in lock.regions if node in r.nodes)
    assert raised.value.changes[0][:2] == (f"node {node}", f"{home.id}, native on cpu")


def test_a_rule_of_the_policy_is_locked_in_its_region() -> None:
    policy = {"version": 1, "kernel": {"rules": [{"op": "matmul", "prefer": ["gemv"]}]}}
    lock, y = locked(policy=policy)
    words = {n["name"]: n["kernel"] for n in lock.nodes}
    node = next(n for n in GRAPH.nodes if n.op == "linear").name
    assert words[node] == "matmul/gemv"
    with DAGExecutor(GRAPH, lock=lock) as dag:
        assert run(dag) == y
        assert dag.lock() == lock


def test_weights_are_not_part_of_a_lock(lock: Lock) -> None:
    halved = {k: v / 2 for k, v in WEIGHTS.items()}
    with DAGExecutor(placed(PLACE), threads=1) as free, DAGExecutor(GRAPH, lock=lock) as dag:
        assert run(dag, halved) == run(free, halved)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_changed_version_of_a_region_s_engine_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    pytest.importorskip(engine)
    lock, _ = locked({"max_pool*": engine})
    module: Any = lookup(engine).load()
    monkeypatch.setattr(module, "version", lambda: "9.9.9")
    with pytest.raises(LockError, match=rf"{engine}: {lock.validators[engine]} in the lock, 9\.9\.9 here"):
        DAGExecutor(GRAPH, lock=lock)


def test_every_validator_is_compared(lock: Lock) -> None:
    assert {"model", "native.compiler", "onnxruntime", "interpreter", "processor"} <= set(lock.validators)
    for name in lock.validators:
        changed = dataclasses.replace(lock, validators={**lock.validators, name: "other"})
        with pytest.raises(LockError, match="other in the lock") as raised:
            DAGExecutor(GRAPH, lock=changed)
        assert [c[0] for c in raised.value.changes] == [name]


def test_a_declared_fallback_runs_the_plan_with_one_warning(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    with DAGExecutor(GRAPH, lock=lock) as dag:
        run(dag)
        soft = dag.lock(on_mismatch="policy")
    changed = dataclasses.replace(soft, validators={**soft.validators, "onnxruntime": "0.1"})
    with DAGExecutor(placed(PLACE), lock=changed) as dag:
        run(dag)
        assert dag.locked is None
    assert [r.getMessage() for r in caplog.records if "0.1 in the lock" in r.getMessage()]
    with pytest.raises(LockError, match=r"onnxruntime: 0\.1 in the lock"):
        DAGExecutor(GRAPH, lock=changed)  # a graph is no plan to fall back to


def test_code_that_differs_is_refused(lock: Lock) -> None:
    first, *others = lock.programs
    calls = tuple(dataclasses.replace(c, code="other_0000") for c in first.calls)
    changed = dataclasses.replace(lock, programs=(dataclasses.replace(first, calls=calls), *others))
    with DAGExecutor(GRAPH, lock=changed) as dag, pytest.raises(LockError, match="other_0000 in the lock"):
        dag.load_weights(WEIGHTS)


def test_a_kernel_that_is_gone_is_an_error_and_not_another_engine(lock: Lock) -> None:
    first, *others = lock.programs
    changed = dataclasses.replace(lock, programs=(dataclasses.replace(first, kernels={}), *others))
    with pytest.raises(LockError, match="is not in the lock"):
        DAGExecutor(GRAPH, lock=changed).load_weights(WEIGHTS)


def test_open_shapes_are_locked_for_the_sizes_that_were_run() -> None:
    b = GraphBuilder("open")
    x = b.input("x", "float32[n, 8]")
    b.output("y", b.relu(b.softmax(b.linear(x, b.weight("w", "float32[8, 8]")), dim=-1)))
    graph, weights = b.build(), {"w": np.eye(8, dtype=np.float32)}
    plan = partition(graph, place={"softmax": "onnxruntime"}, absorb=False)
    feeds = {n: {"x": np.ones((n, 8), np.float32)} for n in (2, 3)}
    with DAGExecutor(plan, threads=1) as dag:
        dag.load_weights(weights)
        with pytest.raises(LockError, match="has regions without a program"):
            dag.lock()
        y = dag.execute(feeds[2])["y"]
        lock = dag.lock()
    with DAGExecutor(graph, lock=lock) as dag:
        dag.load_weights(weights)
        assert dag.execute(feeds[2])["y"].tobytes() == y.tobytes()
        with pytest.raises(LockError, match=r"Run these shapes before DAGExecutor\.lock\(\)"):
            dag.execute(feeds[3])
        assert dag.execute(feeds[2])["y"].tobytes() == y.tobytes()


def test_arguments_that_choose_are_refused(lock: Lock) -> None:
    for arguments in ({"threads": 2}, {"policy": {"version": 1}}, {"compile_fn": compile_graph}):
        with pytest.raises(PolicyError, match=next(iter(arguments))):
            DAGExecutor(GRAPH, lock=lock, **arguments)
    with pytest.raises(PolicyError, match="needs a plan"):
        DAGExecutor(GRAPH)


def test_locks_of_others_are_refused(lock: Lock, tmp_path: Path) -> None:
    model = to_onnx(GRAPH, WEIGHTS)
    with InferenceSession(model, engine="onnxruntime", device="cpu", threads=1) as session:
        session.run({"x": X})
        single = session.lock()
    with pytest.raises(LockError, match="is of a session, and not of a DAGExecutor"):
        DAGExecutor(GRAPH, lock=single)
    mixed = {"version": 1, "execution": {"place": {"max_pool*": "onnxruntime"}}}
    with InferenceSession(model, policy=mixed, device="cpu", threads=1) as session:
        session.run({"x": X})
        several = session.lock(on_mismatch="policy")
    assert several.regions
    for plan in (GRAPH, partition(GRAPH)):
        with pytest.raises(LockError, match="is of a session, and not of a DAGExecutor"):
            DAGExecutor(plan, lock=several)
    with pytest.raises(LockError, match="is of a DAGExecutor"):
        InferenceSession(model, lock=lock)
    b = GraphBuilder("other")
    b.output("y", b.relu(b.input("x", "float32[2]")))
    other: Graph = b.build()
    with pytest.raises(LockError, match=r"model: .* Write the lock again \(DAGExecutor\.lock\(\)\)"):
        DAGExecutor(other, lock=lock)
    (tmp_path / "cut.lock").write_text(json.dumps(lock.to_json())[:-9])
    with pytest.raises(FormatError, match=r"cut\.lock"):
        DAGExecutor(GRAPH, lock=tmp_path / "cut.lock")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (5, r"cannot be read from this value; got 5\. Give a Lock, the path of its file"),
        (b"x", r"cannot be read from this value; got b'x'"),
        ([], r"cannot be read from this value; got \[\]"),
        ({}, "the field 'format' is missing"),
        ({"format": "xpuruntime-lock"}, "the field 'format_version' is missing"),
    ],
)
def test_values_that_are_no_lock_are_refused(value: Any, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        DAGExecutor(GRAPH, lock=value)
    with pytest.raises(FormatError, match=what):
        InferenceSession(to_onnx(GRAPH, WEIGHTS), lock=value)


def test_what_compile_fn_chooses_cannot_be_locked() -> None:
    plan = partition(GRAPH, engine="native on npu", place={"max_pool*": "onnxruntime"})
    with DAGExecutor(plan, EdgeBackend(), compile_fn=lambda g: compile_graph(g, target=EdgeTarget())) as dag:
        run(dag)
        with pytest.raises(LockError, match="compile_fn"):
            dag.lock()


def test_the_command_line_shows_and_compares_it(lock: Lock, tmp_path: Path) -> None:
    file, rules = tmp_path / "dag.lock", tmp_path / "rules.yaml"
    lock.save(file)
    rules.write_text(
        "version: 1\nrules:\n  - {rule: stays_on, device: cpu}\n  - {rule: engines, allow: [native, onnxruntime]}\n"
    )
    shown = CliRunner().invoke(app, ["inspect", str(file), "--html", str(tmp_path / "dag.html")])
    assert shown.exit_code == 0, shown.output
    assert f"plan {lock.plan[:12]}" in shown.output
    assert CliRunner().invoke(app, ["diff", str(file), str(file)]).exit_code == 0
    checked = CliRunner().invoke(app, ["check", str(file), "--rules", str(rules)])
    assert checked.exit_code == 1, checked.output  # the interpreter has a node
    assert "interpreter" in checked.output
