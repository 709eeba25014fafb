"""The description of a program file: entry points, calls, memory, binaries and decisions as plain data, and kernel sources."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...codegen.cuda.cubin import KernelResources, kernels_in
from ...errors import InputError
from ...program.live_bytes import peak_bytes
from ...program.program import Binary, CompiledProgram, EntryPoint, ExecutionPlan, KernelCall

__all__ = ["ProgramReport", "kernel_sources", "read_program", "resources_of"]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """A program and the file that holds it."""

    path: Path
    size_bytes: int
    program: CompiledProgram

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with sizes in bytes."""
        p = self.program
        return {
            "program": p.name,
            "file": str(self.path),
            "bytes": self.size_bytes,
            "digest": p.digest,
            "entries": [_entry(e) for e in p.entries],
            "weights": _weights(p),
            "states": [
                {"name": s.name, "spec": str(s.spec), "bytes": s.spec.size_bytes, "init": s.init}
                for s in p.states
            ],
            "binaries": [_binary(b) for b in p.binaries],
            "golden": [{"entry": g.entry, "target": g.target, "exact": g.exact} for g in p.golden],
            "decisions": [d.to_json() for d in p.decisions],
            "facts": dict(p.facts),
        }


def read_program(path: str | os.PathLike[str]) -> ProgramReport:
    """Open a program file. Raise FormatError."""
    program = CompiledProgram.load(path)
    return ProgramReport(Path(path), Path(path).stat().st_size, program)


def _entry(entry: EntryPoint) -> dict[str, Any]:
    return {
        "name": entry.name,
        "symbols": dict(entry.symbols),
        "inputs": [{"name": s.name, "spec": str(s)} for s in entry.inputs],
        "outputs": [{"name": s.name, "spec": str(s)} for s in entry.outputs],
        "plans": [_plan(plan) for plan in entry.plans],
    }


def _plan(plan: ExecutionPlan) -> dict[str, Any]:
    return {
        "target": plan.target,
        "binary": plan.binary,
        "batch": plan.batch,
        "arena_bytes": plan.arena_bytes,
        "peak_bytes": peak_bytes(plan),
        "thread_bytes": max((c.scratch_bytes for c in plan.calls), default=0),
        "flops": sum(c.flops for c in plan.calls),
        "bytes": sum(c.bytes for c in plan.calls),
        "calls": [_call(c) for c in plan.calls],
        "buffers": [
            {
                "name": b.name,
                "kind": b.kind.value,
                "spec": str(b.spec),
                "bytes": b.size_bytes,
                "root": b.root,
                "offset": b.offset,
            }
            for b in plan.buffers
        ],
    }


def _call(call: KernelCall) -> dict[str, Any]:
    return {
        "kernel": call.kernel,
        "symbol": call.symbol,
        "library": call.library,
        "nodes": list(call.nodes),
        "ops": list(call.ops),
        "inputs": list(call.inputs),
        "outputs": list(call.outputs),
        "params": {p.name: p.value for p in call.params},
        "tasks": call.tasks,
        "grain": call.grain,
        "scratch_bytes": call.scratch_bytes,
        "flops": call.flops,
        "bytes": call.bytes,
    }


def _weights(p: CompiledProgram) -> dict[str, Any]:
    """Return counts and sizes of the model's weights, of those stored in the program, and of the buffers that kernels read."""
    return {
        "model": len(p.weights),
        "model_bytes": sum(w.spec.size_bytes or 0 for w in p.weights),
        "embedded": sum(w.data is not None for w in p.weights),
        "embedded_bytes": sum(len(w.data) for w in p.weights if w.data is not None),
        "files": sorted({w.file for w in p.weights if w.file}),
        "buffers": len(p.recipes),
        "buffer_bytes": sum(r.spec.size_bytes or 0 for r in p.recipes),
        "recipes": [
            {"name": r.name, "spec": str(r.spec), "source": r.source, "steps": [s.op for s in r.steps]}
            for r in p.recipes
        ],
    }


def _binary(b: Binary) -> dict[str, Any]:
    return {
        "target": b.target,
        "format": b.format,
        "requires": list(b.requires),
        "bytes": len(b.data),
        "functions": len(b.symbols),
        "source_lines": b.source.count("\n"),
        "compiler": b.compiler,
        "kernels": {name: asdict(resources) for name, resources in resources_of(b).items()},
    }


def resources_of(binary: Binary) -> dict[str, KernelResources]:
    """Return what each kernel of a CUBIN takes; empty for other code, and for a CUBIN that cannot be read."""
    try:
        return dict(sorted(kernels_in(binary.data).items())) if binary.format == "cubin" else {}
    except ValueError:
        return {}


# ── source ──


def kernel_sources(program: CompiledProgram, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield (target, symbol, text) of each function that ``name`` selects: a symbol or its prefix, a kernel of the catalogue
    (``conv/generated``, ``conv``), or a node of the model. Raise InputError, with the kernels' names, if it selects none.
    """
    selected = 0
    own_binaries = {c.binary for e in program.entries for p in e.plans for c in p.calls}
    for i, binary in enumerate(program.binaries):
        for symbol in _selected(program, i, binary, name):
            selected += 1
            text = call_text(binary.source) if i in own_binaries else ""
            yield binary.target, symbol, text or function_text(binary.source, symbol)
    if not selected:
        calls = [c for e in program.entries for p in e.plans for c in p.calls if not c.library]
        kernels = ", ".join(sorted({c.kernel for c in calls})) or "none"
        do = f"Name a symbol, a node, or one of its kernels: {kernels}."
        raise InputError(
            f"program {program.name!r}", "has no generated code of that name", got=repr(name), do=do
        )


def _selected(program: CompiledProgram, binary: int, code: Binary, name: str) -> list[str]:
    if name in code.symbols:
        return [name]
    plans = [p for e in program.entries for p in e.plans]
    calls = [c for p in plans for c in p.calls if p.binary_of(c) == binary and not c.library]
    by_kernel = [c.symbol for c in calls if name in (c.kernel, c.kernel.partition("/")[0], *c.nodes)]
    symbols = by_kernel or [s for s in code.symbols if s.startswith(name)]
    return list(dict.fromkeys(symbols))


def function_text(source: str, symbol: str) -> str:
    """Return a function's definition, its comment, and the helpers before it whose names start with its own.

    Return the whole source if there is no definition.
    """
    first = re.search(rf"\b{re.escape(symbol)}", source)
    for match in re.finditer(rf"\b{re.escape(symbol)}\s*\(", source):
        begin = source.find("{", match.end())
        if first is None or begin < 0 or ";" in source[match.end() : begin]:
            continue  # This is a declaration or a call.
        lines = source[: source.rfind("\n", 0, first.start()) + 1].splitlines(keepends=True)
        while lines and lines[-1].lstrip().startswith(("//", "template", "*", "/*")):
            lines.pop()
        return source[sum(map(len, lines)) : _closing(source, begin)] + "\n"
    return source


def call_text(source: str) -> str:
    """Return the source of a binary that was compiled for one call, without its prelude: it starts with the call's constants.

    Return an empty text for a binary of the compiler's own functions.
    """
    begin = re.search(r"(?:^//[^\n]*\n)*^using (?:in|out)\d+_t =", source, re.MULTILINE)
    return "" if begin is None else source[begin.start() :]


_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|[{}]", re.DOTALL)


def _closing(source: str, begin: int) -> int:
    """Return the position after the brace that closes the one at ``begin``, skipping comments and literals."""
    depth = 0
    for match in _SKIPPED.finditer(source, begin):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(source)
