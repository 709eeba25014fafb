"""Region runners: one class for each kind of engine. ``RUNNERS`` is the table.

The native runner also takes and returns buffers of a device with its own memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...decisions import Candidate, Support
from ...engines import lookup
from ...errors import BuildError, EngineUnavailable
from ...frontends.model_file import open_model
from ...frontends.onnx_writer import to_onnx
from ...frontends.torch.opaque import evaluate_opaque, find_overload, torch_version
from ...ir import Graph, Node, interp
from ...ir.family import source_names
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, EvidenceRow, Executable, RunsTensors
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.memory.buffer import DeviceBuffer
from ...runtime.weights.load import load_weights
from ...targets import DeviceId
from ..native.evidence_rows import binaries_of, rows_of
from ..native.executor_evidence import PROFILED_RUNS, timed_calls
from ..selection.candidate import EngineCandidate, attempt, ignored_text
from .regions import RegionWork, Runner, Symbols, Values

__all__ = ["RUNNERS", "EngineRunner", "InterpreterRunner", "NativeRunner", "TorchRunner", "runner_of"]


class NativeRunner(Runner):
    """A program on the backend's device, compiled before the weights are loaded."""

    def __init__(self, work: RegionWork) -> None:
        super().__init__(work)
        self.on_device = not work.backend.core_is_host
        self._program: CompiledProgram | None = None

    def prepare(self) -> None:
        """Compile if every size is known. Raises EngineUnavailable for a region of another device than the host, which the backend drives."""
        work = self.work
        device = DeviceId.parse(work.region.device)
        if work.backend.kind == "cpu" and device.kind != "cpu":
            do = "Place it on the cpu, or use partition and DAGExecutor with a backend of that device."
            raise EngineUnavailable(work.who, f"native regions run on the cpu here, not on {device}", do=do)
        if not self.work.graph.symbols:
            self._program = self.work.compile_fn(self.work.graph)

    def open(self, graph: Graph) -> Executor:
        program = self.work.compile_fn(graph) if graph.symbols or self._program is None else self._program
        executor = Executor(
            program,
            self.work.backend,
            threads=self.work.request.threads,
            policy=SETTLED,
            store=self.work.store,
        )
        executor.bind(load_weights(self._weights, program, self.work.backend))
        return executor

    def call(self, form: Executor, arrays: Sequence[Any]) -> Sequence[Any]:
        if not self.on_device:
            return form.run_arrays(arrays)
        names = [s.name for s in form.entry.inputs]
        stream = self.work.backend.current_stream()  # queued: who reads an output on the host waits for it
        outputs = form.run(dict(zip(names, arrays, strict=True)), stream=stream)
        return [outputs[s.name] for s in form.entry.outputs]

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """Return every kernel call of the plan, with times by the executor's clock."""
        executor = self._form_of(symbols)
        if executor is None:
            return super().evidence()
        times, spreads = None, None
        if values is not None and not self.on_device:
            times, spreads = timed_calls(executor, [values[v] for v in self.work.region.inputs])
        rows = tuple(rows_of(executor, self.work.region.device, times, spreads))
        runs = 0 if times is None else PROFILED_RUNS
        return Evidence(
            "native",
            self.version,
            rows,
            "session",
            f"this session, median of {runs} timed runs" if runs else "",
            options={"target": executor.plan.target},
            timed_runs=runs,
            binaries=binaries_of(executor),
        )


class EngineRunner(Runner):
    """A vendor engine. It gets the region's original ONNX nodes if the graph came from ONNX, otherwise the graph exported to ONNX.

    On the backend's device it takes and returns buffers if the engine does. A region with open sizes knows that after its first form.
    """

    def __init__(self, work: RegionWork) -> None:
        super().__init__(work)
        self._cut: Any = None
        if work.original is not None:
            own = {s.name for n in work.graph.nodes for s in n.sources}
            model = work.original.extract(work.region.inputs, work.region.outputs, own)
            if isinstance(model, Support):
                self.notes = (f"written from the IR, not cut from the original nodes: {model.reason}",)
            else:
                self._cut, self.takes_open_sizes = model, True
                self.notes = (f"cut from {len(model.graph.node)} of the model's own nodes",)

    def prepare(self) -> None:
        """Read the vendor's version. A region with open sizes is built at its first run. Raises EngineUnavailable."""
        self.version = lookup(self.work.region.engine).version() or self.version

    def open(self, graph: Graph) -> Executable:
        work = self.work
        proto = self._cut if self._cut is not None else to_onnx(graph, self._weights)
        model = open_model(proto, name=work.graph.name)
        device = DeviceId.parse(work.region.device)
        candidate = EngineCandidate(work.region.engine, device, work.request.for_regions())
        loaded = attempt(model, candidate, work.store)
        if isinstance(loaded, Candidate):
            raise BuildError(work.who, loaded.reason, got=loaded.code.value, do=loaded.do)
        self.version = loaded.version
        note = ignored_text(loaded.facts)
        if note and note not in self.notes:
            self.notes = (*self.notes, note)
        executable: Executable = loaded.executable
        mine = not work.backend.core_is_host and device == work.backend.device
        self.on_device = mine and isinstance(executable, RunsTensors) and executable.on_device
        return executable

    def call(self, form: Executable, arrays: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(self.work.region.inputs, arrays, strict=True))
        if self.on_device and isinstance(form, RunsTensors):
            return form.run_tensors(values)
        return form.run(values)

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """Return the engine's evidence."""
        form = self._form_of(symbols)
        if form is None:
            return super().evidence()
        feeds = None if values is None else {v: _on_host(values[v]) for v in self.work.region.inputs}
        evidence: Evidence = form.evidence(feeds)
        return Evidence(
            **{
                **{k: getattr(evidence, k) for k in evidence.__slots__},
                "notes": (*evidence.notes, *self.notes),
            }
        )


def _on_host(value: Any) -> Array:
    return value.to_numpy() if isinstance(value, DeviceBuffer) else np.asarray(value)


class TorchRunner(Runner):
    """Opaque ATen ops, evaluated by PyTorch one by one."""

    def prepare(self) -> None:
        """Find every operator. Raises EngineUnavailable, RunError."""
        self.version = torch_version()
        for node in self.work.graph.nodes:
            if node.op == "opaque":
                find_overload(node)

    def open(self, graph: Graph) -> Graph:
        return graph

    def call(self, form: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
        values: dict[str, Any] = dict(zip(self.work.region.inputs, arrays, strict=True))
        values.update((w.name, self._weights[w.name]) for w in form.weights)
        for node in form.nodes:
            if node.op == "constant":
                values[node.name] = node.attrs["value"].numpy()
                continue
            operands = [values[i] if isinstance(i, str) else None for i in node.inputs]
            results = evaluate_opaque(node, operands)
            values.update((v.name, a) for v, a in zip(node.outputs, results, strict=True))
        return [values[v] for v in self.work.region.outputs]

    def _row(self, node: Node) -> EvidenceRow:
        spec = node.outputs[0].spec
        name = str(node.attrs.get("op_type", node.op))
        return EvidenceRow(
            source_names(node), name, "cpu", f"torch: aten::{name}", "" if spec is None else spec.dtype.value
        )


class InterpreterRunner(Runner):
    """The reference interpreter: every IR op in NumPy, slowly."""

    def open(self, graph: Graph) -> Graph:
        return graph

    def call(self, form: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
        feeds = dict(zip(self.work.region.inputs, arrays, strict=True))
        outputs = interp.run(form, feeds, weights=self._weights)
        return [outputs[v] for v in self.work.region.outputs]


RUNNERS: Mapping[str, type[Runner]] = {
    "native": NativeRunner,
    "torch": TorchRunner,
    "interpreter": InterpreterRunner,
}
"""Runners by engine name. Any other name is an engine that takes ONNX."""


def runner_of(work: RegionWork) -> Runner:
    """Return the runner of the region's engine."""
    return RUNNERS.get(work.region.engine, EngineRunner)(work)
