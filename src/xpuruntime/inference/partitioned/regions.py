"""Execution of one region on an engine: prepare (without weights), load, run.

Runners (``region_runners``) take arrays by value name and return arrays in the order of the region's outputs.
"""

from __future__ import annotations

import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import __version__
from ...frontends.onnx.files.extract import OnnxExtractor
from ...ir import Graph, Node, specialize
from ...ir.family import source_names
from ...program.plan import Region
from ...program.program import CompiledProgram
from ...protocols import Array, Closeable, Evidence, EvidenceRow
from ...runtime.backends.base import RuntimeBackend
from ...storage.store import Store
from ..selection.request import SessionRequest

__all__ = ["RegionWork", "Runner", "Symbols", "Values"]

TIMED_RUNS = 5

Symbols = Mapping[str, int]
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RegionWork:
    """The arguments of a runner.

    region:   names, engine, inputs and outputs. graph: the region's own.
    compile_fn: compiles a static graph to a program for ``backend``.
    original: the ONNX model that the graph came from, so that engines get the region's original nodes.
    request:  the demands on the engine: threads, options, optimization, caching.
    """

    region: Region
    graph: Graph
    backend: RuntimeBackend
    compile_fn: Callable[[Graph], CompiledProgram]
    store: Store
    original: OnnxExtractor | None = None
    request: SessionRequest = field(default_factory=SessionRequest)

    @property
    def who(self) -> str:
        """Return the name of this runner in errors."""
        return f"region {self.graph.name} on {self.region.engine}"


class Runner(ABC):
    """A region on one engine. ``run`` is safe from several threads.

    Open sizes are bound at the start of a run: each set of them gets an opened form of the region. A region without open sizes is opened
    once by ``load``. ``version`` is the engine's own.
    """

    version = __version__
    on_device = False
    """True if it takes and returns buffers of the backend."""

    def __init__(self, work: RegionWork) -> None:
        self.work = work
        self.notes: tuple[str, ...] = ()
        self._forms: dict[tuple[tuple[str, int], ...], Any] = {}
        self._opening = threading.Lock()
        self._weights: Mapping[str, Array] = {}
        self._used: Any = None
        self._examine: Callable[[Any, Symbols], None] | None = None

    def examine_with(self, examine: Callable[[Any, Symbols], None]) -> None:
        """Have ``examine`` check each form with its sizes: the open ones now, others before their first run. Its errors are raised."""
        for sizes, form in self.forms:
            examine(form, sizes)
        self._examine = examine

    def prepare(self) -> None:  # noqa: B027  - most engines want the weights first
        """Do the work that needs no weights. Raises BuildError and the compiler's errors."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take the weights by the graph's names, and open the region if it is static. Raises BuildError, InputError."""
        self.close()  # forms with other weights
        self._weights = weights
        if not self.work.graph.symbols or self.takes_open_sizes:
            self._form({})

    takes_open_sizes = False

    def run(self, values: Values, symbols: Symbols) -> Sequence[Any]:
        """Return results in the order of the region's outputs. Raises RunError."""
        form = self._used = self._form(symbols)
        return self.call(form, [values[v] for v in self.work.region.inputs])

    @abstractmethod
    def open(self, graph: Graph) -> Any:
        """Return a runnable form of the graph."""

    @abstractmethod
    def call(self, form: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """Run a form on the region's inputs in order."""

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """Return evidence. ``values`` (the region's inputs in a run) and ``symbols`` of that run add times: of each step if the engine has them, else
        of the region as one step.
        """
        rows = tuple(self._row(n) for n in self.work.graph.nodes if n.op != "constant")
        engine, form = self.work.region.engine, self._form_of(symbols) if values is not None else None
        if form is None or values is None or not rows:
            return Evidence(engine, self.version, rows, "session", notes=self.notes)
        arrays, times_us = [values[v] for v in self.work.region.inputs], []
        for _ in range(TIMED_RUNS):
            start = time.perf_counter_ns()
            self.call(form, arrays)
            times_us.append((time.perf_counter_ns() - start) / 1e3)
        source = f"this session, median of {TIMED_RUNS} timed runs"
        step = replace(
            rows[0],
            nodes=tuple(dict.fromkeys(n for r in rows for n in r.nodes)),
            op=" + ".join(dict.fromkeys(r.op for r in rows)),
            kernel=" + ".join(dict.fromkeys(r.kernel for r in rows)),
            time_us=statistics.median(times_us),
            spread_us=max(times_us) - min(times_us),
        )
        return Evidence(
            engine, self.version, (step,), "session", source, notes=self.notes, timed_runs=TIMED_RUNS
        )

    def close(self) -> None:
        """Free its resources."""
        forms, self._forms, self._used = self._forms, {}, None
        for form in forms.values():
            if isinstance(form, Closeable):
                form.close()

    @property
    def forms(self) -> list[tuple[dict[str, int], Any]]:
        """Return the opened forms, each with its sizes."""
        return [(dict(key), form) for key, form in self._forms.items()]

    def _form_of(self, symbols: Symbols | None) -> Any:
        """Return the form of a run of these sizes; without sizes, that of the last run or the only open one."""
        if symbols is not None:
            return self._form(symbols)
        return self._used or next(reversed(self._forms.values()), None)

    def _form(self, symbols: Symbols) -> Any:
        graph = self.work.graph
        key = (
            ()
            if self.takes_open_sizes
            else tuple((s, symbols[s]) for s in sorted(graph.symbols & symbols.keys()))
        )
        form = self._forms.get(key)
        if form is None:
            with self._opening:
                if key not in self._forms:
                    opened = self.open(specialize(graph, dict(key)))
                    if self._examine is not None:
                        self._examine(opened, dict(key))
                    self._forms[key] = opened
                form = self._forms[key]
        return form

    def _row(self, node: Node) -> EvidenceRow:
        spec = node.outputs[0].spec
        kernel = f"{self.work.region.engine}: {node.op}"
        return EvidenceRow(
            source_names(node),
            node.op,
            self.work.region.device,
            kernel,
            "" if spec is None else spec.dtype.value,
        )
