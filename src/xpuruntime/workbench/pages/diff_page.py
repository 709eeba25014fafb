"""The page of a diff: the graph of both files, colored by change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..review.diff import Diff, NodeChange
from ..review.diff_text import diff_text
from ..review.snapshot import NodeState, Snapshot
from .page import Page, PageNode, PageTable, Value
from .receipt_page import transfer_table

__all__ = ["diff_page"]

_COLUMNS = (
    "change",
    "op",
    "family",
    "engine",
    "device",
    "kernel",
    "precision",
    "step A us",
    "step B us",
    "difference us",
)
_COLORS = ("change", "engine", "kernel", "family", "precision", "device", "step B us")

_FIELDS: Sequence[Callable[[NodeState], str]] = (
    lambda n: n.engine,
    lambda n: n.device,
    lambda n: n.kernel,
    lambda n: n.precision,
)


def diff_page(changes: Diff, a: Snapshot, b: Snapshot) -> Page:
    """Return the page of the differences from ``a`` to ``b``."""
    old, new = ({n.name: n for n in s.nodes} for s in (a, b))
    by_node = {name: c for c in changes.changed for name in c.names}
    nodes = tuple(
        _node(name, old.get(name), new.get(name), by_node.get(name)) for name in dict.fromkeys((*new, *old))
    )
    changed = sum(len(c.names) for c in changes.changed)
    verdict = (
        "nothing differs"
        if changes.empty
        else f"{changed} changed, {len(changes.added)} added, {len(changes.removed)} removed"
    )
    first = next((n.name for n in nodes if n.values[0] != "same"), "")
    return Page(
        title=f"{b.model}: difference of two {changes.kind}s",
        verdict=(verdict, True if changes.empty else None),
        columns=_COLUMNS,
        colors=_COLORS,
        nodes=nodes,
        lead=(
            f"A: {changes.a}",
            f"B: {changes.b}",
            *(() if changes.time is None else (f"Run: {changes.time}.",)),
        ),
        tables=tuple(t for t in _tables(changes) if t.rows),
        selected=first,
    )


def _node(name: str, old: NodeState | None, new: NodeState | None, change: NodeChange | None) -> PageNode:
    here = new or old
    assert here is not None
    difference = None
    if old and new and old.time_us is not None and new.time_us is not None:
        difference = new.time_us - old.time_us
    texts = [_both(field, old, new) for field in _FIELDS]
    times = [None if n is None else n.time_us for n in (old, new)]
    values = (_kind(old, new, change), here.op, here.family, *texts, *times, difference)
    return PageNode(name, values, here.reads)


def _both(field: Callable[[NodeState], str], old: NodeState | None, new: NodeState | None) -> str:
    """Return a field of both files: one text if it is the same."""
    texts = [field(n) or "none" for n in (old, new) if n is not None]
    return " -> ".join(dict.fromkeys(texts)) if any(t != "none" for t in texts) else ""


def _kind(old: NodeState | None, new: NodeState | None, change: NodeChange | None) -> str:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "same" if change is None else " and ".join(f.field for f in change.fields)


def _tables(changes: Diff) -> list[PageTable]:
    texts = [line.strip() for line in diff_text(changes, times=0).splitlines()]
    rows: dict[str, list[tuple[Value, ...]]] = {
        "Facts that differ": [(f.field, f.old, f.new) for f in (*changes.model, *changes.facts)],
        "Decisions that differ": [(f"{d.question} of {d.subject}", d.old, d.new) for d in changes.decisions],
        "Outputs": [
            (o.name, "equal bits" if o.equal_bits else "; ".join(map(str, o.fields)) or "differ", o.max_abs)
            for o in changes.outputs
        ],
    }
    columns = {"Outputs": ("output", "", "largest difference")}
    return [
        PageTable("Summary", ("",), tuple((t,) for t in texts if t)),
        transfer_table("New copies", changes.new_transfers),
        transfer_table("Copies that vanished", changes.vanished_transfers),
        *(PageTable(t, columns.get(t, ("name", "A", "B")), tuple(r)) for t, r in rows.items()),
        PageTable("Not compared", ("",), tuple((n,) for n in changes.notes)),
    ]
