"""Plots as SVG: dots with intervals, runs, grouped bars, in the page's style (``drawing``). Needs matplotlib (extra ``report``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .blocks import number
from .drawing import (
    BAND,
    DIM,
    INK,
    MARKERS,
    axes_of,
    bar_handle,
    color,
    handle_of,
    legend_of,
    literal,
    svg_of,
)

__all__ = ["Dot", "dots", "grouped_bars", "runs"]

_MAX_RUNS = 250  # dots per row: more would only make the page larger


@dataclass(frozen=True, slots=True)
class Dot:
    """One value of a series in a row, with its interval (None if unknown)."""

    row: str
    series: int
    value: float
    low: float | None = None
    high: float | None = None


def dots(
    values: Sequence[Dot],
    names: Mapping[int, str],
    title: str,
    alt: str,
    *,
    log: bool = False,
    limits: Mapping[str, float] | None = None,
    mark: float | None = None,
) -> str:
    """Plot a row per name with a marker per series. ``limits``: a bound per row, drawn as a bar; ``mark``: a line at that value.

    On a log axis a value of 0 is drawn at the left edge, labeled ``equal``.
    """
    rows = list(dict.fromkeys(d.row for d in values))
    num_series = len(names)
    figure, axes = axes_of(len(rows), 0.30 + 0.1 * max(0, num_series - 1), title)
    for k in range(0, len(rows), 2):
        axes.axhspan(k - 0.5, k + 0.5, color=BAND, linewidth=0, zorder=0)
    row_positions = {row: len(rows) - 1 - k for k, row in enumerate(rows)}
    left = _left_edge(values, limits) if log else None
    for d in values:
        y = row_positions[d.row] + _offset(list(names).index(d.series), num_series)
        x = left if left is not None and d.value <= 0 else d.value
        if d.low is not None and d.high is not None:
            axes.plot([d.low, d.high], [y, y], color=color(d.series), linewidth=2.2, solid_capstyle="butt")
        axes.plot([x], [y], MARKERS[d.series % len(MARKERS)], color=color(d.series), markersize=7, zorder=3)
        if left is not None and d.value <= 0:
            axes.annotate(
                "equal", (x, y), (7, 0), textcoords="offset points", va="center", color=DIM, fontsize=8.5
            )
    for row, limit in (limits or {}).items():
        axes.plot(
            [limit, limit], [row_positions[row] - 0.36, row_positions[row] + 0.36], color=INK, linewidth=1.8
        )
    if mark is not None:
        axes.axvline(mark, color=INK, linewidth=1.2)
    if log:
        axes.set_xscale("log")
        axes.tick_params(axis="x", which="minor", length=0)
        if left is not None:
            axes.set_xlim(left=left / 2)
    axes.set_yticks([row_positions[r] for r in rows], [literal(r) for r in rows])
    axes.set_ylim(-0.5, len(rows) - 0.5)
    handles = [handle_of(name, series) for series, name in sorted(names.items())]
    legend_of(axes, [*handles, bar_handle("tolerance")] if limits else handles)
    return svg_of(figure, alt)


def _left_edge(values: Sequence[Dot], limits: Mapping[str, float] | None) -> float:
    positive = [d.value for d in values if d.value > 0] + [v for v in (limits or {}).values() if v > 0]
    return float(10.0 ** math.floor(math.log10(min(positive, default=1e-9)) - 1))


def _offset(k: int, num_series: int) -> float:
    """Return the vertical offset of a series within its row, the first on top."""
    return 0.0 if num_series < 2 else 0.2 - 0.4 * k / (num_series - 1)


def runs(
    times: Mapping[int, Sequence[float]],
    medians: Mapping[int, Dot],
    names: Mapping[int, str],
    unit: str,
    alt: str,
) -> str:
    """Plot a row per series: its runs as dots, its median with the interval. All values are in ``unit``; the axis starts at 0."""
    import numpy as np

    random = np.random.default_rng(0)  # vertical jitter, so that dots do not hide one another
    order = list(times)
    figure, axes = axes_of(len(order), 0.5, f"time of one run, {unit}")
    limit = 0.0
    for k, series in enumerate(order):
        y, values = len(order) - 1 - k, np.asarray(times[series], float)
        limit = max(limit, float(np.percentile(values, 98)))
        sample = values if values.size <= _MAX_RUNS else random.choice(values, _MAX_RUNS, replace=False)
        axes.plot(
            sample,
            y - 0.12 + random.uniform(-0.16, 0.16, sample.size),
            ".",
            color=color(series),
            alpha=0.35,
            markersize=3.5,
            markeredgewidth=0,
        )
        m = medians[series]
        low, high = m.low or m.value, min(m.high or m.value, float(values.max()))
        axes.plot([low, high], [y, y], color=INK, linewidth=2.4, solid_capstyle="butt", zorder=3)
        axes.plot(
            [m.value],
            [y],
            MARKERS[series % len(MARKERS)],
            color=color(series),
            markersize=8,
            markeredgecolor=INK,
            zorder=4,
        )
        axes.annotate(
            f"{number(m.value)} {unit}",
            (m.value, y),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=9.5,
        )
    axes.set_xlim(0, 1.1 * max(limit, *(m.value for m in medians.values())))
    axes.set_yticks(range(len(order) - 1, -1, -1), [literal(names[s]) for s in order])
    axes.set_ylim(-0.55, len(order) - 0.35)
    return svg_of(figure, alt)


def grouped_bars(
    groups: Sequence[str],
    values: Mapping[int, Sequence[float]],
    names: Mapping[int, str],
    title: str,
    alt: str,
    text: Any,
) -> str:
    """Plot a group per name with a bar per series; ``text`` formats a value as its label."""
    from matplotlib.patches import Patch

    num_series = len(values)
    figure, axes = axes_of(len(groups), 0.16 + 0.2 * num_series, title)
    thickness = 0.8 / num_series
    top = max((v for row in values.values() for v in row), default=1.0) or 1.0
    for k, (series, row) in enumerate(values.items()):
        ys = [len(groups) - 1 - g + 0.4 - thickness * (k + 0.5) for g in range(len(groups))]
        axes.barh(ys, row, height=thickness * 0.86, color=color(series), linewidth=0)
        for y, value in zip(ys, row, strict=True):
            axes.annotate(
                text(value) if value else "-",
                (value, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                color=INK if value else DIM,
                fontsize=8.5,
            )
    axes.set_xlim(0, top * 1.16)
    axes.set_yticks(range(len(groups) - 1, -1, -1), [literal(g) for g in groups])
    axes.set_ylim(-0.55, len(groups) - 0.45)
    legend_of(axes, [Patch(color=color(s), label=literal(names[s])) for s in sorted(values)])
    return svg_of(figure, alt)
