"""The search for placements as stages of a tuning: node costs, regions of mixes, and whole runs of the best mixes next to single engines.

It proposes mixes as ``place: auto`` does, but from the medians of the journal alone. So a tuning that continues proposes the same mixes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.partition.cost import Costs
from ...compiler.partition.partitioner import PartitionPlan
from ...compiler.placement_times import PlacementTimes
from ...decisions import Candidate
from ...engines import lookup
from ...engines.attribution import least_times
from ...errors import EngineUnavailable, InputError
from ...inference.native.engine import TIMES
from ...inference.native.model import native_model
from ...inference.partitioned.mixed import MixedExecutable, mixed_of
from ...inference.partitioned.mixed_search import (
    KEPT,
    MAX_TIME_RATIO,
    ROUNDS,
    TimedPlan,
    corrected,
    mixes,
    predicted,
    shape_of,
)
from ...inference.partitioned.node_costs import node_seconds, run_seconds
from ...inference.selection.candidate import EngineCandidate, LoadedEngine, attempt
from ...inference.selection.request import SessionRequest, session_request
from ...inference.tuning.timing import Sample, whole_runs
from ...policies import Policy, load_policy
from ...profiler.statistics import median_interval
from ...protocols import Array, EvidenceRow, ModelSource
from ...storage.store import Store
from ...targets import DeviceId
from .journal import Journal

__all__ = ["NODE_ROUNDS", "REGION_ROUNDS", "EngineNodes", "PlacedRuns", "Placements", "without_auto"]

NODE_ROUNDS, REGION_ROUNDS = 3, 5
"""The highest number of rounds of node costs and of regions. Whole runs have all rounds of the tuning."""
_RUNS = 3  # timed runs of a mix in one round, after one that warms up


def without_auto(policy: Any) -> tuple[Policy, dict[str, str]]:
    """Return a policy without its placement, and the entries of ``place`` that are not left to measuring. Raises PolicyError."""
    read = load_policy(policy)
    place = {k: v for k, v in (read.execution.place or {}).items() if k != "*"}
    return Policy(kernel=read.kernel, execution=replace(read.execution, place=None)), place


@dataclass(slots=True)
class EngineNodes:
    """A single engine whose nodes are timed."""

    name: str
    placements: Placements

    def times(self) -> Iterator[Sample]:
        """Yield engine, node and microseconds of each node; they add up to a whole run."""
        executable = self.placements.single(self.name).executable
        feeds = self.placements.feeds
        whole = run_seconds(executable, feeds)
        with least_times():
            rows: Sequence[EvidenceRow] = executable.evidence(feeds).rows
        for node, seconds in node_seconds(self.placements.graph, rows, whole).items():
            if seconds > 0:
                yield self.name, node, seconds * 1e6

    def close(self) -> None:
        """Do nothing: later stages run the engine again."""


@dataclass(slots=True)
class PlacedRuns:
    """A single engine or a mix that runs the whole model. owned: close it after the stage."""

    name: str
    loaded: LoadedEngine
    feeds: dict[str, Array]
    owned: bool = True

    def region_times(self) -> Iterator[Sample]:
        """Yield mix, region and microseconds of each region: the least of some runs."""
        assert isinstance(self.loaded.executable, MixedExecutable)
        least: dict[str, float] = {}
        for count in range(_RUNS + 1):
            times = self.loaded.executable.region_times(self.feeds, time.perf_counter_ns)
            if count:  # the first run allocates
                least = {r: min(t, least.get(r, math.inf)) for r, t in times.items()}
        for region, seconds in least.items():
            yield self.name, region, max(seconds * 1e6, 1e-3)

    def run_times(self) -> Iterator[Sample]:
        """Yield the time of each whole run."""
        yield from whole_runs(self.name, lambda: self.loaded.executable.run(self.feeds))

    def close(self) -> None:
        """Free the mix. Single engines are used by other stages."""
        if self.owned:
            self.loaded.executable.close()


@dataclass(slots=True)
class Placements:
    """Placements of one model for one set of sizes.

    engines: those that may have nodes, the native one first. place: entries of a policy that every mix honors. file: the file of times, which has
    the kernels of the native engine already.
    """

    model: ModelSource
    shapes: Mapping[str, int]
    feeds: dict[str, Array]
    engines: tuple[str, ...]
    place: Mapping[str, str]
    threads: int
    policy: Policy
    file: Path
    _loaded: dict[str, LoadedEngine] = field(default_factory=dict)
    _plans: dict[str, PartitionPlan] = field(default_factory=dict)

    @property
    def graph(self) -> Any:
        """Return the model's graph. Raises InputError for a model with states."""
        graph = native_model(self.model).graph
        if graph.states:
            who = f"tune {self.model.name!r}"
            raise InputError(
                who,
                "has states, and a session's model on several engines has none",
                do="Leave --regions out.",
            )
        return graph

    def single(self, engine: str) -> LoadedEngine:
        """Return the model on one engine. Raises EngineUnavailable."""
        if engine not in self._loaded:
            outcome = attempt(self.model, self._candidate(engine), Store(mode="off"))
            if isinstance(outcome, Candidate):
                who = f"tune {self.model.name!r}"
                raise EngineUnavailable(
                    who, f"{engine} does not run the whole model", got=outcome.reason, do=outcome.do
                )
            self._loaded[engine] = outcome
        return self._loaded[engine]

    def opened(self, name: str) -> PlacedRuns | None:
        """Return a single engine or a proposed mix, or None for a mix that cannot be built."""
        if name in self.engines:
            return PlacedRuns(name, self.single(name), self.feeds, owned=False)
        outcome = mixed_of(self.model, self._plans[name], self._candidate("native"), Store(mode="off"))
        return None if isinstance(outcome, Candidate) else PlacedRuns(name, outcome, self.feeds)

    def proposed(self, journal: Journal, bucket: int, search: int) -> list[str]:
        """Return the names of the mixes of a round of the search, from the times of the stages before it. Call it once for each round, in order."""
        costs = self._costs(journal, bucket)
        whole = min(sum(times.values()) for times in costs.measured.values())
        built = self._built(journal, bucket, search)
        now = corrected(costs, built)
        seen = set(map(shape_of, self._plans.values()))
        first = self._candidate("native")
        fresh = [p for p in mixes(self.graph, now, first, self.place) if shape_of(p) not in seen]
        if search:
            fresh = [p for p in fresh if predicted(p, now) < whole]
        return [self._named(p) for p in fresh[: ROUNDS[search]]]

    def best(self, journal: Journal, bucket: int) -> list[str]:
        """Return the names of the mixes whose whole runs are worth measuring, fastest first."""
        costs = self._costs(journal, bucket)
        limit = (
            math.inf if self.place else MAX_TIME_RATIO * min(sum(t.values()) for t in costs.measured.values())
        )
        built = sorted(self._built(journal, bucket, len(ROUNDS)), key=lambda b: b.seconds)
        return [self._named(b.plan) for b in built if b.seconds <= limit][:KEPT]

    def result(self, journal: Journal, bucket: int) -> PlacementTimes | None:
        """Return the medians of whole runs; None if they are not measured."""
        rows = [next(iter(r.times_us.values())) for r in journal.done(bucket, "mixes")]
        if not rows:
            return None
        samples = {name: [row[name] for row in rows] for name in rows[0]}
        intervals = {n: median_interval(us) for n, us in samples.items() if len(us) >= 6}
        nodes: dict[str, dict[str, list[str]]] = {}
        for mix in (n for n in samples if n not in self.engines):
            own: dict[str, list[str]] = defaultdict(list)
            for region in self._plans[mix].regions:
                own[region.engine] += self._plans[mix].members[region.id]
            nodes[mix] = dict(own)
        return PlacementTimes(
            self.model.digest,
            self.shapes,
            self.place,
            {n: float(np.median(us)) for n, us in samples.items()},
            nodes,
            {e: lookup(e).version() or "" for e in self.engines},
            {n: (i.low, i.high) for n, i in intervals.items()},
            len(rows),
        )

    def close(self) -> None:
        """Free the single engines."""
        for loaded in self._loaded.values():
            loaded.executable.close()
        self._loaded.clear()

    def _costs(self, journal: Journal, bucket: int) -> Costs:
        samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for done in journal.done(bucket, "nodes"):
            for engine, times in done.times_us.items():
                for node, us in times.items():
                    samples[engine][node].append(us)
        names = [n.name for n in self.graph.nodes if n.op != "constant"]
        return Costs(
            measured={
                e: {n: float(np.median(own[n])) / 1e6 if n in own else 0.0 for n in names}
                for e, own in samples.items()
            }
        )

    def _built(self, journal: Journal, bucket: int, searches: int) -> list[TimedPlan]:
        """Return the mixes of the first rounds of the search with the medians of their regions."""
        built = []
        for search in range(searches):
            samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for done in journal.done(bucket, f"regions {search + 1}"):
                for mix, times in done.times_us.items():
                    for region, us in times.items():
                        samples[mix][region].append(us)
            built += [
                TimedPlan(self._plans[mix], {r: float(np.median(us)) / 1e6 for r, us in times.items()})
                for mix, times in samples.items()
                if mix in self._plans
            ]
        return built

    def _named(self, plan: PartitionPlan) -> str:
        """Return the name of a mix: its engines, its number of regions, and a digest of its shape."""
        text = json.dumps(shape_of(plan))
        engines = " + ".join(dict.fromkeys(r.engine for r in plan.regions))
        name = (
            f"{engines} on cpu, {len(plan.regions)} regions ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
        )
        self._plans[name] = plan
        return name

    def _candidate(self, engine: str) -> EngineCandidate:
        return EngineCandidate(engine, DeviceId("cpu"), self._request())

    def _request(self) -> SessionRequest:
        times: Policy = load_policy(
            {
                "version": 1,
                "execution": {"engine_options": {"native": {TIMES: str(self.file)}}, "self_check": "off"},
            }
        )
        return session_request(
            device="cpu",
            engine="native",
            backend=None,
            policies=(times, self.policy),
            fp16=False,
            strict=None,
            threads=self.threads,
        )
