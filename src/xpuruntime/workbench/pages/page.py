"""The content of a page as data, and the file: one self-contained HTML document that loads nothing.

Names come from models and are not trusted: they are data of the page, never markup. A content security policy forbids every script
except the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ...printable import line
from ...profiler.html import page_style
from ...storage.store import write_atomic
from .graph_layout import CELL_HEIGHT, CELL_WIDTH, positions

__all__ = ["Lane", "Page", "PageNode", "PagePoint", "PageTable", "write_page"]

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("support.js", "graph.js", "table.js", "timeline.js", "roofline.js", "page.js")

Value: TypeAlias = "str | float | int | None"


@dataclass(frozen=True, slots=True)
class PageNode:
    """One node: its name, a value for each of the page's columns, and the names of the nodes that it reads."""

    name: str
    values: tuple[Value, ...]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the timeline. spans: start and duration in microseconds, label, and the node that it computes (empty: none)."""

    name: str
    spans: tuple[tuple[float, float, str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PagePoint:
    """One step of the roofline plot: its label, a node that it computes, its engine, operations, bytes and microseconds."""

    label: str
    node: str
    engine: str
    flops: int
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table below the graph, with a sentence under it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = field(repr=False)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of one page.

    verdict:  the answer in a few words, and whether it is good (None: neutral). lead: sentences under the title.
    columns:  names of the nodes' values; those that end in ``us`` are microseconds. colors: the columns by which the graph can be colored,
              the first one at first. selected: a node that is selected when the page opens.
    lanes, points: the timeline and the roofline plot, with a sentence on each. Either may be empty.
    """

    title: str
    verdict: tuple[str, bool | None]
    columns: tuple[str, ...]
    colors: tuple[str, ...]
    nodes: tuple[PageNode, ...] = field(repr=False)
    lead: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = field(default=(), repr=False)
    lanes_note: str = ""
    points: tuple[PagePoint, ...] = field(default=(), repr=False)
    tables: tuple[PageTable, ...] = field(default=(), repr=False)
    selected: str = ""


def write_page(path: str | os.PathLike[str], page: Page) -> Path:
    """Write the page to ``path``, whole or not at all, and return the path. Raises StoreError when the file cannot be written."""
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = page_style() + (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    parts = {"TITLE": html.escape(line(page.title)), "STYLE": style, "DATA": _data(page), "SCRIPT": script}
    document = (_TEMPLATES / "page.html").read_text(encoding="utf-8").replace("@DIGEST@", digest)
    # Split first: inserted text may hold a mark of its own.
    pieces = document.split("@")
    text = "".join(parts.get(piece, piece) for piece in pieces)
    write_atomic(Path(path), text.encode())
    return Path(path)


def _data(page: Page) -> str:
    """Return the page's content as JSON that cannot end the element that holds it."""
    numbers = {n.name: i for i, n in enumerate(page.nodes)}
    reads = [[numbers[r] for r in n.reads if r in numbers] for n in page.nodes]
    places = positions(reads)
    content = {
        "title": page.title,
        "verdict": page.verdict,
        "lead": page.lead,
        "columns": page.columns,
        "colors": page.colors,
        "cell": (CELL_WIDTH, CELL_HEIGHT),
        "nodes": [
            [n.name, n.values, r, (round(x, 3), round(y, 3))]
            for n, r, (x, y) in zip(page.nodes, reads, places, strict=True)
        ],
        "lanes": [
            [lane.name, [(s, d, label, numbers.get(node, -1)) for s, d, label, node in lane.spans]]
            for lane in page.lanes
        ],
        "lanesNote": page.lanes_note,
        "points": [
            [p.label, numbers.get(p.node, -1), p.engine, p.flops, p.bytes, p.time_us] for p in page.points
        ],
        "tables": [
            {"title": t.title, "columns": t.columns, "rows": t.rows, "note": t.note} for t in page.tables
        ],
        "selected": numbers.get(page.selected, -1),
    }
    text = json.dumps(_plain(content), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plain(value: Any) -> Any:
    """Return a JSON value: text without control characters, numbers that are not finite as text."""
    match value:
        case str():
            return line(value)
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {k: _plain(v) for k, v in value.items()}
        case Sequence():
            return [_plain(v) for v in value]
    return value
