"""A model loaded on the native engine: a program per set of shapes, weights transformed once and shared between them."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ... import __version__, _core
from ...decisions import Decision
from ...errors import KernelRefused, RunError
from ...printable import logger
from ...program.program import CompiledProgram, ExecutionPlan, KernelCall
from ...protocols import Array, EngineRequest, Evidence, EvidenceRow, ModelSource, RunContext
from ...runtime.demands import SETTLED
from ...runtime.device import Device
from ...runtime.executor import Executor
from ...runtime.observed import Observed
from ...runtime.states import States
from ...runtime.weights import Weights, load_weights
from ...types import DType
from ..models.shape_cache import KeptShapes
from .buckets import Buckets, Shapes
from .library_refusals import sentence
from .program_source import Compiled, Programs
from .tensors import run_on_tensors

__all__ = ["NativeExecutable", "times_of"]

_log = logger("xpuruntime.session")
_PROFILED_RUNS = 5
_ANY_NUMBER = 1024  # of runs in flight: sessions have the bound
_NOTHING = Observed()
_NO_FEEDS: Mapping[str, Any] = MappingProxyType({})
_KEPT_SHAPES = 16  # programs of a session with open shapes; the engine option shape_buckets says otherwise


Examine: TypeAlias = "Callable[[Executor, Mapping[str, tuple[int, ...]], Mapping[str, Any], float], Decision]"
"""Looks at a program of new shapes before its first run: executor, shapes, the run's inputs, and when its making began."""


class NativeExecutable:
    """Safe to call from several threads. A program for shapes that were not met before is opened when they are; as many as the engine option
    ``shape_buckets`` says are kept: evidence says how many and how often.
    """

    def __init__(self, model: ModelSource, request: EngineRequest, programs: Programs) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model, self._request, self._programs = model, request, programs
        self._who = f"native, model {model.name}"
        self._order = tuple(s.name for s in model.inputs)
        self._named = tuple(s.name for s in model.outputs)
        self._device = Device(request.device)
        self._buckets = Buckets(int(request.options.get("shape_buckets", _KEPT_SHAPES)))
        self._compiling = threading.Lock()
        self._states: States | None = None
        self._only: Executor | None = None  # of a model with static shapes
        self._last: Executor | None = None  # that ran; before the first run of open shapes there is none
        self._closed = False
        self._declined: dict[str, None] = {}  # what libraries declined, a sentence each
        self._observed: weakref.WeakKeyDictionary[Executor, Observed] = weakref.WeakKeyDictionary()
        self._examine: Examine | None = None
        self._examined: weakref.WeakKeyDictionary[Executor, Decision] = weakref.WeakKeyDictionary()
        self._static = programs.only is not None
        if programs.only is not None:
            self._only = self._last = self._open((), *programs.only, {})

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Outputs in the model's order. Raises RunError."""
        return self.run_until(feeds, None)

    def run_until(
        self, feeds: dict[str, Array], stop: _core.Stop | None, out: Sequence[Array] | None = None
    ) -> Sequence[Array]:
        """``run``, until ``stop`` is set; into ``out`` where that is given."""
        executor = self._only if self._static else self._bucket(feeds)
        if executor is None or self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        self._last = executor  # one store, so that threads need no lock: a receipt is of one of the last runs
        return executor.run_arrays([feeds[n] for n in self._order], out, stop=stop)

    @property
    def run_tensors(self) -> Callable[[Mapping[str, Any]], Sequence[Any]] | None:
        """Runs on tensors that lie on the device, by name; None where the device is the host. Such runs are queued, so nothing ends them."""
        return None if self._device.backend.core_is_host else self._run_tensors

    @property
    def run_shown(self) -> Callable[[dict[str, Any]], dict[str, Any] | None] | None:
        """The quick way for tensors that lie on the device, outputs by name; it gives None for what ``run_tensors`` must look at."""
        return None if self._device.backend.core_is_host else self._run_shown

    def _run_shown(self, given: dict[str, Any], stop: _core.Stop | None = None) -> dict[str, Any] | None:
        executor = self._only if self._static else self._last
        if executor is None or executor.output_names != self._named:
            return None
        return executor.run_tensors(given, stop=stop)

    def takes(self, given: dict[str, Any]) -> bool:
        """Whether a context's run takes these as they are: tensors of one library, and nothing about them to convert."""
        executor = self._only if self._static else self._last
        return executor is not None and executor.output_names == self._named and executor.takes(given)

    def _run_tensors(self, given: Mapping[str, Any]) -> Sequence[Any]:
        executor = self._only if self._static or not self._order else self._bucket(given)
        if executor is None or self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        self._last = executor
        found = executor.run_tensors(dict(given))
        return list(found.values()) if found is not None else run_on_tensors(executor, given)

    def limit_compiles(self, seconds: float) -> None:
        """Compile shapes that are met from now on in a process that is ended after ``seconds``: their runs raise BuildTimeout."""
        if isinstance(self._programs, Compiled):
            self._programs.limit(seconds)

    def keep_in(self, kept: KeptShapes) -> None:
        """Take programs of shapes that are met from now on from the store where they lie there, and keep those that are compiled."""
        if isinstance(self._programs, Compiled):
            self._programs.keep_in(kept)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Those of the program that ran last, and what examining it found."""
        last = self._last
        if last is None:
            return ()
        found = self._examined.get(last)
        return last.program.decisions if found is None else (*last.program.decisions, found)

    @property
    def only(self) -> Executor | None:
        """The executor of a model with static shapes."""
        return self._only

    def examine_with(self, examine: Examine) -> None:
        """Have the program of each set of shapes examined before its first run. What ``examine`` raises, the run raises."""
        self._examine = examine

    def context(self) -> RunContext:
        """A context with a flag of its own: its run is ended between two kernels."""
        return _Context(self)

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """A context that runs on the given memory."""
        return _Context(self, dict(inputs), [outputs[s.name] for s in self.outputs])

    @property
    def counters(self) -> dict[str, int]:
        """Those of ``Executor.counters``, over all sets of shapes."""
        return self._buckets.counters

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Every dispatched kernel, from the plan that the executor recorded; with ``feeds`` the time of each, from the executor's own clock."""
        if self._closed:
            raise RunError(self._who, "the session is closed", do="Make a new one.")
        executor = self._last
        if not self._static and feeds is not None:
            executor = self._bucket(feeds)
        if executor is None:
            return Evidence("native", __version__, (), "session", notes=self._notes())
        times = times_of(executor, [feeds[n] for n in self._order]) if feeds is not None else None
        observed = self._observe(executor, feeds)
        plan = executor.plan
        device, chosen = str(executor.device), executor.implementations
        types = {b.name: b.spec.dtype for b in plan.buffers}
        rows = tuple(
            replace(
                _row(call, types, None if times is None else times[i], device, chosen[i]),
                seen=observed.calls.get(i, ()),
            )
            for i, call in enumerate(plan.calls)
        )
        source = "" if times is None else f"timed run of this session, median of {_PROFILED_RUNS}"
        return Evidence(
            "native",
            __version__,
            rows,
            "session",
            source,
            fallbacks=(*self._declined, *_others(plan, observed)),
            options={"target": plan.target},
            notes=(*self._notes(), *executor.notes, *((observed.note(),) if observed != _NOTHING else ())),
        )

    def _observe(self, executor: Executor, feeds: dict[str, Array] | None) -> Observed:
        """What the device's driver says of a run of these inputs; looked at once for each executor. A look leaves its states as they are."""
        if feeds is None or executor.backend.core_is_host:
            return _NOTHING
        found = self._observed.get(executor)
        if found is None:
            with executor.twin() if executor.states else nullcontext(executor) as looked_at:
                arrays = [feeds[n] for n in self._order]
                looked_at.run_arrays(arrays)  # so that it is the graph that is seen
                found = self._observed[executor] = looked_at.observe(arrays)
        return found

    def close(self) -> None:
        """Free programs and weights; further runs raise RunError."""
        self._closed = True
        for executor in self._buckets.take_all():
            executor.close()
        self._only = self._last = None

    def _bucket(self, feeds: Mapping[str, Any]) -> Executor | None:
        """The executor for these shapes; opened when they are new."""
        key: Shapes = tuple((n, d) for n in self._order for d in feeds[n].shape)
        found = self._buckets.get(key)
        if found is not None or self._closed:
            return found
        with self._compiling:
            found = self._buckets.get(key)
            if found is None and not self._closed:
                shapes = {n: tuple(feeds[n].shape) for n in self._order}
                began = time.perf_counter()
                found = self._open(key, *self._programs.find(shapes), shapes, feeds, began)
            return found

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
        program, source = executor.program, self._programs.weights
        with _LOADING:
            held = _HELD.setdefault(self._model.digest, weakref.WeakSet())
            weights = load_weights(source, program, self._device, shared=list(held))
            held.add(weights)
        executor.bind(weights)
        if self._examine is not None:
            self._examined[executor] = self._examine(executor, shapes, feeds, began)
        self._states = executor.states
        self._buckets.put(key, executor)
        return executor

    def _ready(self, program: CompiledProgram, entry: str, shapes: Mapping[str, tuple[int, ...]]) -> Executor:
        """An executor; of another program where libraries decline calls of this one, which evidence then says. Raises KernelRefused, BuildError."""
        threads, states = self._request.threads, self._states
        while True:
            try:
                return Executor(
                    program,
                    self._device,
                    entry=entry,
                    threads=threads,
                    contexts=_ANY_NUMBER,
                    states=states,
                    policy=SETTLED,
                )
            except KernelRefused as refused:
                program, entry = self._programs.find_without(shapes, refused)
                for call in refused.calls:
                    self._declined[sentence(call)] = None
                    if shapes:  # met in mid-run; what is found at the start the session tells itself
                        _log.warning("native, model %s: %s", self._model.name, sentence(call))

    def _notes(self) -> tuple[str, ...]:
        return () if self._static else (f"{self._programs.note()}; {self._buckets.note()}",)


# Transformed weights by the model's digest, of every session that is open: nobody writes to them, so buffers made alike are shared.
_HELD: dict[str, weakref.WeakSet[Weights]] = {}
_LOADING = threading.Lock()


class _Context:
    """Runs that a flag ends; on fixed memory where that is given."""

    def __init__(
        self,
        executable: NativeExecutable,
        inputs: dict[str, Array] | None = None,
        out: Sequence[Array] | None = None,
    ) -> None:
        self._executable, self._inputs, self._out = executable, inputs, out
        self._flag = _core.Stop()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Any:
        """As the executable's; outputs by name where it takes the tensors as they are."""
        if self._inputs is None and (found := self._executable._run_shown(feeds, self._flag)) is not None:
            return found
        return self._executable.run_until(
            feeds if self._inputs is None else self._inputs, self._flag, self._out
        )

    def stop(self) -> None:
        """The executor looks at this before each kernel."""
        self._flag.set()


def _row(
    call: KernelCall, types: Mapping[str, DType], time_us: float | None, device: str, chosen: str
) -> EvidenceRow:
    """chosen: what a library says that it took for the call."""
    precision = types[call.outputs[0]].value if call.outputs else ""
    kernel = f"{call.kernel}: {call.symbol}" + (f" ({chosen})" if chosen else "")
    operands = _operands(call, types) if call.kernel.partition("/")[0] in ("conv", "matmul") else ("", "")
    return EvidenceRow(call.nodes, "+".join(call.ops), device, kernel, precision, time_us, (), *operands)


def _operands(call: KernelCall, types: Mapping[str, DType]) -> tuple[str, str]:
    """Element types of the activations and weights of a product; empty for a call that only packs weights."""
    if len(call.inputs) < 2:
        return "", ""
    activations, weights = (types[name] for name in call.inputs[:2])
    kernel = call.kernel.partition("/")[2]
    if kernel.startswith("int4_weights"):  # two codes in a byte
        return activations.value, "int4"
    packed = activations.is_float and weights.is_integer and kernel != "int8_weights"
    return activations.value, (activations if packed else weights).value


def _others(plan: ExecutionPlan, observed: Observed) -> tuple[str, ...]:
    """Where the driver ran something else than the plan's own function. Which kernels a library takes is its own affair."""
    made = []
    for i, call in enumerate(plan.calls):
        seen = [s.name for s in observed.calls.get(i, ())]
        if seen and not call.library and call.symbol not in seen:
            made.append(f"for {call.kernel} the driver ran {', '.join(seen)} instead of {call.symbol}")
    return tuple(made)


def times_of(executor: Executor, arrays: Sequence[Array]) -> list[float]:
    """Microseconds of each kernel call: the median of a few timed runs. A look leaves the executor's states as they are."""
    runs = []
    with executor.twin() if executor.states else nullcontext(executor) as timed:
        for _ in range(_PROFILED_RUNS):
            times = np.zeros(len(timed.plan.calls), np.int64)
            timed.run_arrays(arrays, times=times)
            runs.append(times / 1e3)
    return [float(t) for t in np.median(runs, axis=0)]
