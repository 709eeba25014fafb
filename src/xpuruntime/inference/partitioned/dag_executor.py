"""DAGExecutor: a partitioned model on several engines and devices.

    plan = partition(graph, is_op_supported)
    dag = DAGExecutor(plan, CpuBackend())
    dag.load_weights("model.safetensors")
    result = dag.execute(inputs={"x": x})          # arrays by output name
    print(dag.plan.explain(), dag.receipt())

Regions are compiled when the executor is made, and weights are transferred once. A run moves values only between regions; regions on one
device share memory. Regions that do not depend on each other run in parallel.
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

from ...arguments import check_argument, check_count, check_names
from ...compiler import compile as compile_graph
from ...compiler.locked import KernelLock
from ...compiler.partition.partitioner import PartitionPlan
from ...compiler.transfers import check_graph, check_plan
from ...decisions import Decision
from ...engines.device_tensors import TensorIO
from ...errors import RunError, StrictError
from ...faults import contained
from ...frontends.onnx.files.extract import OnnxExtractor
from ...ir import Graph, bind
from ...ir.draws import pytorch_draw
from ...policies import Policy, Resolved
from ...printable import logger
from ...profiler.receipt import Receipt, confirm
from ...program.lock import Lock
from ...program.plan import Plan
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, HasTarget, ModelSource
from ...runtime.backends.base import RuntimeBackend
from ...runtime.execution.dag_executor import Schedule, Step
from ...runtime.execution.executor import Executor
from ...runtime.memory.buffer import DeviceBuffer
from ...storage.store import Store
from ...types import TensorSpec
from ..execution.inputs import Feeds, on_a_device
from ..selection.request import SessionRequest, thread_count
from .dag_lock import DagLock, lock_of_dag, opened_lock
from .dag_policy import backend_for, native_demands, region_backends, request_of, settled_demands
from .dag_run import DagRun, Timer, Watch
from .placement import Placed
from .region_runners import NativeRunner
from .region_weights import WeightArrays
from .regions import RegionWork

__all__ = ["DAGExecutor"]

_log = logger("xpuruntime.session")


class DAGExecutor:
    """An executor of a PartitionPlan's regions. It is safe from several threads; a model with states runs once at a time.

    backend:    backend, Device or device name of the native regions; by default that of the plan's first region on a GPU, else the host. A
                region that the plan places on another GPU (``native on cuda:1``) runs there. Values between two GPUs are copied from one to the
                other, or through the host if they do not reach each other.
    compile_fn: compiles a static graph to a CompiledProgram for that device. The default is our compiler for the
                backend's own target, or for this processor.
    original:   the ONNX model that the graph came from; vendor engines then get its original nodes.
    threads:    CPU threads of each engine; ``parallel``: how many regions may run at once.
    store:      the store for compiled regions; none by default.
    policy:     takes precedence over the plan's policy, which precedes ``with_policy`` and the environment. Demands that partition settles
                (engines, placement, sizes, forced kernels) must be given to partition. It excludes ``request``.
    lock:       a lock (``DAGExecutor.lock``), its file or its data. Exactly its regions and kernels run, and nothing is measured or chosen.
                The plan may then be the graph alone. It excludes ``compile_fn``, ``threads``, ``request`` and ``policy``.

    A region whose engine fails, at opening or in a run, moves to its next alternative; ``decisions`` and ``plan`` record it.
    Raises EngineUnavailable (with the region's decision) if no alternative is left, LockError if something that a lock pins has changed.
    """

    @contained("DAGExecutor")
    def __init__(
        self,
        plan: PartitionPlan | Graph,
        backend: Any = None,
        *,
        compile_fn: Callable[[Graph], CompiledProgram] | None = None,
        original: ModelSource | None = None,
        threads: int | None = None,
        parallel: int | None = None,
        store: Store | None = None,
        request: SessionRequest | None = None,
        policy: Any = None,
        lock: Lock | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        _check_kinds(plan, compile_fn=compile_fn, original=original, store=store, request=request)
        parallel = None if parallel is None else check_count("DAGExecutor", "parallel", parallel)
        choosing = {"compile_fn": compile_fn, "threads": threads, "request": request, "policy": policy}
        opened = opened_lock(plan, lock, original, choosing)
        self.locked = opened if isinstance(opened, DagLock) else None
        plan = opened.plan if isinstance(opened, DagLock) else opened
        self.graph, self.original = plan.graph, original
        self._who = f"executor of {self.graph.name!r}"
        self._given, self._first = plan, plan.plan
        demands = Resolved(Policy(), {})
        if self.locked is not None:
            demands, threads = self.locked.demands, self.locked.lock.threads
        elif request is None:
            demands = settled_demands(plan, policy)
        self.demands = demands
        self._strict = bool(demands.policy.execution.strict)
        execution = (demands.policy if request is None else request.policy).execution
        self._transfers = dict(execution.transfers or {})
        check_graph(self._who, self._transfers, self.graph)
        check_plan(self._who, self._transfers, self._first)
        self.backend: RuntimeBackend = backend_for(demands, backend, [r.device for r in plan.regions])
        cutter = None if original is None else OnnxExtractor(original, self.graph)
        request = request or request_of(demands)
        self.threads = thread_count(request.threads if threads is None else threads, "DAGExecutor")
        request = replace(request, threads=self.threads)
        self.compiles_itself = compile_fn is not None
        self._backends = backends = region_backends(self.backend, plan.regions)
        self._regions = [
            Placed(
                RegionWork(
                    region=r,
                    graph=plan.subgraph(r.id),
                    backend=backends[r.id],
                    compile_fn=compile_fn or functools.partial(self._compiled, r.id),
                    store=store or Store(mode="off"),
                    original=cutter,
                    request=request,
                ),
                self._first.decision_for(r.id),
            )
            for r in plan.regions
            if r.outputs
        ]
        for placed in self._regions:
            placed.open()
        if self.locked is not None:
            self.examine_with(self.locked.check_program)
        input_names = {v.name for v in self.graph.inputs}
        held = [s.name for s in self.graph.states]
        keep = list(self.graph.kept)
        sizes = plan.size_sources()
        steps, drawn = list[Step](), tuple[str, ...]()
        for work in (p.work for p in self._regions):
            draws = work.region.engine == "torch" and any(map(pytorch_draw, work.graph.nodes))
            after = (*sizes.get(work.region.id, ()), *(drawn if draws else ()))
            steps.append(Step(work.region.id, work.region.inputs, work.region.outputs, after))
            drawn = work.region.outputs if draws else drawn  # in order: PyTorch's seed decides the numbers
        self._schedule = Schedule(steps, [*keep, *input_names, *held], threads=parallel)
        known = [
            TensorSpec(v.spec.shape, v.spec.dtype, v.name) for v in self.graph.inputs if v.spec is not None
        ]
        self._feeds = Feeds(self._who, known) if len(known) == len(self.graph.inputs) else None
        self._specs = known
        knows_all = self._feeds is not None and not self.backend.core_is_host and self.backend.stages
        self._io = TensorIO(self._who, known, self.backend) if knows_all else None
        self._weights: WeightArrays | None = None
        self._states: dict[str, Array] = {}
        self._stateful = threading.Lock()
        self._loading = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._moved: dict[str, Counter[str]] = {p.work.region.id: Counter() for p in self._regions}
        self._counting = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self._closed = False

    # ── compiling ──

    def compiled(self, region: str, graph: Graph, lock: KernelLock | None) -> CompiledProgram:
        """Compile the graph of a native region for its device, with the kernels of ``lock`` or recording them there."""
        at = self._backends[region]
        return compile_graph(graph, target=_target(at), policy=native_demands(self.demands), lock=lock)

    def _compiled(self, region: str, graph: Graph) -> CompiledProgram:
        return self.compiled(region, graph, None if self.locked is None else self.locked.kernels(region))

    def lock(self, *, on_mismatch: str = "error") -> Lock:
        """Return a lock of the regions that run and of their kernels, for ``DAGExecutor(graph, lock=...)``. Weights are not part of it.

        With open shapes it covers those that were run. on_mismatch: if something that the lock pins has changed: ``error``, or ``policy`` to
        run the plan that is given next to the lock. Raises LockError without weights or runs, and for an executor with ``compile_fn=``.
        """
        return lock_of_dag(self, on_mismatch)

    # ── weights ──

    @contained("DAGExecutor.load_weights")
    def load_weights(self, source: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> None:
        """Load every region's weights once, from arrays by name, a safetensors file, or the folder of the graph's own files
        (None: the working folder).

        Raises InputError for a missing weight or one whose type differs from the graph's.
        """
        with self._loading:
            weights = WeightArrays(self._who, self.graph, source)
            for weight in self.graph.weights:
                weights.check(weight)
            for placed in self._regions:
                placed.load(weights)
            self._weights = weights
            self._reset_states()
            if self.locked is not None:
                self.locked.check_plan(self)
            if self._strict:
                self._be_strict()

    def _be_strict(self) -> None:
        """Raise StrictError if evidence differs from the plan or a region is not on its first engine."""
        broken = [f"{f.claim}: {f.seen}" for f in confirm(self.plan, self.evidence()) if not f.ok]
        broken += self.plan.warnings
        if broken:
            do = "Change the request, or drop strict."
            raise StrictError(
                self._who, "strict=True, and not everything runs as asked", got="; ".join(broken), do=do
            )

    def reset_states(self) -> None:
        """Reset states to the graph's initial values. Do not call during a run."""
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
        """Return outputs by name, as the same kind of tensor as the inputs.

        Tensors on the backend's device are used in place, and outputs stay there; such a run is queued on the caller's stream.
        Raises InputError; RunError if a region fails without an alternative.
        """
        return self._execute(inputs, None)

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        return self.execute(inputs)

    def run(self, feeds: Mapping[str, Array], *, stopped: Callable[[], bool] | None = None) -> list[Array]:
        """Return outputs in the graph's order for checked arrays. ``stopped`` is called before each region; True ends the run with a
        RunError.
        """
        check_names(self._who, "feeds", feeds, "arrays")
        return list(self._run(dict(feeds), None, stopped).values())

    def _execute(self, inputs: Mapping[str, Any], watch: Watch | None) -> dict[str, Any]:
        check_names(self._who, "inputs", inputs, "arrays")
        if self._io is not None and (
            any(isinstance(v, DeviceBuffer) for v in inputs.values()) or on_a_device(inputs)
        ):
            return self._execute_on_device(inputs, watch)
        feeds, to_caller = (dict(inputs), None) if self._feeds is None else self._feeds.check(inputs)
        outputs = self._run(dict(feeds), watch)
        self._last = feeds
        return outputs if to_caller is None else {k: to_caller(v) for k, v in outputs.items()}

    def _execute_on_device(self, inputs: Mapping[str, Any], watch: Watch | None) -> dict[str, Any]:
        assert self._io is not None
        stream = self._io.stream()
        buffers = self._io.imported(inputs, stream)
        for buffer in buffers.values():
            buffer.pending = stream  # regions in other threads queue on streams of their own
        outputs = self._run(dict(buffers), watch, on_device=True)
        self._last = buffers
        for buffer in outputs.values():
            buffer.settle(stream)  # of a region in another thread, whose stream may differ
        results = self._io.exported(list(outputs.values()), inputs, stream)
        return dict(zip(outputs, results, strict=True))

    def _run(
        self,
        feeds: dict[str, Any],
        watch: Watch | None,
        stopped: Callable[[], bool] | None = None,
        timer: Timer | None = None,
        *,
        on_device: bool = False,
    ) -> dict[str, Any]:
        if self._closed:
            raise RunError(self._who, "is closed", do="Make a new one.")
        if self._weights is None:
            self.load_weights(None)
        if not self.graph.states:
            return self._once(feeds, watch, stopped, timer, on_device)
        with self._stateful:
            return self._once(feeds, watch, stopped, timer, on_device)

    def _once(
        self,
        feeds: dict[str, Any],
        watch: Watch | None,
        stopped: Callable[[], bool] | None,
        timer: Timer | None,
        on_device: bool,
    ) -> dict[str, Any]:
        graph = self.graph
        symbols = (
            bind(self._specs, {s.name: feeds[s.name].shape for s in self._specs}) if graph.symbols else {}
        )
        pass_ = DagRun(self, symbols, watch, stopped, on_device)
        values: dict[str, Any] = {**feeds, **self._states}
        self._schedule.run(values, pass_.work if timer is None else timer.around(pass_.work))
        outputs = {o.name: pass_.output(o.value, self._kept(o.value, values)) for o in graph.outputs}
        for state in graph.states:
            if state.next is not None:
                self._states[state.name] = pass_.state(state.next, self._kept(state.next, values))
        with self._counting:
            self._counts.update(pass_.counts)
            for region, counts in pass_.moved.items():
                self._moved[region].update(counts)
            self._counts["runs"] += 1
        return outputs

    def _kept(self, value: str, values: Mapping[str, Any]) -> Any:
        """Return a value that leaves the graph, from a region, the weights or a constant."""
        if value in values:
            return values[value]
        if value in self.graph.weight_names:
            assert self._weights is not None
            return np.array(self._weights[value])
        const = self.graph.literal(value)
        if const is None:
            raise RunError(self._who, "has no such value", got=repr(value))
        return np.array(const.numpy())

    # ── facts ──

    @property
    def plan(self) -> Plan:
        """Return the plan as it runs now, with the engines in use and the reasons against others."""
        regions = tuple(p.region for p in self._regions)
        return replace(
            self._first,
            regions=regions,
            decisions=tuple(p.decision for p in self._regions),
            warnings=tuple(w for p in self._regions for w in p.warnings),
        )

    @property
    def partition(self) -> PartitionPlan:
        """Return the plan of the regions as they run now, in names of the graph."""
        now = {p.region.id: p.region for p in self._regions}
        regions = tuple(now.get(r.id, r) for r in self._given.regions)
        return replace(self._given, plan=replace(self._first, regions=regions))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return each region's engine, and the reasons against the others."""
        return tuple(p.decision for p in self._regions)

    @property
    def counters(self) -> dict[str, int]:
        """Return counts since the executor was made: runs, regions run, crossings (values passed between regions), copies of values
        between devices and their bytes, and fallbacks (of regions to their next alternative).
        """
        with self._counting:
            counts = {k: self._counts[k] for k in ("runs", "regions", "crossings", "copies", "bytes")}
        return {**counts, "fallbacks": sum(p.fallbacks for p in self._regions)}

    @property
    def executors(self) -> list[tuple[str, dict[str, int], Executor]]:
        """Return the open programs of the native regions: region, sizes of its symbolic dims, executor."""
        runners = [(p.region.id, p.runner) for p in self._regions]
        return [
            (region, sizes, form)
            for region, runner in runners
            if isinstance(runner, NativeRunner)
            for sizes, form in runner.forms
        ]

    def examine_with(self, examine: Callable[[str, Executor, Mapping[str, int]], None]) -> None:
        """Have ``examine`` check each program of a native region before its first run, with the region and its sizes. Its errors are raised."""
        for placed in self._regions:
            if isinstance(placed.runner, NativeRunner):
                placed.runner.examine_with(functools.partial(examine, placed.region.id))

    def evidence(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Evidence]:
        """Return each region's evidence. With ``inputs``, run the model on them and time every region."""
        seen: Watch = {}
        if inputs is not None:
            self._execute(inputs, seen)
        regions = {p.region.id: p.evidence(*seen.get(p.region.id, (None, None))) for p in self._regions}
        with self._counting:
            return {k: replace(e, transfers={**e.transfers, **self._moved[k]}) for k, e in regions.items()}

    def region_times(self, feeds: Mapping[str, Array], clock: Callable[[], int]) -> dict[str, float]:
        """Return seconds of each region in one run on checked arrays, transfers included. ``clock`` returns nanoseconds.
        Raises RunError.
        """
        check_names(self._who, "feeds", feeds, "arrays")
        timer = Timer(clock)
        self._run(dict(feeds), None, None, timer)
        return {self._regions[i].region.id: t for i, t in timer.seconds.items()}

    def receipt(self, *, times: bool = True) -> Receipt:
        """Return every region's evidence compared with the plan; with ``times``, measured on the last inputs."""
        runs = self.counters["runs"]
        evidence = self.evidence(self._last if times else None)
        return Receipt.write(self.plan, evidence, runs)

    def close(self) -> None:
        """Free the engines' resources. Later runs raise RunError. May be called twice."""
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


def _target(backend: RuntimeBackend) -> str:
    """Return the target of a backend's programs: a GPU by its own name, so that its libraries can be queried."""
    if backend.kind == "cuda":
        return str(backend.device)
    return backend.target if isinstance(backend, HasTarget) else "cpu"


_KINDS: Mapping[str, tuple[Any, str, str]] = {
    "compile_fn": (Callable, "a function", "Give a function of a Graph that returns a CompiledProgram."),
    "original": (ModelSource, "an opened model", "Give xpuruntime.frontends.model_file.open_model(path)."),
    "store": (Store, "a store", "Give xpuruntime.storage.store.Store(folder)."),
    "request": (SessionRequest, "a SessionRequest", "Give policy= instead."),
}
"""Arguments that are None or of one kind: the kind, in words, and what to give."""


def _check_kinds(plan: object, **arguments: object) -> None:
    """Raise InputError for a plan or an argument of another kind, such as a path."""
    do = "Give a graph: import_onnx(...), and its plan: partition(graph)."
    words = "a PartitionPlan, or a Graph with a lock"
    check_argument("DAGExecutor", "plan", plan, PartitionPlan | Graph, words, do)
    for name, value in arguments.items():
        kind, words, do = _KINDS[name]
        if value is not None:
            check_argument("DAGExecutor", name, value, kind, words, f"{do} Or leave {name} out.")
