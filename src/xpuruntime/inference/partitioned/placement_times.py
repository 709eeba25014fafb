"""``place: {"*": "auto"}`` by a file of measured times (``xpu tune --regions``): nothing is measured again."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from ...compiler.partition.cost import Costs
from ...compiler.placement_times import PlacementTimes
from ...decisions import Candidate, Decision, Reason
from ...engines import engine_names, lookup
from ...errors import XpuError
from ...protocols import ModelSource
from ...storage.store import Store
from ..native.model import native_model
from ..selection.candidate import EngineCandidate, LoadedEngine, attempt
from ..selection.engine_times import is_available, misfit, times_of_file
from ..selection.request import SessionRequest
from .mixed import mixed_of, partition_on

__all__ = ["MARGIN", "placed_again", "placement_by_file", "preferred"]

MARGIN = 0.97
"""The highest share of the best single engine's time at which a mix is chosen."""


def placement_by_file(
    model: ModelSource,
    request: SessionRequest,
    place: Mapping[str, str],
    candidates: Sequence[EngineCandidate],
    store: Store,
) -> tuple[LoadedEngine, Decision] | str:
    """Return the fastest placement by the file that the option ``kernel_times`` names, or why the file does not decide (empty: it has none)."""
    file, times = times_of_file(request)
    if times is None or not times.placements:
        return ""
    rows = [r for r in times.placements if r.model == model.digest and dict(r.place) == dict(place)]
    usable = [c for c in candidates if is_available(c)]
    if reason := misfit(rows, times, usable, request):
        return f"{file} does not place the model: {reason}"
    row, refused = rows[0], dict[str, Candidate]()
    for name in preferred(row, {c.engine for c in usable}):
        why_not = _unusable(row, name, usable, place)
        outcome = why_not or _loaded(model, row, name, usable, place, store)
        if isinstance(outcome, Candidate):
            refused[name] = outcome
            continue
        text = f"{_told(row, name)}, measured before in {file} (sha256:{times.digest[:12]})"
        chosen = str(outcome.facts.get("mix") or outcome.candidate.name)
        facts = {k: v for k, v in outcome.facts.items() if k not in ("homes", "mix")}
        others = [
            refused.get(other) or _unusable(row, other, usable, place) or _behind(row, other, name)
            for other in sorted(row.times_us, key=row.times_us.__getitem__)
            if other != name
        ]
        head = Candidate(chosen, Reason.RECORDED, text, facts=facts)
        return outcome, Decision("engine", model.name, head, tuple(others))
    return f"{file} does not place the model: none of its placements loads"


def _loaded(
    model: ModelSource,
    row: PlacementTimes,
    name: str,
    usable: Sequence[EngineCandidate],
    place: Mapping[str, str],
    store: Store,
) -> LoadedEngine | Candidate:
    """Return an engine or a mix of the file, or the reason why it does not load."""
    if name not in row.nodes:
        return attempt(model, next(c for c in usable if c.engine == name), store)
    outcome = placed_again(model, usable[0], row.homes(name), place, store)
    return replace(outcome, name=name) if isinstance(outcome, Candidate) else outcome


def _unusable(
    row: PlacementTimes, name: str, usable: Sequence[EngineCandidate], place: Mapping[str, str]
) -> Candidate | None:
    """Return the reason against an engine or a mix of the file that is known without loading it."""
    if place and name not in row.nodes:
        return Candidate(
            name, Reason.NOT_REQUESTED, "the policy places nodes, so one engine alone is no placement"
        )
    lacking = next((e for e in row.nodes.get(name, (name,)) if e not in {c.engine for c in usable}), None)
    if lacking is None:
        return None
    if lacking not in engine_names():
        return Candidate(name, Reason.NOT_INSTALLED, f"no engine here has the name {lacking!r}")
    installed = lookup(lacking).installed()
    if not installed:
        return Candidate.rejected(name, installed)
    return Candidate(name, Reason.NOT_REQUESTED, f"{lacking} is not among the engines of the session")


def _behind(row: PlacementTimes, name: str, chosen: str) -> Candidate:
    """Return the reason against an engine or a mix that comes after the chosen one in the order of ``preferred``."""
    if row.times_us[name] > row.times_us[chosen]:
        return Candidate(name, Reason.SLOWER, _told(row, name))
    share = row.times_us[name] / row.times_us[chosen]
    text = f"{_told(row, name)}, {share:.3f}x the time of {chosen}: not clearly less"
    return Candidate(name, Reason.LOWER_PREFERENCE, text)


def preferred(row: PlacementTimes, engines: Container[str]) -> list[str]:
    """Return engines and mixes in order of time. A mix that is not clearly faster than the best of the single ``engines`` comes after it."""
    singles = [us for name, us in row.times_us.items() if name not in row.nodes and name in engines]
    limit = MARGIN * min(singles) if singles and not row.place else float("inf")
    return sorted(row.times_us, key=lambda n: (n in row.nodes and row.times_us[n] > limit, row.times_us[n]))


def _told(row: PlacementTimes, name: str) -> str:
    return f"median {row.times_us[name]:.1f} us of {row.rounds} alternating rounds"


def placed_again(
    model: ModelSource,
    first: EngineCandidate,
    homes: Mapping[str, str],
    place: Mapping[str, str],
    store: Store,
) -> LoadedEngine | Candidate:
    """Load a mix from the recorded engine of each node: that engine costs nothing, any other a second."""
    engines = tuple(dict.fromkeys(homes.values()))
    away = {e: {n: float(e != home) for n, home in homes.items()} for e in engines}
    try:
        plan = partition_on(native_model(model).graph, first, engines, place, Costs(measured=away))
    except XpuError as error:
        return Candidate("several engines", Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    return mixed_of(model, plan, first, store)
