"""Plots as SVG that follow the page: its colours in light and dark, its font, its width. Needs matplotlib (extra ``report``).

matplotlib writes fixed colours. Each colour drawn here stands for a CSS variable of the page and is replaced by it, so that
one drawing serves both themes. Series differ by marker too, not by colour alone.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import XpuError
from .blocks import number

__all__ = [
    "MARKERS",
    "Dot",
    "ReportExtraMissing",
    "distinct",
    "dots",
    "grouped_bars",
    "require_report_extra",
    "runs",
]

INK, DIM, GRID, BAND = "#010101", "#020202", "#030303", "#040404"
SERIES = tuple(f"#0501{k:02x}" for k in range(6))
_VARIABLES = {INK: "--ink", DIM: "--dim", GRID: "--line", BAND: "--code"} | {
    colour: f"--series-{k}" for k, colour in enumerate(SERIES)
}
MARKERS = "osD^vP"  # the page's own dots have the first four shapes
_WIDTH = 9.4  # inches
_MAX_RUNS = 250  # dots per row: more would only make the page larger


class ReportExtraMissing(XpuError):
    """jinja2 or matplotlib is not installed."""

    exit_code = 6


def require_report_extra() -> None:
    """Raises ReportExtraMissing where the packages of the extra ``report`` are not there."""
    import importlib.util

    missing = [p for p in ("jinja2", "matplotlib") if importlib.util.find_spec(p) is None]
    if missing:
        raise ReportExtraMissing(
            "html report",
            f"needs {' and '.join(missing)}, which the extra 'report' brings",
            got="not installed",
            do="Run: pip install 'xpuruntime[report]'",
        )


def colour(series: int) -> str:
    """The colour that stands for a series."""
    return SERIES[series % len(SERIES)]


def _axes(rows: int, height: float, title: str) -> tuple[Any, Any]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 10, "font.family": ["DejaVu Sans"]}):
        figure = Figure(figsize=(_WIDTH, 0.75 + height * rows), layout="constrained")
        axes = figure.add_subplot()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(axis="both", colors=DIM, length=0, labelsize=9.5)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(title, color=DIM, fontsize=9.5)
    return figure, axes


def _svg(figure: Any, alt: str) -> str:
    """The drawing as an inline <svg>: no prologue, no metadata. ``distinct`` makes its ids the page's only ones."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xpuruntime"}), warnings.catch_warnings():
        # The reader's browser sets the text; that the font measured with lacks a letter means nothing there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[\d.]+pt" height="[\d.]+pt"', r"\1", text, count=1)
    text = text.replace("xlink:href", "href").replace(
        "<svg", f'<svg role="img" aria-label="{_quoted(alt)}"', 1
    )
    text = re.sub(r"font(-family)?: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font\1: \2var(--sans)", text)
    for drawn, variable in _VARIABLES.items():
        text = text.replace(drawn, f"var({variable})")
    return text


def distinct(svg: str, prefix: str) -> str:
    """The drawing with every id, and every reference to one, under a prefix."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _literal(text: str, longest: int = 44) -> str:
    """Text that matplotlib shows as it is: a dollar would start its mathematics. Shortened in the middle where too long."""
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def _legend(axes: Any, handles: Sequence[Any]) -> None:
    if len(handles) > 1:
        legend = axes.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=len(handles),
            frameon=False,
            fontsize=9.5,
            labelcolor=INK,
            borderaxespad=0.2,
            handletextpad=0.4,
        )
        legend.set_in_layout(True)


def _handle(name: str, series: int) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        linestyle="",
        marker=MARKERS[series % len(MARKERS)],
        color=colour(series),
        label=_literal(name),
        markersize=7,
    )


def _bar_handle(name: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker="|", color=INK, label=name, markersize=12, markeredgewidth=1.8)


@dataclass(frozen=True, slots=True)
class Dot:
    """One value of a series in a row, with the interval it lies in (None: none is known) and a text beside it."""

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
    """A row per name with a marker per series. ``limits``: a bound per row, drawn as a bar; ``mark``: a line at that value.

    On a log axis a value of 0 stands at the left edge, labelled ``equal``.
    """
    rows = list(dict.fromkeys(d.row for d in values))
    many = len(names)
    figure, axes = _axes(len(rows), 0.30 + 0.1 * max(0, many - 1), title)
    for k in range(0, len(rows), 2):
        axes.axhspan(k - 0.5, k + 0.5, color=BAND, linewidth=0, zorder=0)
    places = {row: len(rows) - 1 - k for k, row in enumerate(rows)}
    left = _left_edge(values, limits) if log else None
    for d in values:
        y = places[d.row] + _offset(list(names).index(d.series), many)
        x = left if left is not None and d.value <= 0 else d.value
        if d.low is not None and d.high is not None:
            axes.plot([d.low, d.high], [y, y], color=colour(d.series), linewidth=2.2, solid_capstyle="butt")
        axes.plot([x], [y], MARKERS[d.series % len(MARKERS)], color=colour(d.series), markersize=7, zorder=3)
        if left is not None and d.value <= 0:
            axes.annotate(
                "equal", (x, y), (7, 0), textcoords="offset points", va="center", color=DIM, fontsize=8.5
            )
    for row, limit in (limits or {}).items():
        axes.plot([limit, limit], [places[row] - 0.36, places[row] + 0.36], color=INK, linewidth=1.8)
    if mark is not None:
        axes.axvline(mark, color=INK, linewidth=1.2)
    if log:
        axes.set_xscale("log")
        axes.tick_params(axis="x", which="minor", length=0)
        if left is not None:
            axes.set_xlim(left=left / 2)
    axes.set_yticks([places[r] for r in rows], [_literal(r) for r in rows])
    axes.set_ylim(-0.5, len(rows) - 0.5)
    handles = [_handle(name, series) for series, name in sorted(names.items())]
    _legend(axes, [*handles, _bar_handle("tolerance")] if limits else handles)
    return _svg(figure, alt)


def _left_edge(values: Sequence[Dot], limits: Mapping[str, float] | None) -> float:
    positive = [d.value for d in values if d.value > 0] + [v for v in (limits or {}).values() if v > 0]
    return float(10.0 ** math.floor(math.log10(min(positive, default=1e-9)) - 1))


def _offset(k: int, many: int) -> float:
    """Series of one row stand a little above one another, the first on top."""
    return 0.0 if many < 2 else 0.2 - 0.4 * k / (many - 1)


def runs(
    times: Mapping[int, Sequence[float]],
    medians: Mapping[int, Dot],
    names: Mapping[int, str],
    unit: str,
    alt: str,
) -> str:
    """A row per series: its runs as dots, its median with the interval. All values in ``unit``; the axis starts at 0."""
    import numpy as np

    random = np.random.default_rng(
        0
    )  # only where a dot stands within its row, so that dots do not hide one another
    order = list(times)
    figure, axes = _axes(len(order), 0.5, f"time of one run, {unit}")
    shown = 0.0
    for k, series in enumerate(order):
        y, values = len(order) - 1 - k, np.asarray(times[series], float)
        shown = max(shown, float(np.percentile(values, 98)))
        some = values if values.size <= _MAX_RUNS else random.choice(values, _MAX_RUNS, replace=False)
        axes.plot(
            some,
            y - 0.12 + random.uniform(-0.16, 0.16, some.size),
            ".",
            color=colour(series),
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
            color=colour(series),
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
    axes.set_xlim(0, 1.1 * max(shown, *(m.value for m in medians.values())))
    axes.set_yticks(range(len(order) - 1, -1, -1), [_literal(names[s]) for s in order])
    axes.set_ylim(-0.55, len(order) - 0.35)
    return _svg(figure, alt)


def grouped_bars(
    groups: Sequence[str],
    values: Mapping[int, Sequence[float]],
    names: Mapping[int, str],
    title: str,
    alt: str,
    text: Any,
) -> str:
    """A group per name, in it a bar per series; ``text`` turns a value into its label."""
    from matplotlib.patches import Patch

    many = len(values)
    figure, axes = _axes(len(groups), 0.16 + 0.2 * many, title)
    thick = 0.8 / many
    top = max((v for row in values.values() for v in row), default=1.0) or 1.0
    for k, (series, row) in enumerate(values.items()):
        ys = [len(groups) - 1 - g + 0.4 - thick * (k + 0.5) for g in range(len(groups))]
        axes.barh(ys, row, height=thick * 0.86, color=colour(series), linewidth=0)
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
    axes.set_yticks(range(len(groups) - 1, -1, -1), [_literal(g) for g in groups])
    axes.set_ylim(-0.55, len(groups) - 0.45)
    _legend(axes, [Patch(color=colour(s), label=_literal(names[s])) for s in sorted(values)])
    return _svg(figure, alt)
