"""Measured costs for ``partition``: seconds of each node on each engine, from the engines' own times.

An engine reports the time of each of its steps and the model's nodes that the step computes. The time of a step of several nodes (a convolution
with fused nodes) is divided in proportion to their predicted work. The rest (a vendor's reorders, the profiler's overhead) is distributed by
scaling: the nodes of an engine add up to the time of a whole run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...compiler.partition.cost import Costs
from ...engines.attribution import least_times
from ...errors import XpuError
from ...ir import Graph
from ...ir.family import source_names
from ...profiler import trace
from ...protocols import Array, EvidenceRow, Executable
from ..selection import auto

__all__ = ["measured_costs", "node_seconds", "run_seconds"]

_RUNS, _SECONDS = 15, 1.0  # whole runs: this many, or as many as fit in this time, and at least three


def measured_costs(graph: Graph, engines: Mapping[str, Executable], feeds: dict[str, Array]) -> Costs:
    """Measure seconds by engine and node on ``feeds``. An engine that cannot be timed is left out."""
    trace.mark(f"measure: nodes of {graph.name} on {len(engines)} engines")
    measured = {}
    for name, executable in engines.items():
        try:
            whole = run_seconds(executable, feeds)
            with least_times():
                rows = _least([executable.evidence(feeds).rows for _ in range(3 if name == "native" else 1)])
        except XpuError:
            continue
        seconds = node_seconds(graph, rows, whole)
        if seconds:
            measured[name] = seconds
    return Costs(measured=measured)


def _least(looks: Sequence[Sequence[EvidenceRow]]) -> list[EvidenceRow]:
    """Return the rows of the fastest observation, for an engine that times few runs at once."""
    rows = []
    for row, *others in zip(*looks, strict=True):
        times = [r.time_us for r in (row, *others) if r.time_us is not None]
        rows.append(replace(row, time_us=min(times, default=None)))
    return rows


def run_seconds(executable: Executable, feeds: dict[str, Array]) -> float:
    """Return the least time of several runs, excluding the first. Raises RunError."""
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
    """Return seconds of every node, ``whole_s`` in total; nodes without a step take none. The result is empty if no step has a time.

    If several steps name one node (some vendors report a layer twice), each counts.
    """
    costs = Costs()
    by_source: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.op != "constant":
            for name in dict.fromkeys((node.name, *source_names(node))):
                by_source[name].append(node.name)
    seconds: dict[str, float] = dict.fromkeys((n.name for n in graph.nodes if n.op != "constant"), 0.0)
    for row in rows:
        nodes = list(dict.fromkeys(n for s in row.nodes for n in by_source.get(s, ())))
        if not row.time_us or not nodes:
            continue
        work = [costs.predicted_s(graph, graph.node(n)) + 1e-12 for n in nodes]
        for name, share in zip(nodes, work, strict=True):
            seconds[name] += row.time_us * share / sum(work)
    total = sum(seconds.values())
    return {n: t * whole_s / total for n, t in seconds.items()} if total else {}
