"""Making a lock of an open session: its choices, verified by a second compilation that uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...compiler.times import KernelTimes
from ...errors import LockError
from ...policies import Policy
from ...program.lock import Lock, LockedProgram, LockedRegion, locked_program, plan_digest
from ...program.plan import Plan
from ...protocols import EngineRequest, Executable, ModelSource
from ...targets import DeviceId
from ..lock_checks.programs import check_same, region_programs, with_algorithms
from ..lock_checks.validators import facts_request, validators_of
from ..native.engine import TIMES, compiled, compiled_graph, recorded, times_of
from ..native.executable import NativeExecutable
from ..partitioned.mixed import MixedExecutable, native_request
from ..selection.candidate import LoadedEngine
from ..selection.request import SessionRequest
from ..tuning.on_build import record_of
from .opening import bucket_of, lockable

__all__ = ["lock_of"]

_RUN_FIRST = "Run it once for each set of shapes first (xpu lock --shape, --bucket)."


def lock_of(
    model: ModelSource,
    request: SessionRequest,
    loaded: LoadedEngine,
    plan: Plan,
    original_threads: int | None,
    on_mismatch: str = "error",
) -> Lock:
    """Return the lock of a session. Raises LockError for a session that cannot be locked.

    With open shapes, the lock covers the shapes that the session has run.
    """
    who = f"lock of {model.name!r}"
    executable = loaded.executable
    programs: tuple[LockedProgram, ...] = ()
    regions: tuple[LockedRegion, ...] = ()
    engine_request = replace(facts_request(request), device=loaded.candidate.device)
    if isinstance(executable, MixedExecutable):
        plan = executable.plan(replace(plan, decisions=(), warnings=()))
        regions = tuple(_regions(executable, request))
        programs = tuple(_region_programs(executable, loaded.candidate.request, who))
        if not programs and executable.partition.graph.symbols and any(r.engine == "native" for r in regions):
            raise LockError(who, "no shapes were run, so no kernel is chosen yet", do=_RUN_FIRST)
    if isinstance(executable, NativeExecutable):
        programs = tuple(_programs(loaded.model, executable, who))
        if not programs:
            raise LockError(who, "no shapes were run, so no kernel is chosen yet", do=_RUN_FIRST)
    engines = (
        dict.fromkeys(("native", *(r.engine for r in regions))) if regions else (loaded.candidate.engine,)
    )
    validators = validators_of(model, tuple(engines), engine_request)
    names = ("name", "op", "family", "kernel")
    homes = {r.id: r for r in plan.regions}
    kernels = _kernels_of(programs)
    nodes = tuple(
        {
            k: str(v)
            for k, v in zip(names, (n.name, n.op, n.family, kernels.get(n.name, n.kernel)), strict=True)
        }
        | {
            "engine": homes[n.region].engine,
            "device": homes[n.region].device,
            "precision": homes[n.region].precision,
        }
        for n in plan.nodes
    )
    return Lock(
        {k: plan.model[k] for k in ("name", "digest", "format")},
        plan_digest(lockable(_with_kernels(plan, kernels), executable)),
        _pinned_policy(request, loaded).to_dict(),
        request.policy.to_dict(),
        int(request.threads or 1),
        validators,
        programs,
        nodes,
        original_threads,
        request.permit.value if request.permit is not None else "",
        on_mismatch,
        validators["xpuruntime"],
        _kernel_times(executable, request, engine_request),
        regions,
    )


def _regions(executable: MixedExecutable, request: SessionRequest) -> Iterator[LockedRegion]:
    partition = executable.partition
    for r in partition.regions:
        options = {k: str(v) for k, v in request.execution.options_for(r.engine).items() if k != TIMES}
        borders = partition.members[r.id], r.inputs, r.outputs
        yield LockedRegion(r.id, r.engine, r.engine_version, r.device, r.precision, options, *borders)


def _region_programs(
    executable: MixedExecutable, request: SessionRequest, who: str
) -> Iterator[LockedProgram]:
    at = {r.id: DeviceId.parse(r.device) for r in executable.partition.regions}
    return region_programs(
        who,
        executable.executors,
        executable.partition.subgraph,
        lambda region, graph, lock: compiled_graph(graph, native_request(request, at[region]), lock),
        request.lock,
    )


def _kernel_times(
    executable: Executable, request: SessionRequest, engine_request: EngineRequest
) -> dict[str, str]:
    """Return the file of measured times that the session's kernels were chosen by, with its digest and facts; empty without one."""
    if isinstance(executable, NativeExecutable) and (measured := _measured_times(executable)):
        return measured
    options = request.execution.options_for("native")
    ours = NativeExecutable | MixedExecutable
    if not isinstance(executable, ours) or TIMES not in options:
        return {}
    times = times_of(replace(engine_request, options=options))
    return {**times.facts, "file": options[TIMES], "digest": times.digest, "target": times.target}


def _measured_times(executable: NativeExecutable) -> dict[str, str]:
    """Return device, digest and target of what was measured when the session's programs were built; empty without ``tune``."""
    records = [r for e, _ in executable.executors() if (r := record_of(e.program)) is not None]
    measured = [KernelTimes.load(r["times"]) for r in records]
    if not measured:
        return {}
    digest = "+".join(dict.fromkeys(t.digest for t in measured if t.digest))
    file = f"tune: on_build {records[0]['on_build']:g} s"
    return {**measured[0].facts, "file": file, "digest": digest, "target": measured[0].target}


def _without_times(options: Mapping[str, Mapping[str, str | int | float]] | None) -> Any:
    """Return engine options without the file of times: the lock names the kernels that it chose."""
    native = {k: v for k, v in (options or {}).get("native", {}).items() if k != TIMES}
    kept = {name: own for name, own in (options or {}).items() if name != "native"}
    return kept | ({"native": native} if native else {}) or None


def _with_kernels(plan: Plan, kernels: Mapping[str, str]) -> Plan:
    """Return the plan of a session under the lock, where the algorithm that a library chose is part of a kernel's word."""
    nodes = (replace(n, kernel=kernels.get(n.name, n.kernel)) if n.kernel else n for n in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def _kernels_of(programs: tuple[LockedProgram, ...]) -> dict[str, str]:
    """Return the kernels of each node over all shape buckets."""
    words: dict[str, dict[str, None]] = {}
    for call in (c for p in programs for c in p.calls):
        for node in call.nodes:
            words.setdefault(node, {})[call.kernel] = None
    return {node: " + ".join(kernels) for node, kernels in words.items()}


def _pinned_policy(request: SessionRequest, loaded: LoadedEngine) -> Policy:
    """Return the policy that names the engine, the device and the precision. Kernel rules stay, since passes read them.

    The self-check is off: its verdict at the time of locking is what the lock rests on.
    """
    execution = replace(
        request.execution,
        engine=loaded.candidate.engine,
        target=str(loaded.candidate.device),
        precision=request.execution.precision if loaded.candidate.precision is not None else "model",
        allow_fallback=(),
        self_check="off",
        tune=None,
        engine_options=_without_times(request.execution.engine_options),
    )
    return Policy(kernel=request.policy.kernel, execution=execution)


def _programs(model: ModelSource, executable: NativeExecutable, who: str) -> Iterator[LockedProgram]:
    for executor, request in executable.executors():
        shapes = bucket_of(executable, executor)
        implementations = tuple(executor.implementations)
        if model.format == "program":
            yield locked_program(executor.program, executor.plan, shapes, implementations, {})
            continue
        record = record_of(executor.program)
        times = None if record is None else KernelTimes.load(record["times"])
        program, kernels = recorded(model, request, shapes, times)
        check_same(who, executor, program, shapes, implementations)
        kernels = with_algorithms(kernels, executor, implementations)
        again = compiled(model, replace(request, locked=kernels), shapes)
        check_same(who, executor, again, shapes, implementations)
        yield locked_program(again, again.entries[0].plans[0], shapes, implementations, kernels)
