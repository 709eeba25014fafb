"""Whether a session's model goes to several engines, asked once the engines for the whole of it were tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...decisions import Candidate, Decision, Reason, Support
from ...errors import BuildError
from ...protocols import ModelSource
from ...store import Store
from ...targets import DeviceId
from ..partitioned.mixed import forces_kernels, lacks_ops, mixed
from .candidate import Loaded, Wanted, find
from .request import Ask

__all__ = ["on_several"]


def on_several(
    model: ModelSource,
    ask: Ask,
    loaded: Loaded | None,
    decision: Decision,
    fallback: Sequence[Wanted],
    store: Store,
) -> tuple[Loaded, Decision] | None:
    """The model on several engines and the decision for it; None where one engine runs all of it, or none can.

    Raises BuildError for a policy whose placement cannot be had, EngineUnavailable and KernelUnavailable as ``mixed`` does.
    """
    free = ask.engine in (None, "auto")  # nobody named the engine, so a region may go to its neighbor's
    others = tuple(dict.fromkeys(w.engine for w in fallback if w.device.kind == "cpu"))
    if ask.place:
        first = _first(ask)
        found = mixed(model, first, (*others, *ask.order.get("cpu", ())), ask.place, store, absorb=free)
        if isinstance(found, Candidate):
            who = f"session({model.name!r})"
            raise BuildError(who, "cannot be run as the policy places it", got=found.reason, do=found.do)
        why, code = (
            f"the policy places {', '.join(f'{k} on {v}' for k, v in ask.place.items())}",
            Reason.FORCED,
        )
    elif (
        loaded is not None
        and loaded.wanted.engine != "native"
        and forces_kernels(ask.kernels, loaded.facts.get("kernels_by_option", {}))
    ):
        found = mixed(model, replace(loaded.wanted, kernels=ask.kernels), others, {}, store, absorb=free)
        why, code = "a rule forces kernels, and those of the native engine alone can be chosen", Reason.FORCED
    elif loaded is None and ask.engine == "native" and others and lacks_ops(decision.rejected):
        found = mixed(model, ask.wanted("native", DeviceId("cpu")), others, {}, store, absorb=free)
        why, code = "allow_fallback admits other engines for the ops that native lacks", Reason.FALLBACK
    else:
        return None
    if isinstance(found, Candidate):
        return None
    if loaded is not None:
        loaded.executable.close()
    name = f"{found.wanted.name}, in {found.facts['regions']} regions"
    rejected = tuple(c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED)
    facts = {k: found.facts[k] for k in ("regions", "from_store")}
    return found, Decision("engine", model.name, Candidate(name, code, why, facts=facts), rejected)


def _first(ask: Ask) -> Wanted:
    """Who takes what nobody is placed on: the engine that was named, else the first of the built-in order that is installed."""
    for name in [ask.engine] if ask.engine not in (None, "auto") else ask.order.get("cpu", ()):
        plugin = find(str(name))
        if not isinstance(plugin, Support) and plugin.installed():
            return ask.wanted(plugin.name, ask.device or DeviceId("cpu"))
    return ask.wanted("native", ask.device or DeviceId("cpu"))
