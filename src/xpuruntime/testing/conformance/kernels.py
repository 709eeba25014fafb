"""Every kernel of the catalogue, selected by name on calls of its ops and compared with the interpreter.

A vendor's engine, or a target with its own kernels, offers no choice of kernel; there each call runs once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compiler import compile as compile_graph
from ...errors import BuildError, KernelRefused, KernelUnavailable, XpuError
from ...ir import OPS, Graph, interp
from ...kernels.catalogue import kernels as catalogue
from ...kernels.kernel import Kernel
from ...numerics import compare, tolerance_for
from ...policies import KernelPolicy, Rule
from ...program.program import CompiledProgram
from ...protocols import Array
from ...runtime import Executor
from ...types import DType
from .calls import CALLS, ConformanceCall
from .finding import CaseFinding
from .native_batch import Batch, in_batches, why_refused
from .subject import DeviceUnderTest
from .vendor import by_session

__all__ = ["NEEDS", "findings", "without_calls"]

NEEDS: tuple[str, ...] = ()
_LIMITS: Mapping[DType, float] = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5}


@dataclass(frozen=True)
class _KernelCase:
    """A kernel (None: any), a call and a dtype."""

    kernel: Kernel | None
    call: ConformanceCall
    dtype: str

    @property
    def name(self) -> str:
        which = "" if self.kernel is None else f"{self.kernel.name} "
        return which + self.call.name(self.dtype)

    def policy(self) -> KernelPolicy:
        """Return a policy that forces the kernel for the op's family only."""
        if self.kernel is None:
            return KernelPolicy()
        kernel_name = self.kernel.name.partition("/")[2]
        return KernelPolicy(rules=[Rule(op=(OPS[self.call.op].family,), use=kernel_name)])


@dataclass(frozen=True)
class _Ready:
    graph: Graph
    feeds: dict[str, Array]
    weights: dict[str, Array]
    program: CompiledProgram


def rows(kind: str) -> list[Kernel]:
    """Return the catalogue's kernels that compute the ops' own results. Kernels that change them on request (int8 weights) have their own tests."""
    return [k for k in catalogue(kind) if not k.on_request]


def without_calls(kind: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return kernels without a call here: their ops are made only by passes and are covered by networks."""
    ops = {c.op for c in CALLS}
    return [(k.name, k.ops) for k in rows(kind) if not ops & set(k.ops)]


def asked(kind: str, sample: int) -> Iterator[_KernelCase]:
    """Yield cases kernel by kernel, or op by op if kernels cannot be chosen: up to ``sample`` calls of each, or all for 0."""
    if not kind:
        for op in dict.fromkeys(c.op for c in CALLS):
            yield from _some([_KernelCase(None, c, d) for c in CALLS if c.op == op for d in c.dtypes], sample)
        return
    for kernel in rows(kind):
        yield from _some(
            [_KernelCase(kernel, c, d) for c in CALLS if c.op in kernel.ops for d in c.dtypes], sample
        )


def _some(cases: list[_KernelCase], sample: int) -> list[_KernelCase]:
    """Return about ``sample`` cases spread over all."""
    return cases[:: -(-len(cases) // sample)] if sample and cases else cases


def findings(subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
    """Yield a finding per kernel, call and dtype."""
    if subject.target is None:
        for case in asked("", sample):
            yield _by_session(subject, case)
        return
    cases = asked(subject.target.kind, sample)
    size = 120 if jobs == 1 else 30
    for case, prepared, programs in in_batches(
        cases, _prepare, _programs, subject.target, size=size, jobs=jobs
    ):
        yield (
            prepared if isinstance(prepared, CaseFinding) else _run_case(subject, case, prepared, programs[0])
        )


def _prepare(case: _KernelCase, gathering: Batch) -> _Ready | CaseFinding:
    graph, feeds, weights = case.call.graph(case.dtype)
    passes = 0 if case.call.plain else None
    try:
        program = compile_graph(graph, target=gathering, policy=case.policy(), weights=weights, passes=passes)
    except KernelUnavailable as error:
        reason = (
            f"{case.kernel.name}: {error.got}"
            if case.kernel is not None and error.got
            else why_refused(error)
        )
        return CaseFinding(case.name, "refused", str(error), reason[:120])
    except XpuError as error:
        return CaseFinding(case.name, "refused", str(error), why_refused(error))
    except Exception as error:  # a defect of the compiler is a finding and does not stop the suite
        return CaseFinding(case.name, "wrong", f"{type(error).__name__}: {error}")
    return _Ready(graph, feeds, weights, program)


def _programs(prepared: _Ready | CaseFinding) -> list[CompiledProgram]:
    return [prepared.program] if isinstance(prepared, _Ready) else []


def _run_case(
    subject: DeviceUnderTest, case: _KernelCase, ready: _Ready, program: CompiledProgram | BuildError
) -> CaseFinding:
    ran = tuple(dict.fromkeys(c.kernel for e in ready.program.entries for c in e.plans[0].calls))
    if isinstance(program, BuildError):
        return CaseFinding(case.name, "wrong", f"does not compile: {program}", kernels=ran)
    if case.kernel is not None and case.kernel.name not in ran:
        other_kernel = ", ".join(ran) or "no kernel"
        return CaseFinding(
            case.name, "refused", f"{other_kernel} computes it", "the compiler chose another kernel"
        )
    try:
        with Executor(program, subject.device) as executor:
            executor.bind(ready.weights)
            outputs = executor.run_arrays([ready.feeds[s.name] for s in program.input_specs])
    except KernelRefused as error:  # a full target name: its libraries were not queried at compile time
        return CaseFinding(case.name, "refused", str(error), why_refused(error), ran)
    except XpuError as error:
        return CaseFinding(case.name, "wrong", str(error), kernels=ran)
    difference = _wrong(ready.graph, interp.run(ready.graph, ready.feeds, weights=ready.weights), outputs)
    return CaseFinding(case.name, "wrong" if difference else "right", difference, kernels=ran)


def _by_session(subject: DeviceUnderTest, case: _KernelCase) -> CaseFinding:
    graph, feeds, weights = case.call.graph(case.dtype)
    want = interp.run(graph, feeds, weights=weights)
    return by_session(subject, case.name, graph, feeds, weights, lambda outputs: _wrong(graph, want, outputs))


def _wrong(graph: Graph, reference: Mapping[str, Array], outputs: Sequence[Any]) -> str:
    for output, actual in zip(graph.outputs, map(np.asarray, outputs), strict=True):
        expected = reference[output.name]
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            return f"{output.name} is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        dtype = DType.of(expected.dtype)
        verdict = compare(output.name, actual, expected, _LIMITS.get(dtype, tolerance_for(dtype)))
        if not verdict.ok:
            return verdict.reason
    return ""
