"""A policy's demands on a DAGExecutor. Those settled by partition are kept; the rest apply to the engines of the regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import env
from ...compiler.partition.partitioner import PartitionPlan
from ...errors import DeviceUnavailable, PolicyError
from ...policies import ExecutionPolicy, Policy, Resolved, effective_policy
from ...policies.entrances import PARTITIONED, possible, refuse
from ...printable import logger
from ...program.plan import Region
from ...runtime.backends.base import RuntimeBackend
from ...runtime.backends.cpu import CpuBackend
from ...runtime.memory.buffer import backend_of
from ...targets import DeviceId
from ..selection.request import SessionRequest
from ..selection.vendor_policy import limits
from .region_devices import first_gpu

__all__ = ["backend_for", "native_demands", "request_of", "settled_demands"]

_log = logger("xpuruntime.session")


def settled_demands(plan: PartitionPlan, policy: Any) -> Resolved:
    """Return the demands of the argument, the plan, ``with_policy`` and the environment. Raises PolicyError, UnavailableError."""
    compiled = plan.demands.policy
    demands = effective_policy({}, policy, compiled, builtin=False)
    possible("DAGExecutor", demands)
    fallback = {DeviceId.parse(d) for d in demands.policy.execution.allow_fallback or ()}
    fell = []
    for field in PARTITIONED:
        value = getattr(demands.policy.execution, field)
        if value == getattr(compiled.execution, field) or _satisfies(plan, field, value):
            continue
        if field in ("target", "precision") and {DeviceId.parse(r.device) for r in plan.regions} <= fallback:
            fell.append(f"{field} {value}")
            continue
        raise refuse("DAGExecutor", field, demands, "partition settled it", "Give the policy to partition.")
    if fell:
        _log.warning("DAGExecutor: %s is unavailable; the plan's own is used", ", ".join(fell))
    engines = {e for r in plan.regions for e in (r.engine, *(a.partition(" on ")[0] for a in r.alternatives))}
    known = {r for layer in compiled.kernel.layers for r in layer.rules}
    settled = {layer.weight_words for layer in compiled.kernel.layers}
    for layer in demands.policy.kernel.layers:
        words = layer.weight_words
        if words and words.kernels and words not in settled and engines != {"native"}:
            text = "cannot honor kernel.weights: partition places the nodes with such weights"
            before = compiled.kernel.keyword_words() or "no weights"
            raise PolicyError(
                "DAGExecutor",
                text,
                got=f"{words}, where partition was given {before}",
                do="Give the policy to partition.",
            )
        for rule in layer.rules:
            if rule not in known and (rule.use or (limits(rule) and engines != {"native"})):
                text = f"use {rule.use!r}" if rule.use else rule.label()
                verb = "forces a kernel" if rule.use else "limits kernels"
                raise PolicyError(
                    "DAGExecutor",
                    f"cannot honor kernel.rules: partition places the nodes for which a rule {verb}",
                    got=f"{text} ({layer.origin})" if layer.origin else text,
                    do="Give the policy to partition.",
                )
    return demands


def _satisfies(plan: PartitionPlan, field: str, value: Any) -> bool:
    """Return True if the plan already satisfies a field."""
    regions = plan.regions
    match field:
        case "target":
            return value == "auto" or all(DeviceId.parse(r.device) == DeviceId.parse(value) for r in regions)
        case "engine":
            return all(r.engine == value for r in regions)
        case "precision":
            return value == "model" or all(r.precision == value for r in regions)
        case "static_shape":
            return not (value and plan.graph.symbols)
        case _:
            return False


def backend_for(demands: Resolved, backend: Any, devices: Sequence[str] = ()) -> RuntimeBackend:
    """Return the argument, else the backend of the policy's device, else of the first GPU of ``devices``, else the host. Raises
    DeviceUnavailable if the argument and the policy differ.
    """
    named = demands.policy.execution.target
    gpu = first_gpu(devices) or DeviceId("cpu")
    device = gpu if named in (None, "auto") else DeviceId.parse(named)
    fallback = demands.policy.execution.allow_fallback
    if backend is None:
        try:
            return backend_of(str(device)) if device.kind == "cuda" else CpuBackend()
        except DeviceUnavailable:
            if not fallback:
                raise
            return CpuBackend()  # partition has warned
    chosen = backend_of(backend)
    other = named not in (None, "auto") and device.kind in ("cpu", "cuda") and chosen.kind != device.kind
    if other and not (fallback and chosen.kind == "cpu"):
        why = f"the backend drives {chosen.kind}"
        raise refuse("DAGExecutor", "target", demands, why, "Hand in a backend of that device, or drop one.")
    return chosen


def region_backends(backend: RuntimeBackend, regions: Sequence[Region]) -> dict[str, RuntimeBackend]:
    """Return the backend of each region by its id: that of its own GPU, else ``backend``. Raises DeviceUnavailable."""
    opened = {str(backend.device): backend}
    backends = {}
    for region in regions:
        device = DeviceId.parse(region.device)
        at = str(device) if device.kind == backend.kind == "cuda" else str(backend.device)
        if at not in opened:
            opened[at] = backend_of(at)
        backends[region.id] = opened[at]
    return backends


def native_demands(demands: Resolved) -> Resolved:
    """Return the demands on the compiler of native regions."""
    execution = demands.policy.execution
    compiling = ExecutionPolicy(optimization_level=execution.optimization_level, strict=execution.strict)
    return Resolved(Policy(kernel=demands.policy.kernel, execution=compiling), demands.origins)


def request_of(demands: Resolved) -> SessionRequest:
    """Return the request to the engines of the other regions."""
    return SessionRequest(policy=demands.policy, threads=env.get_int("XPU_NUM_THREADS"))
