"""If, Loop and Scan of ONNX: read, run by the interpreter, written back, and compared with ONNX Runtime; hostile bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.control_models import nested_model
from support.onnx_models import build_model

from xpuruntime import ir
from xpuruntime.errors import ModelError
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.ir import interp
from xpuruntime.ir.ops.control import depth_of

pytest.importorskip("onnxruntime", reason="the reference")
F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info
node = helper.make_node


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def reasons(graph: ir.Graph) -> list[str]:
    return [str(n.attrs["reason"]) for n in graph.nodes if n.op == "opaque"]


def check(model: onnx.ModelProto, feeds: dict[str, Any]) -> ir.Graph:
    """The imported graph; the interpreter and the exported model agree with ONNX Runtime."""
    graph, weights = import_onnx(model)
    assert reasons(graph) == []
    graph.check()
    assert ir.parse(str(graph)) == graph
    want = reference(model, feeds)
    for results in (
        list(interp.run(graph, feeds, weights=weights).values()),
        reference(to_onnx(graph, weights), feeds),
    ):
        for got, expected in zip(results, want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    return graph


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_nested_graphs(seed: int) -> None:
    check(*nested_model(seed))


def test_sizes_that_change() -> None:
    """A carried value grows, and the branches return different numbers of rows."""
    body = helper.make_graph(
        [
            node("Concat", ["s", "x"], ["t"], axis=0),
            node("Identity", ["going"], ["on"]),
        ],
        "body",
        [info("i", I64, []), info("going", BOOL, []), info("s", F, None)],
        [info("on", BOOL, []), info("t", F, None)],
    )
    branches = {
        name: helper.make_graph([node("Concat", ["grown"] * rows, [f"r{rows}"], axis=0)], name, [], [info(f"r{rows}", F, None)])
        for name, rows in (("then_branch", 1), ("else_branch", 2))
    }  # fmt: skip
    model = build_model(
        [node("Loop", ["n", "", "x"], ["grown"], body=body), node("If", ["c"], ["y"], **branches)],
        [("n", I64, []), ("c", BOOL, []), ("x", F, ["rows", 3])],
        [("y", F, ["k", 3])],
    )
    for n, c in ((0, True), (2, False)):
        feeds = {"n": np.array(n), "c": np.array(c), "x": np.ones((2, 3), np.float32)}
        graph = check(model, feeds)
        assert [n.op for n in graph.nodes] == ["loop", "cond"]
        assert graph.spec("y").shape[0] not in (2, graph.spec("x").shape[0])


def test_known_sizes_and_conditions_are_folded() -> None:
    """The trip count comes from a shape, and the condition from the loop's own input."""
    body = helper.make_graph(
        [
            node("Identity", ["going"], ["on"]),
            node("Gather", ["x", "i"], ["row"]),
            node("Relu", ["row"], ["y"]),
        ],
        "body",
        [info("i", I64, []), info("going", BOOL, [])],
        [info("on", BOOL, []), info("y", F, None)],
    )
    zero = helper.make_tensor("zero", I64, [], [0])
    model = build_model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Constant", [], ["zero"], value=zero),
            node("Gather", ["shape", "zero"], ["rows"]),
            node("Constant", [], ["true"], value=helper.make_tensor("true", BOOL, [], [True])),
            node("Loop", ["rows", "true"], ["y"], body=body),
        ],
        [("x", F, ["n", 3])],
        [("y", F, ["n", 3])],
    )
    graph = check(model, {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)})
    (loop,) = (n for n in graph.nodes if n.op == "loop")
    assert str(loop.attrs["trips"]) == "n"
    assert loop.attrs["checked"] is False
    assert str(graph.spec("y")) == "float32[n, 3]"


def nested_ifs(depth: int) -> onnx.ModelProto:
    inner = node("Relu", ["x"], ["v0"])
    for level in range(depth):
        branches = {
            name: helper.make_graph([onp], name, [], [info(onp.output[0], F, [2])])
            for name, onp in (("then_branch", inner), ("else_branch", node("Neg", ["x"], [f"n{level}"])))
        }
        inner = node("If", ["c"], [f"v{level + 1}"], **branches)
    return build_model([inner], [("c", BOOL, []), ("x", F, [2])], [(f"v{depth}", F, [2])])


def test_depth_is_bounded() -> None:
    assert depth_of(import_onnx(nested_ifs(11))[0]) == 11
    assert "nested more than 12 levels deep" in reasons(import_onnx(nested_ifs(16))[0])[0]


def loop_of(nodes: list[Any], outputs: list[str], **more: Any) -> onnx.ModelProto:
    """An unchecked model with one Loop over ``x``."""
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", I64, []), info("going", BOOL, []), info("s", F, None)],
        [info(o, BOOL if o in ("going", "on") else F, None) for o in outputs],
    )
    graph = helper.make_graph(
        [node("Loop", ["n", "", "x"], ["y"], body=body), *more.get("after", ())],
        "g",
        [info("n", I64, []), info("x", F, [2])],
        [info("y", F, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("nodes", "outputs", "problem"),
    [
        ([], ["going"], "carried values"),
        ([node("Relu", ["later"], ["t"])], ["going", "t"], "which no earlier node produces"),
        ([node("Relu", ["y"], ["t"])], ["going", "t"], "which no earlier node produces"),
        ([node("Relu", ["t"], ["t2"]), node("Relu", ["t2"], ["t"])], ["going", "t"], "produce"),
        ([node("Shape", ["s"], ["t"])], ["going", "t"], "changes its type"),
    ],
)
def test_bodies_that_contradict_themselves(nodes: list[Any], outputs: list[str], problem: str) -> None:
    """A clear error, or the node kept for an engine with the reason."""
    model = loop_of(nodes, outputs, after=[node("Neg", ["x"], ["later"])])
    assert problem in told(model)


def told(model: onnx.ModelProto) -> str:
    """Return what is said of a model: the error, or the reasons of the nodes that stay opaque."""
    try:
        return " ".join(reasons(import_onnx(model)[0]))
    except ModelError as error:
        return str(error)


def test_repeated_lowering_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops in loops whose sizes change are lowered again at each level: the number of nodes bounds that."""
    monkeypatch.setattr("xpuruntime.frontends.onnx.lower.MAX_NODES", 60)
    inner = [node("Concat", ["s0", "s0"], ["t0"], axis=0), node("Identity", ["going0"], ["on0"])]
    for level in range(8):
        body = helper.make_graph(
            inner,
            f"body{level}",
            [info(f"i{level}", I64, []), info(f"going{level}", BOOL, []), info(f"s{level}", F, None)],
            [info(f"on{level}", BOOL, None), info(f"t{level}", F, None)],
        )
        up = level + 1
        inner = [
            node("Loop", ["n", "", f"s{up}"], [f"t{up}"], body=body),
            node("Identity", [f"going{up}"], [f"on{up}"]),
        ]
    graph = helper.make_graph(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        "g",
        [info("n", I64, []), info("x", F, [2])],
        [info("y", F, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert "its bodies have more than 200,000 nodes" in reasons(import_onnx(model)[0])[0]


def test_a_scan_of_opset_8_has_a_batch() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "row"], ["t"]), node("Tanh", ["t"], ["y"])],
        "body",
        [info("s", F, [2]), info("row", F, [2])],
        [info("t", F, [2]), info("y", F, [2])],
    )
    scan = node("Scan", ["", "start", "x"], ["last", "rows"], body=body, num_scan_inputs=1, directions=[1])
    graph = helper.make_graph(
        [scan],
        "g",
        [info("start", F, [3, 2]), info("x", F, [3, 4, 2])],
        [info("last", F, [3, 2]), info("rows", F, [3, 4, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    r = np.random.default_rng(0)
    feeds = {"start": r.standard_normal((3, 2)), "x": r.standard_normal((3, 4, 2))}
    feeds = {n: a.astype(np.float32) for n, a in feeds.items()}
    loops, weights = import_onnx(model)
    assert depth_of(loops) == 2
    for got, want in zip(
        interp.run(loops, feeds, weights=weights).values(), reference(model, feeds), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)
