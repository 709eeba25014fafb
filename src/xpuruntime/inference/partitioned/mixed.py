"""A session's model on several engines: the conditions, and the partitioned model as one executable.

The conditions are: the policy places nodes (``place``); a rule forces a kernel (``use``) in a model on a vendor engine, whose kernels cannot be
chosen; or the native engine was named, lacks ops, and ``allow_fallback`` admits other engines for those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import __version__
from ...compiler.locked import KernelLock
from ...compiler.partition.cost import Costs
from ...compiler.partition.partitioner import PartitionPlan, partition
from ...compiler.partition.replay import replayed
from ...decisions import Candidate, Reason, Support
from ...engines import lookup
from ...engines.attribution import SourceGraph, explain_unnamed
from ...errors import EngineUnavailable, UnavailableError, XpuError
from ...ir import Graph
from ...ir.family import source_names
from ...ir.host_waits import decides_sizes
from ...policies import ExecutionPolicy, KernelPolicy, Policy, Resolved
from ...program.plan import Plan, PlanNode, Region
from ...program.program import CompiledProgram
from ...protocols import Array, EngineRequest, Evidence, HasRegions, ModelSource, RunsTensors, Stoppable
from ...runtime.execution.executor import Executor
from ...storage.store import Store
from ...targets import DeviceId
from ..native.engine import compiled_graph, compiler_facts, takes_options
from ..native.model import native_model
from ..selection.candidate import EngineCandidate, LoadedEngine
from ..selection.request import SessionRequest, kernels_key
from ..selection.vendor_options import speaks_of_families
from .dag_executor import DAGExecutor
from .region_devices import first_gpu, product_of

__all__ = [
    "MixedExecutable",
    "forces_kernels",
    "lacks_ops",
    "lacks_sizes",
    "locked_mix",
    "mixed",
    "mixed_of",
    "native_request",
    "partition_on",
    "region_of",
    "with_host_steps",
]

_LACKING = (Reason.OP_UNSUPPORTED, Reason.BUILD_FAILED)


def forces_kernels(policy: KernelPolicy | None, met: Mapping[str, Sequence[str]]) -> bool:
    """Return True if a KernelPolicy has a rule that forces a kernel, apart from those that a vendor's options satisfy."""
    if policy is None:
        return False
    rules = [r for layer in policy.layers for r in layer.rules if r.use]
    return any(
        not speaks_of_families(r) or any(met.get(family, ("",))[0] != r.use for family in r.op) for r in rules
    )


def lacks_ops(rejected: Sequence[Candidate]) -> bool:
    """Return True if the native engine was refused for missing ops, and not for a device, an option or a precision."""
    return any(c.name.startswith("native on ") and c.code in _LACKING for c in rejected)


def lacks_sizes(rejected: Sequence[Candidate]) -> bool:
    """Return True if the native engine was refused because only a run knows a size."""
    return any(c.name.startswith("native on cpu") and c.code is Reason.SHAPE_UNSUPPORTED for c in rejected)


def with_host_steps(
    model: ModelSource, request: SessionRequest, store: Store
) -> tuple[LoadedEngine, str] | Candidate:
    """Return the model on the native engine, with NumPy for the nodes whose results have sizes that only a run knows, and their names.

    Regions between them are compiled for the sizes of a run. Returns the reason if another node has no kernel.
    """
    first = EngineCandidate("native", DeviceId("cpu"), request)
    steps: list[str] = []

    def only_sizes(graph: Graph, plan: PartitionPlan) -> Candidate | None:
        for region in (r for r in plan.regions if r.engine == "interpreter"):
            nodes = [graph.node(n) for n in plan.members[region.id]]
            # The IR's nodes of one node of the model stay together.
            deciding = {source_names(n)[0]: n.op for n in nodes if decides_sizes(graph, n)}
            for name in (source_names(n)[0] for n in nodes):
                if name not in deciding:
                    do = "Use a vendor engine for this model, or allow_fallback."
                    return Candidate(first.name, Reason.OP_UNSUPPORTED, f"no kernel computes {name}", do)
            steps.extend(f"{op} ({name})" for name, op in deciding.items())
        return None

    try:
        mix = mixed(model, first, ("interpreter",), {}, store, absorb=False, admits=only_sizes)
    except UnavailableError as error:
        return Candidate(first.name, Reason.OP_UNSUPPORTED, f"{error.what}: {error.got}", error.do)
    return mix if isinstance(mix, Candidate) else (mix, ", ".join(steps))


def mixed(
    model: ModelSource,
    first: EngineCandidate,
    others: Sequence[str],
    place: Mapping[str, str],
    store: Store,
    *,
    absorb: bool = True,
    admits: Callable[[Graph, PartitionPlan], Candidate | None] | None = None,
) -> LoadedEngine | Candidate:
    """Partition the model with ``first`` as the default engine, or return the reason why that is impossible.

    admits: returns the reason against a plan, if there is one; it may then have one engine.
    absorb: as for ``partition``; an engine named by the user keeps every node that it supports.
    Returns a Candidate also if one engine has all of the model. Raises EngineUnavailable, KernelUnavailable if a demanded
    placement or kernel is unavailable.
    """
    name = f"{first.engine} with others on {first.device}"
    if first.device.kind not in ("cpu", "auto", "cuda"):
        text = f"a model on several engines runs on the cpu or a GPU, not on {first.device}"
        return Candidate(name, Reason.DEVICE_MISMATCH, text, "Name device='cpu' or 'cuda', or place nothing.")
    if first.request.execution.compile_timeout_s is not None:
        text = "the compilers of a model on several engines cannot be ended by compile_timeout_s"
        return Candidate(name, Reason.TIMED_OUT, text, "Drop compile_timeout_s, or place nothing.")
    if first.precision not in (None, model.precision):
        text = "a model on several engines runs in its own precision"
        return Candidate(name, Reason.PRECISION_UNSUPPORTED, text, "Leave precision out.")
    try:
        source = native_model(model)
        if source.graph.states:
            return Candidate(name, Reason.OP_UNSUPPORTED, "a session's model has no states")
        plan = partition(
            source.graph,
            _demanded_kernels(first.request, first.engine, first.device),
            others=tuple(_on_device(e, first.device) for e in others),
            place={k: _on_device(e, first.device) for k, e in place.items()},
            absorb=absorb,
        )
        if admits is not None:
            if (refused := admits(source.graph, plan)) is not None:
                return refused
            regions = tuple(replace(r, alternatives=()) for r in plan.plan.regions)
            plan = replace(plan, plan=replace(plan.plan, regions=regions))
        elif len({r.engine for r in plan.regions}) == 1 and not place:
            return Candidate(name, Reason.NOT_APPLICABLE, f"all of it is on {plan.regions[0].engine}")
    except UnavailableError:
        raise
    except XpuError as error:
        return Candidate(name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    return mixed_of(model, plan, first, store)


def _demanded_kernels(request: SessionRequest, engine: str, device: DeviceId) -> Resolved:
    """Return the demands for ``partition``: the requested kernels, and the engine that comes first with its device."""
    target = str(device) if device.kind == "cuda" else None
    return _demands(request, ExecutionPolicy(engine=engine, target=target))


def partition_on(
    graph: Graph, first: EngineCandidate, engines: Sequence[str], place: Mapping[str, str], costs: Costs
) -> PartitionPlan:
    """Return the plan over engines on the device of ``first``. Costs name engines without a device."""
    device = first.device
    return partition(
        graph,
        _demanded_kernels(first.request, engines[0], device),
        others=[_on_device(e, device) for e in engines[1:]],
        place={k: _on_device(e, device) for k, e in place.items()},
        costs=costs,
    )


def _on_device(engine: str, device: DeviceId) -> str:
    """Return an engine as ``partition`` names it for a device; engines without CUDA stay on the host."""
    return f"{engine} on {device}" if device.kind == "cuda" and _has_cuda(engine) else engine


def _has_cuda(engine: str) -> bool:
    try:
        return lookup(engine).has_cuda()
    except EngineUnavailable:  # the interpreter, PyTorch's own ops, or an engine with its device
        return False


def mixed_of(
    model: ModelSource, plan: PartitionPlan, first: EngineCandidate, store: Store
) -> LoadedEngine | Candidate:
    """Return the partitioned model as an executable, or the reason against it. ``facts`` hold its name and the engine of each node.

    Raises EngineUnavailable, KernelUnavailable if a demand cannot be met.
    """
    regions = [r for r in plan.regions if r.outputs]  # others compute nothing that is read, and do not run
    if not regions:
        text = "no node computes an output: each is an input, a weight or a constant"
        return Candidate("several engines", Reason.NOT_APPLICABLE, text, "Place nothing.")
    engines = dict.fromkeys(r.engine for r in regions)
    name = f"{' + '.join(engines)} on {first.device}, {len(regions)} regions"
    request = first.request
    at = {r.id: DeviceId.parse(r.device) for r in regions if r.engine == "native"}
    gpu = first_gpu([r.device for r in plan.regions])
    host = next((n for r, device in at.items() if device.kind == "cpu" for n in plan.members[r]), "")
    if gpu is not None and host:
        text = f"native regions of a model that uses {gpu} run on GPUs, and node {host!r} is placed on native on the cpu"
        do = f"Place it on 'native on {gpu}', or on a vendor engine on the cpu."
        return Candidate(name, Reason.DEVICE_MISMATCH, text, do)
    if request.tune is not None:
        text = "tune measures the kernels of a model on the native engine alone, and this one has several regions"
        do = "Drop tune, or measure the placements: xpu tune --regions."
        return Candidate(name, Reason.OPTION_UNKNOWN, text, do)
    if not (answer := takes_options(native_request(request, first.device))):
        return Candidate.rejected(name, answer)

    def compiled(graph: Graph) -> CompiledProgram:
        own = native_request(request, at.get(region_of(graph), first.device))
        return compiled_graph(graph, own, _kernel_lock(request, graph))

    try:
        dag = DAGExecutor(
            plan,
            compile_fn=compiled,
            original=model if model.format == "onnx" else None,
            threads=request.threads,
            store=store if request.caching else None,
            request=request.released(),
        )
        dag.load_weights(native_model(model).weights)
    except UnavailableError:
        raise
    except XpuError as error:
        return Candidate(name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    homes = {n: r.engine for r in plan.regions for n in plan.members[r.id]}
    facts = {"regions": len(regions), "from_store": False, "mix": name, "homes": homes}
    executable = MixedExecutable(model, plan, dag)
    key = _artifact_key(model, plan, dag.plan.regions, request)
    return LoadedEngine(first, model, executable, __version__, model.precision, Support.yes(), facts, key)


def _artifact_key(
    model: ModelSource, plan: PartitionPlan, regions: Sequence[Region], request: SessionRequest
) -> dict[str, Any]:
    """Return everything that decides the programs of a mix. regions: as they run now. Raises DeviceUnavailable."""
    return {
        "xpuruntime": __version__,
        "compiler": dict(compiler_facts()),
        "engines": {r.engine: r.engine_version for r in regions},
        "model": model.digest,
        "homes": {n: f"{r.engine} on {r.device}" for r in regions for n in plan.members[r.id]},
        "devices": sorted({product_of(DeviceId.parse(r.device)) for r in regions}),
        "threads": request.threads,
        "options": request.options,
        "optimization": request.optimization,
        "kernels": kernels_key(request.kernels),
    }


def native_request(request: SessionRequest, device: DeviceId) -> EngineRequest:
    """Return the request that a native region of a session on a device is compiled for."""
    options = request.options.get("native", {})
    at = device if device.kind == "cuda" else DeviceId("cpu")
    return EngineRequest(at, None, request.threads, options, request.optimization, request.kernels)


def _kernel_lock(request: SessionRequest, graph: Graph) -> KernelLock | None:
    """Return the kernels that a lock names for the graph of a region; None without a lock."""
    return None if request.lock is None else KernelLock(request.lock.kernels_of(region_of(graph)))


def region_of(graph: Graph) -> str:
    """Return the region that a graph of ``PartitionPlan.subgraph`` is of."""
    return graph.name.rpartition(".")[2]


def locked_mix(model: ModelSource, request: SessionRequest, store: Store) -> LoadedEngine | Candidate:
    """Return the model on the regions that the request's lock names, or the reason against it. Nothing is chosen.

    Raises FormatError for a lock whose regions are no partition of the model, LockError, EngineUnavailable.
    """
    assert request.lock is not None
    plan = replayed(native_model(model).graph, request.lock.regions, {})
    device = first_gpu([r.device for r in plan.regions]) or DeviceId("cpu")
    first = EngineCandidate(str(request.engine), device, request)
    return mixed_of(model, plan, first, store)


def _demands(request: SessionRequest, execution: ExecutionPolicy) -> Resolved:
    return Resolved(Policy(kernel=request.kernels or KernelPolicy(), execution=execution), {})


class MixedExecutable(Stoppable, HasRegions, RunsTensors):
    """A DAGExecutor as an engine's executable. ``regions`` is the plan in names of the user's model."""

    def __init__(self, model: ModelSource, plan: PartitionPlan, dag: DAGExecutor) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model, self._dag, self._partition = model, dag, plan

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return outputs in the model's order. Raises RunError."""
        return self._dag.run(feeds)

    @property
    def on_device(self) -> bool:
        """Return True if the regions are on a device with memory of its own."""
        return not self._dag.backend.core_is_host

    def run_tensors(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Run on the device's tensors, queued on the caller's stream. Raises InputError, RunError."""
        return list(self._dag.execute(tensors).values())

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Return None: regions pass values to each other by name."""
        return None

    def context(self) -> MixedContext:
        """Return a context for one run that can be stopped between two regions."""
        return MixedContext(self._dag)

    def plan(self, plan: Plan) -> Plan:
        """Return the session's plan with the regions, transfers and decisions of this executable."""
        now = self._dag.plan
        runs = {r.id for r in now.regions}  # a region that computes nothing that is read does not run
        home = {n.name: n.region for n in self._partition.plan.nodes if n.region in runs}
        regions: dict[str, list[str]] = {}
        for node in self._partition.graph.nodes:
            for source in source_names(node):
                if node.name in home:
                    regions.setdefault(source, []).append(home[node.name])
        nodes = tuple(_in_region(n, regions, now.regions[0].id) for n in plan.nodes)
        return replace(
            plan,
            regions=now.regions,
            nodes=nodes,
            transfers=now.transfers,
            decisions=(*plan.decisions, *now.decisions),
            warnings=(*plan.warnings, *now.warnings),
        )

    @property
    def partition(self) -> PartitionPlan:
        """Return the plan of the regions as they run now, in names of the graph."""
        return self._dag.partition

    @property
    def executors(self) -> list[tuple[str, dict[str, int], Executor]]:
        """Return ``DAGExecutor.executors``."""
        return self._dag.executors

    def examine_with(self, examine: Callable[[str, Executor, Mapping[str, int]], None]) -> None:
        """Check programs of native regions as ``DAGExecutor.examine_with`` does."""
        self._dag.examine_with(examine)

    def region_evidence(self, feeds: Mapping[str, Array] | None = None) -> dict[str, Evidence]:
        """Return each region's evidence. Nodes that no step names have reasons, in the evidence of the first region if they have none of their own."""
        evidence = self._dag.evidence(feeds)
        told = {n for e in evidence.values() for n in e.explained}
        rows = [(row.nodes, row.kernel) for e in evidence.values() for row in e.rows if row.nodes]
        outputs = [s.name for s in self.outputs]
        reasons = explain_unnamed(
            SourceGraph(self._model), outputs, rows, "partitioning, compiling or loading"
        )
        homes = {
            source: region
            for region, names in self._partition.members.items()
            for name in names
            for source in source_names(self._partition.graph.node(name))
        }
        first = next(iter(evidence), "")
        mine: dict[str, dict[str, str]] = {region: {} for region in evidence}
        for node, why in reasons.items():
            if node not in told:
                mine[home if (home := homes.get(node, first)) in mine else first][node] = why
        return {r: replace(e, explained={**e.explained, **mine[r]}) for r, e in evidence.items()}

    def region_times(self, feeds: Mapping[str, Array], clock: Callable[[], int]) -> dict[str, float]:
        """Return seconds of each region in one run. ``clock`` returns nanoseconds. Raises RunError."""
        return self._dag.region_times(feeds, clock)

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return the rows of every region as one evidence."""
        evidence = self.region_evidence(feeds)
        rows = tuple(row for e in evidence.values() for row in e.rows)
        fallbacks = tuple(f for e in evidence.values() for f in e.fallbacks)
        return Evidence("mixed", __version__, rows, "session", fallbacks=fallbacks)

    @property
    def counters(self) -> dict[str, int]:
        """Return ``DAGExecutor.counters``."""
        return self._dag.counters

    def close(self) -> None:
        """Free every region."""
        self._dag.close()


class MixedContext:
    """A context of one run at a time."""

    def __init__(self, dag: DAGExecutor) -> None:
        self._dag, self._stopped = dag, threading.Event()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run as the executable does."""
        return self._dag.run(feeds, stopped=self._stopped.is_set)

    def stop(self) -> None:
        """Stop the run before its next region."""
        self._stopped.set()


def _in_region(node: PlanNode, regions: Mapping[str, Sequence[str]], first: str) -> PlanNode:
    """Return a plan node with its region: the last one for a split node, the first one for a node folded away in the IR."""
    ids = regions.get(node.name, (first,))
    return replace(node, region=ids[-1])
