"""Runners of regions: one class for each way in which engines take a region. ``RUNNERS`` is the table.

The native one also takes and gives buffers of a device whose memory is not the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...decisions import Candidate, Support
from ...errors import BuildError
from ...frontends.model_file import open_model
from ...frontends.onnx_writer import to_onnx
from ...frontends.torch_opaque import evaluate_opaque, find_overload, torch_version
from ...ir import Graph, Node, interp
from ...ir.family import source_names
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, EvidenceRow, Executable
from ...runtime.demands import SETTLED
from ...runtime.executor import Executor
from ...runtime.weights import load_weights
from ...targets import DeviceId
from ..native.executable import times_of
from ..selection.candidate import Wanted, attempt, find
from .regions import Runner, Symbols, Values, Work

__all__ = ["RUNNERS", "EngineRunner", "InterpreterRunner", "NativeRunner", "TorchRunner", "runner_of"]


class NativeRunner(Runner):
    """A program on the backend's device. Compiled before weights are there."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.on_device = not work.backend.core_is_host
        self._program: CompiledProgram | None = None

    def prepare(self) -> None:
        """Compile, where no size is open."""
        if not self.work.graph.symbols:
            self._program = self.work.compile_fn(self.work.graph)

    def open(self, graph: Graph) -> Executor:
        program = self.work.compile_fn(graph) if graph.symbols or self._program is None else self._program
        executor = Executor(program, self.work.backend, threads=self.work.wanted.threads, policy=SETTLED)
        executor.bind(load_weights(self._weights, program, self.work.backend))
        return executor

    def call(self, form: Executor, arrays: Sequence[Any]) -> Sequence[Any]:
        if not self.on_device:
            return form.run_arrays(arrays)
        names = [s.name for s in form.entry.inputs]
        made = form.run(dict(zip(names, arrays, strict=True)))
        return [made[s.name] for s in form.entry.outputs]

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """Every kernel call of the plan; times by the executor's own clock."""
        executor = self._form_of(symbols)
        if executor is None:
            return super().evidence()
        plan, times = executor.plan, None
        if values is not None and not self.on_device:
            times = times_of(executor, [values[v] for v in self.work.region.inputs])
        device = self.work.region.device
        rows = tuple(
            EvidenceRow(
                c.nodes,
                "+".join(c.ops),
                device,
                f"{c.kernel}: {c.symbol}",
                plan.buffer(c.outputs[0]).spec.dtype.value if c.outputs else "",
                None if times is None else times[i],
            )
            for i, c in enumerate(plan.calls)
        )
        source = "" if times is None else "this session, median of 5 timed runs"
        return Evidence("native", self.version, rows, "session", source, options={"target": plan.target})


class EngineRunner(Runner):
    """A vendor engine. It gets the region's own ONNX nodes where the graph came from ONNX, else the graph written as ONNX."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._cut: Any = None
        if work.original is not None:
            own = {s.name for n in work.graph.nodes for s in n.sources}
            found = work.original.cut(work.region.inputs, work.region.outputs, own)
            if isinstance(found, Support):
                self.notes = (f"written from the IR, not cut from the original nodes: {found.reason}",)
            else:
                self._cut, self.takes_open_sizes = found, True
                self.notes = (f"cut from {len(found.graph.node)} of the model's own nodes",)

    def prepare(self) -> None:
        """Ask for the vendor's version: a region whose sizes are open is built at its first run only. Raises EngineUnavailable."""
        plugin = find(self.work.region.engine)
        if not isinstance(plugin, Support):
            self.version = plugin.version() or self.version

    def open(self, graph: Graph) -> Executable:
        work = self.work
        proto = self._cut if self._cut is not None else to_onnx(graph, self._weights)
        model = open_model(proto, name=work.graph.name)
        device = DeviceId.parse(work.region.device)
        wanted = Wanted(
            work.region.engine,
            device,
            threads=work.wanted.threads,
            options=dict(work.wanted.region_options).get(work.region.engine, ()),
            caching=work.wanted.caching,
            optimization=work.wanted.optimization,
        )
        loaded = attempt(model, wanted, work.store)
        if isinstance(loaded, Candidate):
            raise BuildError(work.who, loaded.reason, got=loaded.code.value, do=loaded.do)
        self.version = loaded.version
        return loaded.executable

    def call(self, form: Executable, arrays: Sequence[Array]) -> Sequence[Array]:
        return form.run(dict(zip(self.work.region.inputs, arrays, strict=True)))

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """As the engine says."""
        form = self._form_of(symbols)
        if form is None:
            return super().evidence()
        feeds = None if values is None else {v: np.asarray(values[v]) for v in self.work.region.inputs}
        found: Evidence = form.evidence(feeds)
        return Evidence(
            **{**{k: getattr(found, k) for k in found.__slots__}, "notes": (*found.notes, *self.notes)}
        )


class TorchRunner(Runner):
    """Opaque ATen ops, evaluated by PyTorch one after the other."""

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
            made = evaluate_opaque(node, operands)
            values.update((v.name, a) for v, a in zip(node.outputs, made, strict=True))
        return [values[v] for v in self.work.region.outputs]

    def _row(self, node: Node) -> EvidenceRow:
        spec = node.outputs[0].spec
        name = str(node.attrs.get("op_type", node.op))
        return EvidenceRow(
            source_names(node), name, "cpu", f"torch: aten::{name}", "" if spec is None else spec.dtype.value
        )


class InterpreterRunner(Runner):
    """The reference interpreter: NumPy, every op of the IR, slow."""

    def open(self, graph: Graph) -> Graph:
        return graph

    def call(self, form: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
        feeds = dict(zip(self.work.region.inputs, arrays, strict=True))
        made = interp.run(form, feeds, weights=self._weights)
        return [made[v] for v in self.work.region.outputs]


RUNNERS: Mapping[str, type[Runner]] = {
    "native": NativeRunner,
    "torch": TorchRunner,
    "interpreter": InterpreterRunner,
}
"""By engine; every other word is an engine that takes ONNX."""


def runner_of(work: Work) -> Runner:
    """The runner of the region's engine."""
    return RUNNERS.get(work.region.engine, EngineRunner)(work)
