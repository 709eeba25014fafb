"""Probing: which nodes of a model the vendor fails on. Each distinct node is prepared alone, in a child process.

On some ops QNN fails the whole session instead of leaving the node on the CPU, or ends the process. The child writes a line per node, so a
crash or a hang names the node as well. After every failure the child is replaced, since the provider stays broken in a process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...child_calls import call_within
from ...errors import BuildError
from ...protocols import ModelSource
from ..onnxruntime.providers import short
from ..onnxruntime.run import named_bytes
from .offline import create_session
from .options import QnnSettings

__all__ = ["Refusal", "refused_nodes", "try_units"]

PROBE_S = 120.0
"""Longest time of one child, in seconds."""
_LIMIT = "the time limit of a probe"
_MAX_UNITS = 256  # nodes that are probed; the others are not reported
_QUANTIZING, _DEQUANTIZING = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node on which the vendor fails, and its text."""

    node: str
    op: str
    text: str


def refused_nodes(model: ModelSource, settings: QnnSettings, who: str) -> list[Refusal]:
    """Return the first node of each kind that fails alone. Kinds differ in op, attributes, types, shapes or quantization."""
    units = _units(model)[:_MAX_UNITS]
    refusals: list[Refusal] = []
    with tempfile.TemporaryDirectory(prefix="xpu-qnn-probe-") as folder:
        log, done = Path(folder, "log"), 0
        while done < len(units):
            log.write_text("")
            texts = _tried([u for _, _, u in units[done:]], settings, log, who)
            for (name, op, _), text in zip(units[done:], texts, strict=False):
                if text:
                    refusals.append(Refusal(name, op, text))
            done += len(texts)
    return refusals


def _tried(units: Sequence[bytes], settings: QnnSettings, log: Path, who: str) -> list[str]:
    """Return a text for each unit until the first failure; empty texts are successes. At least one unit is tried."""
    try:
        call_within(
            "xpuruntime.engines.qnn.probe:try_units",
            (list(units), dict(settings.options), str(log)),
            PROBE_S,
            who,
            _LIMIT,
        )
    except (
        BuildError
    ) as error:  # the child died or hung on the unit after the log's last line; BuildTimeout is a BuildError
        lines = log.read_text().splitlines()
        return [*lines, f"{error.what}: {error.got}"] if len(lines) < len(units) else lines
    return log.read_text().splitlines()


def try_units(units: Sequence[bytes], provider: Mapping[str, str], log: str) -> None:
    """Create a session for each unit, and write a line to the log: its error, or nothing. Stop after the first error. Runs in a child."""
    with Path(log).open("a", buffering=1) as lines:
        for unit in units:
            try:
                create_session(unit, provider, {})
            except Exception as error:  # the vendor's exceptions have no common base class
                lines.write(f"{short(str(error), 300)}\n")
                return
            lines.write("\n")


def _units(model: ModelSource) -> list[tuple[str, str, bytes]]:
    """Return name, op and a model of its own for the first node of each kind. Quantized nodes keep their Q and DQ nodes."""
    import onnx

    source, _ = named_bytes(model)
    proto = onnx.load(source) if isinstance(source, str) else onnx.ModelProto.FromString(source)
    specs = _specs(proto)
    weights = {t.name: t for t in proto.graph.initializer}
    makers = {o: n for n in proto.graph.node for o in n.output}
    readers: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    units: dict[tuple[object, ...], tuple[str, str, bytes]] = {}
    for node in proto.graph.node:
        if node.op_type in (_QUANTIZING, _DEQUANTIZING, "Constant"):
            continue
        before = [makers[v] for v in node.input if v in makers and makers[v].op_type == _DEQUANTIZING]
        before += [makers[v] for v in node.input if v in makers and makers[v].op_type == "Constant"]
        after = [r for v in node.output for r in readers.get(v, ()) if r.op_type == _QUANTIZING]
        before = list({n.output[0]: n for n in before}.values())
        before = [
            *(makers[i] for n in before for i in n.input if i in makers and makers[i].op_type == "Constant"),
            *before,
        ]
        unit = _unit(proto, [*before, node, *after], specs, weights)
        if unit is not None:
            units.setdefault(_kind(node, before, after, specs, weights), (node.name, node.op_type, unit))
    return list(units.values())


def _specs(proto: Any) -> dict[str, Any]:
    """Return the value infos of all values whose type is known."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(proto).graph
    except (
        Exception
    ):  # a model over 2 GiB, or one that the checker rejects: only inputs and outputs are known
        inferred = proto.graph
    return {v.name: v for v in (*inferred.value_info, *inferred.input, *inferred.output)}


def _unit(
    proto: Any, nodes: Sequence[Any], specs: Mapping[str, Any], weights: Mapping[str, Any]
) -> bytes | None:
    """Return a model of these nodes, or None if the type of an input is unknown."""
    import onnx

    produced = {o for n in nodes for o in n.output}
    read = dict.fromkeys(i for n in nodes for i in n.input if i and i not in produced)
    inputs = [i for i in read if i not in weights]
    if any(i not in specs for i in inputs):
        return None
    inner = {i for n in nodes for i in n.input}
    outputs = [o for o in dict.fromkeys(o for n in nodes for o in n.output if o) if o not in inner]
    infos = [specs.get(o, onnx.ValueInfoProto(name=o)) for o in outputs]
    graph = onnx.helper.make_graph(
        list(nodes), "unit", [specs[i] for i in inputs], infos, [weights[i] for i in read if i in weights]
    )
    model = onnx.helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version)
    unit: bytes = model.SerializeToString()
    return unit


def _kind(
    node: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    specs: Mapping[str, Any],
    weights: Mapping[str, Any],
) -> tuple[object, ...]:
    """Return a node's op, attributes, types and shapes. Nodes that differ only in names or values of weights are of one kind."""

    def value(name: str) -> object:
        if name in weights:
            return "weight", weights[name].data_type, tuple(weights[name].dims)
        return specs[name].type.SerializeToString(deterministic=True) if name in specs else name

    def parts(n: Any) -> tuple[object, ...]:
        attributes = tuple(a.SerializeToString(deterministic=True) for a in n.attribute)
        return n.op_type, n.domain, attributes, tuple(map(value, n.input))

    return (parts(node), *(parts(n) for n in before), len(after), *(parts(n)[2:] for n in after))
