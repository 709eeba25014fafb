"""The engine ``auto``: the choice recorded for this model and machine, otherwise a measured one that is then recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ... import env
from ...decisions import Candidate, Decision, Reason
from ...engines import lookup
from ...errors import InputError, StoreError
from ...printable import logger
from ...protocols import ModelSource
from ...runtime.device import cpu
from ...storage.store import Store, digest
from ..execution.examples import digest_of, measuring_feeds
from .auto import Contender, measure
from .candidate import EngineCandidate, LoadedEngine, attempt
from .engine_times import choice_by_file
from .request import SessionRequest, kernels_key

__all__ = ["measured_choice"]

_log = logger("xpuruntime.session")


def measured_choice(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision, list[str]]:
    """Return the choice of a file of times, else the recorded one, else the measured one, else the first that loads."""
    chosen = choice_by_file(model, request, candidates, store)
    if not isinstance(chosen, str):
        return *chosen, []
    loaded, decision, warnings = _measured_here(model, request, candidates, store)
    return loaded, decision, [*warnings, *([chosen] if chosen else [])]


def _measured_here(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision, list[str]]:
    ingredients = _record_key(model, request, candidates)
    recorded = _recorded(model, request, candidates, store, ingredients)
    if recorded is not None:
        return *recorded, []
    outcomes = [attempt(model, c, store) for c in candidates]
    loaded = [o for o in outcomes if isinstance(o, LoadedEngine)]
    refused = tuple(o for o in outcomes if isinstance(o, Candidate))
    if not loaded:
        return None, Decision("engine", model.name, None, refused), []
    if len(loaded) == 1:
        head = Candidate(
            loaded[0].candidate.name, Reason.ONLY_ONE, "the only one available", facts=loaded[0].facts
        )
        return loaded[0], Decision("engine", model.name, head, refused), []
    contenders = [Contender(o.candidate.name, o.executable, o.precision) for o in loaded]
    try:
        feeds, told = measuring_feeds(model, request.examples)
        decision, warnings = measure(model, contenders, feeds, env.get_seconds("XPU_AUTO_SECONDS"), told)
    except (InputError, ValueError) as error:
        decision, warnings = (
            Decision("engine", model.name, None),
            (f"no inputs could be made for measuring: {error}",),
        )
    if decision.chosen is None:
        decision = _unmeasured(model, loaded, decision)
    decision = Decision("engine", model.name, decision.chosen, (*decision.rejected, *refused))
    if decision.chosen and decision.chosen.code is Reason.FASTEST and request.caching:
        _record(store, ingredients, decision)
    best = next(o for o in loaded if decision.chosen and o.candidate.name == decision.chosen.name)
    for other in loaded:
        if other is not best:
            other.executable.close()
    return best, decision, list(warnings)


def _unmeasured(model: ModelSource, loaded: Sequence[LoadedEngine], failed: Decision) -> Decision:
    """Choose by the built-in order, if no candidate ran on the seeded inputs (a model may need special inputs)."""
    why = failed.rejected[0].reason if failed.rejected else "no inputs could be made"
    text = f"first in the built-in order; measuring failed: {why}"
    head = Candidate(loaded[0].candidate.name, Reason.DEFAULT, text, facts=loaded[0].facts)
    rest = [
        Candidate(
            o.candidate.name,
            Reason.LOWER_PREFERENCE,
            f"{head.name} is earlier in the preference order",
            facts=o.facts,
        )
        for o in loaded[1:]
    ]
    return Decision("engine", model.name, head, tuple(rest))


def _record_key(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate]
) -> dict[str, Any]:
    """Return everything that a measured choice depends on: model, candidates, versions, options, processor, threads."""
    versions = {name: lookup(name).version() for name in dict.fromkeys(c.engine for c in candidates)}
    return {
        "model": model.digest,
        "candidates": [c.name for c in candidates],
        "versions": versions,
        "precision": request.precision,
        "permit": request.permit,
        "threads": request.threads,
        "options": request.options,
        "optimization": request.optimization,
        "kernels": kernels_key(request.kernels),
        "processor": cpu().model,
        "inputs": digest_of(request.examples),
        **({} if request.tune is None else {"tune": request.tune.seconds}),
    }


def _record(store: Store, ingredients: dict[str, Any], decision: Decision) -> None:
    try:
        store.put("auto", ingredients, json.dumps(decision.to_json()).encode())
    except StoreError as error:  # a full disk must not stop a loaded model
        _log.warning("%s The model runs; the next start measures again.", error)


def _recorded(
    model: ModelSource,
    request: SessionRequest,
    candidates: Sequence[EngineCandidate],
    store: Store,
    ingredients: dict[str, Any],
) -> tuple[LoadedEngine, Decision] | None:
    if not request.caching:
        return None
    past = store.recall("auto", digest(ingredients), lambda payload: Decision.from_json(json.loads(payload)))
    if past is None or past.chosen is None:
        return None
    candidate = next((c for c in candidates if c.name == past.chosen.name), None)
    outcome = attempt(model, candidate, store) if candidate else None
    if not isinstance(outcome, LoadedEngine):
        return None
    text = f"measured before: {past.chosen.reason}"
    head = Candidate(past.chosen.name, Reason.RECORDED, text, facts={**past.chosen.facts, **outcome.facts})
    return outcome, Decision("engine", model.name, head, past.rejected)
