"""Shared parts of all plots of a page: axes, legends, and SVG in the page's colors. Needs matplotlib (extra ``report``).

matplotlib writes fixed colors. Each color drawn here represents a CSS variable of the page and is replaced by it, so that
one drawing serves both themes. Series differ by marker too, not by color alone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

from ..errors import XpuError

__all__ = [
    "BAND",
    "DIM",
    "GRID",
    "INK",
    "MARKERS",
    "SERIES",
    "ReportExtraMissing",
    "axes_of",
    "bar_handle",
    "color",
    "distinct",
    "handle_of",
    "legend_of",
    "literal",
    "require_report_extra",
    "svg_of",
]

INK, DIM, GRID, BAND = "#010101", "#020202", "#030303", "#040404"
SERIES = tuple(f"#0501{k:02x}" for k in range(6))
_VARIABLES = {INK: "--ink", DIM: "--dim", GRID: "--line", BAND: "--code"} | {
    color: f"--series-{k}" for k, color in enumerate(SERIES)
}
MARKERS = "osD^vP"  # the page's own dots have the first four shapes
_WIDTH = 9.4  # inches


class ReportExtraMissing(XpuError):
    """jinja2 or matplotlib is not installed."""

    exit_code = 6


def require_report_extra() -> None:
    """Raise ReportExtraMissing if the packages of the extra ``report`` are not installed."""
    import importlib.util

    missing = [p for p in ("jinja2", "matplotlib") if importlib.util.find_spec(p) is None]
    if missing:
        raise ReportExtraMissing(
            "html report",
            f"needs {' and '.join(missing)}, which the extra 'report' installs",
            got="not installed",
            do="Run: pip install 'xpuruntime[report]'",
        )


def color(series: int) -> str:
    """Return the color of a series."""
    return SERIES[series % len(SERIES)]


def axes_of(rows: int, height: float, title: str) -> tuple[Any, Any]:
    """Return a figure and its axes: rows of a height in inches, with the title of the x axis."""
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


def svg_of(figure: Any, alt: str) -> str:
    """Return the drawing as an inline <svg> without prologue and metadata. ``distinct`` makes its ids unique on the page."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xpuruntime"}), warnings.catch_warnings():
        # The browser renders the text with its own fonts, so a glyph that matplotlib's font lacks does not matter.
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
    for fixed_color, variable in _VARIABLES.items():
        text = text.replace(fixed_color, f"var({variable})")
    return text


def distinct(svg: str, prefix: str) -> str:
    """Return the drawing with a prefix on every id and every reference to one."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def literal(text: str, longest: int = 44) -> str:
    """Return text that matplotlib shows unchanged: a dollar would start its math mode. Long text is shortened in the middle."""
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def legend_of(axes: Any, handles: Sequence[Any]) -> None:
    """Draw a legend above the axes if there are several handles."""
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


def handle_of(name: str, series: int) -> Any:
    """Return the legend handle of a series: its marker in its color."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        linestyle="",
        marker=MARKERS[series % len(MARKERS)],
        color=color(series),
        label=literal(name),
        markersize=7,
    )


def bar_handle(name: str) -> Any:
    """Return the legend handle of the upright bar."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker="|", color=INK, label=name, markersize=12, markeredgewidth=1.8)
