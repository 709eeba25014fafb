"""Estimates of a graph's computation, traffic and memory, used to decide before a run whether it fits a bound."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...compiler.partition.cost import flops_of, traffic_of
from ...ir import Graph, Node, specialize
from ...ir.ops.control import CONTROL, bodies_of, own_symbols
from ...runtime.device import cpu

__all__ = ["GraphCost", "endless", "free_bytes", "work_of"]

_ITERATIONS = _UNKNOWN_SIZE = 16
"""Iterations and sizes that are known only at run time count as this many."""


@dataclass(frozen=True, slots=True)
class GraphCost:
    """flops, traffic (bytes read and written) and nodes of one run; weights: bytes of weights; peak: the most bytes of values at once."""

    flops: int
    traffic: int
    nodes: int
    weights: int
    peak: int


def work_of(graph: Graph, sizes: Mapping[str, int]) -> GraphCost:
    """Return the cost of a run of the graph at these sizes of its symbols."""
    static = specialize(graph, dict(sizes)) if graph.symbols else graph
    bytes_of = {n: v.spec.size_bytes or 0 for n, v in static.values.items() if v.spec is not None}
    left = Counter(name for node in static.nodes for name in dict.fromkeys(node.values))
    left.update(static.kept)
    borders = {v.name for v in static.inputs}
    live = peak = sum(bytes_of.get(n, 0) for n in borders)
    weights = {w.name for w in static.weights}
    for node in static.nodes:
        live += sum(bytes_of.get(v.name, 0) for v in node.outputs)
        peak = max(peak, live)
        for name in dict.fromkeys(node.values):
            left[name] -= 1
            if not left[name] and name not in weights:
                live -= bytes_of.get(name, 0)
    inner = [_bodies(static, n) for n in static.nodes if n.op in CONTROL]
    return GraphCost(
        flops=sum(flops_of(static, n) for n in static.nodes) + sum(c.flops for c in inner),
        traffic=sum(traffic_of(static, n) for n in static.nodes) + sum(c.traffic for c in inner),
        nodes=len(static.nodes) + sum(c.nodes for c in inner),
        weights=sum(bytes_of.get(n, 0) for n in weights),
        peak=peak + max((c.peak for c in inner), default=0),
    )


def _bodies(graph: Graph, node: Node) -> GraphCost:
    """Return the cost of the larger branch, or of all iterations of a loop; one that ends at run time counts as ``_ITERATIONS``."""
    specs = [graph.values[v].spec for v in node.values]
    outer: frozenset[str] = frozenset().union(*(s.symbols for s in specs if s is not None))
    costs = [
        work_of(b, dict.fromkeys(own_symbols(b, outer) | b.symbols, _UNKNOWN_SIZE)) for b in bodies_of(node)
    ]
    trips = node.attrs["trips"] if node.op == "loop" else 1
    times = trips if isinstance(trips, int) else _ITERATIONS
    return GraphCost(
        flops=times * max(c.flops for c in costs),
        traffic=times * max(c.traffic for c in costs),
        nodes=times * max(c.nodes for c in costs),
        weights=0,
        peak=max(c.peak for c in costs),
    )


def endless(graph: Graph) -> str:
    """Return the name of a loop whose number of iterations only a run knows; empty if there is none."""
    for node in graph.nodes:
        if node.op == "loop" and not isinstance(node.attrs["trips"], int):
            return node.name
        for body in bodies_of(node):
            if endless(body):
                return node.name
    return ""


def free_bytes() -> int:
    """Return the memory that this process may still allocate without causing swapping."""
    free = (cpu().memory_limit_bytes or cpu().memory_bytes) - _resident()
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next((text for text in lines if text.startswith("MemAvailable:")), "")
        free = min(free, int(line.split()[1]) * 1024)
    return max(free, 0)


def _resident() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    return 0
