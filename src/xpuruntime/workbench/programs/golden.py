"""Golden samples: generated inputs with the outputs that belong to them, stored in a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import UnavailableError, WrongResult
from ...inference.execution.seeded_inputs import sample_feeds
from ...inference.models.programs import open_program
from ...inference.self_check import ADVICE
from ...inference.self_check.opening import differs_by_demand
from ...inference.self_check.references import interpreter_bytes, interpreter_seconds
from ...inference.self_check.work import free_bytes, work_of
from ...ir import Graph, family_of, interp
from ...ir.shapes.symbols import bind
from ...numerics import compare_all, tolerance_for
from ...program.file import embed
from ...program.program import CompiledProgram, EntryPoint, ExecutionPlan, GoldenSample, WeightRef
from ...protocols import Array
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...targets import DeviceId
from ...types import TensorSpec

__all__ = ["INTERPRETER", "device_of", "with_golden"]

INTERPRETER = "interpreter"
"""``GoldenSample.target`` of outputs that the reference interpreter computed."""
_CHECK_SECONDS = 30.0
"""Time limit, by estimate, of the interpreter's check of golden outputs for each sample."""
_PORTABLE_STEPS = frozenset(
    [
        "cast",
        "reshape",
        "permute",
        "pad",
        "slice",
        "concat",
        "stack",
        "expand",
        "flip",
        "take",
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "sqrt",
        "constant",
        "arange",
    ]
)
"""Steps of recipes whose results are the same on every machine: copies, and arithmetic that IEEE 754 defines to the last bit."""


def with_golden(
    program: CompiledProgram, graph: Graph, weights: Mapping[str, Array], count: int
) -> CompiledProgram:
    """Return the program with ``count`` samples for each entry point.

    The program computes the outputs on this machine; if no alternative runs here, the interpreter does. Outputs of the program are
    compared with the interpreter's where that takes at most half a minute by estimate. Raises WrongResult, RunError, and IrError for an op that the
    interpreter lacks.
    """
    entries = [e for e in program.entries if not e.is_body]
    samples = [s for entry in entries for s in _samples(program, entry, graph, weights, count)]
    return replace(program, golden=tuple(samples))


def device_of(entry: EntryPoint) -> str:
    """Return the device that an entry point's first plan runs on."""
    kind = entry.plans[0].target.partition(":")[0]
    return str(DeviceId.parse("cpu" if any(p.target.startswith("cpu") for p in entry.plans) else f"{kind}:0"))


def _samples(
    program: CompiledProgram, entry: EntryPoint, graph: Graph, weights: Mapping[str, Array], count: int
) -> list[GoldenSample]:
    feeds = [sample_feeds(entry.inputs, seed=1000 * k) for k in range(count)]
    try:
        executor = Executor(program, device_of(entry), entry=entry.name, policy=SETTLED)
    except UnavailableError:
        expected = [list(interp.run(graph, f, weights=weights, states={}).values()) for f in feeds]
        return [
            _sample(entry, f, outputs, INTERPRETER, False) for f, outputs in zip(feeds, expected, strict=True)
        ]
    samples = []
    with executor:
        executor.bind(weights)
        plan = executor.plan
        for sample in feeds:
            with executor.twin() as twin:  # each sample starts from the initial states
                outputs = twin.run_arrays([sample[s.name] for s in entry.inputs])
            _check(program, plan, graph, weights, sample, outputs)
            samples.append(_sample(entry, sample, outputs, plan.target, _is_exact(program, plan)))
    return samples


def _sample(
    entry: EntryPoint, feeds: Mapping[str, Array], outputs: Sequence[Array], target: str, exact: bool
) -> GoldenSample:
    named = dict(zip((s.name for s in entry.outputs), outputs, strict=True))
    return GoldenSample(
        entry.name, _stored(entry.inputs, feeds), _stored(entry.outputs, named), target, exact
    )


def _stored(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> tuple[WeightRef, ...]:
    """Return arrays as embedded ones, in the form that programs embed weights in."""
    holder = CompiledProgram("golden", (), weights=tuple(WeightRef(s.name, s) for s in specs))
    return embed(holder, arrays).weights


def _is_exact(program: CompiledProgram, plan: ExecutionPlan) -> bool:
    """Return True if the plan gives equal bits on every machine of its target: generated code alone, and portable recipes."""
    generated = plan.target.startswith("cpu") and not any(call.library for call in plan.calls)
    return generated and all(step.op in _PORTABLE_STEPS for r in program.recipes for step in r.steps)


def _check(
    program: CompiledProgram,
    plan: ExecutionPlan,
    graph: Graph,
    weights: Mapping[str, Array],
    feeds: Mapping[str, Array],
    outputs: Sequence[Array],
) -> None:
    """Compare outputs with the interpreter's, so that a wrong program gets no golden samples. Raises WrongResult."""
    random = any(family_of(n) == "random" for n in graph.nodes)
    if (
        random
        or any(n.op == "opaque" for n in graph.nodes)
        or differs_by_demand(c.kernel for c in plan.calls)
    ):
        return
    work = work_of(graph, bind(graph.input_specs, {n: a.shape for n, a in feeds.items()}))
    if interpreter_seconds(work) > _CHECK_SECONDS or interpreter_bytes(work) > free_bytes() // 2:
        return
    expected: dict[str, Any] = interp.run(graph, feeds, weights=weights, states={})
    precision = open_program(program).precision
    limit = tolerance_for(precision, *(d.spec.dtype for d in plan.buffers if d.spec.dtype.is_float))
    for c in compare_all(list(expected), outputs, list(expected.values()), limit):
        if not c.ok:
            who = f"program {program.name!r}"
            raise WrongResult(
                who,
                f"computes a wrong output {c.name!r}, so it gets no golden samples",
                got=c.reason,
                do=ADVICE,
            )
