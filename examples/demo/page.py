"""The demo's results as one HTML page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from examples.zoo import Answer, Sample
from xpuruntime.profiler.blocks import (
    Block,
    Cell,
    Columns,
    Fold,
    Heading,
    Listing,
    Picture,
    Prose,
    Table,
    duration,
    number,
)
from xpuruntime.profiler.html import Badge, Section, html_report
from xpuruntime.profiler.measured_views import agreement_figure, agreement_table, speed_figure
from xpuruntime.profiler.views import Series

from .story import Chapter, Question, Reading, Story, score

_THUMBNAIL = 200  # CSS pixels; twice as many are embedded, for dense screens
_TEXT_LINES = 6


def write(story: Story, path: Path) -> Path:
    """Write the page and return its path. Raises what ``html_report`` raises."""
    faults = story.faults()
    series = Series(story.engines)
    engines = " and ".join(f"{name} {version}" for name, version in story.engines.items())
    lead = (
        f"{len(story.chapters)} trained models on {engines}, on {story.machine} with {story.threads} threads. "
        f"Everything below was run, compared and measured just now, in {story.seconds:.0f} s."
    )
    return html_report(
        path,
        "What ran on this machine",
        _summary(story, series),
        *(_chapter(c, series) for c in story.chapters),
        *([_reading(story.readings)] if story.readings else []),
        _question(
            "What is not here",
            story.unavailable,
            "A device that cannot be had is an error with every reason, not a silent substitute.",
            "missing",
        ),
        _question(
            "The fastest, measured",
            story.auto,
            'engine="auto" measures the candidates once on seeded inputs, checks their outputs, and records the choice.',
            "auto",
        ),
        _repeat(story),
        lead=lead,
        badge=Badge(("✗ " if faults else "✓ ") + story.answer, not faults),
        engines=story.engines,
    )


def _summary(story: Story, series: Series) -> Section:
    parts: list[Block] = [Prose(f"✗ {fault}", "bad") for fault in story.faults()]
    parts += [Prose(f"! {finding}") for finding in story.findings()]
    parts += [Prose(f"Not here: {c.name} ({c.code.value}): {c.reason} {c.do}", "dim") for c in story.absent]
    names = list(story.engines)
    rows = []
    for chapter in story.chapters:
        by = {s.name: s for s in chapter.bench.ranked}
        best = chapter.bench.ranked[0] if chapter.bench.ranked else None
        right = Cell(
            f"{chapter.right} of {chapter.answers}",
            tone="good" if chapter.right == chapter.answers else "bad",
        )
        times = [
            Cell(duration(by[n].summary.median), _ratio(by[n]), series=series.of(n))
            if n in by
            else Cell("not run", tone="dim")
            for n in names
        ]
        verdict = (
            "-"
            if best is None or len(names) < 2
            else best.name
            if best.verdict == "fastest"
            else "no difference"
        )
        worst = "-" if chapter.worst is None else number(chapter.worst)
        head = Cell(chapter.model.title, chapter.model.task, href=chapter.model.name)
        rows.append((head, right, worst, *times, verdict))
    columns = ("model", "answers right", "largest difference", *(f"{n}, median" for n in names), "fastest")
    caption = "Largest difference: max |d| / max |ref| of any engine against float64, over all outputs, on the input on which the engines differ most. Median: time of one run."
    parts.append(Table(columns, tuple(rows), frozenset(columns[1:-1]), caption))
    pairs = [(c.model.name, p) for c in story.chapters for p in c.pairs]
    benches = [(c.model.name, c.bench) for c in story.chapters]
    for title, figure in (
        ("Speed", speed_figure(benches, series)),
        ("Agreement", agreement_figure(pairs, series)),
    ):
        if figure is not None:
            parts += [Heading(title), figure]
    return Section("Summary", parts, f"{story.speed.capitalize()}.", id="summary")


def _ratio(standing: object) -> str:
    ratio = getattr(standing, "ratio", None)
    return "" if ratio is None else f"ratio {ratio.value:.2f}"


def _chapter(chapter: Chapter, series: Series) -> Section:
    model, parts = chapter.model, []
    engines = list(chapter.receipts)
    rows = []
    for sample, by in chapter.answers_by_sample:
        heads = [_answer(by[e], sample, series.of(e)) for e in engines]
        rows.append((_input(sample), Cell(sample.expected), *heads))
    parts.append(Table(("input", "what it is", *engines), tuple(rows)))
    parts += [Prose(f"Not {c.name} ({c.code.value}): {c.reason} {c.do}", "dim") for c in chapter.refused]
    parts += [Heading("Speed"), chapter.bench]
    if chapter.pairs:
        caption = f"The one of {len(chapter.answers_by_sample)} inputs on which the engines differ most."
        table = agreement_table([(model.name, p) for p in chapter.pairs], series)
        parts += [Heading("Agreement"), Table(table.columns, table.rows, table.right, caption)]
    parts += [Heading("Plan and receipt"), list(chapter.receipts.values())]
    right = not chapter.faults()
    badge = Badge(f"{'✓' if right else '✗'} {chapter.right} of {chapter.answers} right", right)
    text = f"{model.task.capitalize()}. Weights from {model.source}, {model.licence}."
    return Section(model.title, parts, text, badge, model.name)


def _answer(answer: Answer, sample: Sample, series: int) -> Cell:
    right = answer.right(sample)
    value = score(answer)
    head = f"{'✓' if right else '✗'} {answer.headline}" + ("" if value is None else f" ({value:.3f})")
    others = [f"{text}: {s:.3f}" for text, s in answer.details if text != answer.headline]
    more = f"; and {len(others) - 3} more" if len(others) > 3 else ""
    return Cell(head, "; ".join(others[:3]) + more, tone="good" if right else "bad", series=series)


def _input(sample: Sample) -> Cell:
    """Return a thumbnail, the head of a text file, or the sample's lines."""
    if sample.path is None:
        return Cell(sample.name, " / ".join(sample.lines[:4]) + (" / ..." if len(sample.lines) > 4 else ""))
    picture = _thumbnail(sample.path, sample.name)
    if picture is not None:
        return Cell(sample.name, picture=picture)
    lines = sample.path.read_text(encoding="utf-8", errors="replace").splitlines()
    head = next((line for line in lines if line.strip()), "")
    return Cell(sample.name, f"{len(lines)} lines, from “{head[:60]}”")


def _thumbnail(path: Path, name: str, width: int = _THUMBNAIL) -> Picture | None:
    if path.suffix not in (".png", ".jpg"):
        return None
    from PIL import Image

    with Image.open(path) as image:
        shown = min(width, image.width)
        small = image.convert("RGB")
        small.thumbnail((2 * width, 2 * width))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=82, optimize=True)
    return Picture(stream.getvalue(), "image/jpeg", f"input: {name}", width=min(shown, small.width))


def _reading(readings: Sequence[Reading]) -> Section:
    parts: list[Block] = [
        Prose(
            "The detector finds the pieces of text, the recognizer reads each of them; both run on the same engine."
        )
    ]
    for reading in readings:
        off = "; ".join(
            f"{e}: {n} letters off" if (n := reading.edits(e)) else f"{e}: every letter right"
            for e in reading.texts
        )
        picture = _thumbnail(reading.path, reading.path.name, 420)
        listings = [
            Listing(text, ", ".join(e for e, t in reading.texts.items() if t == text))
            for text in dict.fromkeys(reading.texts.values())
        ]
        parts.append(Heading(f"{reading.path.name}: {off}"))
        parts.append(Columns(((picture,) if picture else (), tuple(listings))))
    right = not any(r.faults() for r in readings)
    badge = Badge("✓ read as drawn" if right else "✗ misread", right)
    return Section(
        "Reading a page", parts, "Two models together: finding text, then reading it.", badge, "page"
    )


def _question(title: str, question: Question, subtitle: str, id: str) -> Section:  # noqa: A002
    parts = [Listing(question.code), question.decision]
    if question.error:
        parts.append(Fold("The error that the caller gets", (Prose(question.error),)))
    return Section(title, parts, subtitle, id=id)


def _repeat(story: Story) -> Section:
    path = story.chapters[0].path
    displayed_path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    lines = (
        "make demo",
        f"xpu compare {displayed_path} --engines all",
        f"xpu bench   {displayed_path} --engines all",
        f"xpu explain {displayed_path} --device npu --engine openvino",
    )
    return Section("Run it yourself", [Listing("\n".join(lines))], id="repeat")
