"""Report views of comparisons and benchmarks.

They are the workbench's values (``CompareReport`` or its ``Pair``, ``BenchReport``). The profiler is a layer below the workbench,
so it knows them by what they must have, not by their classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..decisions import Candidate
from ..numerics import Comparison
from . import figures
from .blocks import Block, Cell, Prose, Table, duration, number, time_unit
from .blocks import Figure as Drawing
from .views import Series

__all__ = ["Agreement", "Bench", "agreement_figure", "agreement_table", "bench_blocks", "speed_figure"]


class Agreement(Protocol):
    """A ``workbench.compare.Pair``: one contender compared with its reference, output by output."""

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


def agreement_table(pairs: Sequence[tuple[str, Agreement]], series: Series) -> Table:
    """Return one row per output of each labeled pair."""
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
    """Plot the difference of each output from its reference, on a log scale, with the tolerance; None without a finite difference."""
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
    """Return the verdict, the table, the plot of runs, and what was not ranked."""
    blocks: list[Block] = [Prose(_sentence(bench.sentence))]
    if bench.ranked:
        blocks += [_bench_table(bench, series), _runs(bench, series)]
    blocks += [Prose(f"Not ranked: {name}: {text}", "bad") for name, text in bench.wrong.items()]
    blocks += [Prose(f"Not {c.name} ({c.code.value}): {c.reason} {c.do}", "dim") for c in bench.rejected]
    return blocks


def _sentence(text: str) -> str:
    """Add a full stop, and a capital unless the text starts with an engine's name, which keeps its spelling."""
    return (text[:1].upper() + text[1:] if text.startswith(("no ", "not ")) else text) + "."


def _bench_table(bench: Bench, series: Series) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for s in bench.ranked:
        m, f = s.summary, s.facts
        scale, unit = time_unit(m.median)
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
    caption = f"{bench.rounds:,} rounds in alternation on {bench.machine}; in small print: 95% intervals."
    if bench.controls:
        controls = ", ".join(f"{name} {ratio.value:.3f}" for name, ratio in bench.controls.items())
        caption += f" Controls (a second session of the same engine, ratio): {controls}."
    caption += f" Differences below {bench.floor:.1%} are not reported."
    return Table(("engine", "pinned", *right, "verdict"), tuple(rows), frozenset(right), caption)


def _interval(interval: Any, scale: float = 1.0) -> str:
    high = "∞" if math.isinf(interval.high) else number(interval.high / scale)
    return f"{number(interval.low / scale)} to {high}"


def _runs(bench: Bench, series: Series) -> Drawing:
    scale, unit = time_unit(max(s.summary.median for s in bench.ranked))
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
    """Plot every benchmark relative to the best engine of its row. None without two engines to compare."""
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
