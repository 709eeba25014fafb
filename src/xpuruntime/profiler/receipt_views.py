"""Report views of receipts: findings, time by op family, the most expensive steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..protocols import EvidenceRow
from . import figures
from .blocks import Block, Cell, Fold, Prose, Table, duration, time_unit
from .blocks import Figure as Drawing
from .receipt import Receipt
from .views import Series

__all__ = ["receipt_blocks"]

_STEPS = 6  # steps per receipt that are shown without expanding
_FOLDED = 40
_FAMILIES = 8  # maximum bars per receipt; the smaller families are summed


def receipt_blocks(receipts: Sequence[Receipt], series: Series) -> list[Block]:
    """Return blocks for receipts of one model: findings, time by op family (engines side by side), then the most expensive steps of each."""
    labeled = list(zip(_labels(receipts), receipts, strict=True))
    blocks: list[Block] = [_findings(labeled, series)]
    timed = [(n, r) for n, r in labeled if any(row.time_us for e in r.evidence.values() for row in e.rows)]
    if timed:
        blocks.append(_families(timed, series))
    blocks += [_steps(name, r, series) for name, r in labeled]
    return blocks


def _labels(receipts: Sequence[Receipt]) -> list[str]:
    """Return each receipt's engine, numbered if one engine has several receipts."""
    names = [", ".join(dict.fromkeys(r.engine for r in receipt.plan.regions)) for receipt in receipts]
    return [f"{n} #{names[: k + 1].count(n)}" if names.count(n) > 1 else n for k, n in enumerate(names)]


def _findings(receipts: Sequence[tuple[str, Receipt]], series: Series) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for name, receipt in receipts:
        for k, finding in enumerate(receipt.findings):
            head = Cell(name, series=series.of(name)) if k == 0 else ""
            sign = Cell("✓ confirmed", tone="good") if finding.ok else Cell("✗ contradicted", tone="bad")
            if finding.ok and not finding.said:
                sign = Cell("not reported")
            rows.append((head, finding.claim, sign, finding.seen))
    return Table(("engine", "the plan says", "the evidence", "what was seen"), tuple(rows))


# A step of several fused nodes counts for the first of these families among them, since that node dominates its time.
_COSTLY = ("attention", "conv", "matmul", "rnn")


def _family(row: EvidenceRow, families: Mapping[str, str]) -> str:
    row_families = list(dict.fromkeys(families[n] for n in row.nodes if n in families))
    return next(
        (f for f in _COSTLY if f in row_families), row_families[0] if row_families else "engine's own"
    )


def _families(receipts: Sequence[tuple[str, Receipt]], series: Series) -> Drawing:
    totals: dict[int, Counter[str]] = {}
    for name, receipt in receipts:
        families = {n.name: n.family for n in receipt.plan.nodes}
        times = totals.setdefault(series.of(name), Counter())
        for evidence in receipt.evidence.values():
            for row in evidence.rows:
                times[_family(row, families)] += row.time_us or 0.0  # type: ignore[assignment]
    order = [f for f, _ in sum(totals.values(), Counter()).most_common()]
    if len(order) > _FAMILIES:
        other_families = f"{len(order) - _FAMILIES + 1} others"
        for times in totals.values():
            times[other_families] = sum(times.pop(f, 0) for f in order[_FAMILIES - 1 :])
        order = [*order[: _FAMILIES - 1], other_families]
    scale, unit = time_unit(max(max(t.values(), default=0.0) for t in totals.values()))
    names = series.named(name for name, _ in receipts)
    alt = "Time by op family: " + "; ".join(
        f"{names[s]} " + ", ".join(f"{f} {duration(t[f])}" for f in order if t[f]) for s, t in totals.items()
    )
    values = {s: [t[f] / scale for f in order] for s, t in totals.items()}
    svg = figures.grouped_bars(
        order, values, names, f"time per run, {unit}", alt, lambda v: duration(v * scale)
    )
    caption = (
        "Sum of the steps' times by op family. A step that computes several nodes counts for the costliest kind among them; "
        "“engine's own” are steps that belong to no node of the model, such as layout changes. "
        + _sources([r for _, r in receipts])
    )
    return Drawing(svg, alt, caption)


def _sources(receipts: Sequence[Receipt]) -> str:
    sources = {
        e.engine: f"{e.engine}: placement from the {e.placement_source}"
        + (f", times from {e.times_from}" if e.time_source else ", no times")
        for r in receipts
        for e in r.evidence.values()
    }
    return "; ".join(sources.values()) + "."


def _steps(name: str, receipt: Receipt, series: Series) -> Fold:
    """Return the most expensive steps with bars; ``share`` is relative to the sum of all steps."""
    rows = [row for e in receipt.evidence.values() for row in e.rows]
    rows.sort(key=lambda r: -(r.time_us or 0.0))
    total = sum(r.time_us or 0.0 for r in rows)
    top = (rows[0].time_us or 0.0) if rows else 0.0
    families = {n.name: n.family for n in receipt.plan.nodes}
    cells = [_step(r, total, top, families, series.of(name)) for r in rows]
    columns, right = ("op", "kernel", "nodes of the model", "time", "share"), frozenset({"time", "share"})
    blocks: list[Block] = [Table(columns, tuple(cells[:_STEPS]), right)]
    if len(cells) > _STEPS:
        hidden = cells[_STEPS:_FOLDED]
        inner: list[Block] = [Table(columns, tuple(hidden), right)]
        if len(cells) > _FOLDED:
            inner.append(Prose(f"and {len(cells) - _FOLDED} more, each shorter than these", "dim"))
        blocks.append(Fold(f"{len(cells) - _STEPS} more steps", tuple(inner)))
    notes = tuple(f for e in receipt.evidence.values() for f in (*e.fallbacks, *e.notes))
    blocks += [Prose(note, "dim") for note in notes]
    blocks.append(Prose(_coverage(receipt), "dim"))
    total_text = f", {duration(total)} in all" if total else ""
    return Fold(f"{name}: {len(rows)} steps ran{total_text}", tuple(blocks), open=True)


def _coverage(receipt: Receipt) -> str:
    if receipt.coverage == 1:
        return f"All {len(receipt.plan.nodes)} nodes of the model are named by a step that ran."
    return (
        f"{receipt.coverage:.1%} of the model's {len(receipt.plan.nodes)} nodes are named by a step that ran; "
        "the others were folded away before the first run or are not reported."
    )


def _step(
    row: EvidenceRow, total: float, top: float, families: Mapping[str, str], series: int
) -> tuple[Cell | str, ...]:
    costly = _family(row, families)
    first = next((n for n in row.nodes if families.get(n) == costly), row.nodes[0] if row.nodes else "-")
    fused_text = f"and {len(row.nodes) - 1} fused with it" if len(row.nodes) > 1 else ""
    kernel = Cell(row.kernel, " · ".join(p for p in (row.device, row.precision) if p), mono=True)
    if row.time_us is None:
        return row.op, kernel, Cell(first, fused_text, mono=True), "-", ""
    share = f"{row.time_us / total:.1%}" if total else ""
    bar = Cell(share, share=row.time_us / top if top else 0.0, series=series)
    return row.op, kernel, Cell(first, fused_text, mono=True), duration(row.time_us), bar
