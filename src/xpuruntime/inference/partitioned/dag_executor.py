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

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...compiler import compile as compile_graph
from ...compiler.partition import PartitionPlan
from ...decisions import Decision
from ...errors import RunError, StrictError
from ...faults import contained
from ...frontends.onnx_cut import Original
from ...ir import Graph, bind
from ...policies import Policy, Resolved
from ...printable import logger
from ...profiler.receipt import Receipt, confirm
from ...program.plan import Plan
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, ModelSource
from ...runtime.backends.base import RuntimeBackend
from ...runtime.dag_executor import Schedule, Step
from ...store import Store
from ...types import TensorSpec
from ..execution.inputs import Feeds
from ..selection.candidate import Wanted
from .dag_policy import backend_for, native_demands, settled_demands, wanted_by
from .dag_run import Pass, Timer, Watch
from .placement import Placed
from .region_weights import WeightArrays
from .regions import Work

__all__ = ["DAGExecutor"]

_log = logger("xpuruntime.session")


class DAGExecutor:
    """Runs the regions of a PartitionPlan. Safe from several threads; a model with states runs once at a time.

    backend:    drives the device of native regions: a backend, a Device or its name; the host by default.
    compile_fn: a static graph to a CompiledProgram for that device; by default our compiler, for the
                backend's own target, else this processor.
    original:   the ONNX model that the graph came from: vendor engines then get its own nodes.
    threads:    CPU threads of each engine; ``parallel``: how many regions may run at once.
    store:      where engines keep compiled regions; by default nowhere.
    policy:     over the plan's own, which is over ``with_policy`` and the environment. What partition settles (engines, placement, sizes,
                kernels that rules force) is said to partition. Does not go with ``wanted``.

    A region whose engine fails, when it is opened or in a run, goes to its next alternative; ``decisions`` and ``plan`` say so.
    Raises EngineUnavailable (with the region's decision) when no alternative is left.
    """

    @contained("DAGExecutor")
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
        policy: Any = None,
    ) -> None:
        self.graph = plan.graph
        self._who = f"executor of {self.graph.name!r}"
        self._first = plan.plan
        demands = settled_demands(plan, policy) if wanted is None else Resolved(Policy(), {})
        self._strict = bool(demands.policy.execution.strict)
        self.backend: RuntimeBackend = backend_for(demands, backend)
        found = None if original is None else Original(original, self.graph)
        asked = wanted or wanted_by(demands)
        asked = replace(asked, threads=threads or asked.threads)
        # A GPU by its own name, so that its libraries are asked what they compute.
        mine = (
            str(self.backend.device)
            if self.backend.kind == "cuda"
            else getattr(self.backend, "target", "cpu")
        )
        own = functools.partial(compile_graph, target=mine, policy=native_demands(demands))
        self._regions = [
            Placed(
                Work(
                    region=r,
                    graph=plan.subgraph(r.id),
                    backend=self.backend,
                    compile_fn=compile_fn or own,
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
        self._weights: WeightArrays | None = None
        self._states: dict[str, Array] = {}
        self._stateful = threading.Lock()
        self._loading = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self._closed = False

    # ── weights ──

    @contained("DAGExecutor.load_weights")
    def load_weights(self, source: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> None:
        """Give every region its weights, once: arrays by name, a safetensors file, or a folder in which the graph's own files lie
        (None: the working folder). Raises InputError for one that is missing or has another type than the graph's.
        """
        with self._loading:
            weights = WeightArrays(self._who, self.graph, source)
            for weight in self.graph.weights:
                weights.check(weight)
            for placed in self._regions:
                placed.load(weights)
            self._weights = weights
            self._reset_states()
            if self._strict:
                self._be_strict()

    def _be_strict(self) -> None:
        """Raises StrictError where evidence differs from the plan, or a region is not on its first engine."""
        broken = [f"{f.claim}: {f.seen}" for f in confirm(self.plan, self.evidence()) if not f.ok]
        broken += self.plan.warnings
        if broken:
            do = "Change what is asked for, or drop strict."
            raise StrictError(
                self._who, "strict=True, and not everything runs as asked", got="; ".join(broken), do=do
            )

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

    def _execute(self, inputs: Mapping[str, Any], watch: Watch | None) -> dict[str, Any]:
        feeds, to_caller = (dict(inputs), None) if self._feeds is None else self._feeds.check(inputs)
        outputs = self._run(dict(feeds), watch)
        self._last = feeds
        return outputs if to_caller is None else {k: to_caller(v) for k, v in outputs.items()}

    def _run(
        self,
        feeds: dict[str, Any],
        watch: Watch | None,
        stopped: Callable[[], bool] | None = None,
        timer: Timer | None = None,
    ) -> dict[str, Any]:
        if self._closed:
            raise RunError(self._who, "is closed", do="Make a new one.")
        if self._weights is None:
            self.load_weights(None)
        if not self.graph.states:
            return self._once(feeds, watch, stopped, timer)
        with self._stateful:
            return self._once(feeds, watch, stopped, timer)

    def _once(
        self,
        feeds: dict[str, Any],
        watch: Watch | None,
        stopped: Callable[[], bool] | None,
        timer: Timer | None,
    ) -> dict[str, Any]:
        graph = self.graph
        symbols = (
            bind(self._specs, {s.name: feeds[s.name].shape for s in self._specs}) if graph.symbols else {}
        )
        pass_ = Pass(self, symbols, watch, stopped)
        values: dict[str, Any] = {**feeds, **self._states}
        self._schedule.run(values, pass_.work if timer is None else timer.around(pass_.work))
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
        seen: Watch = {}
        if inputs is not None:
            self._execute(inputs, seen)
        return {p.region.id: p.evidence(*seen.get(p.region.id, (None, None))) for p in self._regions}

    def region_times(self, feeds: Mapping[str, Array], clock: Callable[[], int]) -> dict[str, float]:
        """Seconds of each region in one run on arrays that were checked, with bringing its values to it; ``clock`` gives nanoseconds.
        Raises RunError.
        """
        timer = Timer(clock)
        self._run(dict(feeds), None, None, timer)
        return {self._regions[i].region.id: t for i, t in timer.seconds.items()}

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
