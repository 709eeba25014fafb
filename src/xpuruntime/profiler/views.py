"""How plans, receipts, decisions, comparisons and benchmarks look on a page: each becomes a few blocks.

Comparisons and benchmarks are the workbench's values (``CompareReport`` or its ``Pair``, ``BenchReport``). The profiler
stands below the workbench, so it knows them by what they must have, not by their classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..decisions import Candidate, Decision
from ..numerics import Comparison
from ..program.plan import Plan
from ..protocols import EvidenceRow
from . import figures
from .blocks import Block, Cell, Columns, Facts, Fold, Prose, Table, duration, number, size
from .blocks import Figure as Drawing
from .receipt import Receipt

__all__ = [
    "Agreement",
    "Bench",
    "Series",
    "agreement_figure",
    "agreement_table",
    "bench_blocks",
    "decision_blocks",
    "machine_blocks",
    "plan_table",
    "receipt_blocks",
    "speed_figure",
]

_STEPS = 6  # of each receipt that are shown before the fold
_FOLDED = 40
_FAMILIES = 8  # bars of a receipt; the smaller ones are added up


class Agreement(Protocol):
    """A ``workbench.compare.Pair``: one contender held against its reference, output by output."""

    @property
    def actual(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def outputs(self) -> tuple[Comparison, ...]: ...


class Bench(Protocol):
    """A ``workbench.bench.BenchReport``."""

    @property
    def model(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def ranked(self) -> tuple[Any, ...]: ...
    @property
    def wrong(self) -> Mapping[str, str]: ...
    @property
    def rejected(self) -> tuple[Candidate, ...]: ...
    @property
    def controls(self) -> Mapping[str, Any]: ...
    @property
    def floor(self) -> float: ...
    @property
    def sentence(self) -> str: ...


class Series:
    """A number for each engine's name, in the order of first sight: the same colour and marker all over a page."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> int:
        """The number of an engine."""
        return self._numbers.setdefault(name, len(self._numbers))

    def named(self, names: Iterable[str]) -> dict[int, str]:
        """Number -> name, for legends."""
        return {self.of(n): n for n in names}


def plan_table(plans: Sequence[Plan], series: Series) -> Table:
    """One row per region of each plan: who runs it, where, how, and what the region holds."""
    rows: list[tuple[Cell | str, ...]] = []
    several = len({plan.model["digest"] for plan in plans}) > 1
    for plan in plans:
        for region in plan.regions:
            families = Counter(n.family for n in plan.nodes if n.region == region.id)
            held = ", ".join(f"{n} {family}" for family, n in families.most_common())
            head = Cell(region.engine, region.engine_version, series=series.of(region.engine))
            nodes = Cell(f"{sum(families.values())} nodes", held)
            row = (head, region.device, region.precision, str(region.threads or "-"), nodes)
            rows.append((Cell(plan.model["name"]), *row) if several else row)
    columns = ("engine", "device", "precision", "threads", "region")
    return Table(("model", *columns) if several else columns, tuple(rows), frozenset({"threads"}))


def decision_blocks(decisions: Sequence[Decision]) -> list[Block]:
    """Every decision with its rejected candidates: what was chosen or not, the reason's code, its text and the advice."""
    rows: list[tuple[Cell | str, ...]] = []
    for d in decisions:
        head = Cell(d.question, d.subject)
        if d.chosen is None:
            rows.append((head, Cell("✗ nothing", "could be had", tone="bad"), ""))
        else:
            rows.append((head, *_candidate(d.chosen, "✓ ", "good")))
        rows += [("", *_candidate(c, "not ", "dim")) for c in d.rejected]
    return [Table(("question", "candidate", "reason"), tuple(rows))]


def _candidate(c: Candidate, sign: str, tone: str) -> tuple[Cell | str, ...]:
    return Cell(sign + c.name, c.code.value, tone=tone, keep=True), Cell(c.reason, c.do)


def receipt_blocks(receipts: Sequence[Receipt], series: Series) -> list[Block]:
    """Receipts of one model: findings, time by op family (engines side by side), then each one's costliest steps."""
    labelled = list(zip(_labels(receipts), receipts, strict=True))
    blocks: list[Block] = [_findings(labelled, series)]
    timed = [(n, r) for n, r in labelled if any(row.time_us for e in r.evidence.values() for row in e.rows)]
    if timed:
        blocks.append(_families(timed, series))
    blocks += [_steps(name, r, series) for name, r in labelled]
    return blocks


def _labels(receipts: Sequence[Receipt]) -> list[str]:
    """Each receipt's engine; numbered where one engine has several."""
    names = [", ".join(dict.fromkeys(r.engine for r in receipt.plan.regions)) for receipt in receipts]
    return [f"{n} #{names[: k + 1].count(n)}" if names.count(n) > 1 else n for k, n in enumerate(names)]


def _findings(receipts: Sequence[tuple[str, Receipt]], series: Series) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for name, receipt in receipts:
        for k, finding in enumerate(receipt.findings):
            head = Cell(name, series=series.of(name)) if k == 0 else ""
            sign = Cell("✓ confirmed", tone="good") if finding.ok else Cell("✗ not so", tone="bad")
            if finding.ok and not finding.said:
                sign = Cell("not said")
            rows.append((head, finding.claim, sign, finding.seen))
    return Table(("engine", "the plan says", "the evidence", "what was seen"), tuple(rows))


# Where a vendor fused several nodes into one step, the step counts for the first of these among them: the one that costs.
_COSTLY = ("attention", "conv", "matmul", "rnn")


def _family(row: EvidenceRow, families: Mapping[str, str]) -> str:
    held = list(dict.fromkeys(families[n] for n in row.nodes if n in families))
    return next((f for f in _COSTLY if f in held), held[0] if held else "engine's own")


def _families(receipts: Sequence[tuple[str, Receipt]], series: Series) -> Drawing:
    totals: dict[int, Counter[str]] = {}
    for name, receipt in receipts:
        families = {n.name: n.family for n in receipt.plan.nodes}
        spent = totals.setdefault(series.of(name), Counter())
        for evidence in receipt.evidence.values():
            for row in evidence.rows:
                spent[_family(row, families)] += row.time_us or 0.0  # type: ignore[assignment]
    order = [f for f, _ in sum(totals.values(), Counter()).most_common()]
    if len(order) > _FAMILIES:
        rest = f"{len(order) - _FAMILIES + 1} others"
        for spent in totals.values():
            spent[rest] = sum(spent.pop(f, 0) for f in order[_FAMILIES - 1 :])
        order = [*order[: _FAMILIES - 1], rest]
    scale, unit = _unit(max(max(t.values(), default=0.0) for t in totals.values()))
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
    told = {
        e.engine: f"{e.engine}: placement from the {e.placement_source}"
        + (f", times from a {e.time_source}" if e.time_source else ", no times")
        for r in receipts
        for e in r.evidence.values()
    }
    return "; ".join(told.values()) + "."


def _steps(name: str, receipt: Receipt, series: Series) -> Fold:
    """The costliest steps with bars; ``share`` is of the sum of all steps."""
    rows = [row for e in receipt.evidence.values() for row in e.rows]
    rows.sort(key=lambda r: -(r.time_us or 0.0))
    total = sum(r.time_us or 0.0 for r in rows)
    top = (rows[0].time_us or 0.0) if rows else 0.0
    families = {n.name: n.family for n in receipt.plan.nodes}
    cells = [_step(r, total, top, families, series.of(name)) for r in rows]
    columns, right = ("op", "kernel", "nodes of the model", "time", "share"), frozenset({"time", "share"})
    blocks: list[Block] = [Table(columns, tuple(cells[:_STEPS]), right)]
    if len(cells) > _STEPS:
        more = cells[_STEPS:_FOLDED]
        inner: list[Block] = [Table(columns, tuple(more), right)]
        if len(cells) > _FOLDED:
            inner.append(Prose(f"and {len(cells) - _FOLDED} more, each shorter than these", "dim"))
        blocks.append(Fold(f"{len(cells) - _STEPS} more steps", tuple(inner)))
    notes = tuple(f for e in receipt.evidence.values() for f in (*e.fallbacks, *e.notes))
    blocks += [Prose(note, "dim") for note in notes]
    blocks.append(Prose(_coverage(receipt), "dim"))
    spent = f", {duration(total)} in all" if total else ""
    return Fold(f"{name}: {len(rows)} steps ran{spent}", tuple(blocks), open=True)


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
    more = f"and {len(row.nodes) - 1} fused with it" if len(row.nodes) > 1 else ""
    kernel = Cell(row.kernel, " · ".join(p for p in (row.device, row.precision) if p), mono=True)
    if row.time_us is None:
        return row.op, kernel, Cell(first, more, mono=True), "-", ""
    share = f"{row.time_us / total:.1%}" if total else ""
    bar = Cell(share, share=row.time_us / top if top else 0.0, series=series)
    return row.op, kernel, Cell(first, more, mono=True), duration(row.time_us), bar


def agreement_table(pairs: Sequence[tuple[str, Agreement]], series: Series) -> Table:
    """One row per output of each labelled pair."""
    rows: list[tuple[Cell | str, ...]] = []
    for label, pair in pairs:
        for c in pair.outputs:
            who = Cell(pair.actual, f"against {pair.reference}", series=series.of(pair.actual))
            verdict = Cell("✓ agrees", tone="good") if c.ok else Cell("✗ differs", c.reason, tone="bad")
            cosine = "-" if c.cosine is None else f"{c.cosine:.9f}"
            argmax = "-" if c.argmax_equal is None else f"{c.argmax_equal:.0%}"
            row = (
                Cell(label, c.name),
                who,
                number(c.max_abs),
                number(c.max_rel),
                number(c.tolerance, 1),
                cosine,
                argmax,
            )
            rows.append((*row, verdict))
    right = ("max |d|", "max |d| / max |ref|", "tolerance", "cosine", "same argmax")
    return Table(("output", "engine", *right, "verdict"), tuple(rows), frozenset(right))


def agreement_figure(pairs: Sequence[tuple[str, Agreement]], series: Series) -> Drawing | None:
    """How far each output lies from its reference, on a log scale, with the tolerance; None without a finite difference."""
    dots, limits = [], {}
    for label, pair in pairs:
        for c in pair.outputs:
            if math.isfinite(c.max_rel):
                row = f"{label} · {c.name}"
                dots.append(figures.Dot(row, series.of(pair.actual), c.max_rel))
                if c.tolerance:
                    limits[row] = c.tolerance
    if not dots:
        return None
    names = series.named(p.actual for _, p in pairs)
    alt = "Largest difference of each output: " + ", ".join(
        f"{d.row} {names[d.series]} {number(d.value)}" for d in dots
    )
    svg = figures.dots(dots, names, "max |d| / max |ref|, log scale", alt, log=True, limits=limits)
    return Drawing(
        svg, alt, "Each marker is one output's largest difference; the upright bar is the tolerance."
    )


def bench_blocks(bench: Bench, series: Series) -> list[Block]:
    """The answer in words, the table, the runs as a plot, and what was not ranked."""
    blocks: list[Block] = [Prose(_sentence(bench.sentence))]
    if bench.ranked:
        blocks += [_bench_table(bench, series), _runs(bench, series)]
    blocks += [Prose(f"Not ranked: {name}: {text}", "bad") for name, text in bench.wrong.items()]
    blocks += [Prose(f"Not {c.name} ({c.code.value}): {c.reason} {c.do}", "dim") for c in bench.rejected]
    return blocks


def _sentence(text: str) -> str:
    """With a full stop, and a capital unless it starts with an engine's name, which keeps its spelling."""
    return (text[:1].upper() + text[1:] if text.startswith(("no ", "not ")) else text) + "."


def _bench_table(bench: Bench, series: Series) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for s in bench.ranked:
        m, f = s.summary, s.facts
        scale, unit = _unit(m.median)
        ratio = Cell("1") if s.ratio is None else Cell(f"{s.ratio.value:.2f}", _interval(s.ratio.interval))
        rows.append(
            (
                Cell(s.name, f"{f['version']} on {f['device']}", series=series.of(s.name)),
                f"{f['precision']}, {f['threads'] or bench.threads} threads",
                Cell(f"{number(m.median / scale)} {unit}", _interval(m.interval, scale)),
                f"{number(m.p95 / scale)} {unit}",
                ratio,
                s.verdict,
            )
        )
    right = ("median", "p95", "ratio to the best")
    caption = f"{bench.rounds:,} rounds in alternation on {bench.machine}; in small: 95% intervals."
    if bench.controls:
        told = ", ".join(f"{name} {ratio.value:.3f}" for name, ratio in bench.controls.items())
        caption += f" Controls (a second session of the same engine, ratio): {told}."
    caption += f" Nothing below {bench.floor:.1%} is called a difference."
    return Table(("engine", "pinned", *right, "verdict"), tuple(rows), frozenset(right), caption)


def _interval(interval: Any, scale: float = 1.0) -> str:
    high = "∞" if math.isinf(interval.high) else number(interval.high / scale)
    return f"{number(interval.low / scale)} to {high}"


def _runs(bench: Bench, series: Series) -> Drawing:
    scale, unit = _unit(max(s.summary.median for s in bench.ranked))
    times = {series.of(s.name): [t / scale for t in s.times_us] for s in bench.ranked}
    medians = {series.of(s.name): _median_dot(s, series, scale) for s in bench.ranked}
    alt = f"Runs of {bench.model}: " + ", ".join(
        f"{s.name} median {duration(s.summary.median)}" for s in bench.ranked
    )
    names = series.named(s.name for s in bench.ranked)
    caption = "Dots are single runs (some thinned out), markers are medians, the bar through a marker is its 95% interval."
    return Drawing(figures.runs(times, medians, names, unit, alt), alt, caption)


def _median_dot(standing: Any, series: Series, scale: float) -> figures.Dot:
    m = standing.summary
    high = m.interval.high if math.isfinite(m.interval.high) else max(standing.times_us)
    return figures.Dot(
        standing.name, series.of(standing.name), m.median / scale, m.interval.low / scale, high / scale
    )


def speed_figure(benches: Sequence[tuple[str, Bench]], series: Series) -> Drawing | None:
    """Every benchmark in one plot: time relative to the best engine of its row. None where nothing can be compared."""
    dots = []
    for label, bench in benches:
        if len(bench.ranked) < 2:
            continue
        for s in bench.ranked:
            r = s.ratio
            low, high = (None, None) if r is None else (r.interval.low, r.interval.high)
            if high is not None and math.isinf(high):
                low = high = None
            dots.append(figures.Dot(label, series.of(s.name), 1.0 if r is None else r.value, low, high))
    if not dots:
        return None
    names = series.named(s.name for _, b in benches for s in b.ranked)
    alt = "Time relative to the engine with the lowest median: " + ", ".join(
        f"{d.row} {names[d.series]} {d.value:.2f}" for d in dots
    )
    svg = figures.dots(
        dots, names, "time of one run, relative to the engine with the lowest median", alt, mark=1.0
    )
    caption = (
        "1 is the engine with the lowest median of each model; lower is better. The bars are 95% intervals of the ratio, "
        "paired by round: one that holds 1 shows no difference."
    )
    return Drawing(svg, alt, caption)


def machine_blocks(versions: Mapping[str, str]) -> list[Block]:
    """Processor, CUDA devices, libraries and the versions that took part."""
    from ..runtime.device import cpu, cuda, libraries

    c = cpu()
    caches = ", ".join(
        f"L{x.level}{x.type[:1].lower() if x.level == 1 else ''} {size(x.bytes)}" for x in c.caches
    )
    limit = f", limit {size(c.memory_limit_bytes)}" if c.memory_limit_bytes else ""
    report = cuda()
    found = "; ".join(f"cuda:{d.index} {d.name}, {size(d.memory_bytes)}" for d in report.devices)
    pairs = (
        ("processor", f"{c.model} ({c.level or c.architecture})"),
        ("cores", f"{c.usable_cores} usable of {c.logical_cores} logical"),
        ("caches", caches or "not told"),
        ("memory", f"{size(c.memory_bytes)}{limit}"),
        ("CUDA devices", found or f"none: {report.status.message.partition(';')[0]}"),
    )
    loaded = tuple((x.title, f"{x.version or 'loaded'}" if x.loaded else "not here") for x in libraries())
    return [Columns(((Facts(pairs),), (Facts((*versions.items(), *loaded)),)))]


def _unit(microseconds: float) -> tuple[float, str]:
    return (1e3, "ms") if microseconds >= 1e3 else (1.0, "µs")
