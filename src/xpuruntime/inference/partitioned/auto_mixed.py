"""``place: {"*": "auto"}``: the model on one engine or on several, whichever is measured to be the fastest with right outputs.

Every engine runs the whole model first and says what each node costs (``measured``). Of these costs come a few ways to share the model between
engines (``mixed_search``), which then run against the single engines, in turn. A mix is taken only where it is faster than the best
single engine by more than measuring can be wrong, so it is never a loss. The choice is recorded with the place of every node: a later start measures
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import __version__, env
from ...compiler.partition import partition
from ...compiler.partition_cost import Costs
from ...decisions import Candidate, Decision, Reason, Support
from ...errors import StoreError, XpuError
from ...protocols import Array, ModelSource
from ...runtime.device import cpu
from ...store import Store, digest
from ...targets import DeviceId
from ..execution.examples import digest_of, measuring_feeds
from ..native.model import native_model
from ..selection.auto import Contender, measure
from ..selection.candidate import Loaded, Wanted, attempt, find
from ..selection.request import Ask
from .mixed import demanded_kernels, mixed_of
from .mixed_search import searched
from .node_costs import measured_costs

__all__ = ["MARGIN", "WORD", "chosen_mix", "wanted_by"]

WORD = "auto"
"""As the engine of the place ``*``."""

MARGIN = 0.97
"""A mix must take at most this share of the best single engine's time."""


def wanted_by(place: Mapping[str, str]) -> bool:
    """Whether a policy leaves it to measuring."""
    return place.get("*") == WORD


def chosen_mix(model: ModelSource, ask: Ask, store: Store) -> tuple[Loaded | None, Decision, list[str]]:
    """What was chosen, the decision with every candidate's time, warnings. None where no engine can be had."""
    place = {k: v for k, v in ask.place.items() if k != "*"}
    names = [ask.engine] if ask.engine not in (None, WORD) else []
    wanted = [ask.wanted(str(e), DeviceId("cpu")) for e in dict.fromkeys((*names, *ask.order.get("cpu", ())))]
    key = _key(model, wanted, place) | {"inputs": digest_of(ask.examples)}
    known = _recorded(model, wanted, store, key) if ask.caching else None
    if known is not None:
        return *known, []
    outcomes = [attempt(model, w, store) for w in wanted]
    singles = [o for o in outcomes if isinstance(o, Loaded)]
    refused = [o for o in outcomes if isinstance(o, Candidate)]
    feeds, told = measuring_feeds(model, ask.examples)
    made, why_not = _loaded_mixes(model, singles, place, feeds, store)
    contending = made if place else [*singles, *made]  # a placement that was demanded is had, or nothing
    contenders = [Contender(_name(o), o.executable, o.precision) for o in contending]
    decision, warnings = measure(model, contenders, feeds, env.get_seconds("XPU_AUTO_SECONDS"), told)
    best = _by_margin(contenders, [_name(o) for o in made], decision)
    head = best.chosen
    loaded = next((o for o in contending if head and _name(o) == head.name), None)
    for other in (*singles, *made):
        if other is not loaded:
            other.executable.close()
    decision = Decision("engine", model.name, head, (*best.rejected, *refused, *why_not))
    if loaded is not None and ask.caching and len(contenders) > 1:
        _record(store, key, decision, loaded)
    return loaded, decision, list(warnings)


# ── candidates ──


def _loaded_mixes(
    model: ModelSource,
    singles: Sequence[Loaded],
    place: Mapping[str, str],
    feeds: dict[str, Array],
    store: Store,
) -> tuple[list[Loaded], list[Candidate]]:
    """Mixes that can be had, and why others cannot."""
    who = "several engines"
    if len(singles) < 2:
        return [], [Candidate(who, Reason.ONLY_ONE, "only one engine runs this model here")]
    lower = next((o for o in singles if o.wanted.precision not in (None, model.precision)), None)
    if lower is not None:
        text = f"regions compute in the model's own {model.precision.value}, not in {lower.precision.value}"
        return [], [Candidate(who, Reason.PRECISION_UNSUPPORTED, text, "Leave precision out.")]
    try:
        graph = native_model(model).graph
        if graph.states:
            return [], [Candidate(who, Reason.OP_UNSUPPORTED, "a session's model has no states")]
        costs = measured_costs(graph, {o.wanted.engine: o.executable for o in singles}, feeds)
        found, refused = searched(model, graph, costs, singles[0].wanted, place, feeds, store)
    except XpuError as error:
        return [], [Candidate(who, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)]
    if not found and not refused:
        text = "by the measured costs of its nodes one engine is the best for all of them"
        refused = [Candidate(who, Reason.SLOWER, text)]
    return found, refused


def _name(loaded: Loaded) -> str:
    return str(loaded.facts.get("mix") or loaded.wanted.name)


# ── the choice ──


def _by_margin(contenders: Sequence[Contender], mixed: Sequence[str], decision: Decision) -> Decision:
    """The decision, unless it is a mix that is not clearly faster than the best single engine: then that one."""
    head = decision.chosen
    if head is None or head.name not in mixed:
        return decision
    right = {c.name for c in decision.rejected if c.code is Reason.SLOWER}
    singles = [c for c in contenders if c.name in right and c.name not in mixed and c.times_us]
    best = min(singles, key=lambda c: c.median_us, default=None)
    if best is None or head.facts["median_us"] <= MARGIN * best.median_us:
        return decision
    was = next(c for c in decision.rejected if c.name == best.name)
    text = f"median {best.median_us:.0f} us, the best single engine; no mix is faster by more than {1 - MARGIN:.0%}"
    chosen = Candidate(best.name, Reason.FASTEST, text, facts=was.facts)
    share = head.facts["median_us"] / best.median_us
    left = Candidate(
        head.name, Reason.SLOWER, f"{share:.3f}x the time of {best.name}: not clearly less", facts=head.facts
    )
    return replace(decision, chosen=chosen, rejected=(left, *(c for c in decision.rejected if c is not was)))


# ── the record ──


def _key(model: ModelSource, wanted: Sequence[Wanted], place: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the choice depends on."""
    versions = {}
    for w in wanted:
        plugin = find(w.engine)
        versions[w.engine] = None if isinstance(plugin, Support) else plugin.version()
    return {
        "mixed": 1,
        "xpuruntime": __version__,
        "model": model.digest,
        "versions": versions,
        "place": dict(place),
        "precision": wanted[0].precision,
        "permit": wanted[0].permit,
        "threads": wanted[0].threads,
        "options": {w.engine: dict(w.options) for w in wanted},
        "optimization": wanted[0].optimization,
        "kernels": wanted[0].kernels,
        "processor": cpu().model,
    }


def _record(store: Store, key: Mapping[str, Any], decision: Decision, loaded: Loaded) -> None:
    try:
        store.put(
            "auto",
            key,
            json.dumps({"decision": decision.to_json(), "homes": loaded.facts.get("homes")}).encode(),
        )
    except (
        StoreError
    ):  # a full disk must not stop a model that is already loaded; it said so when an artifact was kept
        return


def _recorded(
    model: ModelSource, wanted: Sequence[Wanted], store: Store, key: Mapping[str, Any]
) -> tuple[Loaded, Decision] | None:
    record = store.recall("auto", digest(key), _parsed)
    if record is None or record[0].chosen is None:
        return None
    past, homes = record
    assert past.chosen is not None
    chosen = past.chosen.name
    if homes is None:
        again = next((w for w in wanted if w.name == chosen), None)
        outcome = attempt(model, again, store) if again else None
    elif set(homes.values()) <= {w.engine for w in wanted}:
        outcome = _again(model, wanted[0], homes, key["place"], store)
    else:
        outcome = None
    if not isinstance(outcome, Loaded):
        return None
    text = f"measured before: {past.chosen.reason}"
    head = Candidate(past.chosen.name, Reason.RECORDED, text, facts={**past.chosen.facts, **_told(outcome)})
    return outcome, Decision("engine", model.name, head, past.rejected)


def _parsed(payload: bytes) -> tuple[Decision, dict[str, str] | None]:
    """Return a record's decision and homes. Raise anything for what is no record."""
    record = json.loads(payload)
    homes = record["homes"]
    if homes is not None and not (homes and all(type(e) is str for e in homes.values())):
        raise ValueError("homes must name an engine for each node")
    return Decision.from_json(record["decision"]), homes


def _again(
    model: ModelSource, first: Wanted, homes: Mapping[str, str], place: Mapping[str, str], store: Store
) -> Loaded | Candidate:
    """A mix from the engine of each of its nodes: the home costs nothing, any other engine a second."""
    engines = tuple(dict.fromkeys(homes.values()))
    away = {e: {n: float(e != home) for n, home in homes.items()} for e in engines}
    try:
        plan = partition(
            native_model(model).graph,
            demanded_kernels(first, engines[0]),
            others=engines[1:],
            place=place,
            costs=Costs(measured=away),
        )
    except XpuError as error:
        return Candidate("several engines", Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    return mixed_of(model, plan, first, store)


def _told(loaded: Loaded) -> dict[str, Any]:
    return {k: v for k, v in loaded.facts.items() if k not in ("homes", "mix")}
