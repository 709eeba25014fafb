"""A model loaded on the native engine: a program per set of shapes, with transformed weights shared between them."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ... import __version__, _core
from ...decisions import Decision
from ...errors import KernelRefused, RunError
from ...printable import logger
from ...profiler import trace
from ...program.node_kernels import kernels_by_node
from ...program.program import CompiledProgram
from ...progress import step
from ...protocols import (
    Array,
    Bindable,
    CompilesShapes,
    EngineRequest,
    Evidence,
    HoldsMemory,
    ModelSource,
    ReportsDecisions,
    ReportsKernels,
    RunContext,
    RunsTensors,
    ShapeStore,
    Stoppable,
    TakesTensors,
)
from ...runtime.device import Device
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.execution.states import States
from ...runtime.weights.load import Weights, load_weights
from .buckets import Buckets, Shapes
from .evidence_rows import explained_nodes
from .executor_evidence import Observations, evidence_of
from .library_refusals import sentence
from .program_source import Compiled, Programs
from .run_memory import RunMemory
from .tensors import run_on_tensors

__all__ = ["NativeExecutable"]

_log = logger("xpuruntime.session")
_ANY_NUMBER = 1024  # of runs in flight: sessions bound it
_NO_FEEDS: Mapping[str, Any] = MappingProxyType({})
_KEPT_SHAPES = 16  # programs of a session with open shapes; the engine option shape_buckets overrides it


Examine: TypeAlias = "Callable[[Executor, Mapping[str, tuple[int, ...]], Mapping[str, Any], float], Decision]"
"""A check of a program of new shapes before its first run: executor, shapes, the run's inputs, and the start time of its build."""


def _say_loaded(done: int, total: int) -> None:
    step(f"loading weights: {done / max(total, 1):.0%}")


class NativeExecutable(
    Stoppable,
    Bindable,
    TakesTensors,
    RunsTensors,
    CompilesShapes,
    HoldsMemory,
    ReportsDecisions,
    ReportsKernels,
):
    """A loaded model, safe to call from several threads.

    A program for new shapes is opened at their first run. The engine option ``shape_buckets`` bounds how many stay open; evidence reports the
    number and how often each was opened. Programs of all shapes share their weights, and the memory of their runs.
    """

    def __init__(self, model: ModelSource, request: EngineRequest, programs: Programs) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model, self._request, self._programs = model, request, programs
        self._who = f"native, model {model.name}"
        self._order = tuple(s.name for s in model.inputs)
        self._named = tuple(s.name for s in model.outputs)
        self._device = Device(request.device)
        self._memory = RunMemory(self._who, self._device.backend)
        self._buckets = Buckets(int(request.options.get("shape_buckets", _KEPT_SHAPES)))
        self._compiling = threading.Lock()
        self._states: States | None = None
        self._only: Executor | None = None  # for a model with static shapes
        self._last: Executor | None = (
            None  # the executor of the last run; None before the first run of open shapes
        )
        self._closed = False
        self._declined: dict[str, None] = {}  # one sentence for each call that a library declined
        self._observations = Observations()
        self._examine: Examine | None = None
        self._examined: weakref.WeakKeyDictionary[Executor, Decision] = weakref.WeakKeyDictionary()
        self._static = programs.only is not None
        if programs.only is not None:
            self._only = self._last = self._open((), *programs.only, {})

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return outputs in the model's order. Raises RunError."""
        return self.run_until(feeds, None)

    def run_until(
        self, feeds: dict[str, Array], stop: _core.Stop | None, out: Sequence[Array] | None = None
    ) -> Sequence[Array]:
        """Run until ``stop`` is set; write to ``out`` if given."""
        executor = self._only if self._static else self._bucket(feeds)
        if executor is None or self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        self._last = executor  # one store, so threads need no lock: a receipt describes one of the last runs
        recording = trace.RING
        return executor.run_arrays(
            [feeds[n] for n in self._order],
            out,
            stop=stop,
            ring=None if recording is None else recording.core,
        )

    @property
    def on_device(self) -> bool:
        """Return True if the device has its own memory."""
        return not self._device.backend.core_is_host

    def try_run_tensors(
        self, tensors: dict[str, Any], stop: _core.Stop | None = None
    ) -> dict[str, Any] | None:
        """Run on tensors in one call into the core and return outputs by name; None for inputs that need another path."""
        executor = self._only if self._static else self._last
        if executor is None or executor.output_names != self._named:
            return None
        return executor.run_tensors(tensors, stop=stop)

    def takes(self, tensors: dict[str, Any]) -> bool:
        """Return True if a context's run takes these inputs unchanged: tensors of one library that need no conversion."""
        executor = self._only if self._static else self._last
        return executor is not None and executor.output_names == self._named and executor.takes(tensors)

    def run_tensors(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Run on the device's tensors by name. Such runs are queued and cannot be stopped."""
        executor = self._only if self._static or not self._order else self._bucket(tensors)
        if executor is None or self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        self._last = executor
        outputs = executor.run_tensors(dict(tensors))
        return list(outputs.values()) if outputs is not None else run_on_tensors(executor, tensors)

    def limit_compiles(self, seconds: float) -> None:
        """Compile programs for new shapes in a process with a time limit of ``seconds``; their runs raise BuildTimeout."""
        if isinstance(self._programs, Compiled):
            self._programs.limit(seconds)

    def keep_in(self, store: ShapeStore) -> None:
        """Read programs for new shapes from the store if they are there, and store those that are compiled."""
        if isinstance(self._programs, Compiled):
            self._programs.keep_in(store)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions of the program that ran last, and of its examination."""
        last = self._last
        if last is None:
            return ()
        decision = self._examined.get(last)
        return last.program.decisions if decision is None else (*last.program.decisions, decision)

    @property
    def kernels(self) -> Mapping[str, str]:
        """Return the kernels of each node in the program that ran last."""
        return {} if self._last is None else kernels_by_node(self._last.plan.calls)

    @property
    def only(self) -> Executor | None:
        """Return the executor of a model with static shapes."""
        return self._only

    def executors(self) -> list[tuple[Executor, EngineRequest]]:
        """Return the open executors, each with the request that its program was compiled for."""
        request = self._programs.request if isinstance(self._programs, Compiled) else self._request
        return [(executor, request) for executor in self._buckets.executors]

    def executor_for(self, feeds: Mapping[str, Any]) -> Executor:
        """Return the executor of the program for these inputs' shapes, compiling it if they are new. Raises RunError, BuildError."""
        executor = self._only if self._static else self._bucket(feeds)
        if executor is None:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        return executor

    def examine_with(self, examine: Examine) -> None:
        """Have ``examine`` check the program of each set of shapes before its first run. Its errors are raised by the run."""
        self._examine = examine

    def context(self) -> RunContext:
        """Return a context with its own stop flag, which is read between two kernels."""
        return _RunContext(self)

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """Return a context that runs on the given memory."""
        return _RunContext(self, dict(inputs), [outputs[s.name] for s in self.outputs])

    @property
    def counters(self) -> dict[str, int]:
        """Return the sums of ``Executor.counters`` over all sets of shapes."""
        return self._buckets.counters

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return every dispatched kernel from the executor's recorded plan; with ``feeds`` also its time by the executor's clock."""
        if self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        executor = self._last
        if not self._static and feeds is not None:
            executor = self._bucket(feeds)
        if executor is None:
            return Evidence("native", __version__, (), "session", notes=self._notes())
        return evidence_of(
            executor,
            None if feeds is None else [feeds[n] for n in self._order],
            self._observations,
            source="this session",
            notes=self._notes(),
            fallbacks=tuple(self._declined),
            explained=explained_nodes(executor.plan, self._model),
            counters=self.counters,
            memory=self.memory,
        )

    @property
    def memory(self) -> Mapping[str, int]:
        """Return ``Evidence.memory``. The weights of evicted programs are not counted."""
        return self._memory.report(self._buckets.executors)

    def limit_memory(self, size: int) -> None:
        """Limit the bytes of weights, states and runs together. Raises OutOfMemory, EngineUnavailable."""
        self._memory.limit(size, self._buckets.executors)

    def close(self) -> None:
        """Free programs and weights; further runs raise RunError."""
        self._closed = True
        for executor in self._buckets.take_all():
            executor.close()
        self._memory.close()
        self._only = self._last = None

    def _bucket(self, feeds: Mapping[str, Any]) -> Executor | None:
        """Return the executor for these shapes, opening it if they are new."""
        key: Shapes = tuple((n, d) for n in self._order for d in feeds[n].shape)
        executor = self._buckets.get(key)
        if executor is not None or self._closed:
            return executor
        with self._compiling:
            executor = self._buckets.get(key)
            if executor is None and not self._closed:
                shapes = {n: tuple(feeds[n].shape) for n in self._order}
                began = time.perf_counter()
                executor = self._open(key, *self._programs.find(shapes), shapes, feeds, began)
            return executor

    def _open(
        self,
        key: Shapes,
        program: CompiledProgram,
        entry: str,
        shapes: Mapping[str, tuple[int, ...]],
        feeds: Mapping[str, Any] = _NO_FEEDS,
        began: float = 0.0,
    ) -> Executor:
        executor = self._ready(program, entry, shapes)
        program, source = executor.program, self._programs.weights(shapes)
        with _LOADING:
            held = _HELD.setdefault(
                f"{self._model.digest}{self._programs.import_of(shapes)}", weakref.WeakSet()
            )
            weights = load_weights(source, program, self._device, shared=list(held), on_progress=_say_loaded)
            held.add(weights)
        executor.bind(weights)
        self._memory.admit(executor, self._buckets.executors)
        if self._examine is not None:
            self._examined[executor] = self._examine(executor, shapes, feeds, began)
        self._states = executor.states
        self._buckets.put(key, executor)
        return executor

    def _ready(self, program: CompiledProgram, entry: str, shapes: Mapping[str, tuple[int, ...]]) -> Executor:
        """Open an executor. If libraries decline calls, use a program compiled without them; evidence reports that. Raises KernelRefused, BuildError."""
        threads, states = self._request.threads, self._states
        while True:
            step("preparing kernels")
            try:
                return Executor(
                    program,
                    self._device,
                    entry=entry,
                    threads=threads,
                    contexts=_ANY_NUMBER,
                    states=states,
                    policy=SETTLED,
                    arenas=self._memory.arenas,
                    store=self._request.store,
                )
            except KernelRefused as refused:
                program, entry = self._programs.find_without(shapes, refused, program)
                for call in refused.calls:
                    self._declined[sentence(call)] = None
                    if shapes:  # during a run; the session reports those found at opening itself
                        _log.warning("native, model %s: %s", self._model.name, sentence(call))

    def _notes(self) -> tuple[str, ...]:
        return () if self._static else (f"{self._programs.note()}; {self._buckets.note()}",)


# Transformed weights of every open session by the model's digest. They are read-only, so equal buffers are shared.
_HELD: dict[str, weakref.WeakSet[Weights]] = {}
_LOADING = threading.Lock()


class _RunContext:
    """A context of stoppable runs, on fixed memory if given."""

    def __init__(
        self,
        executable: NativeExecutable,
        inputs: dict[str, Array] | None = None,
        out: Sequence[Array] | None = None,
    ) -> None:
        self._executable, self._inputs, self._out = executable, inputs, out
        self._flag = _core.Stop()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Any:
        """Run as the executable does; return outputs by name if it takes the tensors unchanged."""
        # The core's call on tensors records no kernels, so arrays take the other path while a recording is open.
        records = trace.RING is not None and all(isinstance(f, np.ndarray) for f in feeds.values())
        if (
            self._inputs is None
            and not records
            and (outputs := self._executable.try_run_tensors(feeds, self._flag)) is not None
        ):
            return outputs
        return self._executable.run_until(
            feeds if self._inputs is None else self._inputs, self._flag, self._out
        )

    def stop(self) -> None:
        """Set the flag that the executor reads before each kernel."""
        self._flag.set()
