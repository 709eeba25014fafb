"""What a DAGExecutor promises: compile once, copies only at borders of devices, the next alternative when an engine fails."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import EdgeTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.partition.partitioner import is_op_supported, partition
from xpuruntime.compiler.partition.support import call_of
from xpuruntime.decisions import Reason
from xpuruntime.errors import EngineUnavailable, InputError, RunError
from xpuruntime.inference.partitioned import region_runners, regions
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.runtime.execution.dag_executor import Schedule, Step
from xpuruntime.types import DType, dim

pytest.importorskip("onnxruntime")


def diamond(width: int = 2, shape: str = "float32[4, 8]") -> Graph:
    """One value, ``width`` branches of two steps, and their sum."""
    b = GraphBuilder("diamond")
    x = b.abs(b.input("x", shape), name="head")
    ends = [b.tanh(b.add(x, float(i)), name=f"end{i}") for i in range(width)]
    total = ends[0]
    for end in ends[1:]:
        total = b.add(total, end)
    b.output("y", total)
    return b.build()


X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
BRANCHES = {"head": "interpreter on cpu:0", "end0": "interpreter on cpu:1", "end1": "interpreter on cpu:2"}


def test_everything_is_compiled_once_before_the_first_run() -> None:
    graph, compiled = diamond(), []

    def compile_fn(part: Graph) -> Any:
        compiled.append(part.name)
        return compile_graph(part, target="cpu")

    plan = partition(graph, lambda call: call.op != "tanh", others=("onnxruntime",), absorb=False)
    with DAGExecutor(plan, compile_fn=compile_fn, threads=1) as dag:
        native = [f"diamond.{r.id}" for r in plan.regions if r.engine == "native"]
        assert compiled == native
        for _ in range(3):
            got = dag.execute(inputs={"x": X})["y"]
        assert compiled == native
        np.testing.assert_allclose(got, interp.run(graph, {"x": X})["y"], rtol=1e-5)
        assert dag.counters["runs"] == 3
        assert dag.counters["regions"] == 3 * len(plan.regions)


def test_regions_on_one_device_hand_over_the_memory_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Any]] = []
    run = regions.Runner.run

    def watched(self: Any, values: Any, symbols: Any) -> Any:
        made = run(self, values, symbols)
        seen.extend((n, values[n]) for n in self.work.region.inputs)
        seen.extend(zip(self.work.region.outputs, made, strict=True))
        return made

    monkeypatch.setattr(regions.Runner, "run", watched)
    place = {"head": "native", "add": "onnxruntime", "end*": "openvino", "add_*": "native"}
    plan = partition(diamond(), place=place)
    with DAGExecutor(plan, threads=1, parallel=1) as dag:
        dag.execute(inputs={"x": X})
        assert dag.counters["copies"] == 0
    assert all(t.shared for t in plan.transfers)
    for transfer in plan.transfers:
        objects = {id(array) for name, array in seen if name == transfer.value}
        assert len(objects) == 1, f"{transfer.value} was copied between its maker and its readers"
    assert seen[0][1] is X


def test_independent_regions_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    meet = threading.Barrier(2, timeout=20)
    call = region_runners.InterpreterRunner.call

    def meeting(self: Any, form: Any, arrays: Any) -> Any:
        if self.work.region.device in ("cpu:1", "cpu:2"):
            meet.wait()  # breaks, and fails the test, unless two regions are here at once
        return call(self, form, arrays)

    monkeypatch.setattr(region_runners.InterpreterRunner, "call", meeting)
    place = {
        **BRANCHES,
        "add": "interpreter on cpu:1",
        "add_1": "interpreter on cpu:2",
        "add_2": "interpreter",
    }
    plan = partition(diamond(), place=place)
    want = interp.run(diamond(), {"x": X})["y"]
    with DAGExecutor(plan, parallel=2) as dag:
        for _ in range(5):
            assert np.array_equal(dag.execute({"x": X})["y"], want)


def test_an_error_in_one_of_many_regions_is_raised_once_and_the_executor_goes_on() -> None:
    steps = [Step("a", (), ("v",)), *(Step(f"b{i}", ("v",), (f"w{i}",)) for i in range(4))]
    schedule = Schedule(steps, ["w0"], threads=4)
    fails = True

    def work(index: int, values: Any) -> list[int]:
        if fails and index == 2:
            raise RunError("step", "failed")
        return [index]

    with pytest.raises(RunError, match="failed"):
        schedule.run({}, work)
    fails, values = False, {}
    schedule.run(values, work)
    assert values == {"w0": 1}  # everything else was dropped behind its last reader
    schedule.close()


@pytest.mark.parametrize("moment", ["open", "call"])
def test_a_region_that_fails_goes_to_its_next_alternative(
    moment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = partition(
        diamond(), lambda call: call.op != "tanh", others=("openvino", "onnxruntime"), absorb=False
    )
    whole = getattr(region_runners.EngineRunner, moment)

    def broken(self: Any, *rest: Any) -> Any:
        if self.work.region.engine == "openvino":
            raise RunError("openvino", "broke on purpose", got=moment)
        return whole(self, *rest)

    monkeypatch.setattr(region_runners.EngineRunner, moment, broken)
    with DAGExecutor(plan, threads=1, parallel=1) as dag, caplog.at_level(logging.WARNING):
        for _ in range(2):
            got = dag.execute({"x": X})["y"]
        np.testing.assert_allclose(got, interp.run(diamond(), {"x": X})["y"], rtol=1e-5)
        moved = [r.id for r in plan.regions if r.engine == "openvino"]
        assert dag.counters["fallbacks"] == len(moved) == len(caplog.records)
        receipt = dag.receipt()
    assert receipt.confirmed, receipt
    for region in moved:
        assert receipt.plan.region(region).engine == "onnxruntime"
        decision = receipt.plan.decision_for(region)
        assert decision.chosen.code is Reason.FALLBACK
        failed = next(c for c in decision.rejected if c.name == "openvino on cpu")
        assert failed.code is (Reason.BUILD_FAILED if moment == "open" else Reason.RUN_FAILED)
        assert "broke on purpose" in failed.reason


def test_without_an_alternative_the_error_says_who_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, graph: Any) -> Any:
        raise RunError("onnxruntime", "broke on purpose", do="Mend it.")

    monkeypatch.setattr(region_runners.EngineRunner, "open", broken)
    plan = partition(diamond(), lambda call: call.op != "tanh", others=("onnxruntime",), absorb=False)
    with (
        DAGExecutor(plan, threads=1) as dag,
        pytest.raises(EngineUnavailable, match="broke on purpose") as caught,
    ):
        dag.load_weights({})
    assert caught.value.decision.chosen is None
    assert {c.name for c in caught.value.decision.rejected} == {"native on cpu", "onnxruntime on cpu"}


def test_values_are_copied_once_at_the_borders_of_a_device_and_nowhere_else() -> None:
    """The example device of the porting guide, whose memory NumPy cannot reach: it lacks the softmax."""
    target = EdgeTarget()
    b = GraphBuilder("apart")
    w = b.weight("w", "float32[8, 8]")
    a = b.relu(b.linear(b.input("x", "float32[4, 8]"), w))
    s = b.softmax(a, dim=-1)
    b.output("y", b.add(b.relu(b.linear(s, w)), a))
    b.output("s", s)
    graph = b.build()
    supports = lambda call: call.op != "softmax" and is_op_supported(call, target)  # noqa: E731
    plan = partition(graph, supports, engine="native on npu", others=("onnxruntime",), absorb=False)
    assert [f"{r.engine} on {r.device}" for r in plan.regions] == [
        "native on npu",
        "onnxruntime on cpu",
        "native on npu",
    ]
    assert [(t.value, t.source, t.destination, t.shared) for t in plan.transfers] == [
        ("x", "caller", "r0", False),
        ("relu", "r0", "r1", False),
        ("softmax", "r1", "r2", False),
        ("relu", "r0", "r2", True),
        ("add", "r2", "caller", False),
    ]
    weights = {"w": np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)}
    want = interp.run(graph, {"x": X}, weights=weights)
    with DAGExecutor(plan, EdgeBackend(), compile_fn=lambda g: compile_graph(g, target=target)) as dag:
        dag.load_weights(weights)
        for runs in (1, 2):
            got = dag.execute({"x": X})
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)
            assert dag.counters["copies"] == 4 * runs  # the value that stays on the device is not among them
            assert dag.counters["bytes"] == 4 * runs * X.nbytes
        assert dag.receipt().confirmed


def test_the_interpreter_is_taken_only_where_it_is_named() -> None:
    b = GraphBuilder("finds")
    b.output("y", b.nonzero(b.input("x", "float32[8]"), count=dim("found")))
    graph = b.build()
    assert not is_op_supported("nonzero")
    assert {r.engine for r in partition(graph).regions} == {"onnxruntime"}
    plan = partition(graph, others=("interpreter",))
    assert [r.engine for r in plan.regions] == ["interpreter"]
    x = np.array([0, 1, 0, 2, 0, 0, 3, 0], np.float32)
    with DAGExecutor(plan) as dag:
        assert np.array_equal(dag.execute({"x": x})["y"], interp.run(graph, {"x": x})["y"])
    with pytest.raises(EngineUnavailable, match=r"nonzero.*no engine supports it") as caught:
        partition(graph, others=())
    assert "'interpreter' runs every op" in caught.value.do


def test_weights_are_checked_and_sizes_may_be_open() -> None:
    b = GraphBuilder("open")
    x = b.input("x", "float32[n, 8]")
    b.output("y", b.softmax(b.linear(x, b.weight("w", "float32[8, 8]")), dim=-1))
    b.output("sizes", b.dims(values=b.spec(x).shape))
    graph = b.build()
    w = np.eye(8, dtype=np.float32)
    plan = partition(
        graph, lambda call: call.op != "softmax", others=("onnxruntime", "interpreter"), absorb=False
    )
    with DAGExecutor(plan, threads=1) as dag:
        with pytest.raises(InputError, match="lacks the weight 'w'"):
            dag.load_weights({})
        with pytest.raises(InputError, match=r"weight 'w' must be float32\[8, 8\]"):
            dag.load_weights({"w": w[:4]})
        dag.load_weights({"w": w})
        for n in (4, 1, 4):
            got = dag.execute({"x": X[:n]})
            want = interp.run(graph, {"x": X[:n]}, weights={"w": w})
            np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5)
            assert got["sizes"].tolist() == [n, 8]
        with pytest.raises(InputError, match="'x'"):
            dag.execute({"x": X.astype(np.float64)})


def test_many_threads_run_one_executor_and_weights_may_be_changed() -> None:
    b = GraphBuilder("shared")
    h = b.softmax(b.linear(b.input("x", "float32[4, 8]"), b.weight("w", "float32[8, 8]")), dim=-1)
    b.output("y", b.add(b.relu(h), b.tanh(h)))
    graph = b.build()
    rng = np.random.default_rng(6)
    inputs = [rng.standard_normal((4, 8)).astype(np.float32) for _ in range(8)]
    plan = partition(graph, lambda call: call.op != "softmax", others=("onnxruntime",), absorb=False)
    with DAGExecutor(plan, threads=1, parallel=2) as dag:
        for scale in (1.0, 3.0):
            weights = {"w": np.eye(8, dtype=np.float32) * np.float32(scale)}
            dag.load_weights(weights)
            want = [interp.run(graph, {"x": x}, weights=weights)["y"] for x in inputs]
            wrong: list[int] = []

            def many(i: int, want: Any = want, wrong: Any = wrong) -> None:
                for _ in range(40):
                    if not np.allclose(dag.execute({"x": inputs[i]})["y"], want[i], rtol=1e-5, atol=1e-6):
                        wrong.append(i)

            threads = [threading.Thread(target=many, args=(i,)) for i in range(len(inputs))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
        assert dag.counters["runs"] == 2 * 8 * 40


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("conv", ""),
        ("Conv", ""),
        ("aten.softmax.int", ""),
        ("nonzero", "no kernel for cpu"),
        ("frob", "frob has no form in the IR"),
    ],
)
def test_is_op_supported_by_name(op: str, reason: str) -> None:
    said = is_op_supported("convolution" if op == "conv" else op, "cpu:x86-64-v3")
    assert said.ok is (not reason)
    assert reason in said.reason


def test_is_op_supported_of_a_node_says_which_kernel_refuses_and_why() -> None:
    b = GraphBuilder("types")
    y = b.add(b.input("x", "complex64[4]"), b.input("z", "complex64[4]"))
    b.output("y", y)
    graph = b.build()
    said = is_op_supported(call_of(graph, graph.node(y)))
    assert not said
    assert said.code is Reason.OP_UNSUPPORTED
    assert "complex64" in said.reason
    assert DType.of("complex64").is_complex


def test_evidence_is_of_the_run_that_it_is_asked_about() -> None:
    b = GraphBuilder("open")
    x = b.input("x", "float32[n, 8]")
    b.output("y", b.call("exp", b.call("relu", x)))
    with DAGExecutor(partition(b.build(), place={"exp": "onnxruntime", "relu": "native"}), threads=1) as dag:
        dag.load_weights({})
        sizes = {}
        for rows in (3, 700, 3):
            dag.execute(inputs={"x": np.ones((rows, 8), np.float32)})
            placed = dag._regions[0]
            sizes[rows] = placed.runner._form_of(None)
            assert dag.receipt().confirmed
            assert placed.runner._form_of({"n": rows}) is sizes[rows]
        assert sizes[3] is not sizes[700]
        assert placed.runner._form_of(None) is sizes[3], "the form of the last run, not the one opened last"


def test_a_region_without_step_times_is_timed_as_one_step() -> None:
    plan = partition(diamond(), place={"end*": "interpreter"}, absorb=False)
    with DAGExecutor(plan, threads=1) as dag:
        dag.execute({"x": X})
        receipt = dag.receipt()
    mine = [e for e in receipt.evidence.values() if e.engine == "interpreter"]
    assert mine
    for evidence in mine:
        (row,) = evidence.rows
        assert row.kernel == "interpreter: tanh"
        assert row.time_us is not None
        assert evidence.times_from == "this session, median of 5 timed runs"
    assert "times from this session" in str(receipt)
    assert "times from a this" not in str(receipt)


@pytest.mark.parametrize("plan", ["model.onnx", None, 5])
@pytest.mark.parametrize("lock", [None, {}])
def test_something_else_than_a_plan_or_a_graph_is_refused(plan: Any, lock: Any) -> None:
    with pytest.raises(InputError, match=rf"got {plan!r}\. Give a graph: import_onnx\(\.\.\.\)"):
        DAGExecutor(plan, lock=lock)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        (
            "original",
            "model.onnx",
            r"original must be an opened model; got 'model\.onnx'\. Give .*open_model",
        ),
        ("store", "folder", r"store must be a store; got 'folder'\. Give .*Store\(folder\)"),
        ("request", 5, r"request must be a SessionRequest; got 5\. Give policy= instead"),
        ("compile_fn", 3, r"compile_fn must be a function; got 3\. Give a function"),
    ],
)
def test_arguments_of_another_kind_are_refused(name: str, value: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        DAGExecutor(partition(diamond()), **{name: value})


@pytest.mark.parametrize("parallel", ["yes", 0, True, 2.5])
def test_the_number_of_regions_at_once_is_a_count(parallel: Any) -> None:
    with pytest.raises(InputError, match=r"parallel must be (a whole number|at least 1)"):
        DAGExecutor(partition(diamond()), parallel=parallel)
