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
        word = self.kernel.name.partition("/")[2]
        return KernelPolicy(rules=[Rule(op=(OPS[self.call.op].family,), use=word)])


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


def _some(every: list[_KernelCase], sample: int) -> list[_KernelCase]:
    """Return about ``sample`` cases spread over all."""
    return every[:: -(-len(every) // sample)] if sample and every else every


def findings(subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
    """Yield a finding per kernel, call and dtype."""
    if subject.target is None:
        for one in asked("", sample):
            yield _by_session(subject, one)
        return
    every = asked(subject.target.kind, sample)
    size = 120 if jobs == 1 else 30
    for one, made, built in in_batches(every, _prepare, _programs, subject.target, size=size, jobs=jobs):
        yield made if isinstance(made, CaseFinding) else _judged(subject, one, made, built[0])


def _prepare(one: _KernelCase, gathering: Batch) -> _Ready | CaseFinding:
    graph, feeds, weights = one.call.graph(one.dtype)
    passes = 0 if one.call.plain else None
    try:
        program = compile_graph(graph, target=gathering, policy=one.policy(), weights=weights, passes=passes)
    except KernelUnavailable as error:
        own = (
            f"{one.kernel.name}: {error.got}" if one.kernel is not None and error.got else why_refused(error)
        )
        return CaseFinding(one.name, "refused", str(error), own[:120])
    except XpuError as error:
        return CaseFinding(one.name, "refused", str(error), why_refused(error))
    except Exception as error:  # a defect of the compiler is a finding and does not stop the suite
        return CaseFinding(one.name, "wrong", f"{type(error).__name__}: {error}")
    return _Ready(graph, feeds, weights, program)


def _programs(made: _Ready | CaseFinding) -> list[CompiledProgram]:
    return [made.program] if isinstance(made, _Ready) else []


def _judged(
    subject: DeviceUnderTest, one: _KernelCase, made: _Ready, program: CompiledProgram | BuildError
) -> CaseFinding:
    ran = tuple(dict.fromkeys(c.kernel for e in made.program.entries for c in e.plans[0].calls))
    if isinstance(program, BuildError):
        return CaseFinding(one.name, "wrong", f"does not compile: {program}", kernels=ran)
    if one.kernel is not None and one.kernel.name not in ran:
        met = ", ".join(ran) or "no kernel"
        return CaseFinding(one.name, "refused", f"{met} computes it", "another kernel was left to compute it")
    try:
        with Executor(program, subject.device) as executor:
            executor.bind(made.weights)
            got = executor.run_arrays([made.feeds[s.name] for s in program.input_specs])
    except KernelRefused as error:  # a target named in full, whose libraries were not queried before
        return CaseFinding(one.name, "refused", str(error), why_refused(error), ran)
    except XpuError as error:
        return CaseFinding(one.name, "wrong", str(error), kernels=ran)
    said = _wrong(made.graph, interp.run(made.graph, made.feeds, weights=made.weights), got)
    return CaseFinding(one.name, "wrong" if said else "right", said, kernels=ran)


def _by_session(subject: DeviceUnderTest, one: _KernelCase) -> CaseFinding:
    graph, feeds, weights = one.call.graph(one.dtype)
    want = interp.run(graph, feeds, weights=weights)
    return by_session(subject, one.name, graph, feeds, weights, lambda made: _wrong(graph, want, made))


def _wrong(graph: Graph, want: Mapping[str, Array], got: Sequence[Any]) -> str:
    for output, ours in zip(graph.outputs, map(np.asarray, got), strict=True):
        theirs = want[output.name]
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"{output.name} is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        dtype = DType.of(theirs.dtype)
        verdict = compare(output.name, ours, theirs, _LIMITS.get(dtype, tolerance_for(dtype)))
        if not verdict.ok:
            return verdict.reason
    return ""
