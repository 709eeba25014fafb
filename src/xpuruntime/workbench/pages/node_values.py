"""Values of nodes for pages: what a plan, a receipt, a program or a lock says about each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...decisions import Decision
from ...profiler.receipt import Receipt
from ...program.plan import Plan
from ...program.program import CompiledProgram
from ..review.snapshot import NodeState, Snapshot
from .page import PageNode, PageTable, Value

__all__ = ["NODE_COLUMNS", "decision_table", "decisions_of_file", "plan_of", "snapshot_nodes"]

NODE_COLUMNS = (
    "op",
    "family",
    "engine",
    "device",
    "kernel",
    "precision",
    "region",
    "step us",
    "nodes of the step",
    "rejected",
)


def plan_of(snapshot: Snapshot) -> Plan | None:
    """Return the plan that a file holds, or None."""
    source = snapshot.source
    return source.plan if isinstance(source, Receipt) else source if isinstance(source, Plan) else None


def decisions_of_file(snapshot: Snapshot) -> tuple[Decision, ...]:
    """Return the decisions that a file holds, with their rejected candidates."""
    if isinstance(snapshot.source, CompiledProgram):
        return snapshot.source.decisions
    plan = plan_of(snapshot)
    return () if plan is None else plan.decisions


def snapshot_nodes(snapshot: Snapshot) -> tuple[PageNode, ...]:
    """Return every node with the values of ``NODE_COLUMNS``."""
    rejected = _rejected(decisions_of_file(snapshot))
    return tuple(PageNode(n.name, _values(n, rejected), n.reads) for n in snapshot.nodes)


def _values(node: NodeState, rejected: Mapping[str, str]) -> tuple[Value, ...]:
    together = len(node.group) or 1
    return (
        node.op,
        node.family,
        node.engine,
        node.device,
        node.kernel,
        node.precision,
        node.region,
        node.time_us,
        together,
        rejected.get(node.name, ""),
    )


def _rejected(decisions: Iterable[Decision]) -> dict[str, str]:
    """Return the rejected candidates of each node's kernel, with reason codes."""
    texts: dict[str, list[str]] = {}
    for d in decisions:
        if d.question.startswith("kernel"):
            texts.setdefault(d.subject, []).extend(f"{c.name} ({c.code.value})" for c in d.rejected)
    return {name: ", ".join(candidates) for name, candidates in texts.items()}


def decision_table(decisions: Iterable[Decision]) -> PageTable:
    """Return the decisions on models and regions, with every rejected candidate. Those on kernels are values of their nodes."""
    rows: list[tuple[Value, ...]] = []
    for d in decisions:
        if d.question.startswith("kernel"):
            continue
        chosen = (
            ("nothing", "", "") if d.chosen is None else (d.chosen.name, d.chosen.code.value, d.chosen.reason)
        )
        rows.append((d.question, d.subject, "chosen", *chosen))
        rows += [
            (d.question, d.subject, "rejected", c.name, c.code.value, f"{c.reason} {c.do}".strip())
            for c in d.rejected
        ]
    columns = ("question", "of", "", "candidate", "code", "reason")
    return PageTable("Decisions", columns, tuple(rows))
