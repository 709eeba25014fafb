"""Engine selection by measured times: the cheapest path over the atoms in execution order, with the cost of each change of engine.

A path gives each part of the model (an atom) one of the engines that support it. Atoms are in an execution order, so a run of atoms on one engine
is convex. The cost of a path is the sum of its atoms' times and, at each change of engine, the time to enter a region and to transfer every
value that is live there: one engine writes it dense, and the other reads it into its own layout. Dynamic programming over (atom, engine)
finds the cheapest path [Viterbi 1967, "Error bounds for convolutional codes and an asymptotically optimum decoding algorithm"].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir import Graph
from .cost import Costs
from .plan import split_engine

__all__ = ["cheapest_path", "crossing_bytes"]


def crossing_bytes(graph: Graph, atoms: Sequence[Sequence[str]], costs: Costs) -> list[int]:
    """Return, for each position between two atoms (position ``i`` is before atom ``i``), the bytes of values that are live across it.

    atoms: names of their nodes, in an execution order.
    """
    atom_of_value = {v.name: a for a, names in enumerate(atoms) for n in names for v in graph.node(n).outputs}
    last = {
        v: max((atom_of(graph, atom_of_value, u.name) for u in graph.users(v)), default=producer)
        for v, producer in atom_of_value.items()
    }
    change = [0] * (len(atoms) + 1)
    for value, producer in atom_of_value.items():
        if last[value] > producer:
            size = costs.size_of(graph.values[value].spec)
            change[producer + 1] += size
            change[last[value] + 1] -= size
    for position in range(1, len(change)):
        change[position] += change[position - 1]
    return change[: len(atoms)]


def atom_of(graph: Graph, home: Mapping[str, int], node: str) -> int:
    """Return the atom of a node."""
    return home[graph.node(node).outputs[0].name]


def cheapest_path(seconds: Sequence[Mapping[str, float]], crossing: Sequence[int], costs: Costs) -> list[str]:
    """Return an engine for each atom. Of paths with equal cost, earlier engines win.

    seconds:  per atom, its time on every engine that supports it (at least one).
    crossing: the result of ``crossing_bytes``.
    """
    total: dict[str, float] = {}
    previous: list[dict[str, str]] = []
    for atom, times in enumerate(seconds):
        reached: dict[str, float] = {}
        way: dict[str, str] = {}
        for engine, time in times.items():
            before = {e: t + _change_s(e, engine, crossing[atom], costs) for e, t in total.items()}
            best = min(before, key=lambda e: before[e]) if before else engine
            way[engine] = best
            reached[engine] = before.get(best, costs.enter_s(split_engine(engine)[0])) + time
        total = reached
        previous.append(way)
    if not total:
        return []
    engine = min(total, key=lambda e: total[e])
    engines = [engine]
    for way in reversed(previous[1:]):
        engine = way[engine]
        engines.append(engine)
    return engines[::-1]


def _change_s(source: str, target: str, size: int, costs: Costs) -> float:
    """Return the seconds of a change of engine across which ``size`` bytes are live."""
    if source == target:
        return 0.0
    (_, device), (engine, other) = split_engine(source), split_engine(target)
    moved = size / costs.copy_bytes_per_s if device != other else 0.0
    return costs.enter_s(engine) + 4 * size / costs.bytes_per_s + moved  # read and written on both sides
