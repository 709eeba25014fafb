"""ONNX that the IR has no form for, in the middle of a mixed plan: sequences, whose values have no type, and loops that read from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.compiler.partition.partitioner import partition
from xpuruntime.compiler.partition.regions import cluster, hulls
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


def model(nodes: list[Any], typed: dict[str, list[int]], ints: dict[str, Any]) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    tensors = [numpy_helper.from_array(w, "w")]
    tensors += [numpy_helper.from_array(np.array(v), n) for n, v in ints.items()]
    value = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in typed.items()}
    inner = [v for n, v in value.items() if n not in ("x", "y")]
    graph = helper.make_graph(nodes, "opaque", [value["x"]], [value["y"]], tensors, value_info=inner)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sequences() -> Any:
    """A product, its rows as a sequence, those at a position that only a run knows, and another product."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("ReduceSumSquare", ["x"], ["squares"], "squares", keepdims=0),
        helper.make_node("Sign", ["squares"], ["sign"], "sign"),
        helper.make_node("Cast", ["sign"], ["one"], "position", to=TensorProto.INT64),
        helper.make_node("MatMul", ["x", "w"], ["h"], "before"),
        helper.make_node("SplitToSequence", ["h", "two"], ["parts"], "split", axis=0),
        helper.make_node("SequenceAt", ["parts", "one"], ["part"], "at"),
        helper.make_node("MatMul", ["part", "w"], ["z"], "after"),
        helper.make_node("Relu", ["z"], ["y"], "last"),
    ]
    return model(nodes, {"x": [4, 8], "part": [2, 8], "y": [2, 8]}, {"two": 2})


def loop() -> Any:
    """A loop whose body adds a value from outside three times, by way of a sequence."""
    from onnx import TensorProto, helper

    state = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in ("s", "t")]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    c, d = (helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("c", "d"))
    adds = [
        helper.make_node("SequenceConstruct", ["s", "h"], ["both"]),
        helper.make_node("SequenceAt", ["both", "one"], ["h2"]),
        helper.make_node("Add", ["s", "h2"], ["t"]),
        helper.make_node("Identity", ["c"], ["d"]),
    ]
    body = helper.make_graph(adds, "body", [i, c, state[0]], [d, state[1]])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "before"),
        helper.make_node("Loop", ["three", "yes", "x"], ["sum"], "loop", body=body),
        helper.make_node("MatMul", ["sum", "w"], ["y"], "after"),
    ]
    return model(nodes, {"x": [4, 8], "sum": [4, 8], "y": [4, 8]}, {"three": 3, "yes": True, "one": 1})


@pytest.mark.parametrize(("make", "opaque"), [(sequences, {"split", "at"}), (loop, {"loop"})])
@pytest.mark.parametrize("cut", [True, False])
def test_opaque_nodes_run_on_onnx_runtime_between_native_regions(
    make: Any, opaque: set[str], cut: bool
) -> None:
    source = open_model(make())
    graph, weights = import_onnx(source)
    plan = partition(graph, others=("onnxruntime",), absorb=False)
    (vendor,) = [r.id for r in plan.regions if r.engine == "onnxruntime"]
    assert {r.engine for r in plan.regions} == {"native", "onnxruntime"}
    middle = {s.name for n in plan.members[vendor] for s in graph.node(n).sources}
    assert middle == opaque  # no more than must be
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    (want,) = ort.InferenceSession(source.data).run(None, {"x": x})
    with DAGExecutor(plan, original=source if cut else None, threads=1) as dag:
        dag.load_weights(weights)
        got = dag.execute({"x": x})["y"]
        assert dag.counters["fallbacks"] == 0
        notes = dag.receipt().evidence[vendor].notes
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert any("own nodes" in n for n in notes) is cut


def test_clusters_never_wait_for_each_other_in_a_ring() -> None:
    #   0 -> 1 -> 2, 0 -> 2: 0 and 2 are alike, but 1 is between them
    assert cluster([[], [0], [0, 1]], "aba") == [[0], [1], [2]]
    assert cluster([[], [0], [0, 1]], "aab") == [[0, 1], [2]]
    #   two chains that meet: all of one label hang together in the end
    assert cluster([[], [], [0], [1], [2, 3]], "aaaaa") == [[0, 1, 2, 3, 4]]


def test_hulls_hold_what_lies_between() -> None:
    before = [[], [0], [1], [0], [2, 3]]
    assert hulls(before, [{0, 2}]) == [[0, 1, 2]]
    assert hulls(before, [{0, 1}, {2, 4}]) == [[0, 1], [2, 4]]
    assert hulls(before, [{0, 2}, {2, 4}]) == [[0, 1, 2, 3, 4]]
