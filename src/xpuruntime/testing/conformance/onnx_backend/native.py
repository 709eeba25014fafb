"""The onnx package's node cases on the native engine: compiled, run, and compared as the suite compares.

    verdicts = check_natively(cases("node"), passes="all")

Hundreds of tiny programs share one compilation, see ``native_batch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....codegen.target import CodegenTarget
from ....compiler import compile as compile_graph
from ....errors import BuildError, KernelRefused, XpuError
from ....ir import Graph, PaddedGraph, bind, pad_counts
from ....program.program import CompiledProgram
from ....protocols import Array
from ....runtime import Executor
from ..native_batch import Batch, in_batches, why_refused
from .suite import BackendCase, CaseVerdict, Outcome, differs, differs_in_form, lowered

__all__ = ["NativeVerdict", "check_natively"]

_LEVELS = {"none": 0, "all": None}  # None: every pass of the target


@dataclass(frozen=True)
class NativeVerdict:
    """A verdict, the kernels that ran (empty: everything was known at compile time), and a short reason of a refusal.

    loosened: True if it is right only by its entry in the list of known cases.
    """

    verdict: CaseVerdict
    kernels: tuple[str, ...] = ()
    reason: str = ""
    loosened: bool = False


@dataclass
class _Job:
    case: BackendCase
    feeds: dict[str, Any]
    expected: list[Any]
    weights: Mapping[str, Array]
    names: list[str]
    bound: tuple[str, ...]
    program: CompiledProgram = field(repr=False)
    padded: PaddedGraph = field(repr=False)


def check_natively(
    cases: Iterable[BackendCase],
    *,
    passes: str = "all",
    target: str | CodegenTarget = "cpu",
    device: Any = "cpu",
    batch: int = 150,
    jobs: int = 1,
    threads: int = 1,
    looser: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[NativeVerdict]:
    """Yield a verdict per case, in order. ``passes``: ``none`` or ``all``; ``device``: a device or backend that runs the target's programs;
    ``batch``: cases whose kernels are compiled together, ``jobs`` batches at once; ``looser``: entries of the list of known cases.
    """
    tolerances = looser or {}

    def prepare(case: BackendCase, gathering: Batch) -> list[_Job] | NativeVerdict:
        return _compiled(case, gathering, _LEVELS[passes])

    for case, prepared, programs in in_batches(cases, prepare, _programs, target, size=batch, jobs=jobs):
        yield (
            prepared
            if isinstance(prepared, NativeVerdict)
            else _run(prepared, programs, device, threads, tolerances.get(case.name, {}))
        )


def _programs(prepared: list[_Job] | NativeVerdict) -> list[CompiledProgram]:
    return [] if isinstance(prepared, NativeVerdict) else [job.program for job in prepared]


def _compiled(case: BackendCase, target: Batch, level: int | None) -> list[_Job] | NativeVerdict:
    """Return a program for every data set of a case, or the verdict of a case without programs."""
    jobs = []
    for inputs, expected in case.data():
        feeds = dict(zip(case.inputs, inputs, strict=False))
        bound: tuple[str, ...] = ()
        try:
            lowered_case = lowered(case, feeds, settle=True)
            bound = lowered_case.bound
            if lowered_case.opaque:
                return NativeVerdict(
                    CaseVerdict(case.name, case.kind, Outcome.OPAQUE, lowered_case.opaque, bound),
                    reason=f"opaque {lowered_case.opaque}"[:90],
                )
            padded = _padded(lowered_case.graph)
            program = _program(padded.graph, feeds, target, level)
        except XpuError as error:
            verdict = CaseVerdict(case.name, case.kind, Outcome.REFUSED, str(error), bound)
            return NativeVerdict(verdict, reason=why_refused(error))
        except Exception as error:  # a defect of the compiler is a finding and does not stop the suite
            verdict = CaseVerdict(
                case.name, case.kind, Outcome.WRONG, f"{type(error).__name__}: {error}", bound
            )
            return NativeVerdict(verdict, reason="the compiler failed")
        names = [o.name for o in lowered_case.graph.outputs]
        jobs.append(_Job(case, feeds, expected, lowered_case.weights, names, bound, program, padded))
    return jobs


def _padded(graph: Graph) -> PaddedGraph:
    """Return the graph with a count for each result whose size only a run knows, or unchanged if there is none."""
    known = frozenset[str]().union(*(s.symbols for s in graph.input_specs))
    return pad_counts(graph) if graph.symbols - known else PaddedGraph(graph, {})


def _program(graph: Graph, feeds: Mapping[str, Any], target: Batch, level: int | None) -> CompiledProgram:
    import numpy as np

    symbols = bind(graph.input_specs, {s.name: np.shape(feeds[s.name]) for s in graph.input_specs})
    return compile_graph(graph, target=target, shapes={k: int(v) for k, v in symbols.items()}, passes=level)


def _differs_loosely(
    case: BackendCase, expected: Sequence[Any], outputs: Sequence[Any], entry: Mapping[str, Any]
) -> str:
    """Return an empty text if the outputs are right by an entry of the list of known cases, otherwise the difference."""
    if entry["reason"] == "random":
        return differs_in_form(expected, outputs)
    return differs(replace(case, atol=entry.get("atol", case.atol)), expected, outputs, entry.get("ulps", 0))


def _run(
    jobs: Sequence[_Job],
    programs: Sequence[CompiledProgram | BuildError],
    device: Any,
    threads: int,
    entry: Mapping[str, Any],
) -> NativeVerdict:
    case, ran, bound, loosened = jobs[0].case, dict[str, None](), dict[str, None](), False
    for job, program in zip(jobs, programs, strict=True):
        bound |= dict.fromkeys(job.bound)
        if isinstance(program, BuildError):
            verdict = CaseVerdict(
                case.name, case.kind, Outcome.WRONG, f"does not compile: {program}", job.bound
            )
            return NativeVerdict(verdict, reason="generated code does not compile")
        ran |= dict.fromkeys(c.kernel for e in program.entries for c in e.plans[0].calls)
        try:
            with Executor(program, device, threads=threads) as executor:
                executor.bind(job.weights)
                results = executor.run_arrays([job.feeds[s.name] for s in program.input_specs])
            outputs = list(job.padded.cut(dict(zip(executor.output_names, results, strict=True))).values())
        except KernelRefused as error:  # a target named in full, whose libraries were not queried before
            verdict = CaseVerdict(case.name, case.kind, Outcome.REFUSED, str(error), job.bound)
            return NativeVerdict(verdict, tuple(ran), why_refused(error))
        except XpuError as error:
            return NativeVerdict(
                CaseVerdict(case.name, case.kind, Outcome.WRONG, str(error), job.bound), tuple(ran)
            )
        wrong = differs(case, job.expected, outputs)
        if wrong and entry:
            loosened = True
            wrong = _differs_loosely(case, job.expected, outputs, entry)
        if wrong:
            return NativeVerdict(
                CaseVerdict(case.name, case.kind, Outcome.WRONG, wrong, job.bound), tuple(ran)
            )
    return NativeVerdict(
        CaseVerdict(case.name, case.kind, Outcome.RIGHT, bound=tuple(bound)), tuple(ran), loosened=loosened
    )
