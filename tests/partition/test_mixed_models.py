"""Models that no single engine takes: ops that only ONNX Runtime has, ops that only PyTorch has, and a network whose engines alternate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime import ExecutionPolicy, InferenceSession
from xpuruntime.compiler.partition.partitioner import Costs, partition
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.types import DType

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("arithmetic", [False, True])
def test_an_op_that_only_onnx_runtime_has(vendor_op: Any, arithmetic: bool) -> None:
    model = open_model(vendor_op(arithmetic))
    graph, weights = import_onnx(model)
    plan = partition(graph, others=("onnxruntime",), absorb=False)
    engines = [r.engine for r in plan.regions]
    assert engines == ["native", "onnxruntime", "native"]
    x = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    (want,) = ort.InferenceSession(model.data).run(None, {"x": x})
    with DAGExecutor(plan, original=model, threads=1) as dag:
        dag.load_weights(weights)
        got = dag.execute(inputs={"x": x})["y"]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert {k: dag.counters[k] for k in ("crossings", "copies", "fallbacks")} == {
            "crossings": 2,
            "copies": 0,
            "fallbacks": 0,
        }
        receipt = dag.receipt()
    assert receipt.confirmed, receipt
    assert [receipt.evidence[r.id].engine for r in plan.regions] == engines
    assert "cut from 1 of the model's own nodes" in receipt.evidence["r1"].notes
    assert "native: SampleOp" in receipt.plan.decision_for("r1").chosen.reason
    assert "com.microsoft" in receipt.plan.decision_for("r1").explain()


class Special(torch.nn.Module):
    """Layers around functions that neither ONNX nor the IR has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).sigmoid()
        h = torch.special.zeta(h + 2.0, h + 1.0) + torch.special.bessel_j0(h)
        q, r = torch.linalg.qr(h)
        return torch.softmax(self.last((q * 2) @ r), -1)


def test_ops_that_only_pytorch_has() -> None:
    from xpuruntime.frontends.torch import import_torch

    module, x = Special().eval(), torch.randn(8, 8)
    graph, weights = import_torch(module, x)
    plan = partition(graph, absorb=False)
    assert {r.engine for r in plan.regions} == {"native", "torch"}
    with torch.no_grad():
        want = module(x).numpy()
    with DAGExecutor(plan, threads=1) as dag:
        dag.load_weights(weights)
        got = dag.execute(inputs={"x": x})["output"]
        assert isinstance(got, torch.Tensor)
        assert np.abs(got.numpy() - want).max() <= 1e-5 * np.abs(want).max()
        assert dag.counters["crossings"] == len(
            [t for t in plan.transfers if "caller" not in (t.source, t.destination)]
        )
        receipt = dag.receipt()
    assert receipt.confirmed, receipt
    kernels = [row.kernel for e in receipt.evidence.values() if e.engine == "torch" for row in e.rows]
    assert kernels.count("torch: aten::linalg_qr") == 1


def test_bfloat16_crosses_as_it_is(tmp_path: Path) -> None:
    b = GraphBuilder("narrow")
    x = b.input("x", "bfloat16[2, 64]")
    b.output("y", b.neg(b.clone(b.abs(x))))
    graph = b.build()
    bits = np.random.default_rng(0).integers(0, 2**16, (2, 64), np.uint16)
    x = bits.view(DType.BFLOAT16.numpy)
    place = {"abs": "native", "clone": "onnxruntime", "neg": "interpreter"}
    plan = partition(graph, place=place)
    assert [r.engine for r in plan.regions] == ["native", "onnxruntime", "interpreter"]
    with DAGExecutor(plan, threads=1) as dag:
        got = dag.execute({"x": x})["y"].view(np.uint16)
    number = ~np.isnan(x.astype(np.float32))
    assert np.array_equal(got[number], (bits | 0x8000)[number])
    assert np.isnan(got.view(DType.BFLOAT16.numpy).astype(np.float32)[~number]).all()


def test_a_network_whose_engines_alternate(network: Any) -> None:
    graph, weights = network
    engines = ("native", "onnxruntime", "openvino", "interpreter")
    place = {n.name: engines[i // 3 % len(engines)] for i, n in enumerate(graph.nodes)}
    plan = partition(graph, place=place)
    assert {r.engine for r in plan.regions} == set(engines)
    x = np.random.default_rng(4).standard_normal((2, 3, 16, 16)).astype(np.float32)
    want = interp.run(graph, {"x": x}, weights=weights)["y"]
    with DAGExecutor(plan, threads=1) as dag:
        dag.load_weights(weights)
        for _ in range(3):
            got = dag.execute(inputs={"x": x})["y"]
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        counters, receipt = dag.counters, dag.receipt()
    assert counters["crossings"] == 3 * len(plan.transfers)
    assert counters["copies"] == counters["bytes"] == counters["fallbacks"] == 0
    assert receipt.confirmed, receipt
    for region in plan.regions:
        assert receipt.evidence[region.id].engine == region.engine
        reason = receipt.plan.decision_for(region.id).chosen
        assert reason.code.value == "forced"
        assert "place" in reason.reason


def test_measured_costs_choose_the_engine_and_absorb_islands() -> None:
    b = GraphBuilder("chain")
    h = b.input("x", "float32[64, 64]")
    for op in ("relu", "exp", "tanh", "abs"):
        h = b.call(op, h)
    b.output("y", h)
    graph = b.build()
    fast = {"relu": 1e-3, "exp": 1e-6, "tanh": 1e-3, "abs": 1e-3}
    slow = {"relu": 5e-3, "exp": 1.4e-6, "tanh": 5e-3, "abs": 1e-4}
    costs = Costs(
        measured={"native": fast, "onnxruntime": slow}, region_s={"native": 1e-6, "onnxruntime": 2e-6}
    )
    plan = partition(graph, others=("onnxruntime",), costs=costs)
    assert [(r.engine, plan.members[r.id]) for r in plan.regions] == [
        ("native", ("relu", "exp", "tanh")),
        ("onnxruntime", ("abs",)),
    ]
    assert plan.plan.decision_for("r1").chosen.code.value == "fastest"
    slow["exp"] = 1e-7  # now faster there, by less than the border of an island of its own costs
    plan = partition(graph, others=("onnxruntime",), costs=costs)
    assert [r.engine for r in plan.regions] == ["native", "onnxruntime"]
    assert plan.members["r0"] == ("relu", "exp", "tanh")
    assert (
        "including transfers between regions (2 of 3 steps; 1 more reasons)"
        in plan.plan.decision_for("r0").explain()
    )
    assert [
        r.engine for r in partition(graph, others=("onnxruntime",), costs=costs, absorb=False).regions
    ] == [
        "native",
        "onnxruntime",
        "native",
        "onnxruntime",
    ]


CONV = {
    "stride": [1, 1],
    "padding": [0, 0],
    "dilation": [1, 1],
    "transposed": False,
    "output_padding": [0, 0],
    "groups": 1,
}


def conv_chain() -> Any:
    """Return two small convolutions, with cheap nodes around them."""
    b = GraphBuilder("chain")
    h = b.input("x", "float32[1, 4, 8, 8]")
    weight = b.weight("w", "float32[4, 4, 1, 1]")
    for i in range(2):
        h = b.call("convolution", h, weight, None, name=f"c{i}", **CONV)
        h = b.call("relu", h, name=f"r{i}")
    b.output("y", b.call("softmax", h, dim=-1, name="top"))
    return b.build()


@pytest.mark.parametrize("named", ["argument", "policy"])
@pytest.mark.parametrize("placed", ["conv", "relu", "top", "c0"])
def test_a_named_engine_keeps_what_place_does_not_assign(named: str, placed: str) -> None:
    graph = conv_chain()
    if named == "argument":
        plan = partition(graph, engine="native", others=("onnxruntime",), place={placed: "onnxruntime"})
    else:
        demands = {"version": 1, "execution": {"engine": "native", "place": {placed: "onnxruntime"}}}
        plan = partition(graph, demands, others=("onnxruntime",))
    names = {"conv": {"c0", "c1"}, "relu": {"r0", "r1"}}.get(placed, {placed})
    moved = {n for r in plan.regions if r.engine == "onnxruntime" for n in plan.members[r.id]}
    assert moved == names
    for region in plan.regions:
        chosen = plan.plan.decision_for(region.id).chosen
        assert chosen.code.value == ("forced" if region.engine == "onnxruntime" else "default")


def test_a_region_with_placed_nodes_says_so_first_and_claims_nothing_about_others() -> None:
    graph = conv_chain()
    plan = partition(graph, others=("onnxruntime",), place={"relu": "onnxruntime"})
    (region,) = plan.regions  # no engine was named: transfers would cost more than the native engine saves
    assert (region.engine, region.alternatives) == ("onnxruntime", ())
    decision = plan.plan.decision_for(region.id)
    assert decision.chosen.code.value == "forced"
    assert decision.chosen.reason.startswith("place 'relu' (2 of 5 steps")
    (native,) = decision.rejected
    assert native.code.value == "not_requested"
    assert native.reason == "place 'relu' assigns 2 of 5 steps to onnxruntime"


@pytest.mark.parametrize("case", ["Identity", "Relu", "unread"])
@pytest.mark.parametrize("engine", ["native", "onnxruntime", None])
def test_a_placement_of_a_model_that_outputs_a_constant(
    tmp_path: Path, case: str, engine: str | None
) -> None:
    """Every node is folded away, or nothing reads it, so no region is left: one engine runs the model."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    op = "Relu" if case == "unread" else case
    nodes = [node(op, ["c"], ["y"], name="node")]
    nodes += [node("Exp", ["x"], ["e"], name="exp")] if case == "unread" else []
    value = onnx.numpy_helper.from_array(np.array([-1, 2, np.nan], np.float32), "c")
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [3])], [info("y", 1, [3])], [value])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    policy = ExecutionPolicy(caching=False, place={nodes[-1].name: "interpreter"})
    with InferenceSession(path, device="cpu", engine=engine, exec_policy=policy) as session:
        got = session.run({"x": np.zeros(3, np.float32)})["y"]
        (want,) = ort.InferenceSession(path).run(None, {"x": np.zeros(3, np.float32)})
        assert np.array_equal(got, want, equal_nan=True)
        (region,) = session.receipt().plan.regions
        assert engine in (region.engine, None)
