"""Verification of a program on the machine that will run it, before the first request."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...inference.models.programs import open_program
from ...numerics import compare_all, tolerance_for
from ...program.program import CompiledProgram, EntryPoint, GoldenSample
from ...program.schema import MAJOR, MINOR
from ...program.segment import Segment
from ...protocols import Array
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.weights.load import load_weights
from ...types import DType
from .golden import device_of

__all__ = ["ProgramCheck", "VerifyReport", "verify_program"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """One check. ok: None if there was nothing to check. text: the result in words."""

    name: str
    ok: bool | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"check": self.name, "ok": self.ok, "text": self.text}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The checks of one program file, in order. ``ok`` is the answer."""

    path: Path
    program: str
    checks: tuple[ProgramCheck, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return all(c.ok is not False for c in self.checks)

    @property
    def sentence(self) -> str:
        """Answer in words."""
        failed = next((c for c in self.checks if c.ok is False), None)
        if failed is not None:
            return f"{self.path} is not verified: {failed.name}: {failed.text}"
        skipped = [c.name for c in self.checks if c.ok is None]
        return f"{self.path} is verified" + (f", without {', '.join(skipped)}" if skipped else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "answer": self.sentence,
            "file": str(self.path),
            "program": self.program,
            "checks": [c.to_json() for c in self.checks],
        }


def verify_program(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    threads: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    progress: Progress = lambda _: None,
) -> VerifyReport:
    """Check a program file on this machine: digests, format, target and libraries, loaded code, weights, golden samples.

    device:  by default that of the program's first plan. weights: a checkpoint, for a program that does not hold its weights.
    Raises FormatError for a file that is truncated, damaged, newer or no program, UnavailableError if no alternative of an entry point runs
    here, InputError and FormatError for weights that are missing or have other digests, RunError.
    """
    progress(f"reading {path}")
    program = CompiledProgram.load(path)
    checks = [_file(program, Path(path))]
    entries = [e for e in program.entries if not e.is_body]
    for entry in entries:
        progress(f"loading {entry.name}")
        with Executor(
            program, device or device_of(entry), entry=entry.name, threads=threads, policy=SETTLED
        ) as executor:
            checks += [_target(entry, executor), _code(entry, executor)]
            loaded = _weights(program, executor, weights)
            checks += [loaded] if loaded.ok is not True or entry is entries[0] else []
            samples = [s for s in program.golden if s.entry == entry.name]
            if loaded.ok is None and samples:
                samples = []
            progress(f"running {len(samples)} golden samples of {entry.name}")
            checks.append(_golden(program, entry, executor, samples))
    return VerifyReport(Path(path), program.name, tuple(checks))


def _file(program: CompiledProgram, path: Path) -> ProgramCheck:
    """Read every segment, so that the digests of large weights are compared, too. Raises FormatError."""
    arrays = [*program.weights, *(a for s in program.golden for a in (*s.inputs, *s.outputs))]
    segments = [a.data for a in arrays if isinstance(a.data, Segment)]
    for segment in segments:
        segment.view()
    compiled_by = str(program.facts.get("xpuruntime", "")) or "an unknown release"
    text = f"{path.stat().st_size} bytes, every digest is right; format {MAJOR}.{MINOR} or older, compiled by xpuruntime {compiled_by}, read by {__version__}"
    return ProgramCheck("file", True, text)


def _target(entry: EntryPoint, executor: Executor) -> ProgramCheck:
    """Name the alternative that runs, what it requires, and why others do not run."""
    program, plan = executor.program, executor.plan
    requires = sorted(
        {r for i in plan.binaries for r in program.binaries[i].requires if r.startswith("lib:")}
    )
    text = f"{plan.target} runs on {executor.device}"
    text += f", with {', '.join(requires)}" if requires else ""
    text += "".join(f"; not {c.name}: {c.reason}" for c in executor.decision.rejected)
    return ProgramCheck(f"target of {entry.name}", True, text)


def _code(entry: EntryPoint, executor: Executor) -> ProgramCheck:
    """Compare the loaded code with the file's."""
    functions = [f for f in executor.called_functions() if f is not None and f.known]
    binaries = executor.text_digests()
    wrong = [f"{f.name} is loaded for {f.planned}" for f in functions if not f.same]
    wrong += [f"binary {i} differs in memory" for i, seen, expected in binaries if seen != expected]
    if wrong:
        return ProgramCheck(f"code of {entry.name}", False, "; ".join(wrong))
    if not functions and not binaries:
        return ProgramCheck(
            f"code of {entry.name}", None, "loaded code cannot be read here, or libraries compute every call"
        )
    text = f"{len(functions)} functions and {len(binaries)} binaries are loaded as they are in the file"
    return ProgramCheck(f"code of {entry.name}", True, text)


def _weights(
    program: CompiledProgram, executor: Executor, source: str | os.PathLike[str] | None
) -> ProgramCheck:
    """Load the weights, which compares them with the program's specs and digests. Raises InputError, FormatError, ModelError."""
    outside = [w for w in program.weights if w.data is None]
    nameless = [w.name for w in outside if not w.file]
    if nameless and source is None:
        text = f"{len(nameless)} arrays are passed at run time ({', '.join(nameless[:3])}); give a checkpoint with --weights"
        return ProgramCheck("weights", None, text)
    where: Any = source if source is not None else (program.folder if outside else None)
    executor.bind(load_weights(where, program, executor.backend))
    return ProgramCheck(
        "weights",
        True,
        f"{len(program.weights)} arrays, {len(program.weights) - len(outside)} of them in the program",
    )


def _golden(
    program: CompiledProgram, entry: EntryPoint, executor: Executor, samples: list[GoldenSample]
) -> ProgramCheck:
    name = f"golden samples of {entry.name}"
    if not program.golden:
        return ProgramCheck(name, None, "the program holds none; compile it with --golden N")
    if not samples:
        return ProgramCheck(name, None, "they cannot run without the weights, or the entry point has none")
    exact, worst = 0, 0.0
    for k, sample in enumerate(samples):
        outputs = _outputs(executor, entry, sample)
        stored = [a.array() for a in sample.outputs]
        if sample.exact and sample.target == executor.plan.target:
            differing = [
                a.name
                for a, x, y in zip(sample.outputs, outputs, stored, strict=True)
                if x.tobytes() != y.tobytes()
            ]
            if differing:
                text = f"sample {k}: output {differing[0]!r} has other bits than on the compiling machine; {sample.target} gives equal bits everywhere"
                return ProgramCheck(name, False, text)
            exact += 1
            continue
        limit = _tolerance(program, executor)
        for c in compare_all([a.name for a in sample.outputs], outputs, stored, limit):
            if not c.ok:
                return ProgramCheck(name, False, f"sample {k}: output {c.name!r}: {c.reason}")
            worst = max(worst, c.max_rel)
    rest = len(samples) - exact
    parts = [f"{exact} samples bit by bit"] if exact else []
    parts += (
        [f"{rest} samples within the tolerance {_tolerance(program, executor):.2g}, at most {worst:.2g}"]
        if rest
        else []
    )
    return ProgramCheck(name, True, " and ".join(parts))


def _outputs(executor: Executor, entry: EntryPoint, sample: GoldenSample) -> list[Array]:
    """Run one sample from the initial states. Raises RunError."""
    inputs: Mapping[str, Array] = {a.name: a.array() for a in sample.inputs}
    with executor.twin() as twin:
        return twin.run_arrays([inputs[s.name] for s in entry.inputs])


def _tolerance(program: CompiledProgram, executor: Executor) -> float:
    dtypes: set[DType] = {b.spec.dtype for b in executor.plan.buffers if b.spec.dtype.is_float}
    return tolerance_for(open_program(program).precision, *dtypes)
