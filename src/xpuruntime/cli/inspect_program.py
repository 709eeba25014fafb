"""``xpu inspect PROGRAM.npubin``: entry points, kernel calls, memory, binaries, decisions and source; the export for viewers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .command import CommandResult
from .console import print_line, print_note, print_table, print_text

if TYPE_CHECKING:
    from ..program.program import Binary, EntryPoint, ExecutionPlan
    from ..workbench.programs.report import ProgramReport

__all__ = ["count_text", "describe", "size_text"]

_MOST_KERNELS = 8
"""Rows of the table of CUDA kernels."""


def describe(path: str, *, buffers: bool, source: str, export: Path | None, entry: str) -> CommandResult:
    """Return the description of a program, or the source of a kernel; write the export if there is one. Raise FormatError, InputError."""
    from ..workbench.programs.report import kernel_sources, read_program

    report = read_program(path)
    report.program.entry(entry)
    if export is not None:
        from ..workbench.programs.onnx_graph import write_program_onnx

        write_program_onnx(report.program, export, entry)
    if source:
        texts = [{"target": t, "symbol": s, "text": c} for t, s, c in kernel_sources(report.program, source)]
        return CommandResult({"program": report.program.name, "source": texts}, lambda: _show_source(texts))
    document = report.to_json()
    if entry:
        document["entries"] = [e for e in document["entries"] if e["name"] == entry]
    if export is not None:
        document["export"] = str(export)
    return CommandResult(document, lambda: _show(report, buffers, export, entry))


def _show_source(texts: list[dict[str, str]]) -> None:
    for text in texts:
        print_line(f"// {text['symbol']} ({text['target']})")
        print_text(text["text"])


def _show(report: ProgramReport, buffers: bool, export: Path | None, entry: str) -> None:
    p = report.program
    print_line(
        f"{p.name}: program of {count_text(len(p.entries), 'entry point')}, {size_text(report.size_bytes)}"
    )
    print_line(f"built from sha256 {p.digest}" if p.digest else "built from an unnamed source")
    print_line()
    for point in p.entries:
        if not entry or point.name == entry:
            _show_entry(point, buffers)
    _show_weights(report)
    groups: dict[tuple[str, ...], list[Binary]] = {}
    for b in p.binaries:
        groups.setdefault((b.target, b.format, ", ".join(b.requires) or "nothing", b.compiler), []).append(b)
    print_table(
        "Binaries",
        ("target", "format", "requires", "compiler", "binaries", "size", "functions"),
        [
            (
                *group,
                len(found),
                size_text(sum(len(b.data) for b in found)),
                sum(len(b.symbols) for b in found),
            )
            for group, found in groups.items()
        ],
        right=("binaries", "size", "functions"),
    )
    _show_resources(report)
    if p.decisions:
        print_line("Decisions")
        for decision in p.decisions:
            for line in decision.explain().splitlines():
                print_line("  " + line)
    if export is not None:
        print_note(f"wrote {export}")


def _show_resources(report: ProgramReport) -> None:
    """Show the CUDA kernels with a stack; if there is none, those with the most registers."""
    from ..workbench.programs.report import resources_of

    kernels = {k: r for b in report.program.binaries for k, r in resources_of(b).items()}
    if not kernels:
        return
    ranked = sorted(kernels.items(), key=lambda item: (-item[1].stack_bytes, -item[1].registers))
    with_stack = [item for item in ranked if item[1].stack_bytes]
    print_table(
        f"CUDA kernels: {len(with_stack) or 'none'} of {len(kernels)} with a stack",
        ("kernel", "registers", "stack", "shared memory"),
        [
            (k, r.registers, size_text(r.stack_bytes), size_text(r.shared_bytes))
            for k, r in (with_stack or ranked)[:_MOST_KERNELS]
        ],
        right=("registers", "stack", "shared memory"),
    )


def _show_entry(point: EntryPoint, buffers: bool) -> None:
    symbols = ", ".join(f"{k}={v}" for k, v in point.symbols.items())
    print_line(f"entry point {point.name}{f' ({symbols})' if symbols else ''}")
    rows = [("input", s.name, str(s)) for s in point.inputs] + [
        ("output", s.name, str(s)) for s in point.outputs
    ]
    print_table("", ("", "name", "spec"), rows)
    for i, plan in enumerate(point.plans):
        _show_plan(plan, f"{point.name}, choice {i + 1} of {len(point.plans)}: {plan.target}", buffers)


def _show_plan(plan: ExecutionPlan, title: str, buffers: bool) -> None:
    from ..program.live_bytes import peak_bytes

    calls = [
        (i, c.kernel, c.library or c.symbol, c.tasks, _count(c.flops), size_text(c.bytes), " ".join(c.ops), ", ".join(c.nodes))
        for i, c in enumerate(plan.calls)
    ]  # fmt: skip
    columns = ("", "kernel", "function", "tasks", "flop", "memory", "ops", "nodes")
    print_table(f"Calls of {title}", columns, calls, right=("", "tasks", "flop", "memory"))
    flops, traffic = sum(c.flops for c in plan.calls), sum(c.bytes for c in plan.calls)
    print_line(
        f"{count_text(len(plan.calls), 'call')}, {_count(flops)} flop, at least {size_text(traffic)} of memory traffic, {count_text(plan.batch, 'call')} per submission"
    )
    scratch_bytes = max((c.scratch_bytes for c in plan.calls), default=0)
    print_line(
        f"arena {size_text(plan.arena_bytes)} (peak use {size_text(peak_bytes(plan))}), {size_text(scratch_bytes)} of scratch per thread"
    )
    print_line()
    if buffers:
        rows = [
            (b.name, b.kind.value, str(b.spec), b.size_bytes, "" if b.root == b.name else b.root, b.offset, f"{b.first} to {b.last}")
            for b in plan.buffers
        ]  # fmt: skip
        names = ("name", "kind", "spec", "bytes", "inside", "offset", "calls")
        print_table("Buffers", names, rows, right=("bytes", "offset"))


def _show_weights(report: ProgramReport) -> None:
    p = report.program
    model_bytes = sum(w.spec.size_bytes or 0 for w in p.weights)
    buffer_bytes = sum(r.spec.size_bytes or 0 for r in p.recipes)
    embedded = sum(len(w.data) for w in p.weights if w.data is not None)
    files = ", ".join(sorted({w.file for w in p.weights if w.file}))
    locations = [f"{size_text(embedded)} in this file"] if embedded else []
    locations += [f"the rest in {files}"] if files and embedded else [f"in {files}"] if files else []
    note = f" ({', '.join(locations)})" if locations else ""
    print_line(f"{count_text(len(p.weights), 'weight')} of the model, {size_text(model_bytes)}{note}")
    print_line(f"{count_text(len(p.recipes), 'weight buffer')} prepared from them, {size_text(buffer_bytes)}")
    if p.states:
        print_line(
            f"{count_text(len(p.states), 'state')}, {size_text(sum(s.spec.size_bytes or 0 for s in p.states))}"
        )
    print_line()


def count_text(count: int, word: str) -> str:
    """Return a count with its noun: ``1 call``, ``2 calls``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def size_text(count: int) -> str:
    """Return a byte count with 4 significant digits and a binary unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _count(count: int) -> str:
    """Return a count with 4 significant digits and a decimal unit: ``1.2 G``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
