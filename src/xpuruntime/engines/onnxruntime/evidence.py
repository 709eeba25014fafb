"""Evidence of what ONNX Runtime ran.

The placement (which provider runs which node) is that of the session itself. ONNX Runtime's profiler more than doubles the time of a
small run, so kernels, fusions and times come from a twin: a second, profiled session with the same options. Its final graph is written
to a file and compared with the model by data flow (``attribution``).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ...protocols import Array, Evidence, EvidenceRow, ModelSource
from ...targets import DeviceId
from ..attribution import SourceGraph, explain_unnamed, typical
from . import options
from .providers import CPU, PROVIDER_DEVICES, short
from .rewrites import executed_nodes, source_of_name

__all__ = ["Attribution", "collect", "some", "twin"]

_RUNS, _SECONDS = 10, 2.0  # maximum of profiled runs (at least two) and of their total time

# The profiler's element types -> the names of DType.
_TYPES = {"float": "float32", "double": "float64"}


_Key: TypeAlias = tuple[str, str, str]
"""An executed node: name, op, index."""
Executed: TypeAlias = Sequence[tuple[str, str, tuple[str, ...]]]
"""Name, op and the model's nodes of each executed node, in execution order."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The twin's result: a row per executed node, the constant nodes that were computed at load, and notes on missing information."""

    rows: tuple[EvidenceRow, ...]
    folded: tuple[str, ...]
    notes: tuple[str, ...]
    runs: int


def collect(
    model: ModelSource, session: Any, settings: options.Settings, attribution: Attribution | None
) -> Evidence:
    """Return the evidence of a session, with the twin's rows if there are any."""
    from .providers import version

    placement: dict[str, str] = {}  # source node -> provider, as the running session assigned it
    rows = []
    for assigned in session.get_provider_graph_assignment_info():
        for node in assigned.get_nodes():
            name = source_of_name(node.name, model)
            if name:
                placement[name] = assigned.ep_name
            rows.append(
                EvidenceRow(
                    (name,) if name else (),
                    node.op_type,
                    _device(assigned.ep_name, settings),
                    f"{assigned.ep_name} {node.op_type}",
                )
            )
    notes = _disagreements(placement, attribution.rows) if attribution else []
    if attribution:
        rows = list(attribution.rows)
        notes += attribution.notes
    covered = {s for r in rows for s in r.nodes}
    missing = [n.name for n in model.nodes if n.name not in covered]
    if attribution and attribution.folded:
        notes.append(f"computed once when loading, as they depend on no input: {some(attribution.folded)}")
        missing = [m for m in missing if m not in attribution.folded]
    if missing:
        notes.append(f"not reported separately (fused, folded or removed): {some(missing)}")
    return Evidence(
        engine="onnxruntime",
        version=version(),
        rows=tuple(rows),
        placement_source="session",
        time_source=f"profiled twin, median of {attribution.runs} runs"
        if attribution and attribution.runs
        else "",
        fallbacks=_fallbacks(settings.requested_provider, rows),
        options=_reported(session, settings),
        notes=tuple(notes),
        explained=explain_unnamed(
            SourceGraph(model),
            [s.name for s in model.outputs],
            [(r.nodes, r.kernel) for r in rows],
            "loading",
        )
        if attribution
        else {},
        timed_runs=attribution.runs if attribution else 0,
    )


def _device(provider: str, settings: options.Settings) -> str:
    """Return the device of a provider of this session. The index of the requested provider's device may be above 0."""
    index = settings.providers[0][1].get("device_id", "0") if provider == settings.requested_provider else "0"
    return str(DeviceId(PROVIDER_DEVICES.get(provider, "auto"), int(index)))


def some(names: Sequence[str], limit: int = 8) -> str:
    """Return the number of nodes and the names of the first ones."""
    first_names = ", ".join(names[:limit])
    return f"{len(names)} nodes: {first_names}" + (", ..." if len(names) > limit else "")


def _fallbacks(requested: str, rows: Sequence[EvidenceRow]) -> tuple[str, ...]:
    """Return one sentence per provider that ran nodes although another one was requested."""
    elsewhere: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        provider = row.kernel.split(" ")[0]
        if provider != requested:
            elsewhere[provider] += row.nodes or (row.op,)
    return tuple(
        f"{p} ran nodes that {requested} does not support: {some(names)}" for p, names in elsewhere.items()
    )


def _disagreements(placement: Mapping[str, str], rows: Sequence[EvidenceRow]) -> list[str]:
    """Return a note if the twin's placement differs from the session's, which has the same options."""
    differing = [
        n for r in rows for n in r.nodes if n in placement and placement[n] != r.kernel.split(" ")[0]
    ]
    return (
        [f"the profiled twin placed nodes differently from the session: {some(differing)}"]
        if differing
        else []
    )


def _reported(session: Any, settings: options.Settings) -> dict[str, str]:
    """Return the options that the session reports."""
    session_options = session.get_session_options()
    reported = {
        "intra_op_num_threads": str(session_options.intra_op_num_threads),
        "inter_op_num_threads": str(session_options.inter_op_num_threads),
        "graph_optimization_level": str(session_options.graph_optimization_level).rpartition(".")[2],
        "execution_mode": str(session_options.execution_mode).rpartition(".")[2],
    }
    for key in ("session.intra_op.allow_spinning", *settings.config):
        reported[key] = session_options.get_session_config_entry(key)
    for provider, values in session.get_provider_options().items():
        reported |= {f"{provider}.{k}": str(v) for k, v in values.items()}
    return {**reported, "providers": ", ".join(session.get_providers())}


def twin(
    model: ModelSource,
    open_session: Callable[[Any], Any],
    settings: options.Settings,
    threads: int,
    feeds: dict[str, Array],
    run: Callable[[Any, dict[str, Array]], None],
) -> Attribution:
    """Profile a second session on the inputs and read its final graph. Files are written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="xpu-ort-") as folder:
        graph = Path(folder, "final.onnx")
        notes: list[str] = []
        try:
            session = open_session(_profiling(settings, threads, folder, graph))
        except Exception as error:  # a graph with compiled nodes, or over 2 GiB, cannot be written to a file
            notes.append(
                f"the final graph could not be read, so fused nodes are identified by name only: {short(str(error), 200)}"
            )
            session = open_session(_profiling(settings, threads, folder, None))
        run(session, feeds)  # warm-up: the first run allocates memory
        start = time.monotonic()
        for count in range(1, _RUNS + 1):
            run(session, feeds)
            if count >= 2 and time.monotonic() - start > _SECONDS:
                break
        events = json.loads(Path(session.end_profiling()).read_text())
        del session
        executed = executed_nodes(graph, model) if graph.exists() else None
    return _attribute(model, settings, events, executed, notes)


def _profiling(settings: options.Settings, threads: int, folder: str, graph: Path | None) -> Any:
    session_options = options.session_options(settings, threads)
    session_options.enable_profiling = True
    session_options.profile_file_prefix = str(Path(folder, "profile"))
    if graph is not None:
        session_options.optimized_model_filepath = str(graph)
    return session_options


def _attribute(
    model: ModelSource,
    settings: options.Settings,
    events: list[dict[str, Any]],
    executed: Executed | None,
    notes: list[str],
) -> Attribution:
    """Return rows in execution order from profiler events. The twin's final graph maps each event to model nodes."""
    runs = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "model_run"][1:]
    top = {(name, op) for name, op, _ in executed} if executed is not None else None
    args: dict[_Key, dict[str, Any]] = {}
    durations_by_key: dict[_Key, list[float]] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        name, detail = event["name"].removesuffix("_kernel_time"), event["args"]
        run = next((i for i, (a, b) in enumerate(runs) if a <= event["ts"] <= b), None)
        op, index = detail["op_name"], str(detail.get("node_index", ""))
        if name == f"{op}_{index}" and top is not None and (name, op) not in top:
            name = ""  # a node without a name, for which the profiler generates one
        if run is None or (top is not None and (name, op) not in top):
            continue  # the warm-up, or a node of a subgraph, whose time is part of its If, Loop or Scan
        key = (name, op, index)
        args[key] = detail
        durations_by_key.setdefault(key, [0.0] * len(runs))[run] += event["dur"]
    sources = _sources(model, list(durations_by_key), executed)
    rows = []
    for (key, durations), nodes in zip(durations_by_key.items(), sources, strict=True):
        provider, op = args[key].get("provider", CPU), key[1]
        time_us = typical(durations)
        activations, weights = _operands(op, args[key])
        rows.append(
            EvidenceRow(
                nodes,
                op,
                _device(provider, settings),
                f"{provider} {op}",
                _computed_in(args[key]),
                time_us,
                activations=activations,
                weights=weights,
            )
        )
    launched = sorted({r.kernel.split(" ")[0] for r in rows if r.device != "cpu"})
    if launched:  # the profiler measures until the host has queued the work
        notes.append(
            f"times on {', '.join(launched)} are launch times on the host, not execution times on the device"
        )
    covered = {n for r in rows for n in r.nodes}
    source = SourceGraph(model)
    folded = tuple(n for n in source.nodes if n in source.constant and n not in covered)
    return Attribution(tuple(rows), folded, tuple(notes), len(runs))


def _sources(model: ModelSource, keys: Sequence[_Key], executed: Executed | None) -> list[tuple[str, ...]]:
    """Return the model's nodes of each profiled node.

    The written graph is in execution order, so both lists have the same order. (Names are not unique: a fusion names every node it
    creates ``Gelu``.) If the lists differ, nodes are matched by unique names.
    """
    if executed is None:
        return [(node_name,) if (node_name := source_of_name(name, model)) else () for name, _, _ in keys]
    if [(name, op) for name, op, _ in keys] == [(name, op) for name, op, _ in executed]:
        return [nodes for _, _, nodes in executed]
    by_name: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, _, nodes in executed:
        by_name[name].append(nodes)
    return [by_name[name][0] if len(by_name[name]) == 1 else () for name, _, _ in keys]


def _computed_in(detail: Mapping[str, Any]) -> str:
    """Return the element type of the first output. The profiler reports nothing else about precision."""
    return _type(detail.get("output_type_shape"), 0)


_QLINEAR = frozenset({"QGemm", "QLinearConv", "QLinearMatMul"})
_INTEGER = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"})
_FLOAT = frozenset(
    {"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "NhwcFusedConv"}
)


def _operands(op: str, detail: Mapping[str, Any]) -> tuple[str, str]:
    """Return element types of the activations and weights of a product; empty for other ops.

    The profiler omits weights that were packed when the session was created. Their type is then that of their zero point or of the other operand.
    """
    listed = detail.get("input_type_shape") or ()
    types = [_type(listed, i) for i in range(len(listed))]
    integers = [t for t in types if "int" in t]
    if (
        op in _QLINEAR and len(integers) > 2
    ):  # activations, their zero point, weights or the weights' zero point
        return integers[0], integers[2]
    if op in _INTEGER and integers:
        # This op quantizes the activations that it reads.
        return "uint8" if op == "DynamicQuantizeMatMul" else integers[0], integers[-1]
    if op in _FLOAT and types:
        return types[0], types[1] if len(types) > 1 else types[0]
    return (types[0], "packed") if op == "MatMulNBits" and types else ("", "")


def _type(tensors: Sequence[Mapping[str, Any]] | None, index: int) -> str:
    """Return the DType name of a tensor in the profiler's list; empty if it is not listed."""
    listed = tensors or ()
    name = next(iter(listed[index]), "") if index < len(listed) else ""
    return _TYPES.get(name, name)
