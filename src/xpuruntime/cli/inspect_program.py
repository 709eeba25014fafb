"""``xpu inspect PROGRAM.npubin``: entry points, calls, memory, binaries, decisions; the text of a kernel; an ONNX graph for viewers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .answer import Answer
from .console import note, page, say, table

if TYPE_CHECKING:
    from ..program.program import EntryPoint, ExecutionPlan
    from ..workbench.program_report import ProgramReport

__all__ = ["answer", "many", "size_text"]


def answer(path: str, *, buffers: bool, source: str, export: Path | None, entry: str) -> Answer:
    """What the verb says of a program."""
    from ..workbench.program_report import kernel_sources, read_program

    report = read_program(path)
    report.program.entry(entry)
    if export is not None:
        from ..workbench.program_onnx import write_program_onnx

        write_program_onnx(report.program, export, entry)
    if source:
        texts = [{"target": t, "symbol": s, "text": c} for t, s, c in kernel_sources(report.program, source)]
        return Answer({"program": report.program.name, "source": texts}, lambda: _show_source(texts))
    document = report.to_json()
    if entry:
        document["entries"] = [e for e in document["entries"] if e["name"] == entry]
    if export is not None:
        document["export"] = str(export)
    return Answer(document, lambda: _show(report, buffers, export, entry))


def _show_source(texts: list[dict[str, str]]) -> None:
    for text in texts:
        say(f"// {text['symbol']} ({text['target']})")
        page(text["text"])


def _show(report: ProgramReport, buffers: bool, export: Path | None, entry: str) -> None:
    p = report.program
    say(f"{p.name}: program of {many(len(p.entries), 'entry point')}, {size_text(report.size_bytes)}")
    say(f"built from sha256 {p.digest}" if p.digest else "built from an unnamed source")
    say()
    for point in p.entries:
        if not entry or point.name == entry:
            _show_entry(point, buffers)
    _show_weights(report)
    rows = [
        (b.target, b.format, size_text(len(b.data)), len(b.symbols), ", ".join(b.requires) or "nothing", b.compiler) for b in p.binaries
    ]  # fmt: skip
    table(
        "Binaries",
        ("target", "format", "size", "functions", "needs", "made by"),
        rows,
        right=("size", "functions"),
    )
    if p.decisions:
        say("Decisions")
        for decision in p.decisions:
            for line in decision.explain().splitlines():
                say("  " + line)
    if export is not None:
        note(f"wrote {export}")


def _show_entry(point: EntryPoint, buffers: bool) -> None:
    symbols = ", ".join(f"{k}={v}" for k, v in point.symbols.items())
    say(f"entry point {point.name}{f' ({symbols})' if symbols else ''}")
    rows = [("input", s.name, str(s)) for s in point.inputs] + [
        ("output", s.name, str(s)) for s in point.outputs
    ]
    table("", ("", "name", "spec"), rows)
    for i, plan in enumerate(point.plans):
        _show_plan(plan, f"{point.name}, choice {i + 1} of {len(point.plans)}: {plan.target}", buffers)


def _show_plan(plan: ExecutionPlan, title: str, buffers: bool) -> None:
    from ..workbench.program_report import peak_bytes

    calls = [
        (i, c.kernel, c.library or c.symbol, c.tasks, _count(c.flops), size_text(c.bytes), " ".join(c.ops), ", ".join(c.nodes))
        for i, c in enumerate(plan.calls)
    ]  # fmt: skip
    columns = ("", "kernel", "function", "tasks", "flop", "moves", "ops", "nodes")
    table(f"Calls of {title}", columns, calls, right=("", "tasks", "flop", "moves"))
    flops, moved = sum(c.flops for c in plan.calls), sum(c.bytes for c in plan.calls)
    say(
        f"{many(len(plan.calls), 'call')}, {_count(flops)} flop, {size_text(moved)} moved at least, {many(plan.batch, 'call')} per submission"
    )
    own = max((c.scratch_bytes for c in plan.calls), default=0)
    say(
        f"arena {size_text(plan.arena_bytes)} (peak of what lives {size_text(peak_bytes(plan))}), {size_text(own)} more per thread"
    )
    say()
    if buffers:
        rows = [
            (b.name, b.kind.value, str(b.spec), b.size_bytes, "" if b.root == b.name else b.root, b.offset, f"{b.first} to {b.last}")
            for b in plan.buffers
        ]  # fmt: skip
        names = ("name", "kind", "spec", "bytes", "lies in", "at", "calls")
        table("Buffers", names, rows, right=("bytes", "at"))


def _show_weights(report: ProgramReport) -> None:
    p = report.program
    of_model = sum(w.spec.size_bytes or 0 for w in p.weights)
    made = sum(r.spec.size_bytes or 0 for r in p.recipes)
    inside = sum(len(w.data) for w in p.weights if w.data is not None)
    files = ", ".join(sorted({w.file for w in p.weights if w.file}))
    where = [f"{size_text(inside)} in this file"] if inside else []
    where += [f"the rest in {files}"] if files and inside else [f"in {files}"] if files else []
    places = f" ({', '.join(where)})" if where else ""
    say(f"{many(len(p.weights), 'weight')} of the model, {size_text(of_model)}{places}")
    say(f"{many(len(p.recipes), 'weight buffer')} made of them, {size_text(made)}")
    if p.states:
        say(f"{many(len(p.states), 'state')}, {size_text(sum(s.spec.size_bytes or 0 for s in p.states))}")
    say()


def many(count: int, word: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def size_text(count: int) -> str:
    """Bytes for people: 4 significant digits, binary units."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:.4g} {unit}"
    return f"{count} B"


def _count(count: int) -> str:
    """A count for people: ``1.2 G``."""
    for unit, least in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= least:
            return f"{count / least:.4g} {unit}"
    return str(count)
