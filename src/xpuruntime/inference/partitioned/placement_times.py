"""``place: {"*": "auto"}`` by a file of measured times (``xpu tune --regions``): nothing is measured again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...compiler.partition.cost import Costs
from ...compiler.placement_times import PlacementTimes
from ...decisions import Candidate, Decision, Reason
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
    (row, *_), refused = rows, list[Candidate]()
    fits = {c.engine for c in usable}
    for name in preferred(row):
        if name in row.nodes:
            known = set(row.nodes[name]) <= fits
            outcome = placed_again(model, usable[0], row.homes(name), place, store) if known else None
        else:
            single = next((c for c in usable if c.engine == name), None)
            outcome = None if single is None or place else attempt(model, single, store)
        if isinstance(outcome, Candidate):
            refused.append(outcome)
        if not isinstance(outcome, LoadedEngine):
            continue
        text = f"{_told(row, name)}, measured before in {file} (sha256:{times.digest[:12]})"
        chosen = str(outcome.facts.get("mix") or outcome.candidate.name)
        facts = {k: v for k, v in outcome.facts.items() if k not in ("homes", "mix")}
        others = [
            Candidate(other, Reason.SLOWER, _told(row, other))
            for other in sorted(row.times_us, key=row.times_us.__getitem__)
            if other != name
        ]
        head = Candidate(chosen, Reason.RECORDED, text, facts=facts)
        return outcome, Decision("engine", model.name, head, (*refused, *others))
    return f"{file} does not place the model: none of its placements loads"


def preferred(row: PlacementTimes) -> list[str]:
    """Return engines and mixes in order of time. A mix that is not clearly faster than the best single engine comes after it."""
    singles = [us for name, us in row.times_us.items() if name not in row.nodes]
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
