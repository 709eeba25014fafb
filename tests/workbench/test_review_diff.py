"""``xpu diff``: one changed kernel is one changed node; copies, precisions, times, outputs; hostile files are named errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.onnx_models import save_small_mlp

import xpuruntime as xrt
from xpuruntime.errors import FormatError, InputError
from xpuruntime.evidence import Evidence, EvidenceRow
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.program.plan import Plan, PlanNode, Region, Transfer
from xpuruntime.workbench.review.diff import Diff, diff, diff_files
from xpuruntime.workbench.review.diff_text import diff_markdown, diff_text, headline
from xpuruntime.workbench.review.files import read_snapshot
from xpuruntime.workbench.review.receipt_file import receipt_document, save_receipt
from xpuruntime.workbench.review.snapshot import NodeState, Snapshot

pytest.importorskip("onnx")

RULES: dict[str, Any] = {"version": 1, "kernel": {"rules": [{"node": "fc2", "use": "gemv"}]}}
FIXED = {"fixed_shapes": {"batch": 2}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    return path


def kernel_rule(word: str) -> dict[str, Any]:
    return {"version": 1, "kernel": {"rules": [{"node": "fc2", "use": word}]}, "execution": FIXED}


@pytest.fixture(scope="module")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plans and receipts of native sessions that differ in the kernel of one node, and programs with the same kernels."""
    folder = tmp_path_factory.mktemp("files")
    x = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    paths: dict[str, Path] = {}
    for word in ("gemv", "generated"):
        policy = kernel_rule(word)
        with xrt.InferenceSession(model, engine="native", device="cpu", policy=policy) as session:
            plan = folder / f"{word}.plan.json"
            plan.write_text(json.dumps(session.plan.to_json()))
            outputs = session.run({"x": x})
            save_receipt(folder / f"{word}.receipt.json", session.receipt(), {"x": x}, outputs)
        graph = xrt.load_onnx(model)
        program = xrt.compile(graph, target="cpu", policy=policy, shapes={"batch": 2})
        program.save(folder / f"{word}.npubin")
        paths |= {f"{word}.{k}": folder / f"{word}.{k}" for k in ("plan.json", "receipt.json", "npubin")}
    return paths


@pytest.mark.parametrize("kind", ["plan.json", "receipt.json", "npubin"])
def test_one_changed_kernel_is_one_changed_node(files: dict[str, Path], kind: str) -> None:
    changes = diff_files(files[f"generated.{kind}"], files[f"gemv.{kind}"])
    (node,) = changes.changed
    assert (node.name, node.op, node.together) == ("fc2", node.op, ())
    assert [str(f) for f in node.fields] == ["kernel matmul/generated -> matmul/gemv"]
    assert (changes.removed, changes.added, changes.model, changes.new_transfers) == ((), (), (), ())
    assert "fc2: kernel matmul/generated -> matmul/gemv" in diff_text(changes)
    assert "1 node changed" in headline(changes)
    assert "`fc2`" in diff_markdown(changes)


@pytest.mark.parametrize("kind", ["plan.json", "receipt.json", "npubin"])
def test_a_file_does_not_differ_from_itself(files: dict[str, Path], kind: str) -> None:
    changes = diff_files(files[f"gemv.{kind}"], files[f"gemv.{kind}"])
    assert changes.empty
    assert headline(changes) == "no difference"


def test_receipts_compare_times_with_spread_and_runs_and_outputs(files: dict[str, Path]) -> None:
    changes = diff_files(files["generated.receipt.json"], files["gemv.receipt.json"])
    assert changes.time is not None
    assert changes.time.runs == 5
    assert changes.time.spread_us is not None
    assert {t.name for t in changes.times} == {"fc1", "fc2", "top"}
    (output,) = changes.outputs
    assert output.name == "y"
    assert output.max_abs is not None
    assert output.max_abs < 1e-5


def test_the_document_is_plain_data(files: dict[str, Path]) -> None:
    document = diff_files(files["generated.receipt.json"], files["gemv.receipt.json"]).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["nodes"][0]["fields"] == [
        {"field": "kernel", "old": "matmul/generated", "new": "matmul/gemv"}
    ]


def test_documents_of_commands_are_read(files: dict[str, Path], tmp_path: Path) -> None:
    plan = json.loads(files["gemv.plan.json"].read_text())
    (tmp_path / "explain.json").write_text(json.dumps({"question": "engine", "plan": plan, "error": None}))
    assert diff_files(files["gemv.plan.json"], tmp_path / "explain.json").empty


def test_two_kinds_are_an_error(files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"one kind.*a plan .*and a program"):
        diff_files(files["gemv.plan.json"], files["gemv.npubin"])


# ── what no native session on one processor shows ──


def plan(nodes: list[PlanNode], regions: list[Region], transfers: tuple[Transfer, ...] = ()) -> Plan:
    model = {"name": "m", "digest": "d", "format": "onnx"}
    return Plan(model, {}, (), (), tuple(regions), tuple(nodes), transfers)


def region(name: str, engine: str = "native", device: str = "cpu", precision: str = "float32") -> Region:
    return Region(name, engine, "1", device, precision)


def snapshot(made: Plan, folder: Path, name: str) -> Snapshot:
    (folder / name).write_text(json.dumps(made.to_json()))
    return read_snapshot(folder / name)


def test_a_moved_node_its_copies_and_its_precision(tmp_path: Path) -> None:
    nodes = [PlanNode(n, "Conv", "conv", "r0") for n in "abc"]
    before = plan(nodes, [region("r0", device="cuda:0")])
    moved = [nodes[0], replace(nodes[1], region="r1"), replace(nodes[2], region="r2")]
    after = plan(
        moved,
        [region("r0", device="cuda:0"), region("r1", "onnxruntime", precision="float16"), region("r2", device="cuda:0")],
        (Transfer("v", "r0", "r1", 64), Transfer("w", "r1", "r2", 64), Transfer("s", "r0", "r2", 8, shared=True)),
    )  # fmt: skip
    changes = diff(snapshot(before, tmp_path, "a"), snapshot(after, tmp_path, "b"))
    by_name = {c.name: [f.field for f in c.fields] for c in changes.changed}
    assert by_name["b"] == ["engine", "device", "precision", "region"]
    assert [t.value for t in changes.new_transfers] == ["v", "w"]
    back = diff(snapshot(after, tmp_path, "a"), snapshot(before, tmp_path, "b"))
    assert [t.value for t in back.vanished_transfers] == ["v", "w"]


def test_regions_that_are_only_numbered_anew_are_no_change(tmp_path: Path) -> None:
    regions = [region("r0"), region("r1", "onnxruntime")]
    nodes = [PlanNode("a", "Conv", "conv", "r0"), PlanNode("b", "Conv", "conv", "r1")]
    other = [replace(nodes[0], region="r7"), replace(nodes[1], region="r0")]
    renumbered = plan(other, [region("r7"), region("r0", "onnxruntime")])
    assert diff(snapshot(plan(nodes, regions), tmp_path, "a"), snapshot(renumbered, tmp_path, "b")).empty


def test_renamed_nodes_are_reported_and_not_guessed(tmp_path: Path) -> None:
    before = plan([PlanNode("a", "Conv", "conv", "r0")], [region("r0")])
    after = plan([PlanNode("a_1", "Conv", "conv", "r0")], [region("r0")])
    changes = diff(snapshot(before, tmp_path, "a"), snapshot(after, tmp_path, "b"))
    assert (changes.removed, changes.added, changes.changed) == (("a",), ("a_1",), ())
    assert any("may be renamed" in n for n in changes.notes)


def test_another_model_and_other_inputs_are_said(files: dict[str, Path], tmp_path: Path) -> None:
    document = json.loads(files["gemv.receipt.json"].read_text())
    document["plan"]["model"]["digest"] = "0" * 64
    document["inputs"]["x"] = "0" * 64
    (tmp_path / "r.json").write_text(json.dumps(document))
    changes = diff_files(files["gemv.receipt.json"], tmp_path / "r.json")
    assert [f.field for f in changes.model] == ["model digest"]
    assert changes.outputs == ()
    assert any("different inputs" in n for n in changes.notes)


def test_nodes_that_one_kernel_computes_are_one_entry() -> None:
    def side(kernel: str) -> Snapshot:
        group = ("conv", "relu")
        nodes = [
            NodeState(n, n, f, "native", "cpu", "r0", kernel, "float32", group)
            for n, f in (("relu", "activation"), ("conv", "conv"))
        ]
        return Snapshot("program", "p", "m", "d", tuple(nodes))

    (change,) = diff(side("conv/generated"), side("conv/onednn")).changed
    assert (change.name, change.together) == ("conv", ("relu",))


# ── files ──


def receipt_of(rows: tuple[EvidenceRow, ...]) -> Receipt:
    made = plan([PlanNode("a", "Conv", "conv", "r0")], [region("r0")])
    return Receipt.write(made, {"r0": Evidence("native", "1", rows, "session", "timed", timed_runs=5)}, 1)


words = st.text(max_size=8)
rows_of_evidence = st.builds(
    EvidenceRow,
    st.lists(words, max_size=2).map(tuple),
    words,
    st.just("cpu"),
    words,
    words,
    st.none() | st.floats(0, 1e9),
    spread_us=st.none() | st.floats(0, 1e9),
)


@given(
    rows=st.lists(rows_of_evidence, max_size=3).map(tuple), values=st.lists(st.floats(width=32), max_size=4)
)
@settings(max_examples=40)
def test_receipts_round_trip(rows: tuple[EvidenceRow, ...], values: list[float]) -> None:
    receipt = receipt_of(rows)
    document = json.loads(
        json.dumps(receipt_document(receipt, {}, {"y": np.array(values, np.float32)}), allow_nan=False)
    )
    assert Receipt.from_json(document) == receipt


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "not a receipt": lambda d: d | {"format": "other"},
    "a newer version": lambda d: d | {"version": 2},
    "no plan": lambda d: {k: v for k, v in d.items() if k != "plan"},
    "a node that is a number": lambda d: d | {"plan": d["plan"] | {"nodes": [{**d["plan"]["nodes"][0], "name": 3}]}},
    "a time that is text": lambda d: d | {"evidence": {"r0": d["evidence"]["r0"] | {"rows": [{**d["evidence"]["r0"]["rows"][0], "time_us": "1"}]}}},
    "a device of no kind": lambda d: d | {"plan": d["plan"] | {"regions": [{**d["plan"]["regions"][0], "device": "x:y:z"}]}},
    "outputs without digests": lambda d: d | {"outputs": [{"name": "y"}]},
    "inputs that are a list": lambda d: d | {"inputs": ["x"]},
    "a list": lambda d: [d],
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_receipt_is_a_named_error(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    document = json.loads(files["gemv.receipt.json"].read_text())
    path = tmp_path / "r.json"
    path.write_text(json.dumps(BROKEN[name](document)))
    with pytest.raises(FormatError, match=r"r\.json"):
        read_snapshot(path)


def test_a_half_written_file_is_a_named_error(files: dict[str, Path], tmp_path: Path) -> None:
    for kind in ("receipt.json", "plan.json", "npubin"):
        data = files[f"gemv.{kind}"].read_bytes()
        for end in (0, 1, len(data) // 2, len(data) - 2):
            path = tmp_path / f"cut.{kind}"
            path.write_bytes(data[:end])
            with pytest.raises(FormatError):
                read_snapshot(path)


def test_a_model_is_no_plan_and_the_error_says_how_to_write_one(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "model.txt"
    text.write_text("ir_version: 8")
    for path, got in ((model, "got binary data"), (text, "got text that is not JSON")):
        with pytest.raises(FormatError) as caught:
            diff_files(path, path)
        message = str(caught.value)
        assert f"[file {path}] is not a plan, receipt, program or lock" in message
        assert got in message
        assert "Write one of a model with xpu explain --save" in message


def test_a_diff_is_a_value(files: dict[str, Path]) -> None:
    one = diff_files(files["generated.plan.json"], files["gemv.plan.json"])
    assert isinstance(one, Diff)
    assert one == diff_files(files["generated.plan.json"], files["gemv.plan.json"])
