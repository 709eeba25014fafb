"""A region on an engine: prepared (what needs no weights), loaded, and run.

Runners (``region_runners``) take arrays by value name and give arrays in the order of the region's outputs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...frontends.onnx_cut import Original
from ...ir import Graph, Node, specialize
from ...ir.family import source_names
from ...program.plan import Region
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, EvidenceRow
from ...runtime.backends.base import RuntimeBackend
from ...store import Store
from ...targets import DeviceId
from ..selection.candidate import Wanted

__all__ = ["Runner", "Symbols", "Values", "Work"]

Symbols = Mapping[str, int]
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What a runner needs to know.

    region:   names, engine and borders. graph: the region's own.
    compile_fn: a static graph to a program for ``backend``.
    original: the ONNX model that the graph came from, so that engines get the region's own nodes.
    wanted:   how engines are asked (precision, threads, options), but for engine and device.
    """

    region: Region
    graph: Graph
    backend: RuntimeBackend
    compile_fn: Callable[[Graph], CompiledProgram]
    store: Store
    original: Original | None = None
    wanted: Wanted = field(default_factory=lambda: Wanted("native", DeviceId("cpu")))

    @property
    def who(self) -> str:
        """Who speaks in errors."""
        return f"region {self.graph.name} on {self.region.engine}"


class Runner(ABC):
    """A region on one engine. ``run`` is safe from several threads.

    Sizes that the caller decides are bound when a run starts: a form of the region is opened for each set of them, the only one at
    ``load`` where nothing is open. ``version`` is the engine's own.
    """

    version = __version__
    on_device = False
    """Whether it takes and gives buffers of the backend."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.notes: tuple[str, ...] = ()
        self._forms: dict[tuple[tuple[str, int], ...], Any] = {}
        self._opening = threading.Lock()
        self._weights: Mapping[str, Array] = {}
        self._used: Any = None

    def prepare(self) -> None:  # noqa: B027  - most engines want the weights first
        """Whatever can be done without weights. Raises BuildError and what the compiler raises."""

    def load(self, weights: Mapping[str, Array]) -> None:
        """Take the weights, by the names of the graph; open what is static. Raises BuildError, InputError."""
        self.close()  # forms with other weights
        self._weights = weights
        if not self.work.graph.symbols or self.takes_open_sizes:
            self._form({})

    takes_open_sizes = False

    def run(self, values: Values, symbols: Symbols) -> Sequence[Any]:
        """Results in the order of the region's outputs. Raises RunError."""
        form = self._used = self._form(symbols)
        return self.call(form, [values[v] for v in self.work.region.inputs])

    @abstractmethod
    def open(self, graph: Graph) -> Any:
        """A runnable form of the graph."""

    @abstractmethod
    def call(self, form: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """Run a form on the region's inputs, in their order."""

    def evidence(self, values: Values | None = None, symbols: Symbols | None = None) -> Evidence:
        """What ran; with ``values``, the region's inputs in a run, and the ``symbols`` of that run, also times where the engine has them."""
        rows = tuple(self._row(n) for n in self.work.graph.nodes if n.op != "constant")
        return Evidence(self.work.region.engine, self.version, rows, "session", notes=self.notes)

    def close(self) -> None:
        """Free what it holds."""
        forms, self._forms, self._used = self._forms, {}, None
        for form in forms.values():
            if hasattr(form, "close"):
                form.close()

    def _form_of(self, symbols: Symbols | None) -> Any:
        """The form of a run of these sizes; without them that of the last run, or the only one that is open."""
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
        found = self._forms.get(key)
        if found is None:
            with self._opening:
                if key not in self._forms:
                    self._forms[key] = self.open(specialize(graph, dict(key)))
                found = self._forms[key]
        return found

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
