"""Texts of a plan: a short summary, and the full explanation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..printable import line

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["explain", "summary"]


def summary(plan: Plan) -> str:
    """Return a line for the model and one per region and warning."""
    lines = [f"plan for {plan.model['name']} ({len(plan.nodes)} nodes, {plan.model['digest'][:12]})"]
    for region in plan.regions:
        families = Counter(n.family for n in plan.nodes if n.region == region.id)
        threads = f", {region.threads} threads" if region.threads else ""
        engine = f"{region.engine} {region.engine_version}".strip()
        lines.append(f"  {region.id}: {engine} on {region.device}, {region.precision}{threads}")
        counts = ", ".join(f"{count} {family}" for family, count in families.most_common())
        lines.append(f"      {sum(families.values())} nodes: {counts}")
        if region.alternatives:
            lines.append(f"      if it fails: {', then '.join(region.alternatives)}")
    lines += [f"  warning: {w}" for w in plan.warnings]
    return "\n".join(map(line, lines))


def explain(plan: Plan, *, nodes: bool = False) -> str:
    """Return the summary, the request, inputs and outputs, every decision with its rejected candidates, and the transfers."""
    request = ", ".join(f"{k}={v}" for k, v in plan.request.items() if v not in (None, "", {}, []))
    lines = [*summary(plan).splitlines(), f"  requested: {request or 'nothing in particular'}"]
    lines += [f"  input  {s.name}: {s}" for s in plan.inputs]
    lines += [f"  output {s.name}: {s}" for s in plan.outputs]
    lines.append("decisions")
    for decision in plan.decisions:
        lines += ["  " + line for line in decision.explain().splitlines()]
    if plan.transfers:
        lines.append("transfers")
        for t in plan.transfers:
            size = f" ({t.bytes} bytes)" if t.bytes is not None else ""
            how = ", memory shared" if t.shared else ""
            lines.append(f"  {t.value}: {t.source} -> {t.destination}{size}{how}")
    if nodes:
        lines.append("nodes")
        width = max((len(n.op) for n in plan.nodes), default=0)
        lines += [
            f"  {n.region}  {n.op:<{width}}  {n.family:<13} {n.name}"
            + (f" : {n.spec}" if n.spec else "")
            + (f"  = {n.lowered}" if n.lowered else "")
            + (f"  by {n.kernel}" if n.kernel else "")
            for n in plan.nodes
        ]
    return "\n".join(map(line, lines))
