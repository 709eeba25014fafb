"""Engine selection by measured times: the cheapest path in execution order, with the cost of each change of engine.

A way gives each part of the model (an atom) one of the engines that take it. Atoms are in an order in which they can run, so a stretch of one
engine is convex. What a way costs is the sum of its atoms' times and, at each change, of entering a region and of handing over every value that
lives across that place: it is written dense by one engine and brought into the other's own layout. The cheapest way is found by dynamic programming
over (atom, engine) [Viterbi 1967, "Error bounds for convolutional codes and an asymptotically optimum decoding algorithm"].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import Graph
from .cost import Costs
from .plan import split_engine

__all__ = ["cheapest_way", "crossing_bytes"]


def crossing_bytes(graph: Graph, atoms: Sequence[Sequence[str]], costs: Costs) -> list[int]:
    """Return, for each place between two atoms (place ``i`` precedes atom ``i``), the bytes of values that are produced before it and read
    after it.

    atoms: names of their nodes, in an order in which they can run.
    """
    home = {v.name: a for a, names in enumerate(atoms) for n in names for v in graph.node(n).outputs}
    last = {
        v: max((home_of(graph, home, u.name) for u in graph.users(v)), default=producer)
        for v, producer in home.items()
    }
    change = [0] * (len(atoms) + 1)
    for value, producer in home.items():
        if last[value] > producer:
            size = costs.size_of(graph.values[value].spec)
            change[producer + 1] += size
            change[last[value] + 1] -= size
    for place in range(1, len(change)):
        change[place] += change[place - 1]
    return change[: len(atoms)]


def home_of(graph: Graph, home: Mapping[str, int], node: str) -> int:
    """Return the atom of a node."""
    return home[graph.node(node).outputs[0].name]


def cheapest_way(seconds: Sequence[Mapping[str, float]], crossing: Sequence[int], costs: Costs) -> list[str]:
    """Return an engine for each atom.

    seconds: by atom, its time on every engine that takes it (at least one). crossing: as ``crossing_bytes`` gives it.
    Engines that come first win where ways cost the same.
    """
    total: dict[str, float] = {}
    came: list[dict[str, str]] = []
    for atom, times in enumerate(seconds):
        reached: dict[str, float] = {}
        way: dict[str, str] = {}
        for engine, time in times.items():
            before = {e: t + _border(e, engine, crossing[atom], costs) for e, t in total.items()}
            best = min(before, key=lambda e: before[e]) if before else engine
            way[engine] = best
            reached[engine] = before.get(best, costs.enter_s(split_engine(engine)[0])) + time
        total = reached
        came.append(way)
    if not total:
        return []
    engine = min(total, key=lambda e: total[e])
    engines = [engine]
    for way in reversed(came[1:]):
        engine = way[engine]
        engines.append(engine)
    return engines[::-1]


def _border(here: str, there: str, size: int, costs: Costs) -> float:
    """Return the seconds for a change of engine where that many bytes cross."""
    if here == there:
        return 0.0
    (_, device), (engine, other) = split_engine(here), split_engine(there)
    moved = size / costs.copy_bytes_per_s if device != other else 0.0
    return costs.enter_s(engine) + 4 * size / costs.bytes_per_s + moved  # read and written, on either side
