"""The demo's results on a terminal of 100 columns: a summary, then the details."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import xpuruntime
from xpuruntime.cli.console import join_sentences
from xpuruntime.decisions import Candidate, Decision
from xpuruntime.profiler.blocks import duration, number
from xpuruntime.profiler.statistics import Interval

from .story import Chapter, Reading, Story, score

WIDTH = 100
_STEPS = 3  # shown of each receipt


def show(story: Story, report: Path, *, full: bool = False) -> None:
    """Print the results on stdout. ``full`` prints every plan and receipt instead of the first of each engine."""
    console = Console(file=sys.stdout, highlight=False)
    if console.width > WIDTH or not console.is_terminal:
        console.width = WIDTH
    _head(console, story, report)
    _answers(console, story.chapters)
    _pages(console, story.readings)
    _agreement(console, story)
    _speed(console, story)
    _ran(console, story.chapters, full)
    _title(console, f"Asked for what is not here: {story.unavailable.code}")
    _decision(console, story.unavailable.decision)
    _title(console, f"Asked for the fastest: {story.auto.code}")
    _decision(console, story.auto.decision)


def _head(console: Console, story: Story, report: Path) -> None:
    engines = ", ".join(f"{name} {version}" for name, version in story.engines.items())
    threads = f"{story.threads} threads"
    console.print(
        Text(f"xpuruntime {xpuruntime.__version__} · {engines} · {story.machine}, {threads}", "bold")
    )
    faults = story.faults()
    console.print()
    console.print(Text(f"{'✗' if faults else '✓'} {story.answer}", "bold red" if faults else "bold green"))
    for fault in faults:
        console.print(Text(f"  ✗ {fault}", "red"))
    for finding in story.findings():
        console.print(Text(f"  ! {finding}", "yellow"))
    console.print(Text(f"  {story.speed}"))
    for c in story.absent:
        _indented(
            console, f"not here: {c.name} ({c.code.value}): {join_sentences(c.reason, c.do)}", "yellow", 2
        )
    console.print(Text(f"  {story.seconds:.0f} s; everything with plots is in {report}"), soft_wrap=True)


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, "bold cyan"))


def _indented(console: Console, text: str, style: str = "", by: int = 4) -> None:
    console.print(Padding(Text(text, style), (0, 0, 0, by), expand=False))


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    style = box.SIMPLE_HEAD
    table = Table(box=style, pad_edge=False, show_edge=False, collapse_padding=True, header_style="dim")
    numbers = set(right)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in numbers else "left"
        table.add_column(
            column, justify=justify, overflow="fold", no_wrap=column in numbers or column == "model"
        )
    return table


def _answers(console: Console, chapters: Sequence[Chapter]) -> None:
    engines = list(dict.fromkeys(e for c in chapters for e in c.receipts))
    _title(console, "What each engine said (with its probability or cosine)")
    table = _table("model", "input", "answer", "true", *engines, right=engines)
    for chapter in chapters:
        for k, (sample, by) in enumerate(chapter.answers_by_sample):
            heads = dict.fromkeys(a.headline for a in by.values())
            right = all(a.right(sample) for a in by.values())
            verdict = Text("✓", "green") if right else Text(f"✗ {sample.expected}", "red")
            scores = [score(by[e]) if e in by else None for e in engines]
            name = chapter.model.name if k == 0 else ""
            score_cells = (Text("-", "dim") if s is None else Text(f"{s:.4f}") for s in scores)
            table.add_row(Text(name), Text(sample.name), Text(" | ".join(heads)), verdict, *score_cells)
    console.print(table)


def _pages(console: Console, readings: Sequence[Reading]) -> None:
    printed: set[str] = set()
    for reading in readings:
        if not reading.texts:
            continue
        engines = ", ".join(f"{e} {reading.edits(e)}" for e in reading.texts)
        _title(console, f"{reading.path.name} as read (letters off, of {len(reading.truth)}: {engines})")
        for text in dict.fromkeys(reading.texts.values()):
            if text in printed:
                _indented(console, "The same text, letter by letter.", "dim", 2)
            else:
                _indented(console, _misread(text, reading.truth) if printed else text, by=2)
            printed.add(text)


def _misread(text: str, truth: str) -> str:
    """Return the lines that differ, each next to the drawn one."""
    pairs = zip(text.splitlines(), truth.splitlines(), strict=False)
    lines = [f"{actual}      <- drawn: {expected}" for actual, expected in pairs if actual != expected]
    return "\n".join(lines) or f"has {len(text.splitlines())} lines, drawn were {len(truth.splitlines())}"


def _agreement(console: Console, story: Story) -> None:
    _title(console, "Do the engines agree with float64? (on the input on which they differ most)")
    right = ("max|d|", "max|d|/max|ref|", "tolerance", "cosine")
    table = _table("model", "output", "engine", *right, "verdict", right=right)
    for chapter in story.chapters:
        for pair in chapter.pairs:
            for c in pair.outputs:
                verdict = Text("agrees", "green") if c.ok else Text(f"DIFFERS: {c.reason}", "red")
                cosine = "-" if c.cosine is None else f"{c.cosine:.8f}"
                numbers = (f"{c.max_abs:.1e}", f"{c.max_rel:.1e}", f"{c.tolerance:g}", cosine)
                table.add_row(Text(chapter.model.name), Text(c.name), pair.actual, *numbers, verdict)
    console.print(table)
    for chapter in story.chapters:
        tolerances = {
            (c.name, f"{c.tolerance:g}", chapter.reason(p, c)) for p in chapter.pairs for c in p.outputs
        }
        for output, tolerance, why in sorted(t for t in tolerances if t[2]):
            _indented(console, f"tolerance of {chapter.model.name} {output}: {tolerance}, {why}", "dim", 2)


def _speed(console: Console, story: Story) -> None:
    first = story.chapters[0].bench
    precisions = dict.fromkeys(str(s.facts["precision"]) for c in story.chapters for s in c.bench.ranked)
    _title(
        console,
        f"How fast? ({', '.join(precisions)}, {first.threads} threads, engines in alternation, 95% intervals)",
    )
    right = ("median", "interval", "p95", "ratio to best", "runs")
    table = _table("model", "engine", *right, "verdict", right=right)
    for chapter in story.chapters:
        for k, s in enumerate(chapter.bench.ranked):
            m, r = s.summary, s.ratio
            scale = 1e3 if m.median >= 1e3 else 1.0
            ratio = "1" if r is None else f"{r.value:.2f} ({_interval(r.interval)})"
            verdict = {"no difference can be shown": "no difference"}.get(s.verdict, s.verdict)
            row = (duration(m.median), _interval(m.interval, scale), duration(m.p95), ratio, f"{m.count:,}")
            shown = Text(verdict, "green" if s.verdict == "fastest" else "")
            table.add_row(Text(chapter.model.name if k == 0 else ""), s.name, *row, shown)
    console.print(table)


def _interval(interval: Interval, scale: float = 1.0) -> str:
    """Return an interval such as ``4.65-5.43``; "" if there are too few runs for one."""
    if math.isinf(interval.high):
        return "too few"
    return f"{number(interval.low / scale)}-{number(interval.high / scale)}"


def _ran(console: Console, chapters: Sequence[Chapter], full: bool) -> None:
    _title(console, "What ran (the plan, and the evidence from the run)")
    right = ("nodes", "steps", "time")
    columns = ("model", "engine", "on", "precision", "nodes", "steps", "evidence", "costliest step", "time")
    table = _table(*columns, right=right)
    for chapter in chapters:
        for k, receipt in enumerate(chapter.receipts.values()):
            region = receipt.plan.regions[0]
            rows = [row for e in receipt.evidence.values() for row in e.rows]
            top = max(rows, key=lambda r: r.time_us or 0.0, default=None)
            op, time = (top.op, duration(top.time_us)) if top and top.time_us else ("-", "-")
            sign = Text("confirmed", "green") if receipt.confirmed else Text("NOT SO", "red")
            head = Text(chapter.model.name if k == 0 else "")
            counts = (str(len(receipt.plan.nodes)), str(len(rows)))
            table.add_row(head, region.engine, region.device, region.precision, *counts, sign, Text(op), time)
    console.print(table)
    for chapter in chapters if full else chapters[:1]:
        for receipt in chapter.receipts.values():
            console.print()
            _indented(console, str(receipt.plan), by=2)
            _indented(console, receipt.text(rows=12 if full else _STEPS), by=2)


def _decision(console: Console, decision: Decision) -> None:
    """Print the chosen candidate, then the rejected ones. Candidates with the same reason share a line."""
    if decision.chosen is None:
        _indented(console, "✗ nothing could be had", "red", 2)
    else:
        _candidates(console, "✓", [decision.chosen], "green")
    alike: dict[tuple[str, str, str], list[Candidate]] = {}
    for c in decision.rejected:
        alike.setdefault((c.code, c.reason, c.do), []).append(c)
    for group in alike.values():
        _candidates(console, "✗", group, "")


def _candidates(console: Console, sign: str, group: Sequence[Candidate], style: str) -> None:
    first = group[0]
    _indented(console, f"{sign} {', '.join(c.name for c in group)} ({first.code.value})", style, 2)
    _indented(console, first.reason, "dim")
    if first.do:
        _indented(console, f"-> {first.do}")
