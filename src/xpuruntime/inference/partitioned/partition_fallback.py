"""The decision to partition a session's model across engines, made after engines for the whole model were tried."""

from __future__ import annotations

from collections.abc import Sequence

from ...decisions import Candidate, Decision, Reason
from ...engines import lookup
from ...errors import BuildError
from ...protocols import ModelSource
from ...storage.store import Store
from ...targets import DeviceId
from ..selection.candidate import EngineCandidate, LoadedEngine
from ..selection.request import SessionRequest
from .mixed import forces_kernels, lacks_ops, lacks_sizes, mixed, with_host_steps

__all__ = ["partition_fallback"]


def partition_fallback(
    model: ModelSource,
    request: SessionRequest,
    loaded: LoadedEngine | None,
    decision: Decision,
    fallback: Sequence[EngineCandidate],
    store: Store,
) -> tuple[LoadedEngine, Decision] | None:
    """Return the partitioned model and its decision, or None if one engine runs all of it, no partition exists, or no node is left to place.

    Raises BuildError if the policy's placement is impossible, and EngineUnavailable and KernelUnavailable as ``mixed`` does.
    """
    free = request.engine in (
        None,
        "auto",
    )  # without a named engine, regions may merge into a neighbor's engine
    others = tuple(dict.fromkeys(c.engine for c in fallback if c.device.kind == "cpu"))
    if request.place:
        first = _first(model, request, others)
        order = request.execution.order_for("cuda" if first.device.kind == "cuda" else "cpu")
        mix = mixed(model, first, (*others, *order), request.place, store, absorb=free)
        if isinstance(mix, Candidate) and mix.code is not Reason.NOT_APPLICABLE:
            who = f"session({model.name!r})"
            raise BuildError(who, "cannot be run as the policy places it", got=mix.reason, do=mix.do)
        why, code = (
            f"the policy places {', '.join(f'{k} on {v}' for k, v in request.place.items())}",
            Reason.FORCED,
        )
    elif (
        loaded is not None
        and loaded.candidate.engine != "native"
        and forces_kernels(request.kernels, loaded.facts.get("kernels_by_option", {}))
    ):
        mix = mixed(model, loaded.candidate, others, {}, store, absorb=free)
        why, code = "a rule forces kernels, which only the native engine supports", Reason.FORCED
    elif loaded is None and request.engine == "native" and others and lacks_ops(decision.rejected):
        mix = mixed(
            model, EngineCandidate("native", DeviceId("cpu"), request), others, {}, store, absorb=free
        )
        why, code = (
            "allow_fallback admits other engines for ops that native does not support",
            Reason.FALLBACK,
        )
    elif loaded is None and free and _cuts(model, request, decision):
        first = EngineCandidate("native", DeviceId("cpu"), request)
        engines = (*others, "interpreter")
        # NumPy gets no node that native has: predicted times are not those of NumPy.
        mix = mixed(model, first, engines, {}, store, absorb=False, admits=lambda *_: None)
        why, code = (
            "native cannot compute all of it; PyTorch and NumPy compute the other nodes",
            Reason.FALLBACK,
        )
    elif loaded is None and request.engine == "native" and not others and lacks_sizes(decision.rejected):
        steps = with_host_steps(model, request, store)
        if isinstance(steps, Candidate):
            return None
        mix, names = steps
        why, code = (
            f"named by the user; NumPy computes the nodes whose sizes only a run knows: {names}",
            Reason.REQUESTED,
        )
    else:
        return None
    if isinstance(mix, Candidate):
        return None
    if loaded is not None:
        loaded.executable.close()
    name = f"{mix.candidate.name}, in {mix.facts['regions']} regions"
    rejected = tuple(c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED)
    facts = {k: mix.facts[k] for k in ("regions", "from_store")}
    return mix, Decision("engine", model.name, Candidate(name, code, why, facts=facts), rejected)


def _cuts(model: ModelSource, request: SessionRequest, decision: Decision) -> bool:
    """Return True if no engine has all of a PyTorch module, and nothing demands that one does."""
    lacking = lacks_ops(decision.rejected) or lacks_sizes(decision.rejected)
    return model.format == "graph" and lacking and request.divides_modules


def _first(model: ModelSource, request: SessionRequest, others: Sequence[str]) -> EngineCandidate:
    """Return the default engine of unplaced nodes: the named engine, or one that ``allow_fallback`` admits; without a name, the first
    installed one of the built-in order. Raises BuildError if the named one and those are not installed.
    """
    device = request.device or DeviceId("cpu")
    named = request.engine not in (None, "auto")
    names = (
        (str(request.engine), *others)
        if named
        else (*request.execution.order_for("cuda" if device.kind == "cuda" else "cpu"), "native")
    )
    for name in names:
        plugin = lookup(name)
        if plugin.installed():
            return EngineCandidate(plugin.name, device, request)
    missing = lookup(names[0]).installed()
    raise BuildError(
        f"session({model.name!r})",
        f"cannot be run as the policy places it: engine {names[0]!r}, which has the other nodes, is not here",
        got=missing.reason,
        do=missing.do,
    )
