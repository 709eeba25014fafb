"""``place: {"*": "auto"}``: the fastest measured partition of the model over one or several engines with correct outputs.

Every engine first runs the whole model and reports the cost of each node (``measured``). From these costs ``mixed_search`` proposes a few ways
to share the model between engines, which then run in turn against the single engines. A mix is chosen only if it is faster than the best
single engine by more than the measuring error. The choice is recorded with the engine of every node, so that a later start measures
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import __version__, env
from ...decisions import Candidate, Decision, Reason
from ...engines import lookup
from ...errors import StoreError, XpuError
from ...protocols import Array, ModelSource
from ...runtime.device import cpu
from ...storage.store import Store, digest
from ...targets import DeviceId
from ..execution.examples import digest_of, measuring_feeds
from ..native.model import native_model
from ..selection.auto import Contender, measure
from ..selection.candidate import EngineCandidate, LoadedEngine, attempt
from ..selection.request import SessionRequest, kernels_key
from .mixed_search import searched
from .node_costs import measured_costs
from .placement_times import MARGIN, placed_again, placement_by_file
from .region_devices import product_of

__all__ = ["WORD", "chosen_mix", "wanted_by"]

WORD = "auto"
"""The engine name of the place ``*``."""


def wanted_by(place: Mapping[str, str]) -> bool:
    """Return True if a policy leaves the placement to measuring."""
    return place.get("*") == WORD


def chosen_mix(
    model: ModelSource, request: SessionRequest, store: Store
) -> tuple[LoadedEngine | None, Decision, list[str]]:
    """Return the chosen engine (None: none is available), the decision with every candidate's time, and warnings."""
    place = {k: v for k, v in request.place.items() if k != "*"}
    names = [request.engine] if request.engine not in (None, WORD) else []
    named = request.device
    device = named if named is not None and named.kind == "cuda" else DeviceId("cpu")
    engines = dict.fromkeys((*map(str, names), *request.execution.order_for(device.kind)))
    candidates = [EngineCandidate(e, device, request) for e in engines]
    # Files of ``xpu tune --regions`` have times of the host's engines.
    by_file = placement_by_file(model, request, place, candidates, store) if device.kind == "cpu" else ""
    if not isinstance(by_file, str):
        return *by_file, []
    unused = [by_file] if by_file else []
    key = _key(model, request, tuple(engines), place) | {
        "inputs": digest_of(request.examples),
        "device": product_of(device),
    }
    known = _recorded(model, candidates, store, key) if request.caching else None
    if known is not None:
        return *known, unused
    outcomes = [attempt(model, c, store) for c in candidates]
    singles = [o for o in outcomes if isinstance(o, LoadedEngine)]
    refused = [o for o in outcomes if isinstance(o, Candidate)]
    feeds, told = measuring_feeds(model, request.examples)
    mixes, why_not = _loaded_mixes(model, singles, place, feeds, store)
    contending = mixes if place else [*singles, *mixes]  # a demanded placement has no alternative
    contenders = [Contender(_name(o), o.executable, o.precision) for o in contending]
    decision, warnings = measure(model, contenders, feeds, env.get_seconds("XPU_AUTO_SECONDS"), told)
    best = _by_margin(contenders, [_name(o) for o in mixes], decision)
    head = best.chosen
    loaded = next((o for o in contending if head and _name(o) == head.name), None)
    for other in (*singles, *mixes):
        if other is not loaded:
            other.executable.close()
    decision = Decision("engine", model.name, head, (*best.rejected, *refused, *why_not))
    if loaded is not None and request.caching and len(contenders) > 1:
        _record(store, key, decision, loaded)
    return loaded, decision, [*warnings, *unused]


# ── candidates ──


def _loaded_mixes(
    model: ModelSource,
    singles: Sequence[LoadedEngine],
    place: Mapping[str, str],
    feeds: dict[str, Array],
    store: Store,
) -> tuple[list[LoadedEngine], list[Candidate]]:
    """Return the mixes that load, and the reasons against the others."""
    who = "several engines"
    if len(singles) < 2:
        return [], [Candidate(who, Reason.ONLY_ONE, "only one engine runs this model here")]
    lower = next((o for o in singles if o.candidate.precision not in (None, model.precision)), None)
    if lower is not None:
        text = f"regions compute in the model's own precision {model.precision.value}, not in {lower.precision.value}"
        return [], [Candidate(who, Reason.PRECISION_UNSUPPORTED, text, "Leave precision out.")]
    try:
        graph = native_model(model).graph
        if graph.states:
            return [], [Candidate(who, Reason.OP_UNSUPPORTED, "a session's model has no states")]
        costs = measured_costs(graph, {o.candidate.engine: o.executable for o in singles}, feeds)
        mixes, refused = searched(model, graph, costs, singles[0].candidate, place, feeds, store)
    except XpuError as error:
        return [], [Candidate(who, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)]
    if not mixes and not refused:
        text = "by measured costs, one engine is the fastest for every node"
        refused = [Candidate(who, Reason.SLOWER, text)]
    return mixes, refused


def _name(loaded: LoadedEngine) -> str:
    return str(loaded.facts.get("mix") or loaded.candidate.name)


# ── the choice ──


def _by_margin(contenders: Sequence[Contender], mixed: Sequence[str], decision: Decision) -> Decision:
    """Return the decision, or replace a mix that is not clearly faster by the best single engine."""
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
        head.name,
        Reason.LOWER_PREFERENCE,
        f"{share:.3f}x the time of {best.name}: not clearly less",
        facts=head.facts,
    )
    return replace(decision, chosen=chosen, rejected=(left, *(c for c in decision.rejected if c is not was)))


# ── the record ──


def _key(
    model: ModelSource, request: SessionRequest, engines: Sequence[str], place: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that the choice depends on."""
    versions = {engine: lookup(engine).version() for engine in engines}
    return {
        "mixed": 1,
        "xpuruntime": __version__,
        "model": model.digest,
        "versions": versions,
        "place": dict(place),
        "precision": request.precision,
        "permit": request.permit,
        "threads": request.threads,
        "options": {e: request.options.get(e, {}) for e in engines},
        "optimization": request.optimization,
        "kernels": kernels_key(request.kernels),
        "processor": cpu().model,
    }


def _record(store: Store, key: Mapping[str, Any], decision: Decision, loaded: LoadedEngine) -> None:
    try:
        store.put(
            "auto",
            key,
            json.dumps({"decision": decision.to_json(), "homes": loaded.facts.get("homes")}).encode(),
        )
    except StoreError:  # a full disk must not stop a loaded model; storing the artifact already warned
        return


def _recorded(
    model: ModelSource, candidates: Sequence[EngineCandidate], store: Store, key: Mapping[str, Any]
) -> tuple[LoadedEngine, Decision] | None:
    record = store.recall("auto", digest(key), _parsed)
    if record is None or record[0].chosen is None:
        return None
    past, homes = record
    assert past.chosen is not None
    chosen = past.chosen.name
    if homes is None:
        again = next((c for c in candidates if c.name == chosen), None)
        outcome = attempt(model, again, store) if again else None
    elif set(homes.values()) <= {c.engine for c in candidates}:
        outcome = placed_again(model, candidates[0], homes, key["place"], store)
    else:
        outcome = None
    if not isinstance(outcome, LoadedEngine):
        return None
    text = f"measured before: {past.chosen.reason}"
    head = Candidate(past.chosen.name, Reason.RECORDED, text, facts={**past.chosen.facts, **_told(outcome)})
    return outcome, Decision("engine", model.name, head, past.rejected)


def _parsed(payload: bytes) -> tuple[Decision, dict[str, str] | None]:
    """Return a record's decision and homes. Raise any error for an invalid record."""
    record = json.loads(payload)
    homes = record["homes"]
    if homes is not None and not (homes and all(type(e) is str for e in homes.values())):
        raise ValueError("homes must name an engine for each node")
    return Decision.from_json(record["decision"]), homes


def _told(loaded: LoadedEngine) -> dict[str, Any]:
    return {k: v for k, v in loaded.facts.items() if k not in ("homes", "mix")}
