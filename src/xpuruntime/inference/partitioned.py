"""DAGExecutor: a partitioned model on several engines and devices.

    plan = partition(graph, is_op_supported)
    dag = DAGExecutor(plan, CpuBackend())
    dag.load_weights("model.safetensors")
    result = dag.execute(inputs={"x": x})          # arrays by output name
    print(dag.plan.explain(), dag.receipt())

Regions are compiled when the executor is made and weights go to them once. A run moves values at borders only: between regions on one
device the memory itself is handed over. Regions that do not wait for each other run side by side.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler import compile as compile_graph
from ..compiler.partition import PartitionPlan
from ..decisions import Candidate, Decision, Reason
from ..errors import EngineUnavailable, InputError, KernelUnavailable, RunError, XpuError
from ..frontends.onnx_cut import Original
from ..ir import Graph, Weight, bind, open_weights
from ..profiler import trace
from ..profiler.receipt import Receipt
from ..program.plan import Plan, Region
from ..program.program import CompiledProgram
from ..protocols import Array, Evidence, ModelSource
from ..runtime.backends.base import RuntimeBackend
from ..runtime.backends.cpu import CpuBackend
from ..runtime.buffer import DeviceBuffer, backend_of
from ..runtime.dag_executor import Schedule, Step
from ..store import Store
from ..targets import DeviceId
from ..tensor_files import read_safetensors
from ..types import DType, TensorSpec
from .attempt import Wanted
from .feeds import Feeds
from .regions import Runner, Work, runner_of

__all__ = ["DAGExecutor"]

_log = logging.getLogger("xpuruntime.session")


class DAGExecutor:
    """Runs the regions of a PartitionPlan. Safe from several threads; a model with states runs once at a time.

    backend:    drives the device of native regions: a backend, a Device or its name; the host by default.
    compile_fn: a static graph to a CompiledProgram for that device; by default our compiler, for this processor.
    original:   the ONNX model that the graph came from: vendor engines then get its own nodes.
    threads:    CPU threads of each engine; ``parallel``: how many regions may run at once.
    store:      where engines keep compiled regions; by default nowhere.

    A region whose engine fails, when it is opened or in a run, goes to its next alternative; ``decisions`` and ``plan`` say so.
    Raises EngineUnavailable (with the region's decision) when no alternative is left.
    """

    def __init__(
        self,
        plan: PartitionPlan,
        backend: Any = None,
        *,
        compile_fn: Callable[[Graph], CompiledProgram] | None = None,
        original: ModelSource | None = None,
        threads: int | None = None,
        parallel: int | None = None,
        store: Store | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self.graph = plan.graph
        self._who = f"executor of {self.graph.name!r}"
        self._first = plan.plan
        self.backend: RuntimeBackend = CpuBackend() if backend is None else backend_of(backend)
        found = None if original is None else Original(original, self.graph)
        asked = wanted or Wanted("native", DeviceId("cpu"))
        asked = replace(asked, threads=threads or asked.threads)
        self._regions = [
            _Placed(
                Work(
                    region=r,
                    graph=plan.subgraph(r.id),
                    backend=self.backend,
                    compile_fn=compile_fn or compile_graph,
                    store=store or Store(mode="off"),
                    original=found,
                    wanted=asked,
                ),
                self._first.decision_for(r.id),
            )
            for r in plan.regions
            if r.outputs
        ]
        for placed in self._regions:
            placed.open()
        given = {v.name for v in self.graph.inputs}
        held = [s.name for s in self.graph.states]
        keep = list(self.graph.kept)
        steps = [Step(p.work.region.id, p.work.region.inputs, p.work.region.outputs) for p in self._regions]
        self._schedule = Schedule(steps, [*keep, *given, *held], threads=parallel)
        known = [
            TensorSpec(v.spec.shape, v.spec.dtype, v.name) for v in self.graph.inputs if v.spec is not None
        ]
        self._feeds = Feeds(self._who, known) if len(known) == len(self.graph.inputs) else None
        self._specs = known
        self._weights: _WeightArrays | None = None
        self._states: dict[str, Array] = {}
        self._stateful = threading.Lock()
        self._loading = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self._closed = False

    # ── weights ──

    def load_weights(self, source: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> None:
        """Give every region its weights, once: arrays by name, a safetensors file, or a folder in which the graph's own files lie
        (None: the working folder). Raises InputError for one that is missing or has another type than the graph's.
        """
        with self._loading:
            weights = _WeightArrays(self._who, self.graph, source)
            for weight in self.graph.weights:
                weights.check(weight)
            for placed in self._regions:
                placed.load(weights)
            self._weights = weights
            self._reset_states()

    def reset_states(self) -> None:
        """Back to what the graph starts from. Not while a run is in flight."""
        with self._stateful:
            self._reset_states()

    def _reset_states(self) -> None:
        assert self._weights is not None
        for state in self.graph.states:
            shape = [int(d) for d in state.spec.shape if isinstance(d, int)]
            empty = np.zeros(shape, state.spec.dtype.numpy)
            self._states[state.name] = empty if state.init is None else np.array(self._weights[state.init])

    # ── running ──

    def execute(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name, as the same kind of tensor as the inputs. Raises InputError; RunError when a region fails and nothing may take
        its place.
        """
        return self._execute(inputs, None)

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        return self.execute(inputs)

    def run(self, feeds: Mapping[str, Array], *, stopped: Callable[[], bool] | None = None) -> list[Array]:
        """Outputs in the graph's order, of arrays that were checked. ``stopped`` is asked before each region: true ends the run with a
        RunError.
        """
        return list(self._run(dict(feeds), None, stopped).values())

    def _execute(
        self, inputs: Mapping[str, Any], watch: dict[str, Mapping[str, Any]] | None
    ) -> dict[str, Any]:
        feeds, to_caller = (dict(inputs), None) if self._feeds is None else self._feeds.check(inputs)
        outputs = self._run(dict(feeds), watch)
        self._last = feeds
        return outputs if to_caller is None else {k: to_caller(v) for k, v in outputs.items()}

    def _run(
        self,
        feeds: dict[str, Any],
        watch: dict[str, Mapping[str, Any]] | None,
        stopped: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        if self._closed:
            raise RunError(self._who, "is closed", do="Make a new one.")
        if self._weights is None:
            self.load_weights(None)
        if not self.graph.states:
            return self._once(feeds, watch, stopped)
        with self._stateful:
            return self._once(feeds, watch, stopped)

    def _once(
        self,
        feeds: dict[str, Any],
        watch: dict[str, Mapping[str, Any]] | None,
        stopped: Callable[[], bool] | None,
    ) -> dict[str, Any]:
        graph = self.graph
        symbols = (
            bind(self._specs, {s.name: feeds[s.name].shape for s in self._specs}) if graph.symbols else {}
        )
        pass_ = _Pass(self, symbols, watch, stopped)
        values: dict[str, Any] = {**feeds, **self._states}
        self._schedule.run(values, pass_.work)
        outputs = {o.name: pass_.host(self._kept(o.value, values)) for o in graph.outputs}
        for state in graph.states:
            if state.next is not None:
                self._states[state.name] = pass_.host(self._kept(state.next, values))
        with self._counting:
            self._counts.update(pass_.counts)
            self._counts["runs"] += 1
        return outputs

    def _kept(self, value: str, values: Mapping[str, Any]) -> Any:
        """A value that leaves the graph, whoever made it."""
        if value in values:
            return values[value]
        if value in self.graph.weight_names:
            assert self._weights is not None
            return np.array(self._weights[value])
        const = self.graph.literal(value)
        if const is None:
            raise RunError(self._who, "made no such value", got=repr(value))
        return np.array(const.numpy())

    # ── facts ──

    @property
    def plan(self) -> Plan:
        """What runs now: the plan with the engines that were had, and why others were not."""
        regions = tuple(p.region for p in self._regions)
        return replace(
            self._first,
            regions=regions,
            decisions=tuple(p.decision for p in self._regions),
            warnings=tuple(w for p in self._regions for w in p.warnings),
        )

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Which engine each region has, and why not the others."""
        return tuple(p.decision for p in self._regions)

    @property
    def counters(self) -> dict[str, int]:
        """Since the executor was made: runs, regions (that ran), crossings (values that one region handed to another), copies of values
        between devices and their bytes, fallbacks (of regions to their next alternative).
        """
        with self._counting:
            made = {k: self._counts[k] for k in ("runs", "regions", "crossings", "copies", "bytes")}
        return {**made, "fallbacks": sum(p.fallbacks for p in self._regions)}

    def evidence(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Evidence]:
        """By region, what its engine says ran; with ``inputs``, the model is run on them and every region timed."""
        seen: dict[str, Mapping[str, Any]] = {}
        if inputs is not None:
            self._execute(inputs, seen)
        return {p.region.id: p.evidence(seen.get(p.region.id)) for p in self._regions}

    def receipt(self, *, times: bool = True) -> Receipt:
        """What did run: every region's own evidence held against the plan; with ``times``, measured on the last inputs."""
        runs = self.counters["runs"]
        evidence = self.evidence(self._last if times else None)
        return Receipt.write(self.plan, evidence, runs)

    def close(self) -> None:
        """Free what the engines hold; later runs raise RunError. May be repeated."""
        self._closed = True
        self._schedule.close()
        for placed in self._regions:
            placed.close()
        self._last = None

    def __enter__(self) -> DAGExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        engines = Counter(p.region.engine for p in self._regions)
        shown = ", ".join(f"{n} on {e}" for e, n in engines.items())
        return f"<DAGExecutor {self.graph.name!r}: {len(self._regions)} regions, {shown}>"


class _Pass:
    """One run: what crosses borders, counted."""

    def __init__(
        self,
        executor: DAGExecutor,
        symbols: dict[str, int],
        watch: dict[str, Mapping[str, Any]] | None,
        stopped: Callable[[], bool] | None,
    ) -> None:
        self.executor, self.symbols, self.watch, self.stopped = executor, symbols, watch, stopped
        self.counts: Counter[str] = Counter()
        self._made: set[str] = set()
        self._copies: dict[tuple[int, bool], Any] = {}
        self._lock = threading.Lock()

    def work(self, index: int, values: Mapping[str, Any]) -> Sequence[Any]:
        """Run a region. Raises RunError where the run was ended."""
        if self.stopped is not None and self.stopped():
            raise RunError(self.executor._who, "the run was ended", do="Start another.")
        placed = self.executor._regions[index]
        region = placed.work.region
        crossing = sum(v in self._made for v in region.inputs)
        with self._lock:
            self.counts.update(regions=1, crossings=crossing)
        given = {v: values[v] for v in region.inputs}
        if self.watch is not None:
            self.watch[region.id] = given
        symbols = dict(self.symbols)
        if trace.RING is None:
            results = placed.run(given, symbols, self)
        else:
            results = trace.timed(f"{region.id}: {placed.region.engine}", placed.run, given, symbols, self)
        self._made.update(region.outputs)
        if self.executor.graph.symbols:
            self._learn(region.outputs, results)
        return results

    def bring(self, values: Mapping[str, Any], to_device: bool) -> Mapping[str, Any]:
        """The values where the region is: one copy of each for all regions there, none where it is there already."""
        return {n: self.device(v) if to_device else self.host(v) for n, v in values.items()}

    def host(self, value: Any) -> Any:
        """A value in the host's memory."""
        if not isinstance(value, DeviceBuffer):
            return value
        return self._copied(value, False, lambda: value.to_numpy())

    def device(self, value: Any) -> Any:
        """A value in the device's memory."""
        if isinstance(value, DeviceBuffer):
            return value
        return self._copied(value, True, lambda: DeviceBuffer.from_numpy(value, self.executor.backend))

    def _copied(self, value: Any, to_device: bool, copy: Callable[[], Any]) -> Any:
        key = id(value), to_device
        with self._lock:
            if key not in self._copies:
                made = copy()
                self._copies[key] = value, made  # the value too: its id stays its own
                self.counts.update(copies=1, bytes=_size(value))
            return self._copies[key][1]

    def _learn(self, names: Sequence[str], results: Sequence[Any]) -> None:
        """Sizes that a region's results decide."""
        graph = self.executor.graph
        for name, result in zip(names, results, strict=True):
            spec = graph.values[name].spec
            if spec is not None and spec.symbols - self.symbols.keys():
                known = spec.substitute(self.symbols)
                self.symbols |= bind([TensorSpec(known.shape, known.dtype, name)], {name: result.shape})


@dataclass(slots=True)
class _Placed:
    """A region with the runner that it has now, and those that it may still go to."""

    work: Work
    decision: Decision
    runner: Runner | None = None
    rejected: list[Candidate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fallbacks: int = 0
    _weights: Mapping[str, Array] | None = None
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def region(self) -> Region:
        """As it runs now."""
        version = "" if self.runner is None else self.runner.version
        return replace(self.work.region, engine_version=version)

    def open(self) -> None:
        """Prepare the engine, or the next that can. Raises EngineUnavailable."""
        while True:
            runner = runner_of(self.work)
            try:
                runner.prepare()
                if self._weights is not None:
                    runner.load(self._weights)
            except InputError:
                raise
            except XpuError as error:
                self.fall(error, Reason.BUILD_FAILED)
                continue
            self.runner = runner
            return

    def load(self, weights: Mapping[str, Array]) -> None:
        """Hand in the weights."""
        with self._lock:
            self._weights = {w.name: weights[w.name] for w in self.work.graph.weights}
            assert self.runner is not None
            try:
                self.runner.load(self._weights)
            except InputError:
                raise
            except XpuError as error:
                self.fall(error, Reason.BUILD_FAILED)
                self.open()

    def run(self, values: Mapping[str, Any], symbols: Mapping[str, int], crossing: _Pass) -> Sequence[Any]:
        """Run on whatever engine the region has; on the next one when it fails."""
        while True:
            runner = self.runner
            if runner is None:  # another thread is on its way to the next one
                with self._lock:
                    continue
            try:
                return runner.run(crossing.bring(values, runner.on_device), symbols)
            except InputError:
                raise
            except XpuError as error:
                with self._lock:
                    if self.runner is runner:  # else another thread has been here
                        self.fall(error, Reason.RUN_FAILED)
                        self.open()

    def fall(self, error: XpuError, code: Reason) -> None:
        """Note why the engine is out and take the next. Raises the error itself where there is none and nothing was tried before."""
        region = self.work.region
        name = f"{region.engine} on {region.device}"
        text = error.what if error.got is None else f"{error.what}: {error.got}"
        self.rejected.append(Candidate(name, code, text, error.do))
        told = {c.name for c in self.rejected}
        left = [c for c in self.decision.rejected if c.name not in told]
        if not region.alternatives:
            own = code is Reason.RUN_FAILED or isinstance(error, KernelUnavailable)
            if own and len(self.rejected) == 1:
                raise error
            decision = Decision("engine", region.id, None, (*self.rejected, *left))
            raise EngineUnavailable(
                f"{self.work.graph.name}",
                f"no engine takes the region: {name}: {error.what}",
                got=error.got,
                do=error.do or "Name another engine in others= of partition.",
                decision=decision,
            ) from error
        following, *rest = region.alternatives
        engine, _, device = following.partition(" on ")
        moved = replace(region, engine=engine, device=device or "cpu", alternatives=tuple(rest))
        self.work = replace(self.work, region=moved)
        if self.runner is not None:
            self.runner.close()
            self.runner = None
        self.fallbacks += 1
        chosen = Candidate(following, Reason.FALLBACK, f"{name} cannot be had")
        self.decision = Decision(
            "engine", region.id, chosen, (*self.rejected, *(c for c in left if c.name != following))
        )
        self.warnings.append(f"{region.id}: {name} cannot be had ({text}); {following} runs it instead")
        _log.warning("%s: %s", self.work.graph.name, self.warnings[-1])

    def evidence(self, values: Mapping[str, Any] | None) -> Evidence:
        """Of the engine that it has."""
        assert self.runner is not None
        if values is not None and not self.runner.on_device:
            values = {k: v.to_numpy() if isinstance(v, DeviceBuffer) else v for k, v in values.items()}
        return self.runner.evidence(values)

    def close(self) -> None:
        """Free the runner."""
        if self.runner is not None:
            self.runner.close()


class _WeightArrays(Mapping[str, Array]):
    """Weights of a graph by the graph's names, wherever they come from."""

    def __init__(self, who: str, graph: Graph, source: Any) -> None:
        self._who, self._refs = who, {w.name: w for w in graph.weights}
        self._given: Mapping[str, Any] = {}
        self._files: Mapping[str, Array] | None = None
        if isinstance(source, Mapping):
            self._given = source
        elif source is not None and not Path(source).is_dir():
            self._given = read_safetensors(source)
        else:
            self._files = open_weights(graph, source or ".")

    def __getitem__(self, name: str) -> Array:
        ref = self._refs[name]
        for key in (name, ref.key):
            if key and key in self._given:
                return np.asarray(self._given[key])
        if self._files is not None and ref.file:
            return self._files[name]
        got = f"{len(self._given)} arrays, none called {name!r}"
        raise InputError(
            self._who, f"lacks the weight {name!r}", got=got, do=f"Hand in {ref.spec} by that name."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def check(self, weight: Weight) -> None:
        """Raises InputError for another type than the graph's."""
        array = self[weight.name]
        got = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        if got.dtype is not weight.spec.dtype or (weight.spec.is_static and got.shape != weight.spec.shape):
            do = "Give the weights of the model that was partitioned."
            raise InputError(self._who, f"weight {weight.name!r} must be {weight.spec}", got=got, do=do)


def _size(value: Any) -> int:
    return int(value.size_bytes if isinstance(value, DeviceBuffer) else value.nbytes)
