"""A session's model on several engines: when that happens, and the partitioned model as one executable.

It happens where the policy places nodes (``place``), where a rule forces a kernel (``use``) in a model that a vendor engine runs, whose
kernels nobody can choose, and where the native engine was named, lacks ops, and ``allow_fallback`` admits others for those.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ... import __version__
from ...compiler import compile as compile_graph
from ...compiler.partition import PartitionPlan, partition
from ...decisions import Candidate, Reason, Support
from ...errors import UnavailableError, XpuError
from ...ir import Graph
from ...ir.family import source_names
from ...policies import ExecutionPolicy, Policy, Resolved, load_policy
from ...program.plan import Plan, PlanNode
from ...program.program import CompiledProgram
from ...protocols import Array, Evidence, ModelSource
from ...store import Store
from ..native.engine import compiler_facts
from ..native.model import native_model
from ..selection.candidate import Loaded, Wanted
from ..selection.vendor_options import speaks_of_families
from .dag_executor import DAGExecutor

__all__ = ["MixedExecutable", "demanded_kernels", "forces_kernels", "lacks_ops", "mixed", "mixed_of"]

_LACKING = (Reason.OP_UNSUPPORTED, Reason.BUILD_FAILED)


def forces_kernels(kernels: str, met: Mapping[str, Sequence[str]]) -> bool:
    """Whether a KernelPolicy, as JSON text, has a rule that forces a kernel, other than those that a vendor's options met."""
    if not kernels:
        return False
    rules = [r for layer in _policy(kernels).kernel.layers for r in layer.rules if r.use]
    return any(
        not speaks_of_families(r) or any(met.get(family, ("",))[0] != r.use for family in r.op) for r in rules
    )


def lacks_ops(rejected: Sequence[Candidate]) -> bool:
    """Whether the native engine was refused for ops that it lacks, and not for a device, an option or a precision."""
    return any(c.name.startswith("native on ") and c.code in _LACKING for c in rejected)


def mixed(
    model: ModelSource,
    first: Wanted,
    others: Sequence[str],
    place: Mapping[str, str],
    store: Store,
    *,
    absorb: bool = True,
) -> Loaded | Candidate:
    """The model with ``first`` as the engine of whatever nobody else is wanted for; or why that cannot be had.

    absorb: as ``partition`` takes it; an engine that the user named keeps what it can run.
    Gives a Candidate too where nothing would be mixed: all of the model is on one engine. Raises EngineUnavailable, KernelUnavailable for a
    placement or a kernel that was demanded and cannot be had.
    """
    name = f"{first.engine} with others on {first.device}"
    if first.device.kind not in ("cpu", "auto"):
        text = f"a model on several engines runs on the cpu, not on {first.device}"
        return Candidate(name, Reason.DEVICE_MISMATCH, text, "Name device='cpu', or place nothing.")
    if first.compile_timeout_s is not None:
        text = "the compilers of a model on several engines cannot be ended by compile_timeout_s"
        return Candidate(name, Reason.TIMED_OUT, text, "Drop compile_timeout_s, or place nothing.")
    if first.precision not in (None, model.precision):
        text = "a model on several engines runs in its own precision"
        return Candidate(name, Reason.PRECISION_UNSUPPORTED, text, "Leave precision out.")
    try:
        found = native_model(model)
        if found.graph.states:
            return Candidate(name, Reason.OP_UNSUPPORTED, "a session's model has no states")
        plan = partition(
            found.graph,
            demanded_kernels(first, first.engine),
            others=tuple(others),
            place=place,
            absorb=absorb,
        )
        if len({r.engine for r in plan.regions}) < 2 and not place:
            return Candidate(name, Reason.NOT_APPLICABLE, f"all of it is on {plan.regions[0].engine}")
    except UnavailableError:
        raise
    except XpuError as error:
        return Candidate(name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    return mixed_of(model, plan, first, store)


def demanded_kernels(wanted: Wanted, engine: str) -> Resolved:
    """What ``partition`` takes as demands: the kernels that are wanted, and the engine that comes first."""
    policy = Policy(kernel=_policy(wanted.kernels).kernel, execution=ExecutionPolicy(engine=engine))
    return Resolved(policy, {})


def mixed_of(model: ModelSource, plan: PartitionPlan, first: Wanted, store: Store) -> Loaded | Candidate:
    """The partitioned model as an executable; or why that cannot be had. ``facts`` hold its name and the engine of each node.

    Raises EngineUnavailable, KernelUnavailable for what was demanded and cannot be had.
    """
    regions = [r for r in plan.regions if r.outputs]  # others make nothing that is read, and do not run
    engines = dict.fromkeys(r.engine for r in regions)
    name = f"{' + '.join(engines)} on {first.device}, {len(regions)} regions"
    try:
        dag = DAGExecutor(
            plan,
            compile_fn=_compiler(_policy(first.kernels), first.optimization),
            original=model if model.format == "onnx" else None,
            threads=first.threads,
            store=store if first.caching else None,
            wanted=first,
        )
        dag.load_weights(native_model(model).weights)
    except UnavailableError:
        raise
    except XpuError as error:
        return Candidate(name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    homes = {n: r.engine for r in plan.regions for n in plan.members[r.id]}
    facts = {"regions": len(regions), "from_store": False, "mix": name, "homes": homes}
    executable = MixedExecutable(model, plan, dag)
    key = {
        "xpuruntime": __version__,
        "compiler": dict(compiler_facts()),
        "engines": {r.engine: r.engine_version for r in dag.plan.regions},
        "model": model.digest,
        "homes": homes,
        "threads": first.threads,
        "options": first.region_options,
        "optimization": first.optimization,
        "kernels": first.kernels,
    }
    return Loaded(first, model, executable, __version__, model.precision, Support.yes(), facts, key)


def _policy(kernels: str) -> Policy:
    return load_policy(json.loads(kernels)) if kernels else Policy()


def _compiler(kernels: Policy, level: int) -> Callable[[Graph], CompiledProgram]:
    policy = Resolved(Policy(kernel=kernels.kernel, execution=ExecutionPolicy(optimization_level=level)), {})
    return lambda graph: compile_graph(graph, target="cpu", policy=policy)


class MixedExecutable:
    """A DAGExecutor as an engine's executable. ``regions`` is the plan in the words of the user's model."""

    def __init__(self, model: ModelSource, plan: PartitionPlan, dag: DAGExecutor) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model, self._dag, self._partition = model, dag, plan

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Outputs in the model's order. Raises RunError."""
        return self._dag.run(feeds)

    def context(self) -> MixedContext:
        """A place for one run that can be ended between two regions."""
        return MixedContext(self._dag)

    def plan(self, plan: Plan) -> Plan:
        """The session's plan with the regions, transfers and decisions of this one."""
        now = self._dag.plan
        home = {n.name: n.region for n in self._partition.plan.nodes}
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

    def region_evidence(self, feeds: Mapping[str, Array] | None = None) -> dict[str, Evidence]:
        """By region, what its engine says ran."""
        return self._dag.evidence(feeds)

    def region_times(self, feeds: Mapping[str, Array], clock: Callable[[], int]) -> dict[str, float]:
        """Seconds of each region in one run, by a clock of nanoseconds. Raises RunError."""
        return self._dag.region_times(feeds, clock)

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Every region's rows in one."""
        found = self.region_evidence(feeds)
        rows = tuple(row for e in found.values() for row in e.rows)
        fallbacks = tuple(f for e in found.values() for f in e.fallbacks)
        return Evidence("mixed", __version__, rows, "session", fallbacks=fallbacks)

    @property
    def counters(self) -> dict[str, int]:
        """As ``DAGExecutor.counters``."""
        return self._dag.counters

    def close(self) -> None:
        """Free every region."""
        self._dag.close()


class MixedContext:
    """One run at a time."""

    def __init__(self, dag: DAGExecutor) -> None:
        self._dag, self._stopped = dag, threading.Event()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """As the executable's."""
        return self._dag.run(feeds, stopped=self._stopped.is_set)

    def stop(self) -> None:
        """The run ends before its next region."""
        self._stopped.set()


def _in_region(node: PlanNode, regions: Mapping[str, Sequence[str]], first: str) -> PlanNode:
    """A node that became several is in the region of the last; one that the IR folded away is in the first."""
    found = regions.get(node.name, (first,))
    return replace(node, region=found[-1])
