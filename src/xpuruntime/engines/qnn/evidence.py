"""Evidence of what QNN ran: the ops of its graphs, as dumped when the model was prepared, and the nodes that this session has on the CPU.

The provider fuses activations into the op before them and converts layouts. A QNN op has the name of one of its nodes. The other nodes that it
computes are found by data flow, among the nodes that ONNX Runtime assigned to QNN.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocols import Evidence, EvidenceRow, ModelSource
from ..attribution import SourceGraph
from ..onnxruntime.evidence import some
from ..onnxruntime.rewrites import source_of_name
from .graph_dump import source_name
from .library import PROVIDER, has_npu, version
from .options import QnnSettings

__all__ = ["collect", "cycles"]

_PRODUCTS = frozenset(
    {"Conv2d", "Conv3d", "DepthWiseConv2d", "TransposeConv2d", "TransposeConv3d", "FullyConnected", "MatMul"}
)
_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
_EVENT = re.compile(r"(?P<name>.+):OpId_\d+ \(cycles\)")


def cycles(profile: str) -> dict[str, int]:
    """Return the cycles of each op of the last run, from the vendor's profile as CSV."""
    counts: dict[str, int] = {}
    for row in csv.DictReader(profile.splitlines()):
        if (event := _EVENT.fullmatch(row["Event Identifier"])) and row["Time"].isdecimal():
            counts[event["name"]] = int(row["Time"])
    return counts


def collect(
    model: ModelSource,
    session: Any,
    settings: QnnSettings,
    meta: Mapping[str, Any],
    counts: Mapping[str, int] | None,
) -> Evidence:
    """Return the evidence of a session. meta: that of the artifact; empty for a context model that was prepared elsewhere."""
    rows = _qnn_rows(model, settings, meta, counts or {})
    edges: list[str] = []
    stayed: list[str] = []
    for assigned in session.get_provider_graph_assignment_info():
        for node in assigned.get_nodes():
            if assigned.ep_name == PROVIDER:
                if not meta:
                    rows.append(EvidenceRow((node.name,), node.op_type, "npu", f"HTP {node.op_type}"))
                continue
            name = source_of_name(node.name, model)
            rows.append(
                EvidenceRow(
                    (name,) if name else (), node.op_type, "cpu", f"{assigned.ep_name} {node.op_type}"
                )
            )
            at_edge = node.op_type in _QDQ and (not name or _is_edge(model, name))
            (edges if at_edge else stayed).append(name or node.op_type)
    return Evidence(
        engine="qnn",
        version=version(),
        rows=tuple(rows),
        placement_source="session",
        time_source="",
        fallbacks=(f"QNN left nodes on the CPU: {some(stayed)}",) if stayed else (),
        options={**settings.options, "sdk": str(meta.get("sdk", "")), "emulator": "0" if has_npu() else "1"},
        notes=(*_notes(edges, meta, counts), *_missing(model, rows)),
    )


def _qnn_rows(
    model: ModelSource, settings: QnnSettings, meta: Mapping[str, Any], counts: Mapping[str, int]
) -> list[EvidenceRow]:
    ops = list(meta.get("ops", ()))
    on_qnn = {
        name
        for ep, node, _ in meta.get("placement", ())
        if ep == PROVIDER and (name := source_of_name(source_name(node), model))
    }
    source = SourceGraph(model)
    nodes = [_named(op, model, on_qnn) for op in ops]
    _with_producers(source, ops, nodes, on_qnn)
    source.absorb(nodes, lambda node, _: node.name in on_qnn)
    rows = []
    for op, names in zip(ops, nodes, strict=True):
        count = counts.get(op["name"])
        cost = "" if count is None else f" ({count} cycles)"
        types = [t for _, t in op["inputs"]]
        product = op["op"] in _PRODUCTS and len(types) > 1
        rows.append(
            EvidenceRow(
                source.ordered(names),
                op["op"],
                "npu",
                f"HTP {settings.architecture} {op['op']}{cost}",
                next((t for _, t in op["outputs"]), ""),
                activations=types[0] if product else "",
                weights=types[1] if product else "",
            )
        )
    return rows


def _named(op: Mapping[str, Any], model: ModelSource, on_qnn: set[str]) -> set[str]:
    name = source_of_name(source_name(op["name"]), model)
    return {name} if name in on_qnn else set()


def _with_producers(
    source: SourceGraph, ops: Sequence[Mapping[str, Any]], nodes: Sequence[set[str]], on_qnn: set[str]
) -> None:
    """Assign to each op the nodes between the values that it reads and those that it writes. Changes ``nodes``."""

    def value(tensor: str) -> str:
        """Return the model's value of a tensor. The output of a quantized op is named after its QuantizeLinear node."""
        name = source_name(tensor)
        known = source.known(name) or name not in source.nodes
        return name if known else source.nodes[name].outputs[0]

    owned = {n for names in nodes for n in names}
    for op, names in zip(ops, nodes, strict=True):
        if names:
            between = source.between(
                [value(v) for v, _ in op["outputs"]], {value(v) for v, _ in op["inputs"]}
            )
            extra = {n for n in between if n in on_qnn and n not in owned}
            names |= extra
            owned |= extra


def _is_edge(model: ModelSource, name: str) -> bool:
    """Return True for a node that reads an input or writes an output of the model."""
    node = next(n for n in model.nodes if n.name == name)
    ends = {s.name for s in (*model.inputs, *model.outputs)}
    return bool(ends & {*node.inputs, *node.outputs})


def _notes(edges: Sequence[str], meta: Mapping[str, Any], counts: Mapping[str, int] | None) -> list[str]:
    notes = []
    if not has_npu():
        notes.append(
            "the HTP emulator of this host ran the model; its times and cycles are not those of an NPU"
        )
    if edges:
        notes.append(f"inputs are quantized and outputs dequantized on the CPU: {some(edges)}")
    if not meta:
        notes.append("the context binary was prepared elsewhere, so its ops are not known")
    if counts:
        notes.append(
            f"cycles per op are those of a profiled twin's last run, {sum(counts.values())} in total"
        )
    return notes


def _missing(model: ModelSource, rows: Sequence[EvidenceRow]) -> list[str]:
    covered = {n for r in rows for n in r.nodes}
    missing = [n.name for n in model.nodes if n.name not in covered]
    return [f"not reported separately (fused, folded or removed): {some(missing)}"] if missing else []
