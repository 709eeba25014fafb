"""Evidence of what OpenVINO ran: its runtime model (the primitives of the compiled model) and the times of a profiled twin.

Each node of the runtime model names its primitive (``brgconv_avx512_f32``), its precision and the layers that it was built from. An
imported blob lacks some of these layer names, so ``build`` stores them next to the blob. The remaining nodes (such as a convolution
under the name of its successor) are attributed by data flow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...protocols import Evidence, EvidenceRow, ModelSource, NodeRef
from ..attribution import SourceGraph, explain_unnamed, inherit, typical

__all__ = ["collect", "inner_fallbacks", "original_names", "profile"]

_RUNS, _SECONDS = 10, 2.0  # maximum of profiled runs (at least two) and of their total time
_NOT_STEPS = frozenset({"Const", "Input", "Output", "Parameter", "Result"})
_PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_PRECISIONS |= {f"{k}{b}": f"{w}{b}" for k, w in (("i", "int"), ("u", "uint")) for b in (4, 8, 16, 32, 64)}

# ONNX op -> the only layers that compute it. Attribution by data flow must respect this.
_HEAVY = {
    "Conv": ("Convolution", "GroupConvolution", "Subgraph"),
    "ConvTranspose": ("Deconvolution",),
    "MatMul": ("MatMul", "FullyConnected", "ScaledDotProductAttention", "Subgraph"),
    "Gemm": ("MatMul", "FullyConnected"),
    "MaxPool": ("Pooling",),
    "AveragePool": ("Pooling",),
    "LSTM": ("LSTMSequence", "LSTMCell", "RNNSeq", "TensorIterator"),
    "LayerNormalization": ("MVN", "RMS", "Subgraph"),
    "InstanceNormalization": ("MVN", "Subgraph"),
    "Softmax": ("Softmax", "ScaledDotProductAttention", "Subgraph"),
}
_FLOATS = frozenset({"f32", "f16", "bf16", "f64"})
_PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "GroupConvolution", "MatMul"})
_MOVERS = frozenset({"Reorder", "Convert", "Transpose"})
_SUFFIX = "/WithoutBiases"  # in the name of a convolution whose bias became another node


@dataclass(frozen=True, slots=True)
class _Step:
    """One node of the runtime model. ``reads`` holds the names of its producers, ``types`` the element types of its inputs."""

    name: str
    layer: str
    primitive: str
    precision: str
    originals: str
    reads: tuple[str, ...]
    types: tuple[str, ...] = ()

    def computed_in(self) -> str:
        """Return the precision as the vendor reports it. If weights are only stored as integers, the primitive's name gives the precision."""
        suffix = self.primitive.rpartition("_")[2]
        kind = suffix if self.operands()[1] and suffix in _FLOATS else self.precision
        return _PRECISIONS.get(kind, kind)

    def operands(self) -> tuple[str, str]:
        """Return element types of the activations and weights of a product; empty for other layers."""
        if self.layer not in _PRODUCTS or len(self.types) < 2:
            return "", ""
        return _PRECISIONS.get(self.types[0], self.types[0]), _PRECISIONS.get(self.types[1], self.types[1])


def steps(compiled: Any) -> list[_Step]:
    """Return the executed nodes in execution order, without inputs, outputs, constants and nodes that depend only on constants."""
    ordered = []
    constant: set[str] = set()
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        producers = [i.get_node().get_friendly_name() for i in op.input_values()]
        if _text(info, "layerType") == "Const" or (producers and all(n in constant for n in producers)):
            constant.add(op.get_friendly_name())
            continue
        facts = {
            k: _text(info, k)
            for k in ("execOrder", "layerType", "primitiveType", "runtimePrecision", "originalLayersNames")
        }
        if facts["layerType"] and facts["layerType"] not in _NOT_STEPS:
            order = int(facts["execOrder"]) if facts["execOrder"].isdecimal() else 0
            step = _Step(
                op.get_friendly_name(),
                facts["layerType"],
                facts["primitiveType"],
                facts["runtimePrecision"],
                facts["originalLayersNames"],
                tuple(producers),
                tuple(i.get_element_type().get_type_name() for i in op.input_values()),
            )
            ordered.append((order, step))
    return [s for _, s in sorted(ordered, key=lambda pair: pair[0])]


def _ends(compiled: Any) -> list[tuple[str, str]]:
    """Return the name of each output and of the runtime node that produces it."""
    pairs = []
    for op in compiled.get_runtime_model().get_results():
        name = op.get_friendly_name().partition("/sink_port_")[0]
        pairs.append((name, op.input_value(0).get_node().get_friendly_name()))
    return pairs


def _text(info: Any, key: str) -> str:
    if key not in info:
        return ""
    value = info[key]
    return str(getattr(value, "value", value))


def original_names(compiled: Any) -> dict[str, str]:
    """Return runtime node -> original layers, as the vendor reports them right after compiling."""
    return {s.name: s.originals for s in steps(compiled)}


def profile(compiled: Any, run: Callable[[Any], None]) -> tuple[dict[str, float], int]:
    """Return the microseconds of each node (median over runs; 0 for skipped nodes) of a model compiled with PERF_COUNT, and the number of
    runs.
    """
    request = compiled.create_infer_request()
    run(request)  # warm-up: the first run allocates memory
    times: dict[str, list[float]] = {}
    start, count = time.monotonic(), 0
    while count < _RUNS and (count < 2 or time.monotonic() - start < _SECONDS):
        run(request)
        count += 1
        for info in request.get_profiling_info():
            times.setdefault(info.node_name, []).append(info.real_time.total_seconds() * 1e6)
    return {name: typical(t) for name, t in times.items()}, count


def collect(
    model: ModelSource,
    compiled: Any,
    version: str,
    requested: Mapping[str, Any],
    names: Mapping[str, str],
    timed: tuple[Sequence[float | None], int] | None,
    notes: Sequence[str] = (),
) -> Evidence:
    """Return the evidence of a compiled model.

    names: result of ``original_names`` at build time. timed: microseconds by step, and the number of runs.
    """
    executed = steps(compiled)
    devices = _ran_on(compiled)
    device = ",".join(d.strip("()").lower() for d in devices)
    nodes, folded, missing = _sources(model, executed, names, _ends(compiled))
    times: Sequence[float | None] = timed[0] if timed else [None] * len(executed)
    rows = tuple(
        EvidenceRow(n, s.layer, device, s.primitive, s.computed_in(), t, (), *s.operands())
        for s, n, t in zip(executed, nodes, times, strict=True)
    )
    all_notes = [*notes]
    if folded:
        all_notes.append(f"computed once when building, as they depend on no input: {_some(folded)}")
    if missing:
        all_notes.append(f"not reported separately (fused, folded or removed): {_some(missing)}")
    return Evidence(
        engine="openvino",
        version=version,
        rows=rows,
        placement_source="session",
        time_source=f"profiled twin, median of {timed[1]} runs" if timed else "",
        fallbacks=_fallbacks(requested, devices),
        options=_reported(compiled, requested) | {"EXECUTION_DEVICES": ", ".join(devices)},
        notes=tuple(all_notes),
        explained=explain_unnamed(
            SourceGraph(model),
            [s.name for s in model.outputs],
            [(r.nodes, r.kernel) for r in rows],
            "building",
        ),
        timed_runs=timed[1] if timed else 0,
    )


def _some(names: Sequence[str], limit: int = 8) -> str:
    return f"{len(names)} nodes: {', '.join(names[:limit])}" + (", ..." if len(names) > limit else "")


def _sources(
    model: ModelSource, executed: Sequence[_Step], names: Mapping[str, str], ends: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, ...]], tuple[str, ...], tuple[str, ...]]:
    """Return the model's nodes of each step, the constant nodes, and the nodes that belong to no step."""
    source = SourceGraph(model)
    rows = [_named(names.get(s.name) or s.originals, source) for s in executed]
    position = {s.name: i for i, s in enumerate(executed)}
    for output, step in ends:  # an output keeps its name even if the producing step was renamed
        if step in position and not rows[position[step]]:
            rows[position[step]] = _named(output, source)
    assigned: set[str] = set()
    for row in rows:
        row -= assigned
        assigned |= row
    readers = [{j for j, r in enumerate(executed) if s.name in r.reads} for s in executed]
    _split_up(source, executed, rows, readers)

    def may(node: NodeRef, row: int) -> bool:
        return executed[row].layer not in _MOVERS and executed[row].layer in _HEAVY.get(
            node.op, (executed[row].layer,)
        )

    source.absorb(rows, may)
    inherit(rows, readers, lambda i: executed[i].layer not in _MOVERS)
    covered = {n for row in rows for n in row}
    folded = tuple(n for n in source.nodes if n in source.constant and n not in covered)
    missing = tuple(n for n in source.nodes if n not in source.constant and n not in covered)
    return [source.ordered(r) for r in rows], folded, missing


def _split_up(
    source: SourceGraph,
    executed: Sequence[_Step],
    rows: Sequence[set[str]],
    readers: Sequence[Collection[int]],
) -> None:
    """Assign to each heavy step without a name the heavy node before its readers, since one node may have become several steps, as a
    bidirectional LSTM does. Changes ``rows``.
    """
    owned = {n for row in rows for n in row}
    for i in range(len(executed) - 1, -1, -1):
        if rows[i]:
            continue
        behind, todo = set[str](), [*readers[i]]
        while todo:
            row = todo.pop()
            behind |= rows[row]
            todo += [] if rows[row] else readers[row]
        near, todo_values = set[str](), [v for n in behind for v in source.nodes[n].inputs]
        while todo_values:
            node = source.maker.get(todo_values.pop())
            if node is None or node.name in owned or node.name in source.constant:
                continue
            if node.op not in _HEAVY:
                todo_values += node.inputs
            elif executed[i].layer in _HEAVY[node.op]:
                near.add(node.name)
        if len(near) == 1:
            rows[i] |= near


def _named(originals: str, source: SourceGraph) -> set[str]:
    """Return the nodes that layer names refer to: a node's name, or the name of the value that it produces."""
    names = set()
    for name in (originals, *originals.split(",")):
        name = name.removesuffix(_SUFFIX)
        if name in source.nodes:
            names.add(name)
        elif name in source.maker:
            names.add(source.maker[name].name)
    return names


def inner_fallbacks(compiled: Any, requested: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence if AUTO does not run on its first requested device."""
    return _fallbacks(requested, _ran_on(compiled))


def _ran_on(compiled: Any) -> list[str]:
    return [str(d) for d in compiled.get_property("EXECUTION_DEVICES")]


def _fallbacks(requested: Mapping[str, Any], devices: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence if AUTO, or another meta device, does not run on the first device of its priorities alone."""
    priorities = [
        d
        for d in str(
            requested.get("DEVICE_PRIORITIES") or requested.get("MULTI_DEVICE_PRIORITIES") or ""
        ).split(",")
        if d
    ]
    ran = {d.strip("()") for d in devices}
    if not priorities or ran == {priorities[0]}:
        return ()
    if priorities[0] in ran:
        return (
            f"the first device is {priorities[0]}, and {', '.join(sorted(ran - {priorities[0]}))} runs parts too",
        )
    return (f"AUTO's first device is {priorities[0]}, but it runs on {', '.join(sorted(ran))}",)


def _reported(compiled: Any, requested: Mapping[str, Any]) -> dict[str, str]:
    """Return the set options as the compiled model reports them."""
    reported = {}
    for key in requested:
        try:
            value = compiled.get_property(key)
        except Exception:  # AUTO does not report the options of the device behind it
            continue
        reported[key] = str(value.get_type_name() if hasattr(value, "get_type_name") else value).rpartition(
            "."
        )[2]
    return reported
