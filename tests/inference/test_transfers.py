"""The policy field ``transfers``: what a model, a plan or a run may copy or wait for, with the node and the remedy in the error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import EdgeTarget
from xpuruntime.compiler.transfers import check_placement
from xpuruntime.errors import PolicyError
from xpuruntime.evidence import Evidence, EvidenceRow
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.ir.host_waits import host_waits
from xpuruntime.program.plan import Plan, PlanNode, Region

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
STRICT = {"h2d": "io_only", "d2h": "io_only", "sync": "none"}


def policy(**limits: str) -> xrt.ExecutionPolicy:
    return xrt.ExecutionPolicy(transfers=limits)


def saved(path: Path, nodes: list[Any], inputs: Mapping[str, list[Any]], outputs: list[str]) -> Path:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        nodes,
        path.stem,
        [
            helper.make_tensor_value_info(n, TensorProto.BOOL if n == "c" else TensorProto.FLOAT, s)
            for n, s in inputs.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


@pytest.fixture
def finds(tmp_path: Path) -> Path:
    """A model whose result has as many columns as a run finds."""
    from onnx import helper

    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        helper.make_node("NonZero", ["r"], ["y"], name="which ones"),
    ]
    return saved(tmp_path / "finds.onnx", nodes, {"x": [4, 8]}, ["y"])


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    from onnx import TensorProto, helper

    def body(op: str) -> Any:
        result = helper.make_tensor_value_info(op, TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [result])

    node = helper.make_node(
        "If", ["c"], ["y"], name="either", then_branch=body("Relu"), else_branch=body("Tanh")
    )
    return saved(tmp_path / "branches.onnx", [node], {"c": [], "x": [4]}, ["y"])


# ── models that need the host ──


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_a_model_that_needs_a_wait_is_an_error_with_node_and_remedy(finds: Path, engine: str) -> None:
    with pytest.raises(PolicyError) as caught:
        xrt.InferenceSession(finds, engine=engine, device="cpu", exec_policy=policy(sync="none"))
    text = str(caught.value)
    assert "execution.transfers.sync: none is not satisfied" in text
    assert "node 'which ones' (NonZero): the sizes of its results are known only after it ran" in text
    assert "Pad its result to a fixed size in the model" in text
    with xrt.InferenceSession(
        finds, engine=engine, device="cpu", exec_policy=policy(h2d="io_only", d2h="io_only")
    ) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.nonzero(np.maximum(X, 0)))


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_a_branch_is_a_wait(branches: Path, engine: str) -> None:
    with pytest.raises(PolicyError, match=r"node 'either' \(If\): its condition decides which branch runs"):
        xrt.InferenceSession(branches, engine=engine, device="cpu", exec_policy=policy(sync="none"))


def test_compile_and_an_executor_refuse_branches(branches: Path) -> None:
    graph = xrt.load_onnx(branches)
    with pytest.raises(PolicyError, match=r"\[compile\] execution\.transfers\.sync.*'either'"):
        xrt.compile(graph, target="cpu", policy=policy(sync="none"))
    program = xrt.compile(graph, target="cpu")
    with pytest.raises(PolicyError, match=r"\[Executor\] cannot honor transfers"):
        xrt.Executor(program, policy=policy(sync="none"))
    with xrt.Executor(program, policy=policy(sync="any", d2h="io_only")):
        pass


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_a_model_that_needs_none_runs_and_the_receipt_counts_nothing(tmp_path: Path, engine: str) -> None:
    from onnx import helper

    path = saved(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")], {"x": [4, 8]}, ["y"]
    )
    with xrt.InferenceSession(path, engine=engine, device="cpu", exec_policy=policy(**STRICT)) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))
        receipt = session.receipt(times=False)
    assert not any(receipt.evidence["r0"].transfers.values())


def test_waits_are_found_in_bodies_and_of_loops() -> None:
    def body(checked: bool) -> Graph:
        b = GraphBuilder("body")
        b.input("i", "int64[]")
        x = b.input("v", "float32[4]")
        if checked:
            b.output("go", b.lt(b.sum(x, dim=[0]), 3.0))
        b.output("w", b.relu(x))
        return b.build()

    def loop(checked: bool) -> Graph:
        b = GraphBuilder("net")
        x = b.input("x", "float32[4]")
        b.output("y", b.loop(None, None, x, body=body(checked), carried=1, trips=3, checked=checked))
        return b.build()

    assert [w.op for w in host_waits(loop(True))] == ["loop"]
    assert host_waits(loop(False)) == ()


# ── devices ──


def apart() -> Graph:
    """Two layers on a device, and a softmax that the device lacks between them."""
    b = GraphBuilder("apart")
    w = b.weight("w", "float32[8, 8]")
    a = b.relu(b.linear(b.input("x", "float32[4, 8]"), w), name="first")
    b.output("y", b.relu(b.linear(b.softmax(a, dim=-1, name="lacking"), w), name="last"))
    return b.build()


def plan_of(demands: xrt.ExecutionPolicy | None = None) -> Any:
    target = EdgeTarget()
    supports = lambda call: call.op != "softmax" and xrt.is_op_supported(call, target)  # noqa: E731
    return xrt.partition(apart(), supports, engine="native on npu", others=("onnxruntime",), absorb=False)


def executor_of(plan: Any, limits: Mapping[str, str] | None) -> xrt.DAGExecutor:
    target = EdgeTarget()
    demands = None if limits is None else xrt.ExecutionPolicy(transfers=dict(limits))
    return xrt.DAGExecutor(
        plan, EdgeBackend(), compile_fn=lambda g: xrt.compile(g, target=target), policy=demands
    )


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"d2h": "io_only"}, r"transfers\.d2h: io_only .*'first' is copied from npu to cpu .*'lacking'"),
        ({"h2d": "io_only"}, r"transfers\.h2d: io_only .*'lacking' is copied from cpu to npu .*'linear"),
        ({"sync": "none"}, r"transfers\.sync: none .*'first' is copied from npu to cpu"),
    ],
)
def test_a_plan_that_copies_inside_a_run_is_an_error(limits: Mapping[str, str], text: str) -> None:
    plan = plan_of()
    with pytest.raises(PolicyError, match=re.compile(text, re.DOTALL)) as caught:
        executor_of(plan, limits)
    assert "Place these nodes and their neighbors on one device" in str(caught.value)
    with xrt.with_policy(xrt.ExecutionPolicy(transfers=dict(limits))), pytest.raises(PolicyError):
        plan_of()


def test_copies_are_counted_where_they_happen_and_refused_in_a_run() -> None:
    weights = {"w": np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)}
    with executor_of(plan_of(), None) as dag, xrt.profile() as trace:
        dag.load_weights(weights)
        for _ in range(2):
            dag.execute({"x": X})
        counts = {region: dict(e.transfers) for region, e in dag.evidence().items()}
        size = X.nbytes * 2
        assert counts == {
            "r0": {"h2d": 2, "h2d_bytes": size},
            "r1": {"d2h": 2, "d2h_bytes": size, "inner_d2h": 2, "waits": 2},
            "r2": {"h2d": 2, "h2d_bytes": size, "inner_h2d": 2, "d2h": 2, "d2h_bytes": size, "waits": 2},
        }
        assert "inner d2h 2" in dag.receipt(times=False).text()
        # A region that moved to another device at run time makes copies that the plan did not have.
        dag._transfers = {"d2h": "io_only"}
        with pytest.raises(
            PolicyError, match=r"value 'first' is copied to the host inside a run, for 'lacking'"
        ):
            dag.execute({"x": X})
        assert dag.counters["fallbacks"] == 0
    names = [s.name for s in trace.spans]
    assert names.count("wait and copy to the host: first") == 2
    assert "copy to the device: lacking" in names


def test_steps_on_another_device_than_the_region_s_are_an_error() -> None:
    region = Region("r0", "vendor", "1", "cuda:0", "float32")
    plan = Plan({"name": "m", "digest": ""}, {}, (), (), (region,), (PlanNode("a", "Conv", "conv", "r0"),))
    away = EvidenceRow(("a",), "Conv", "cpu", "reference")
    at_home = EvidenceRow(("b",), "Conv", "cuda:0", "fast")
    check_placement("m", STRICT, plan, {"r0": Evidence("vendor", "1", (at_home,), "session")})
    with pytest.raises(PolicyError, match=r"vendor runs 'a' \(Conv\) on cpu, not on cuda:0"):
        check_placement("m", STRICT, plan, {"r0": Evidence("vendor", "1", (at_home, away), "session")})
    with pytest.raises(PolicyError, match="does not report where its steps run"):
        check_placement("m", {"d2h": "io_only"}, plan, {"r0": Evidence("vendor", "1", (), "session")})
    check_placement("m", {"d2h": "any"}, plan, {"r0": Evidence("vendor", "1", (away,), "session")})
