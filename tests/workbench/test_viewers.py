"""Files for other viewers: others' readers open what we write, with hostile names too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_models import save_small_mlp

import xpuruntime as xrt
from xpuruntime.decisions import Candidate, Decision, Reason
from xpuruntime.profiler.perfetto import perfetto_bytes
from xpuruntime.profiler.trace import TraceSpan
from xpuruntime.program.plan import Plan, PlanNode, Region
from xpuruntime.types import TensorSpec
from xpuruntime.workbench.pages.viewers import model_explorer_documents, snapshot_to_onnx, write_for_viewers
from xpuruntime.workbench.review.snapshot import of_plan, of_receipt

onnx = pytest.importorskip("onnx")

HOSTILE = ("</script>", "a/b\"c'", "\u202eback\x1b", "", "a/b/c")


def hostile_plan() -> Plan:
    nodes = tuple(
        PlanNode(
            n,
            "Conv",
            "conv",
            "r0",
            kernel="conv/x" if k else "",
            reads=HOSTILE[max(0, k - 1) : k],
            inputs=("x", "0: </script>") if k == 1 else (),
            spec="float32[n]",
        )
        for k, n in enumerate(HOSTILE)
    )
    decision = Decision("engine", "r0", Candidate("native on cpu", Reason.REQUESTED, "named"), ())
    return Plan(
        {"name": "net", "digest": "0" * 64}, {}, (TensorSpec.parse("float32[n, 3]", "x"), TensorSpec.parse("int64[1]", "0: </script>")), (),
        (Region("r0", "native", "1", "cpu", "float32"),), nodes, (), (decision,),
    )  # fmt: skip


def test_an_onnx_graph_holds_every_node_edge_and_decision() -> None:
    model = snapshot_to_onnx(of_plan(hostile_plan(), "p"))
    onnx.checker.check_model(model)  # names, order of execution, types
    nodes = onnx.load_from_string(model.SerializeToString()).graph.node
    assert len({n.output[0] for n in nodes}) == len(HOSTILE)
    assert [v.name for v in model.graph.input] == [
        "x",
        "input 0: </script>",
    ]  # a node's result has the other name
    assert [list(n.input)[:-1] for n in nodes[1:]] == [["x", "input 0: </script>"], [], [], []]
    assert [list(n.input)[-1:] for n in nodes[1:]] == [list(n.output) for n in nodes[:-1]]
    assert list(nodes[0].input) == []
    facts = {p.key: p.value for p in nodes[1].metadata_props}
    assert facts == {
        "family": "conv", "engine": "native", "device": "cpu", "kernel": "conv/x", "precision": "float32", "region": "r0",
        "nodes of the step": "1",
    }  # fmt: skip
    decisions = {p.key: p.value for p in model.metadata_props}
    assert decisions["engine of r0"] == "engine for r0: native on cpu (requested: named)"


def test_inputs_of_real_models_have_edges(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    xrt.compile(xrt.load_onnx(str(path)), target="cpu", shapes={"batch": 2}).save(tmp_path / "mlp.npubin")
    plans = [xrt.partition(xrt.load_onnx(str(path)), place={"softmax": "onnxruntime"}).plan]
    for file in (path, tmp_path / "mlp.npubin"):
        with xrt.InferenceSession(file, engine="native", device="cpu") as session:
            plans.append(session.plan)
    for plan in plans:
        written = snapshot_to_onnx(of_plan(plan, "p"))
        onnx.checker.check_model(written)
        assert [n.name for n in written.graph.node if "x" in n.input] == [
            n.name for n in plan.nodes if n.inputs
        ]
        assert len([n for n in plan.nodes if n.inputs]) == 1
        assert Plan.from_json(plan.to_json()) == plan


def test_model_explorer_gets_a_graph_and_data_by_its_ids(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    with xrt.InferenceSession(path, engine="native", device="cpu") as session:
        session.run({"x": np.zeros((2, 16), np.float32)})
        receipt = session.receipt()
    snapshot = of_receipt(receipt, "r", {}, ())
    files = write_for_viewers(tmp_path / "g.json", snapshot)
    assert [f.name for f in files] == [
        "g.json",
        *(f"g.{c}.json" for c in ("step_us", "engine", "kernel", "precision", "device", "region")),
    ]
    graph, data = model_explorer_documents(snapshot)
    assert json.loads(files[0].read_text()) == graph
    (only,) = graph["graphs"]
    assert (
        graph["label"] == only["id"] == "mlp"
    )  # what the viewer takes is {label, graphs} or a list of graphs
    ids = {n["id"]: n for n in only["nodes"]}
    assert len(ids) == len(receipt.plan.nodes)
    assert {e["sourceNodeId"] for n in ids.values() for e in n["incomingEdges"]} <= set(ids)
    times = data["step us"][only["id"]]["results"]
    for node in receipt.plan.nodes:
        (entry,) = [n for n in ids.values() if {"key": "name", "value": node.name} in n["attrs"]]
        rows = [r for r in receipt.evidence["r0"].rows if node.name in r.nodes]
        assert times[entry["id"]]["value"] == pytest.approx(sum(r.time_us or 0 for r in rows))
    assert [
        n["namespace"]
        for n in model_explorer_documents(of_plan(hostile_plan(), "p"))[0]["graphs"][0]["nodes"]
    ][-1] == "a/b"


# ── Perfetto ──


def fields_of(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message by the wire format alone: varints and length-delimited ones."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = varint(at)
        value: Any
        value, at = varint(at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        fields.append((key >> 3, value))
    return fields


SPANS = (
    TraceSpan("run", 7, 1_000, 900),
    TraceSpan("kernel", 7, 1_000, 300, 4),
    TraceSpan("too long", 7, 1_400, 900),  # by rounding, an inner span may end after the one around it
    TraceSpan("mark \u202e", 7, 1_950, 0),
    TraceSpan("other", 8, 1_100, 2**40),
)


def test_a_trace_has_nested_slices_per_thread() -> None:
    packets = [dict(fields_of(p)) for _, p in fields_of(perfetto_bytes(SPANS, 5, "xpuruntime"))]
    events = [(p[8], dict(fields_of(p[11]))) for p in packets if 11 in p]
    assert [t for t, _ in events] == sorted(t for t, _ in events)
    open_slices: dict[int, list[bytes]] = {}
    for _, event in events:
        stack = open_slices.setdefault(event[11], [])
        if event[9] == 1:
            stack.append(event[23])
        elif event[9] == 2:
            stack.pop()
    assert list(open_slices.values()) == [[], []]
    assert [(t, e.get(23)) for t, e in events if e[9] == 3] == [(1_950, b"mark \\u202e")]


def unknown_fields(message: Any) -> list[int]:
    """The numbers of fields that the reader's classes lack, in the message and those inside."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    numbers = [f.field_number for f in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if hasattr(value, "ListFields") else value
            numbers += [n for m in inner for n in unknown_fields(m)]
    return numbers


def test_perfetto_s_own_classes_read_a_trace(tmp_path: Path) -> None:
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    with xrt.InferenceSession(path, engine="native", device="cpu") as session, xrt.profile() as recorded:
        session.run({"x": np.zeros((2, 16), np.float32)})
    recorded.save(tmp_path / "t.pftrace")
    for data in ((tmp_path / "t.pftrace").read_bytes(), perfetto_bytes(SPANS, 5, "xpuruntime")):
        trace = proto.Trace()
        trace.ParseFromString(data)
        assert unknown_fields(trace) == []
        events = [p.track_event for p in trace.packet if p.HasField("track_event")]
        begins = [e for e in events if e.type == e.TYPE_SLICE_BEGIN]
        assert len(begins) == sum(e.type == e.TYPE_SLICE_END for e in events)
        threads = {p.track_descriptor.uuid for p in trace.packet if p.track_descriptor.HasField("thread")}
        assert {e.track_uuid for e in events} == threads
    names = [s.name for s in recorded.spans]
    trace.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    seen = [p.track_event.name for p in trace.packet if p.track_event.name]
    assert sorted(seen) == sorted(names)
    notes = [a for p in trace.packet for a in p.track_event.debug_annotations]
    steps = [a.int_value for a in notes if a.name == "step"]
    assert sorted(steps) == sorted(s.step for s in recorded.spans if s.step >= 0)
    waits = [a.int_value for a in notes if a.name == "waited_ns"]
    assert sorted(waits) == sorted(s.waited_ns for s in recorded.spans if s.waited_ns)
