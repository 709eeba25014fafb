"""A plot of a benchmark: one row per engine with its runs, median and interval. Needs matplotlib (extra ``report``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import StoreError, XpuError
from .engines import BenchReport

__all__ = ["SUFFIXES", "plot_bench"]

SUFFIXES = (".svg", ".png", ".pdf")
_MAX_DOTS = 400


class _PlotError(XpuError):
    """A plot that cannot be drawn: matplotlib is missing, or no engine is ranked."""

    exit_code = 6


def plot_bench(report: BenchReport, path: Path) -> None:
    """Draw the report to ``path`` (.svg, .png, .pdf). Raise XpuError without matplotlib, StoreError if the file cannot be written."""
    who = f"--plot {path}"
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(
            who, f"must end in {', '.join(SUFFIXES)}", got=path.name, do="Change the file's suffix."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _PlotError(
            who, "matplotlib is not installed", do="Run: pip install 'xpuruntime[report]'"
        ) from error
    if not report.ranked:
        raise _PlotError(who, "no engine is ranked, so there is nothing to draw", do="See the table.")
    unit, scale = ("ms", 1e3) if report.ranked[0].summary.median >= 1000 else ("us", 1.0)
    figure = Figure(figsize=(8, 1.6 + 0.7 * len(report.ranked)), layout="constrained")
    axes = figure.add_subplot()
    random = np.random.default_rng(0)
    rows = list(reversed(report.ranked))
    for row, engine in enumerate(rows):
        times = np.asarray(engine.times_us) / scale
        dots = times if times.size <= _MAX_DOTS else random.choice(times, _MAX_DOTS, replace=False)
        axes.plot(
            dots, row + random.uniform(-0.25, 0.25, dots.size), ".", color="#9db4c8", markersize=3, zorder=1
        )
        summary = engine.summary
        low, high = summary.interval.low / scale, min(summary.interval.high, max(engine.times_us)) / scale
        axes.plot([low, high], [row, row], color="#12436d", linewidth=5, solid_capstyle="butt", zorder=2)
        axes.plot(
            [summary.median / scale], [row], "|", color="#d4351c", markersize=18, markeredgewidth=2, zorder=3
        )
        text = f"{summary.median / scale:.3g} {unit}" + (
            "" if engine.ratio is None else f"  ({engine.ratio.value:.2f}x)"
        )
        axes.annotate(text, (summary.median / scale, row + 0.32), fontsize=9, ha="center")
    limits = [np.percentile(s.times_us, 99) for s in report.ranked]
    axes.set_xlim(0, 1.1 * max(limits) / scale)
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.set_yticks(range(len(rows)), [f"{s.name} {s.facts['version']}" for s in rows])
    axes.set_xlabel(f"time of one run, {unit}: dots are runs, bars are 95% intervals of the medians")
    axes.set_title(
        f"{report.model}: {report.threads} threads, {report.rounds} rounds\n{report.machine}", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        do = "Name a file in an existing, writable folder."
        raise StoreError(who, "cannot be written", got=error.strerror or error, do=do) from error
