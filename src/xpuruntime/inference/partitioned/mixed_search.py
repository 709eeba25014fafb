"""Search for partitions over several engines: proposed by measured costs, built, timed by region, and proposed again.

A node costs more or less in a region than inside the whole model: at region borders engines convert layouts, cannot fuse, and find other
caches. The measured time of a built region therefore corrects the costs of its nodes on its engine, and the corrected costs propose the next mixes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ... import env
from ...compiler.partition.cost import Costs
from ...compiler.partition.partitioner import PartitionPlan
from ...decisions import Candidate, Reason
from ...errors import RunError
from ...ir import Graph
from ...protocols import Array, ModelSource
from ...storage.store import Store
from ..selection import auto
from ..selection.candidate import EngineCandidate, LoadedEngine
from .mixed import MixedExecutable, mixed_of, partition_on

__all__ = [
    "KEPT",
    "MAX_TIME_RATIO",
    "ROUNDS",
    "Mix",
    "TimedPlan",
    "corrected",
    "mixes",
    "predicted",
    "searched",
    "shape_of",
]

ROUNDS = (4, 3, 2)
"""The highest number of mixes built per round. Each round after the first uses costs corrected by the rounds before it."""

KEPT = 3  # mixes that are measured against the single engines
MAX_TIME_RATIO = 1.1
"""A mix whose regions take more than this multiple of the best single engine's time is not measured against it."""

_SHARES = (0.02, 0.06)
"""The share of the best engine's time that a change of engine must save at least. Engines attribute the time of a fused step to different
nodes, so single nodes cannot be compared between engines, but runs of nodes can."""

_RUNS, _SECONDS = (
    9,
    0.5,
)  # runs of a mix by region: this many, or as many as fit in this time, and at least three


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A mix and the seconds of each of its regions."""

    plan: PartitionPlan
    times: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Return the sum of its regions' times."""
        return sum(self.times.values())


@dataclass(frozen=True, slots=True)
class Mix(TimedPlan):
    """A mix that is loaded."""

    loaded: LoadedEngine


Shape = tuple[tuple[str, tuple[str, ...]], ...]


def searched(
    model: ModelSource,
    graph: Graph,
    costs: Costs,
    first: EngineCandidate,
    place: Mapping[str, str],
    feeds: dict[str, Array],
    store: Store,
) -> tuple[list[LoadedEngine], list[Candidate]]:
    """Return the mixes worth measuring against single engines, fastest first, and the reasons against the others.

    Rounds end when nothing new is proposed or after ``XPU_AUTO_SECONDS``.
    """
    whole = min(sum(times.values()) for times in costs.measured.values())
    deadline = time.monotonic() + env.get_seconds("XPU_AUTO_SECONDS")
    seen: set[Shape] = set()
    built: list[Mix] = []
    refused: list[Candidate] = []
    for turn, most in enumerate(ROUNDS):
        if turn and time.monotonic() > deadline:
            break
        now = corrected(costs, built)
        fresh = [p for p in mixes(graph, now, first, place) if shape_of(p) not in seen]
        if turn:
            fresh = [p for p in fresh if predicted(p, now) < whole]
        if not fresh:
            break
        for plan in fresh[:most]:
            seen.add(shape_of(plan))
            outcome = mixed_of(model, plan, first, store)
            if isinstance(outcome, Candidate):
                refused.append(outcome)
                continue
            try:
                built.append(Mix(plan, _times(outcome, feeds), outcome))
            except RunError as error:
                refused.append(
                    Candidate(_name(outcome), Reason.RUN_FAILED, f"{error.what}: {error.got}", error.do)
                )
                outcome.executable.close()
    built.sort(key=lambda m: m.seconds)
    limit = math.inf if place else MAX_TIME_RATIO * whole  # a demanded placement is built at any cost
    fastest = [m for m in built if m.seconds <= limit][:KEPT]
    for mix in built:
        if mix not in fastest:
            text = f"{mix.seconds * 1e6:.0f} us region by region: not worth measuring further"
            refused.append(Candidate(_name(mix.loaded), Reason.SLOWER, text))
            mix.loaded.executable.close()
    return _apart([m.loaded for m in fastest]), refused


def mixes(
    graph: Graph, costs: Costs, first: EngineCandidate, place: Mapping[str, str]
) -> Iterator[PartitionPlan]:
    """Yield distinct plans with at least two engines, or with the demanded placement: the best of each engine group, then others by predicted time."""
    seen: set[Shape] = set()
    ranked: list[tuple[int, float, int, PartitionPlan]] = []
    engines = list(costs.measured)
    whole = min(sum(times.values()) for times in costs.measured.values()) if engines else 0.0
    for group in (g for size in range(2, len(engines) + 1) for g in itertools.combinations(engines, size)):
        plans = []
        for share in _SHARES:
            dearer = replace(costs, region_s={e: costs.enter_s(e) + share * whole for e in engines})
            plan = partition_on(graph, first, group, place, dearer)
            shape = shape_of(plan)
            if (place or len({e for e, _ in shape}) > 1) and shape not in seen:
                seen.add(shape)
                plans.append((predicted(plan, costs), plan))
        plans.sort(key=lambda f: f[0])
        ranked += [(turn, s, len(ranked) + turn, p) for turn, (s, p) in enumerate(plans)]
    yield from (plan for *_, plan in sorted(ranked))


def predicted(plan: PartitionPlan, costs: Costs) -> float:
    """Return the predicted seconds of a plan: its nodes on their engines, and its transfers."""
    total = 0.0
    for region in plan.regions:
        measured = costs.measured.get(region.engine, {})
        total += costs.enter_s(region.engine) + sum(measured.get(n, 0.0) for n in plan.members[region.id])
    crossing = {t.value for t in plan.transfers if "caller" not in (t.source, t.destination)}
    return total + sum(4 * costs.size_of(plan.graph.values[v].spec) / costs.bytes_per_s for v in crossing)


def corrected(costs: Costs, built: Sequence[TimedPlan]) -> Costs:
    """Return costs that reproduce the time of every built region: each node is scaled by the factor of its region, or by the geometric
    mean of the factors if several regions of one engine contained it.
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


def _times(loaded: LoadedEngine, feeds: dict[str, Array]) -> dict[str, float]:
    """Return the least seconds of each region. Raises RunError."""
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


def shape_of(plan: PartitionPlan) -> Shape:
    """Return the engine and the nodes of each region."""
    return tuple((r.engine, plan.members[r.id]) for r in plan.regions)


def _name(loaded: LoadedEngine) -> str:
    return str(loaded.facts["mix"])


def _apart(engines: Sequence[LoadedEngine]) -> list[LoadedEngine]:
    """Return the mixes with distinct names: two mixes may have the same engines and the same number of regions."""
    used: dict[str, int] = defaultdict(int)
    named = []
    for loaded in engines:
        name = _name(loaded)
        used[name] += 1
        told = name if used[name] == 1 else f"{name} (way {used[name]})"
        named.append(replace(loaded, facts={**loaded.facts, "mix": told}))
    return named
