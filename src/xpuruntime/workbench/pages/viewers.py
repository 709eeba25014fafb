"""Plans, receipts, programs and locks for other viewers: an ONNX graph for Netron, and a graph with node data for Model Explorer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...frontends.onnx.proto import dtype_table
from ...printable import line
from ...program.plan import Plan
from ...storage.store import write_atomic
from ...types import TensorSpec
from ..review.snapshot import Snapshot
from .graph_layout import layers_of
from .node_values import NODE_COLUMNS, decisions_of_file, plan_of, snapshot_nodes
from .page import PageNode, Value

__all__ = ["model_explorer_documents", "snapshot_to_onnx", "write_for_viewers"]

_DOMAIN = "xpuruntime.plan"
_OPSET, _IR_VERSION = 17, 10  # nodes have metadata since IR version 10
_DATA = ("step us", "engine", "kernel", "precision", "device", "region")
_COLORS = ("#0072b2", "#d55e00", "#00805f", "#a64d88", "#8a6d00", "#5b6570")


def write_for_viewers(path: str | os.PathLike[str], snapshot: Snapshot) -> tuple[Path, ...]:
    """Write ``OUT.onnx`` for Netron, or ``OUT.json`` for Model Explorer with one file of node data for each kind of value
    (``OUT.engine.json``). Return the files.

    Raises StoreError; ModelError for ONNX without the package onnx.
    """
    target = Path(path)
    if target.suffix == ".onnx":
        write_atomic(target, snapshot_to_onnx(snapshot).SerializeToString(deterministic=True))
        return (target,)
    graph, data = model_explorer_documents(snapshot)
    files = {target: graph}
    files |= {target.with_suffix(f".{c.replace(' ', '_')}.json"): document for c, document in data.items()}
    for file, document in files.items():
        write_atomic(file, json.dumps(document, indent=1).encode())
    return tuple(files)


def snapshot_to_onnx(snapshot: Snapshot) -> Any:
    """Return an ``onnx.ModelProto`` that viewers open and no engine runs. What is known about a node, and the decisions on models and
    regions, are ``metadata_props``.
    """
    try:
        from onnx import helper
    except ImportError as error:
        do = "Run: pip install 'xpuruntime[onnx]'"
        raise ModelError(
            snapshot.name, "writing ONNX needs the Python package 'onnx'", got=error, do=do
        ) from error
    nodes = snapshot_nodes(snapshot)
    order, values = _ordered(nodes), {n.name: f"{i}: {line(n.name)}" for i, n in enumerate(nodes)}
    plan, protos = plan_of(snapshot), []
    given, known = _inputs(plan, set(values.values())), {n.name: n.inputs for n in plan.nodes} if plan else {}
    for node in order:
        facts = _facts(node)
        inputs = [given[v] for v in known.get(node.name, ()) if v in given]
        inputs += [values[r] for r in node.reads if r in values]
        op = str(facts.pop("op", "")) or "Node"
        proto = helper.make_node(op, inputs, [values[node.name]], name=line(node.name), domain=_DOMAIN)
        for key, value in facts.items():
            proto.metadata_props.add(key=key, value=value)
        protos.append(proto)
    read = {r for n in nodes for r in n.reads}
    inputs = [] if plan is None else [_value_info(replace(s, name=given[s.name])) for s in plan.inputs]
    specs = _specs(plan, values)
    # The graph of a file that does not tell types has no declared outputs; Netron shows it all the same.
    outputs = [_value_info(s) for n, s in specs.items() if n not in read]
    inner = [_value_info(s) for n, s in specs.items() if n in read]
    graph = helper.make_graph(protos, line(snapshot.model), inputs, outputs, value_info=inner)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
    model = helper.make_model(graph, producer_name="xpuruntime", opset_imports=opsets, ir_version=_IR_VERSION)
    for key, value in _model_facts(snapshot).items():
        model.metadata_props.add(key=line(key), value=line(value))
    return model


def _inputs(plan: Plan | None, taken: set[str]) -> dict[str, str]:
    """Return the name of each input of the model in the written graph: its own, unless a node's result has it."""
    named: dict[str, str] = {}
    for spec in () if plan is None else plan.inputs:
        name = line(spec.name)
        named[spec.name] = f"input {name}" if name in taken or name in named.values() else name
    return named


def _specs(plan: Plan | None, values: Mapping[str, str]) -> dict[str, TensorSpec]:
    """Return the type of each node's result, where the plan tells it."""
    nodes = () if plan is None else plan.nodes
    return {n.name: TensorSpec.parse(n.spec, values[n.name]) for n in nodes if n.spec and n.name in values}


def _value_info(spec: TensorSpec) -> Any:
    import onnx
    from onnx import helper

    shape = [d if isinstance(d, int) else str(d) for d in spec.shape]
    numbers = {dtype: number for number, dtype in dtype_table(onnx).items()}
    return helper.make_tensor_value_info(line(spec.name), numbers[spec.dtype], shape)


def _model_facts(snapshot: Snapshot) -> dict[str, str]:
    facts = {"kind": snapshot.kind, "model": snapshot.model, "digest": snapshot.model_digest} | dict(
        snapshot.facts
    )
    facts |= {} if snapshot.confirmed is None else {"confirmed": str(snapshot.confirmed).lower()}
    for decision in decisions_of_file(snapshot):
        if not decision.question.startswith("kernel"):
            facts[f"{decision.question} of {decision.subject}"] = decision.explain().replace("\n", "; ")
    return facts


def _ordered(nodes: Sequence[PageNode]) -> list[PageNode]:
    """Return the nodes in an execution order."""
    layers = layers_of(_edges(nodes))
    return [nodes[i] for i in sorted(range(len(nodes)), key=lambda i: layers[i])]


def _edges(nodes: Sequence[PageNode]) -> list[list[int]]:
    numbers = {n.name: i for i, n in enumerate(nodes)}
    return [[numbers[r] for r in n.reads if r in numbers] for n in nodes]


def _facts(node: PageNode) -> dict[str, str]:
    pairs = zip(NODE_COLUMNS, node.values, strict=True)
    return {k: line(v) for k, v in pairs if v not in (None, "")}


# ── Model Explorer ──


def model_explorer_documents(snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a graph, and the node data of each kind of value, in the JSON that Model Explorer reads."""
    nodes = snapshot_nodes(snapshot)
    ids = {n.name: str(i) for i, n in enumerate(nodes)}
    name = line(snapshot.model)
    entries = []
    for node in nodes:
        edges = [{"sourceNodeId": ids[r]} for r in node.reads if r in ids]
        attributes = [{"key": "name", "value": line(node.name)}]
        attributes += [{"key": k, "value": v} for k, v in _facts(node).items()]
        label = line(node.values[NODE_COLUMNS.index("op")] or node.name)
        entry = {
            "id": ids[node.name],
            "label": label,
            "namespace": _namespace(node.name),
            "attrs": attributes,
            "incomingEdges": edges,
        }
        entries.append(entry)
    graph = {
        "label": name,
        "graphs": [{"id": name, "nodes": entries}],
    }  # it refuses a document without a label
    data = {column: _node_data(column, nodes, ids) for column in _DATA}
    return graph, {column: {name: d} for column, d in data.items() if d["results"]}


def _namespace(name: str) -> str:
    """Return the groups that a node's name holds: ``layers.0`` of ``/layers.0/Conv``."""
    return "/".join(part for part in line(name).split("/")[:-1] if part)


def _node_data(column: str, nodes: Sequence[PageNode], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return one column as node data: numbers with a gradient, texts with a color for each one."""
    k = NODE_COLUMNS.index(column)
    values: dict[str, Value] = {ids[n.name]: n.values[k] for n in nodes if n.values[k] not in (None, "")}
    if any(isinstance(v, float) for v in values.values()):
        gradient = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": _COLORS[1]}]
        return {"name": column, "results": {i: {"value": v} for i, v in values.items()}, "gradient": gradient}
    colors = {v: _COLORS[i % len(_COLORS)] for i, v in enumerate(dict.fromkeys(values.values()))}
    results = {i: {"value": line(v), "bgColor": colors[v], "textColor": "#ffffff"} for i, v in values.items()}
    return {"name": column, "results": results}
