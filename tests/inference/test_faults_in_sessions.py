"""Faults of our own compiler under sessions, ops, executors and the command line: the next candidate, or an error that names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir, passes
from xpuruntime.child_calls import call_within
from xpuruntime.decisions import Reason
from xpuruntime.errors import InternalError, ModelError
from xpuruntime.fault_reports import report_folders, reports_into
from xpuruntime.frontends.onnx import lower as onnx_lower
from xpuruntime.frontends.torch import lower as torch_lower
from xpuruntime.passes import PASSES

onnx = pytest.importorskip("onnx")


@pytest.fixture(autouse=True)
def store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    return fresh_store


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A compiler whose pass ``cse`` fails."""

    def boom(graph: ir.Graph, _: Any) -> ir.Graph:
        node = graph.nodes[0]
        raise KeyError(node.name)

    table = tuple(replace(p, run=boom) if p.name == "cse" else p for p in PASSES)
    monkeypatch.setattr(passes, "PASSES", table)
    return monkeypatch


def model(op: str = "Relu") -> bytes:
    node = onnx.helper.make_node(op, ["x"], ["y"], name="first")
    types = [onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "m", types[:1], types[1:])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return bytes(made.SerializeToString())


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def test_a_named_engine_that_fails_is_an_internal_error(failing: pytest.MonkeyPatch) -> None:
    with pytest.raises(InternalError, match=r"pass cse failed at node .*'first'") as caught:
        xrt.InferenceSession(model(), device="cpu", engine="native")
    error = caught.value
    assert "pass cse" in error.parts
    assert (Path(error.folder) / "graph.txt").is_file()
    assert error.folder in str(error)
    assert error.decision is not None
    assert error.decision.rejected[0].code is Reason.INTERNAL_ERROR


@pytest.mark.parametrize("vendor", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("how", ["auto", "order"])
def test_others_go_on_with_the_reason(vendor: str, how: str, failing: pytest.MonkeyPatch) -> None:
    pytest.importorskip(vendor)
    asked: dict[str, Any] = {"engine": "auto"} if how == "auto" else {}
    policy = {"version": 1, "execution": {"engine_order": {"cpu": ["native", vendor]}}}
    with xrt.InferenceSession(model(), device="cpu", policy=policy, **asked) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))
        decision = next(d for d in session.plan.decisions if d.question == "engine")
    assert decision.chosen is not None
    assert decision.chosen.name == f"{vendor} on cpu"
    native = next(c for c in decision.rejected if c.name == "native on cpu")
    assert native.code is Reason.INTERNAL_ERROR
    assert "pass cse failed" in native.reason
    assert Path(native.facts["reproduction"]).is_dir()


def test_allow_fallback_goes_on_and_warns(
    failing: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")
    policy = {
        "version": 1,
        "execution": {"allow_fallback": ["cpu"], "engine_order": {"cpu": ["native", "onnxruntime"]}},
    }
    with xrt.InferenceSession(model(), device="cpu", engine="native", policy=policy) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))
        decision = next(d for d in session.plan.decisions if d.question == "engine")
    assert decision.chosen is not None
    assert decision.chosen.code is Reason.FALLBACK
    assert decision.rejected[0].code is Reason.INTERNAL_ERROR
    assert "pass cse failed" in caplog.text


def test_the_report_is_in_the_sessions_own_store(failing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own"
    with pytest.raises(InternalError) as caught:
        xrt.InferenceSession(model(), device="cpu", engine="native", cache_dir=own)
    assert Path(caught.value.folder).is_relative_to(own)


def test_a_compiler_in_a_process_of_its_own_reports_to_the_same_folders(tmp_path: Path) -> None:
    with reports_into(tmp_path / "mine"):
        assert call_within("xpuruntime.fault_reports:report_folders", (), 60.0, "test") == (
            tmp_path / "mine",
        )
    assert call_within("xpuruntime.fault_reports:report_folders", (), 60.0, "test") == report_folders()


def test_an_error_keeps_its_folder_between_processes() -> None:
    import pickle

    error = InternalError("a", "b", got="c", do="d", parts=("pass x",), folder="/tmp/f")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.parts, again.folder) == (str(error), error.parts, error.folder)


def test_open_shapes_fail_by_name_when_they_are_met(failing: pytest.MonkeyPatch) -> None:
    made = onnx.load_from_string(model())
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with (
        xrt.InferenceSession(made.SerializeToString(), device="cpu", engine="native") as session,
        pytest.raises(InternalError, match="pass cse failed"),
    ):
        session.run({"x": X})


def test_ops_partitions_and_executors_say_it_too(failing: pytest.MonkeyPatch) -> None:
    with pytest.raises(InternalError, match="pass cse failed"):
        xrt.ops.softmax(X)
    graph = xrt.load_onnx(model())
    plan = xrt.partition(graph, lambda *_: True, others=())
    with pytest.raises(InternalError, match="pass cse failed"):
        xrt.DAGExecutor(plan)
    pytest.importorskip("onnxruntime")
    with_others = xrt.partition(graph, lambda *_: True, others=("onnxruntime",))
    dag = xrt.DAGExecutor(with_others)
    assert "pass cse failed" in str(dag.plan.explain())
    np.testing.assert_array_equal(dag.execute({"x": X})["y"], np.maximum(X, 0))


def test_a_row_that_fails_leaves_an_opaque_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(site: Any) -> Any:
        raise AssertionError("a row of ours")

    monkeypatch.setattr(onnx_lower, "TABLE", {"Relu": boom})
    graph = xrt.load_onnx(model())
    (node,) = graph.nodes
    assert node.op == "opaque"
    assert "a row of ours" in node.attrs["reason"]


def test_a_reader_that_fails_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> Any:
        raise AssertionError("a reader of ours")

    monkeypatch.setattr(onnx_lower.OnnxLowering, "nodes", boom)
    with pytest.raises(ModelError, match=r"a fault of xpuruntime.*a reader of ours"):
        xrt.load_onnx(model())


def test_a_torch_row_that_fails_leaves_an_opaque_node(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def boom(*_: Any) -> Any:
        raise KeyError("a row of ours")

    monkeypatch.setattr(torch_lower.AtenLowering, "_lower", boom)
    graph = xrt.extract_ir(torch.nn.ReLU().eval(), torch.zeros(2, 3))
    assert [n.op for n in graph.nodes] == ["opaque"]
    assert "a row of ours" in graph.nodes[0].attrs["reason"]


def test_a_torch_reader_that_fails_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def boom(*_: Any) -> Any:
        raise KeyError("a reader of ours")

    monkeypatch.setattr(torch_lower.AtenLowering, "nodes", boom)
    with pytest.raises(ModelError, match=r"a fault of xpuruntime.*a reader of ours"):
        xrt.extract_ir(torch.nn.ReLU().eval(), torch.zeros(2, 3))


def test_the_command_line_says_it_too(failing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from xpuruntime.cli.app import app

    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    for verb in (
        ["compile", str(path), "--dry-run"],
        ["run", str(path), "--engine", "native", "--device", "cpu"],
    ):
        done = CliRunner().invoke(app, verb)
        assert done.exit_code == 70, done.output
        assert "pass cse failed" in done.output
        assert "reports/" in done.output.replace("\n", "")
