"""Ways to share a model between engines: proposed by measured costs, built, timed region by region, and proposed again.

What a node costs inside a whole model is not what it costs where a region is cut out: at the border engines convert layouts, cannot fuse, and find other
caches. So a region's own time, once it is built, corrects the costs of its nodes on its engine, and the corrected costs propose the next mixes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ... import env
from ...compiler.partition import PartitionPlan, partition
from ...compiler.partition_cost import Costs
from ...decisions import Candidate, Reason
from ...errors import RunError
from ...ir import Graph
from ...protocols import Array, ModelSource
from ...store import Store
from ..selection import auto
from ..selection.candidate import Loaded, Wanted
from .mixed import MixedExecutable, demanded_kernels, mixed_of

__all__ = ["Mix", "corrected", "mixes", "predicted", "searched"]

_ROUNDS = (4, 3, 2)
"""Mixes that are built in each round at most; each round but the first with costs that the ones before it corrected."""

_KEPT = 3  # mixes that are measured against the single engines
_HOPELESS = 1.1
"""A mix that takes over this many times the best single engine's time, region by region, is not measured against it."""

_SHARES = (0.02, 0.06)
"""Of the best engine's whole time: what a change of engine must save at least. An engine books the time of a fused step on one of its nodes, another
engine on another, so single nodes cannot be compared between engines; stretches can."""

_RUNS, _SECONDS = (
    9,
    0.5,
)  # of a mix, region by region: this many, or as many as fit in this time, and at least three


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix that was built, and the least seconds of each of its regions. ``seconds`` is their sum."""

    loaded: Loaded
    plan: PartitionPlan
    times: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.times.values())


Shape = tuple[tuple[str, tuple[str, ...]], ...]


def searched(
    model: ModelSource,
    graph: Graph,
    costs: Costs,
    first: Wanted,
    place: Mapping[str, str],
    feeds: dict[str, Array],
    store: Store,
) -> tuple[list[Loaded], list[Candidate]]:
    """The mixes that are worth measuring against the single engines, the fastest first, and why others are not.

    Rounds end when nothing new is proposed, or when they took ``XPU_AUTO_SECONDS``.
    """
    whole = min(sum(times.values()) for times in costs.measured.values())
    deadline = time.monotonic() + env.get_seconds("XPU_AUTO_SECONDS")
    seen: set[Shape] = set()
    built: list[Mix] = []
    refused: list[Candidate] = []
    for turn, most in enumerate(_ROUNDS):
        if turn and time.monotonic() > deadline:
            break
        now = corrected(costs, built)
        fresh = [p for p in mixes(graph, now, first, place) if _shape(p) not in seen]
        if turn:
            fresh = [p for p in fresh if predicted(p, now) < whole]
        if not fresh:
            break
        for plan in fresh[:most]:
            seen.add(_shape(plan))
            outcome = mixed_of(model, plan, first, store)
            if isinstance(outcome, Candidate):
                refused.append(outcome)
                continue
            try:
                built.append(Mix(outcome, plan, _times(outcome, feeds)))
            except RunError as error:
                refused.append(
                    Candidate(_name(outcome), Reason.RUN_FAILED, f"{error.what}: {error.got}", error.do)
                )
                outcome.executable.close()
    built.sort(key=lambda m: m.seconds)
    limit = math.inf if place else _HOPELESS * whole  # what was placed by name is had at any price
    kept = [m for m in built if m.seconds <= limit][:_KEPT]
    for mix in built:
        if mix not in kept:
            text = f"{mix.seconds * 1e6:.0f} us region by region: not worth measuring further"
            refused.append(Candidate(_name(mix.loaded), Reason.SLOWER, text))
            mix.loaded.executable.close()
    return _apart([m.loaded for m in kept]), refused


def mixes(graph: Graph, costs: Costs, first: Wanted, place: Mapping[str, str]) -> Iterator[PartitionPlan]:
    """Different plans with at least two engines (or with what was placed where it was): the best of each group of engines, then the others, by predicted time."""
    seen: set[Shape] = set()
    ranked: list[tuple[int, float, int, PartitionPlan]] = []
    engines = list(costs.measured)
    whole = min(sum(times.values()) for times in costs.measured.values()) if engines else 0.0
    for group in (g for size in range(2, len(engines) + 1) for g in itertools.combinations(engines, size)):
        found = []
        for share in _SHARES:
            dearer = replace(costs, region_s={e: costs.enter_s(e) + share * whole for e in engines})
            demands = demanded_kernels(first, group[0])
            plan = partition(graph, demands, others=group[1:], place=place, costs=dearer)
            shape = _shape(plan)
            if (place or len({e for e, _ in shape}) > 1) and shape not in seen:
                seen.add(shape)
                found.append((predicted(plan, costs), plan))
        found.sort(key=lambda f: f[0])
        ranked += [(turn, s, len(ranked) + turn, p) for turn, (s, p) in enumerate(found)]
    yield from (plan for *_, plan in sorted(ranked))


def predicted(plan: PartitionPlan, costs: Costs) -> float:
    """Seconds of a plan: its nodes where they are, and its borders."""
    total = 0.0
    for region in plan.regions:
        measured = costs.measured.get(region.engine, {})
        total += costs.enter_s(region.engine) + sum(measured.get(n, 0.0) for n in plan.members[region.id])
    crossing = {t.value for t in plan.transfers if "caller" not in (t.source, t.destination)}
    return total + sum(4 * costs.size_of(plan.graph.values[v].spec) / costs.bytes_per_s for v in crossing)


def corrected(costs: Costs, built: Sequence[Mix]) -> Costs:
    """Costs by which every region that was built takes what it took: each of its nodes by the region's factor, by the geometric mean of the
    factors where several regions of one engine held it.
    """
    factors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for mix in built:
        for region in mix.plan.regions:
            names = mix.plan.members[region.id]
            before = sum(costs.measured.get(region.engine, {}).get(n, 0.0) for n in names)
            took = mix.times.get(region.id, 0.0)
            if before > 0 and took > 0:
                for name in names:
                    factors[region.engine, name].append(took / before)
    return replace(
        costs,
        measured={
            e: {n: t * _mean(factors.get((e, n), ())) for n, t in times.items()}
            for e, times in costs.measured.items()
        },
    )


def _mean(factors: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, factors)) / len(factors)) if factors else 1.0


def _times(loaded: Loaded, feeds: dict[str, Array]) -> dict[str, float]:
    """The least seconds of each region. Raises RunError."""
    assert isinstance(loaded.executable, MixedExecutable)
    least: dict[str, float] = {}
    end = time.monotonic() + _SECONDS
    for count in range(_RUNS + 1):
        if count > 3 and time.monotonic() > end:
            break
        times = loaded.executable.region_times(feeds, auto.CLOCK)
        if count:  # the first run allocates
            least = {r: min(t, least.get(r, math.inf)) for r, t in times.items()}
    return least


def _shape(plan: PartitionPlan) -> Shape:
    return tuple((r.engine, plan.members[r.id]) for r in plan.regions)


def _name(loaded: Loaded) -> str:
    return str(loaded.facts["mix"])


def _apart(found: Sequence[Loaded]) -> list[Loaded]:
    """The same with names that differ: two mixes may have the same engines and as many regions."""
    used: dict[str, int] = defaultdict(int)
    named = []
    for loaded in found:
        name = _name(loaded)
        used[name] += 1
        told = name if used[name] == 1 else f"{name} (way {used[name]})"
        named.append(replace(loaded, facts={**loaded.facts, "mix": told}))
    return named
