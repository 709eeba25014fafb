"""A partition that is given instead of chosen: regions with their engines, their nodes and their borders, as a lock names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...decisions import Reason, Support
from ...errors import FormatError
from ...ir import Graph
from ...program.lock import LockedRegion
from .plan import Atom, PartitionPlan, PlanWriter

__all__ = ["replayed"]


def replayed(graph: Graph, regions: Sequence[LockedRegion], request: Mapping[str, Any]) -> PartitionPlan:
    """Return the plan of exactly these regions, without any alternative.

    regions: in an execution order. Each node of the graph except constants is in one of them.
    Raises FormatError if they are no partition of the graph, or if the borders differ.
    """
    nodes = [n for n in graph.nodes if n.op != "constant"]
    index = {n.name: i for i, n in enumerate(nodes)}
    home: dict[str, str] = {}
    for region in regions:
        for name in region.nodes:
            if name not in index:
                raise _refused(graph, f"region {region.id} names a node that the model does not have", name)
            if name in home:
                raise _refused(graph, f"two regions have the same node: {home[name]} and {region.id}", name)
            home[name] = region.id
    if missing := [n.name for n in nodes if n.name not in home]:
        raise _refused(graph, "no region has the node", missing[0])
    if [r.id for r in regions] != [f"r{i}" for i in range(len(regions))] or not all(r.nodes for r in regions):
        raise _refused(
            graph, "regions must be r0, r1, ... with at least one node each", [r.id for r in regions]
        )
    order = {r.id: i for i, r in enumerate(regions)}
    for node in nodes:
        for value in node.values:
            producer = graph.producer(value)
            if producer is not None and order.get(home.get(producer.name, ""), 0) > order[home[node.name]]:
                raise _refused(graph, f"region {home[node.name]} reads a value of a later region", value)
    groups = [
        [
            Atom(
                [index[n] for n in region.nodes],
                {engine: Support.yes()},
                engine,
                Reason.LOCKED,
                "the lock names it",
                forced=True,
            )
        ]
        for region in regions
        if (engine := _word(region))
    ]
    plan = PlanWriter(graph, nodes, request).plan(groups)
    for ours, theirs in zip(plan.regions, regions, strict=True):
        for side, here, there in (
            ("inputs", ours.inputs, theirs.inputs),
            ("outputs", ours.outputs, theirs.outputs),
        ):
            if here != there:
                raise _refused(
                    graph, f"the {side} of region {ours.id} are {', '.join(here)}", ", ".join(there)
                )
    return plan


def _word(region: LockedRegion) -> str:
    return region.engine if region.device == "cpu" else f"{region.engine} on {region.device}"


def _refused(graph: Graph, what: str, got: object) -> FormatError:
    return FormatError(f"regions of {graph.name!r}", what, got=got, do="Write the lock again.")
