"""A benchmark as a picture: one row per engine with its runs, median and interval. Needs matplotlib (extra ``report``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import StoreError, XpuError
from .bench import BenchReport

__all__ = ["SUFFIXES", "plot_bench"]

SUFFIXES = (".svg", ".png", ".pdf")
_MAX_DOTS = 400


class _PlotError(XpuError):
    """The picture cannot be drawn: matplotlib is missing, or nothing was ranked."""

    exit_code = 6


def plot_bench(report: BenchReport, path: Path) -> None:
    """Draw the report to ``path`` (.svg, .png, .pdf). Raises XpuError without matplotlib, StoreError when it cannot be written."""
    who = f"--plot {path}"
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(
            who, f"must end in {', '.join(SUFFIXES)}", got=path.name, do="Change the file's name."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _PlotError(
            who, "matplotlib is not installed", do="Run: pip install 'xpuruntime[report]'"
        ) from error
    if not report.ranked:
        raise _PlotError(who, "nothing was ranked, so there is nothing to draw", do="See the table.")
    unit, scale = ("ms", 1e3) if report.ranked[0].summary.median >= 1000 else ("us", 1.0)
    figure = Figure(figsize=(8, 1.6 + 0.7 * len(report.ranked)), layout="constrained")
    axes = figure.add_subplot()
    random = np.random.default_rng(0)
    rows = list(reversed(report.ranked))
    for row, standing in enumerate(rows):
        times = np.asarray(standing.times_us) / scale
        dots = times if times.size <= _MAX_DOTS else random.choice(times, _MAX_DOTS, replace=False)
        axes.plot(
            dots, row + random.uniform(-0.25, 0.25, dots.size), ".", color="#9db4c8", markersize=3, zorder=1
        )
        s = standing.summary
        low, high = s.interval.low / scale, min(s.interval.high, max(standing.times_us)) / scale
        axes.plot([low, high], [row, row], color="#12436d", linewidth=5, solid_capstyle="butt", zorder=2)
        axes.plot([s.median / scale], [row], "|", color="#d4351c", markersize=18, markeredgewidth=2, zorder=3)
        text = f"{s.median / scale:.3g} {unit}" + (
            "" if standing.ratio is None else f"  ({standing.ratio.value:.2f}x)"
        )
        axes.annotate(text, (s.median / scale, row + 0.32), fontsize=9, ha="center")
    shown = [np.percentile(s.times_us, 99) for s in report.ranked]
    axes.set_xlim(0, 1.1 * max(shown) / scale)
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.set_yticks(range(len(rows)), [f"{s.name} {s.facts['version']}" for s in rows])
    axes.set_xlabel(f"time of one run, {unit}: dots are runs, the bar is the median's 95% interval")
    axes.set_title(
        f"{report.model}: {report.threads} threads, {report.rounds} rounds\n{report.machine}", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        do = "Name a file in a folder that exists and can be written."
        raise StoreError(who, "cannot be written", got=error.strerror or error, do=do) from error
