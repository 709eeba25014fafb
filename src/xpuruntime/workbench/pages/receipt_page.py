"""The page of one file: a receipt, a plan, a program or a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...evidence import Evidence, EvidenceRow
from ...profiler.receipt import Receipt
from ...profiler.trace import Trace, TraceSpan
from ...program.plan import Transfer
from ..review.snapshot import Snapshot, of_receipt
from .node_values import NODE_COLUMNS, decision_table, decisions_of_file, plan_of, snapshot_nodes
from .page import Lane, Page, PagePoint, PageTable, Value

__all__ = ["receipt_page", "snapshot_page", "transfer_table"]

_COLORS = ("engine", "kernel", "family", "precision", "device", "region", "step us")


def receipt_page(receipt: Receipt, trace: Trace | None = None) -> Page:
    """Return the page of a receipt. trace: a recording of the run, for the timeline."""
    return snapshot_page(of_receipt(receipt, "", {}, ()), trace)


def snapshot_page(snapshot: Snapshot, trace: Trace | None = None) -> Page:
    """Return the page of a plan, a receipt, a program or a lock."""
    plan = plan_of(snapshot)
    receipt = snapshot.source if isinstance(snapshot.source, Receipt) else None
    tables = [] if receipt is None else [_findings(receipt)]
    if plan is not None and plan.transfers:
        tables.append(transfer_table("Copies", plan.transfers))
    if receipt is not None:
        tables.append(_counted(receipt))
    tables.append(decision_table(decisions_of_file(snapshot)))
    facts = dict(snapshot.facts) | (dict(receipt.versions) if receipt is not None else {})
    tables.append(PageTable("Versions", ("name", "value"), tuple(facts.items())))
    lanes, note = _lanes(receipt, trace)
    return Page(
        title=f"{snapshot.model}: {snapshot.kind}",
        verdict=_verdict(snapshot),
        columns=NODE_COLUMNS,
        colors=_COLORS,
        nodes=snapshot_nodes(snapshot),
        lead=(_sentence(snapshot), *(() if plan is None else plan.warnings)),
        lanes=lanes,
        lanes_note=note,
        points=() if receipt is None else _points(receipt),
        tables=tuple(t for t in tables if t.rows),
    )


def _verdict(snapshot: Snapshot) -> tuple[str, bool | None]:
    match snapshot.confirmed:
        case True:
            return "confirmed by evidence", True
        case False:
            return "not confirmed by evidence", False
    return f"{snapshot.kind}: nothing ran", None


def _sentence(snapshot: Snapshot) -> str:
    parts = [
        f"{len(snapshot.nodes)} nodes on {', '.join(snapshot.engines) or 'no engine'} ({', '.join(snapshot.devices)})"
    ]
    if snapshot.time_us is not None:
        parts.append(f"{snapshot.time_us:.1f} us in measured steps, over {snapshot.timed_runs} runs")
    if snapshot.coverage is not None:
        parts.append(f"{snapshot.coverage:.1%} of the nodes are named by a step that ran")
    return "; ".join(parts) + "."


def _findings(receipt: Receipt) -> PageTable:
    rows = tuple(
        (f.region, f.claim, ("confirmed" if f.said else "not reported") if f.ok else "contradicted", f.seen)
        for f in receipt.findings
    )
    note = ". ".join(receipt.attribution.lines())
    return PageTable("Findings", ("region", "the plan says", "the evidence", "what was seen"), rows, note)


def _counted(receipt: Receipt) -> PageTable:
    rows = [
        (region, k.replace("_", " "), n)
        for region, e in receipt.evidence.items()
        for k, n in e.transfers.items()
        if n
    ]
    note = "Counted where they happen, since the session was opened. Inner copies are of values inside the model."
    return PageTable("Counted transfers", ("region", "kind", "count"), tuple(rows), note)


def transfer_table(title: str, transfers: Iterable[Transfer]) -> PageTable:
    """Return a table of the values that one region computes and another one reads."""
    rows = tuple(_transfer(t) for t in transfers)
    return PageTable(title, ("value", "from", "to", "bytes", ""), rows)


def _transfer(t: Transfer) -> tuple[Value, ...]:
    return (
        t.value,
        t.source,
        t.destination,
        t.bytes,
        "shared memory, nothing is copied" if t.shared else "copied",
    )


# ── timeline and roofline ──


def _lanes(receipt: Receipt | None, trace: Trace | None) -> tuple[tuple[Lane, ...], str]:
    """Return the timeline: the recorded spans if there are any, else the measured steps one after another."""
    if receipt is None:
        return (), ""
    if trace is not None and trace.spans:
        return _recorded(trace, receipt), "Recorded spans of one run, on the threads that ran them." + (
            f" {trace.dropped} events were dropped." if trace.dropped else ""
        )
    lanes = [
        lane
        for region, e in receipt.evidence.items()
        for lane in (_steps(region, e), _activities(region, e))
        if lane.spans
    ]
    note = (
        "Steps of each region in order. Lengths are measured medians; gaps between steps were not measured."
    )
    return tuple(lanes), note


def _recorded(trace: Trace, receipt: Receipt) -> tuple[Lane, ...]:
    """Return the recorded spans: a lane for each thread, and one for each level of nesting below it."""
    nodes = _nodes_of_steps(receipt)
    threads: dict[int, list[tuple[float, float, str, str]]] = {}
    for s in trace.spans:
        threads.setdefault(s.thread, []).append(
            (s.start_ns / 1e3, s.duration_ns / 1e3, _named(s), nodes.get((s.name, s.step), ""))
        )
    first = min(s.start_ns for s in trace.spans) / 1e3
    lanes = []
    for thread, spans in threads.items():
        for depth, row in enumerate(_nested(spans)):
            name = f"thread {thread}" if depth == 0 else f"inside ({depth})"
            lanes.append(Lane(name, tuple((round(t - first, 3), d, text, node) for t, d, text, node in row)))
    return tuple(lanes)


def _named(span: TraceSpan) -> str:
    """Return a span's name, with the time that its thread waited."""
    return f"{span.name} (waited {span.waited_ns / 1e3:.1f} us)" if span.waited_ns else span.name


def _nested(spans: Sequence[tuple[float, float, str, str]]) -> list[list[tuple[float, float, str, str]]]:
    """Return rows of spans that do not overlap: a span inside another one is in the next row."""
    rows: list[list[tuple[float, float, str, str]]] = []
    ends: list[float] = []
    for span in sorted(spans, key=lambda s: (s[0], -s[1])):
        while ends and ends[-1] <= span[0]:
            ends.pop()
        ends.append(span[0] + span[1])
        while len(rows) < len(ends):
            rows.append([])
        rows[len(ends) - 1].append(span)
    return rows


def _nodes_of_steps(receipt: Receipt) -> dict[tuple[str, int], str]:
    """Return the first node of each step by its kernel and number, which a recording has; for several regions, of each region."""
    if len(receipt.evidence) != 1:
        first = {n.region: n.name for n in reversed(receipt.plan.nodes)}
        return {(f"{r.id}: {r.engine}", -1): first.get(r.id, "") for r in receipt.plan.regions}
    rows = next(iter(receipt.evidence.values())).rows
    return {(row.kernel.partition(": ")[0], i): row.nodes[0] for i, row in enumerate(rows) if row.nodes}


def _label(row: EvidenceRow) -> str:
    return f"{row.nodes[0] if row.nodes else row.op}: {row.kernel}"


def _steps(region: str, evidence: Evidence) -> Lane:
    spans, start = [], 0.0
    for row in evidence.rows:
        if row.time_us is not None:
            spans.append((round(start, 3), row.time_us, _label(row), row.nodes[0] if row.nodes else ""))
            start += row.time_us
    return Lane(f"{region} {evidence.engine}", tuple(spans))


def _activities(region: str, evidence: Evidence) -> Lane:
    """Return the kernels that the device's driver recorded, at the times of the device's clock."""
    spans = [
        (k.start_us, k.time_us, str(k), row.nodes[0] if row.nodes else "")
        for row in evidence.rows
        for k in row.seen
    ]
    return Lane(f"{region} device", tuple(sorted(spans)))


def _points(receipt: Receipt) -> tuple[PagePoint, ...]:
    return tuple(
        PagePoint(_label(row), row.nodes[0] if row.nodes else "", e.engine, row.flops, row.bytes, row.time_us)
        for e in receipt.evidence.values()
        for row in e.rows
        if row.time_us and row.flops > 0 and row.bytes > 0
    )
