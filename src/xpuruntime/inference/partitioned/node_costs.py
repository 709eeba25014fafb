"""What each node of a model costs on each engine, from the engines' own times: the measured costs of ``partition``.

An engine says how long each of its steps takes and which of the model's nodes a step computes. A step of several nodes (a convolution with what
was fused into it) is shared out among them in proportion to their predicted work. Steps of no node (a vendor's reorders) and what a profiler adds are
settled by scale: the nodes of an engine add up to what a whole run of it takes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...compiler.partition_cost import Costs
from ...engines.attribution import least_times
from ...errors import XpuError
from ...ir import Graph
from ...ir.family import source_names
from ...protocols import Array, EvidenceRow, Executable
from ..selection import auto

__all__ = ["measured_costs", "node_seconds", "run_seconds"]

_RUNS, _SECONDS = 15, 1.0  # of a whole run: this many, or as many as fit in this time, and at least three


def measured_costs(graph: Graph, engines: Mapping[str, Executable], feeds: dict[str, Array]) -> Costs:
    """Seconds by engine and node of the graph, measured on ``feeds``. An engine that cannot be timed is left out."""
    measured = {}
    for name, executable in engines.items():
        try:
            whole = run_seconds(executable, feeds)
            with least_times():
                rows = _least([executable.evidence(feeds).rows for _ in range(3 if name == "native" else 1)])
        except XpuError:
            continue
        found = node_seconds(graph, rows, whole)
        if found:
            measured[name] = found
    return Costs(measured=measured)


def _least(looks: Sequence[Sequence[EvidenceRow]]) -> list[EvidenceRow]:
    """The rows with the least time of several looks, where an engine times few runs at a look."""
    rows = []
    for row, *others in zip(*looks, strict=True):
        times = [r.time_us for r in (row, *others) if r.time_us is not None]
        rows.append(replace(row, time_us=min(times, default=None)))
    return rows


def run_seconds(executable: Executable, feeds: dict[str, Array]) -> float:
    """The least time of some runs, the first not counted. Raises RunError."""
    executable.run(feeds)
    times: list[float] = []
    end = time.monotonic() + _SECONDS
    for count in range(_RUNS):
        if count >= 3 and time.monotonic() > end:
            break
        start = auto.CLOCK()
        executable.run(feeds)
        times.append((auto.CLOCK() - start) / 1e9)
    return min(times)


def node_seconds(graph: Graph, rows: Iterable[EvidenceRow], whole_s: float) -> dict[str, float]:
    """Seconds of every node of the graph, ``whole_s`` in all; nodes that no step names take none. Empty where no step has a time.

    Of steps that name the same node (a vendor that counts a layer twice) each counts.
    """
    costs = Costs()
    by_source: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.op != "constant":
            for name in dict.fromkeys((node.name, *source_names(node))):
                by_source[name].append(node.name)
    found: dict[str, float] = dict.fromkeys((n.name for n in graph.nodes if n.op != "constant"), 0.0)
    for row in rows:
        nodes = list(dict.fromkeys(n for s in row.nodes for n in by_source.get(s, ())))
        if not row.time_us or not nodes:
            continue
        work = [costs.predicted_s(graph, graph.node(n)) + 1e-12 for n in nodes]
        for name, share in zip(nodes, work, strict=True):
            found[name] += row.time_us * share / sum(work)
    total = sum(found.values())
    return {n: t * whole_s / total for n, t in found.items()} if total else {}
