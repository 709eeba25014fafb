"""One self-contained HTML page from receipts, plans, decisions, comparisons and benchmarks. Needs the extra ``report``.

>>> html_report("report.html", "My model", session.receipt())                                  # doctest: +SKIP
>>> html_report("report.html", "Two engines", receipts, bench_report, compare_report)          # doctest: +SKIP

Nothing is fetched when the page is opened: style, plots and images are embedded, and it holds no script. It follows the
reader's light or dark theme and prints.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..decisions import Decision
from ..printable import text as printable_text
from ..program.plan import Plan
from ..storage.store import write_atomic
from .blocks import Block, Columns, FactList, Figure, Fold, Heading, Listing, Picture, Prose, Table
from .drawing import distinct, require_report_extra
from .measured_views import agreement_figure, agreement_table, bench_blocks
from .receipt import Receipt
from .receipt_views import receipt_blocks
from .views import Series, decision_blocks, machine_blocks, plan_table

__all__ = ["Badge", "Section", "html_report", "page_style"]

_TEMPLATES = Path(__file__).parent / "templates"
_BLOCKS = (Columns, FactList, Figure, Fold, Heading, Listing, Picture, Prose, Table)

# A block, a sentence, or a value that has a view; see ``_blocks``.
Part: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Badge:
    """The verdict of a page or section in a few words; ``ok`` None is neutral."""

    text: str
    ok: bool | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the page.

    parts: blocks, sentences, receipts (or a sequence of them: engines side by side), plans, decisions, comparisons, benchmarks.
    id:    the section's anchor for links within the page; made from the title where empty.
    """

    title: str
    parts: Sequence[Part] = field(repr=False)
    subtitle: str = ""
    badge: Badge | None = None
    id: str = ""


def html_report(
    path: str | Path,
    title: str,
    *sections: Section | Part,
    lead: str = "",
    badge: Badge | None = None,
    engines: Iterable[str] = (),
    machine: bool = True,
) -> Path:
    """Write the page to ``path``, whole or not at all, and return the path.

    sections: Sections, or values that are shown in a section of their own.
    lead:     a paragraph under the title. badge: the answer in a few words.
    engines:  names in the order of their colors; by default the order of first use.
    machine:  whether facts of this machine and the receipts' versions are listed at the end.

    Raises ReportExtraMissing without jinja2 or matplotlib, StoreError when the file cannot be written, TypeError for a part
    that has no view.
    """
    require_report_extra()
    import jinja2

    series, path = Series(engines), Path(path)
    page_sections = [s if isinstance(s, Section) else Section(_title(s), [s]) for s in sections]
    if machine:
        page_sections.append(Section("This machine", machine_blocks(_versions(page_sections)), id="machine"))
    pages = [
        {
            "id": s.id or f"s{k}",
            "title": s.title,
            "subtitle": s.subtitle,
            "badge": s.badge,
            "blocks": _all(s.parts, series),
        }
        for k, s in enumerate(page_sections)
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    numbers = itertools.count()
    environment.filters["data_uri"] = _data_uri
    environment.filters["distinct"] = lambda svg: distinct(svg, f"plot{next(numbers)}")
    text = environment.get_template("report.html.j2").render(
        title=title,
        lead=lead,
        badge=badge,
        sections=pages,
        css=page_style(),
        written=time.strftime("%Y-%m-%d %H:%M %Z"),
    )
    write_atomic(path, text.encode())
    return path


def page_style() -> str:
    """Return the style sheet of pages: fonts, light and dark colors, tables, badges."""
    return (_TEMPLATES / "report.css").read_text(encoding="utf-8")


def _data_uri(picture: Picture) -> str:
    return f"data:{picture.mime};base64,{base64.b64encode(picture.data).decode()}"


def _all(parts: Sequence[Part], series: Series) -> list[Block]:
    return [block for part in parts for block in _blocks(part, series)]


def _blocks(part: Part, series: Series) -> list[Block]:
    """Return the view of a value. Workbench values are recognized by their attributes, since the profiler does not import the workbench."""
    match part:
        case str():
            return [Prose(part)]
        case _ if isinstance(part, _BLOCKS):
            return [part]
        case Receipt():
            return _receipts([part], series)
        case Plan():
            return [plan_table([part], series), *decision_blocks(part.decisions)]
        case Decision():
            return decision_blocks([part])
        case list() | tuple() if part and all(isinstance(p, Receipt) for p in part):
            return _receipts(part, series)
        case list() | tuple():
            return _all(part, series)
    if hasattr(part, "ranked"):
        return bench_blocks(part, series)
    if hasattr(part, "pairs"):
        return _comparison(part.model, part.pairs, series)
    if hasattr(part, "outputs") and hasattr(part, "reference"):
        return _comparison("", [part], series)
    raise TypeError(f"html_report has no view of {type(part).__name__}")


def _receipts(receipts: Sequence[Receipt], series: Series) -> list[Block]:
    plans = [r.plan for r in receipts]
    decisions = decision_blocks([d for p in plans for d in p.decisions])
    return [
        plan_table(plans, series),
        *receipt_blocks(receipts, series),
        Fold("Every decision, with what was rejected and why", tuple(decisions)),
    ]


def _comparison(model: str, pairs: Sequence[Any], series: Series) -> list[Block]:
    labeled = [(model, p) for p in pairs]
    figure = agreement_figure(labeled, series)
    return [agreement_table(labeled, series), *([figure] if figure else [])]


def _title(part: Part) -> str:
    match part:
        case Receipt():
            return str(part.plan.model["name"])
        case Plan():
            return str(part.model["name"])
        case Decision():
            return f"{part.question} for {part.subject}"
        case [Receipt() as first, *_]:
            return str(first.plan.model["name"])
    return "Speed" if hasattr(part, "ranked") else "Agreement" if hasattr(part, "pairs") else "Results"


def _versions(sections: Sequence[Section]) -> Mapping[str, str]:
    """Return the versions that the receipts on the page name; without receipts, those of this process."""
    import platform

    from ..plugins.loader import package_version

    versions: dict[str, str] = {"python": platform.python_version(), "platform": platform.platform()}
    versions |= {p: v for p in ("xpuruntime", "numpy", "onnx") if (v := package_version(p))}

    def look(part: Part) -> None:
        if isinstance(part, Receipt):
            versions.update(part.versions)
        elif isinstance(part, list | tuple):
            for inner in part:
                look(inner)

    for section in sections:
        look(section.parts)
    return versions


def _clean(value: Any) -> Any:
    """Return a template's value without control characters; what is markup already stays."""
    return printable_text(value) if type(value) is str else value
