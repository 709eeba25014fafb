"""Locks of a DAGExecutor: making one, and running the regions that one names. Weights are the caller's and are not part of a lock."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...compiler.locked import KernelLock
from ...compiler.partition.partitioner import PartitionPlan
from ...compiler.partition.replay import replayed
from ...engines import engine_names
from ...errors import FormatError, LockChange, LockError, PolicyError
from ...ir import Graph
from ...ir.family import source_names
from ...policies import KernelPolicy, Policy, Resolved, load_policy
from ...printable import logger
from ...program.lock import ON_MISMATCH, Lock, LockedRegion, plan_digest
from ...program.program import CompiledProgram
from ...protocols import EngineRequest, ModelSource
from ...runtime.execution.executor import Executor
from ...targets import DeviceId
from ..lock_checks.programs import changes_text, mismatch, program_changes, region_programs
from ..lock_checks.validators import changes_from, region_validators

if TYPE_CHECKING:
    from .dag_executor import DAGExecutor

__all__ = ["DagLock", "lock_of_dag", "opened_lock"]

DAG_REMEDY = "Run these shapes before DAGExecutor.lock(), or run without the lock."

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class DagLock:
    """A lock that a DAGExecutor runs under. name: the file's name, for texts. plan: exactly the lock's regions."""

    lock: Lock
    name: str
    plan: PartitionPlan

    @property
    def demands(self) -> Resolved:
        """Return the policy of the lock."""
        return self.plan.demands

    def kernels(self, region: str) -> KernelLock:
        """Return the kernels of a region for one compilation."""
        return KernelLock(self.lock.kernels_of(region), DAG_REMEDY)

    def check_program(self, region: str, executor: Executor, shapes: Mapping[str, int]) -> None:
        """Compare a region's program with its record. Raise LockError."""
        what, changes = program_changes(self.lock, executor, shapes, region)
        if changes:
            raise mismatch(self.lock, self.name, self.plan.graph.name, what, changes)

    def check_plan(self, dag: DAGExecutor) -> None:
        """Compare the plan that runs with the lock's. Raise LockError."""
        here = plan_digest(dag.plan)
        if here != self.lock.plan:
            versions = {r.id: f"{r.engine} {r.engine_version}" for r in dag.plan.regions}
            changes: list[LockChange] = [
                (f"region {r.id}", f"{r.engine} {r.version}", versions.get(r.id, "absent"))
                for r in self.lock.regions
                if r.outputs and versions.get(r.id) != f"{r.engine} {r.version}"
            ]
            changes.append(("digest of the plan", self.lock.plan, here))
            what = "names another plan than the one that was made"
            raise mismatch(self.lock, self.name, self.plan.graph.name, what, tuple(changes))


def opened_lock(
    plan: PartitionPlan | Graph,
    lock: Lock | Mapping[str, Any] | str | os.PathLike[str] | None,
    original: ModelSource | None,
    choosing: Mapping[str, Any],
) -> DagLock | PartitionPlan:
    """Read and validate a lock. Return the plan itself without a lock, or if a validator failed and the lock declares a fallback.

    choosing: arguments that choose something, by name; unset ones are None. Raises PolicyError for one of them next to a lock, and for a graph
    without a lock; FormatError; LockError.
    """
    if lock is None:
        if isinstance(plan, Graph):
            do = "Give partition(graph), or a lock= of this graph."
            raise PolicyError(
                "DAGExecutor", "needs a plan, or a graph with a lock", got=repr(plan.name), do=do
            )
        return plan
    if named := [name for name, value in choosing.items() if value is not None]:
        do = "Drop them, or run without the lock."
        text = "a lock decides everything that these arguments choose"
        raise PolicyError("DAGExecutor", text, got=", ".join(named), do=do)
    read, name = Lock.read(lock)
    graph = plan if isinstance(plan, Graph) else plan.graph
    if not read.of_dag:
        do = "Open it with InferenceSession(model, lock=...), or write one with DAGExecutor.lock()."
        raise LockError(f"lock {name}", "is of a session, and not of a DAGExecutor", do=do)
    here = {"model": graph.digest}
    if read.validators.get("model") == graph.digest:
        here = _facts(graph, original, read.regions, read.threads, _policy(read, name).kernel)
    changes = changes_from(read, here)
    if changes and read.on_mismatch == "policy" and isinstance(plan, PartitionPlan):
        _log.warning("DAGExecutor: lock %s is not used: %s", name, changes_text(changes))
        return plan
    if changes:
        text = "does not fit: something changed since it was written"
        raise mismatch(read, name, graph.name, text, changes)
    ours = replayed(graph, read.regions, {})
    if isinstance(plan, PartitionPlan) and (moved := _moved(plan, ours)):
        raise mismatch(read, name, graph.name, "has other regions than the plan", moved)
    return DagLock(read, name, replace(ours, demands=Resolved(_policy(read, name), {})))


def lock_of_dag(dag: DAGExecutor, on_mismatch: str = "error") -> Lock:
    """Return the lock of an executor: its regions, and the programs of its native ones. Raises LockError, PolicyError."""
    who = f"lock of {dag.graph.name!r}"
    if on_mismatch not in ON_MISMATCH:
        words = " or ".join(ON_MISMATCH)
        raise PolicyError("lock", f"on_mismatch must be {words}", got=repr(on_mismatch), do=f"Give {words}.")
    partition, plan = dag.partition, dag.plan
    if dag.compiles_itself:
        do = "Leave compile_fn out, or keep the programs that it returns."
        raise LockError(who, "cannot pin what compile_fn= chooses", do=do)
    native = [r.id for r in plan.regions if r.engine == "native"]
    open_regions = {region for region, _, _ in dag.executors}
    if missing := [r for r in native if r not in open_regions]:
        do = "Load the weights (load_weights) and, with open shapes, run it once for each set of sizes."
        raise LockError(
            who, "has regions without a program, so no kernel is chosen yet", got=", ".join(missing), do=do
        )

    def again(region: str, graph: Graph, lock: KernelLock) -> CompiledProgram:
        return dag.compiled(region, graph, lock)

    under = None if dag.locked is None else dag.locked.lock
    programs = tuple(region_programs(who, dag.executors, partition.subgraph, again, under))
    policy = dag.demands.policy.to_dict()
    regions = tuple(
        LockedRegion(
            r.id,
            r.engine,
            r.engine_version,
            r.device,
            r.precision,
            {k: str(v) for k, v in dag.demands.policy.execution.options_for(r.engine).items()},
            partition.members[r.id],
            r.inputs,
            r.outputs,
        )
        for r in partition.regions
    )
    kernels: dict[str, dict[str, None]] = {}
    for call in (c for p in programs for c in p.calls):
        for node in call.nodes:
            kernels.setdefault(node, {})[call.kernel] = None
    homes = {r.id: r for r in partition.regions}
    graph = dag.graph
    nodes = tuple(
        {
            "name": n.name,
            "op": n.op,
            "family": n.family,
            "kernel": " + ".join(
                dict.fromkeys(k for s in source_names(graph.node(n.name)) for k in kernels.get(s, ()))
            ),
            "engine": homes[n.region].engine,
            "device": homes[n.region].device,
            "precision": homes[n.region].precision,
        }
        for n in plan.nodes
    )
    facts = _facts(graph, dag.original, regions, dag.threads, dag.demands.policy.kernel)
    model = {"name": graph.name, "digest": graph.digest, "format": "ir"}
    return Lock(
        model,
        plan_digest(replace(plan, transfers=replayed(graph, regions, {}).transfers)),
        policy,
        policy,
        dag.threads,
        facts,
        programs,
        nodes,
        on_mismatch=on_mismatch,
        version=facts["xpuruntime"],
        regions=regions,
    )


def _policy(lock: Lock, name: str) -> Policy:
    try:
        return load_policy(lock.policy, engines=engine_names())
    except PolicyError as error:
        what = "has a policy that this release does not read"
        raise FormatError(f"lock {name}", what, got=str(error), do="Write the lock again.") from error


def _facts(
    graph: Graph,
    original: ModelSource | None,
    regions: Sequence[LockedRegion],
    threads: int,
    kernels: KernelPolicy,
) -> dict[str, str]:
    """Return the facts under which the choices of these regions hold."""
    digests = {"model": graph.digest} | ({} if original is None else {"original model": original.digest})
    demanded = kernels.without_origins() if kernels.layers else None
    request = EngineRequest(DeviceId("cpu"), threads=threads, kernels=demanded)
    return region_validators(digests, [(r.engine, r.device) for r in regions], request)


def _moved(given: PartitionPlan, ours: PartitionPlan) -> tuple[LockChange, ...]:
    """Return the nodes that a given plan has on another engine or in another region than the lock."""

    def homes(plan: PartitionPlan) -> dict[str, str]:
        return {n: f"{r.id}, {r.engine} on {r.device}" for r in plan.regions for n in plan.members[r.id]}

    theirs, here = homes(ours), homes(given)
    return tuple(
        (f"node {n}", home, here.get(n, "absent")) for n, home in theirs.items() if here.get(n) != home
    )
