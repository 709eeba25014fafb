"""The onnx package's node cases on the native engine: each compiled to kernels of ours, run, compared as the suite compares.

    verdicts = judge_natively(cases("node"), passes="all")

Hundreds of tiny programs share their code: a ``Batch`` gathers the functions of many programs and assembles them as one unit, so that
the compiler is started once for all of them. A unit that does not compile is assembled again program by program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..codegen.cpp import CppTarget, cpu_target
from ..compiler import compile as compile_graph
from ..errors import BuildError, KernelUnavailable, XpuError
from ..ir import Graph, bind
from ..program.program import Binary, CompiledProgram
from ..protocols import Array
from ..runtime import Executor
from .onnx_suite import Case, Outcome, Verdict, differs, lowered

__all__ = ["Batch", "Judged", "judge_natively"]

_LEVELS = {"none": 0, "all": 3}


class Batch(CppTarget):
    """A CPU target that gathers functions; ``done`` assembles them and hands each program its code."""

    def __init__(self, target: CppTarget) -> None:
        super().__init__(target.isa, target.config)
        self.functions: dict[str, str] = {}
        self.parts: frozenset[str] = frozenset()

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """A binary without data, which ``done`` replaces. Symbols are digests of their texts, so equal ones are one."""
        self.functions |= functions
        self.parts |= parts
        source = "\n".join(functions.values())
        return Binary(
            self.name, self.isa.binary_format, (), tuple(functions), b"", source, ",".join(sorted(parts))
        )

    def done(self, programs: Sequence[CompiledProgram]) -> list[CompiledProgram | BuildError]:
        """The programs with their code, or why theirs cannot be compiled."""
        if not self.functions:
            return list(programs)
        try:
            whole = super().assemble(self.functions, self.parts)
        except BuildError:
            return [self._alone(program) for program in programs]
        return [replace(p, binaries=(whole,)) if p.binaries else p for p in programs]

    def _alone(self, program: CompiledProgram) -> CompiledProgram | BuildError:
        if not program.binaries:
            return program
        asked = program.binaries[0]
        own = {symbol: self.functions[symbol] for symbol in asked.symbols}
        try:
            return replace(
                program, binaries=(super().assemble(own, frozenset(filter(None, asked.compiler.split(",")))),)
            )
        except BuildError as error:
            return error


@dataclass(frozen=True)
class Judged:
    """A verdict, the kernels that ran (empty: everything was known at compile time), and a short reason of a refusal."""

    verdict: Verdict
    kernels: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class _Job:
    case: Case
    feeds: dict[str, Any]
    expected: list[Any]
    weights: Mapping[str, Array]
    names: list[str]
    bound: tuple[str, ...]
    program: CompiledProgram = field(repr=False)


def judge_natively(
    cases: Iterable[Case], *, passes: str = "all", target: str = "cpu", batch: int = 150, threads: int = 1
) -> Iterator[Judged]:
    """A judgement per case, in order. ``passes``: ``none`` or ``all``; ``batch``: cases whose kernels are compiled together."""
    remaining = iter(cases)
    while some := list(islice(remaining, batch)):
        gathered = Batch(cpu_target(target))
        made = [_compiled(case, gathered, _LEVELS[passes]) for case in some]
        jobs = [job for item in made if not isinstance(item, Judged) for job in item]
        built = iter(gathered.done([job.program for job in jobs]))
        for item in made:
            if isinstance(item, Judged):
                yield item
            else:
                yield _run(item, [next(built) for _ in item], threads)


def _compiled(case: Case, target: Batch, level: int) -> list[_Job] | Judged:
    """A program for every data set of a case, or what is said of the case instead."""
    jobs = []
    for inputs, expected in case.data():
        feeds = dict(zip(case.inputs, inputs, strict=False))
        bound: tuple[str, ...] = ()
        try:
            found = lowered(case, feeds)
            bound = found.bound
            if found.opaque:
                return Judged(
                    Verdict(case.name, case.kind, Outcome.OPAQUE, found.opaque, bound), reason="opaque node"
                )
            program = _program(found.graph, feeds, target, level)
        except XpuError as error:
            verdict = Verdict(case.name, case.kind, Outcome.REFUSED, str(error), bound)
            return Judged(verdict, reason=_reason(error))
        except Exception as error:  # a defect of the compiler is a wrong answer to the judge, not its end
            verdict = Verdict(case.name, case.kind, Outcome.WRONG, f"{type(error).__name__}: {error}", bound)
            return Judged(verdict, reason="the compiler failed")
        names = [o.name for o in found.graph.outputs]
        jobs.append(_Job(case, feeds, expected, found.weights, names, bound, program))
    return jobs


def _program(graph: Graph, feeds: Mapping[str, Any], target: Batch, level: int) -> CompiledProgram:
    import numpy as np

    symbols = bind(graph.input_specs, {s.name: np.shape(feeds[s.name]) for s in graph.input_specs})
    return compile_graph(graph, target=target, shapes={k: int(v) for k, v in symbols.items()}, passes=level)


def _reason(error: XpuError) -> str:
    """What a table of refusals counts: the op and its first kernel's reason; other errors by what they say."""
    if not isinstance(error, KernelUnavailable):
        return f"{type(error).__name__}: {error.what}"[:120]
    op = error.who.partition(" %")[0]
    rejected = [c.reason for c in (error.decision.rejected if error.decision else ()) if c.reason]
    return f"{op}: {rejected[0] if rejected else 'no kernel lists it'}"[:120]


def _run(jobs: Sequence[_Job], programs: Sequence[CompiledProgram | BuildError], threads: int) -> Judged:
    case, ran, bound = jobs[0].case, dict[str, None](), dict[str, None]()
    for job, program in zip(jobs, programs, strict=True):
        bound |= dict.fromkeys(job.bound)
        if isinstance(program, BuildError):
            verdict = Verdict(case.name, case.kind, Outcome.WRONG, f"does not compile: {program}", job.bound)
            return Judged(verdict, reason="generated code does not compile")
        ran |= dict.fromkeys(c.kernel for e in program.entries for c in e.plans[0].calls)
        try:
            executor = Executor(program, threads=threads)
            executor.bind(job.weights)
            made = executor.run_arrays([job.feeds[s.name] for s in program.input_specs])
        except XpuError as error:
            return Judged(Verdict(case.name, case.kind, Outcome.WRONG, str(error), job.bound), tuple(ran))
        wrong = differs(case, job.expected, made)
        if wrong:
            return Judged(Verdict(case.name, case.kind, Outcome.WRONG, wrong, job.bound), tuple(ran))
    return Judged(Verdict(case.name, case.kind, Outcome.RIGHT, bound=tuple(bound)), tuple(ran))
