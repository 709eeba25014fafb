"""Policies at an executor. The device and ``strict`` take effect here; the other demands were applied at compile time and must agree with
the program.

``compile`` records the demands that it kept to (``CompiledProgram.facts["demands"]``). A demand that is not recorded is held against the
plan where the plan shows it, and is an error where it does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import KernelUnavailable, StrictError, UnavailableError
from ...families import family_of_aten
from ...printable import logger
from ...program.program import BufferKind, CompiledProgram, EntryPoint, ExecutionPlan, KernelCall
from ...targets import DeviceId
from ...types import DType
from ..memory.buffer import backend_of
from .choice import choose_plan

if TYPE_CHECKING:
    from ...decisions import Decision
    from ...policies import KernelPolicy, NodeFacts, Resolved, Rule
    from ..backends.base import RuntimeBackend

__all__ = [
    "SETTLED",
    "broken_rule",
    "check_program",
    "computed_in",
    "demanded_precision",
    "demands_around",
    "device_for",
]

_log = logger("xpuruntime.executor")
_VARIABLES = ("XPU_POLICY", "XPU_ENGINE", "XPU_DEVICE")
_RECOMPILE = "Compile the model again with this policy"


class _Settled:
    """The type of ``SETTLED``."""


SETTLED: Final = _Settled()
"""The policy of an executor whose caller has settled every demand: nothing is looked up."""


def demands_around(policy: Any) -> Resolved | None:
    """Return the demands of the argument, ``with_policy`` and the environment; None where there are none. Raises PolicyError, UnavailableError.

    A program runs without the package of policies, so it is imported only where somebody may have set one.
    """
    if policy is SETTLED:
        return None
    around = any(os.environ.get(v, "").strip() for v in _VARIABLES)
    if policy is None and not around and "xpuruntime.policies" not in sys.modules:
        return None
    from ...policies.entrances import demanded

    resolved = demanded("Executor", {}, policy)
    return resolved if resolved.origins else None


def device_for(
    device: Any, program: CompiledProgram, entry: EntryPoint, demands: Resolved | None
) -> RuntimeBackend:
    """Return the backend of the argument, else of the policy's device, else of the host.

    Where the policy's device cannot be had, or the program has no code for it, the first of ``allow_fallback`` is taken, with a warning.
    Raises UnavailableError.
    """
    execution = None if demands is None else demands.policy.execution
    if device is not None or execution is None or execution.target in (None, "auto"):
        return backend_of("cpu" if device is None else device)
    named = (execution.target, *(execution.allow_fallback or ()))
    refused: UnavailableError | None = None
    for name in named:
        try:
            backend = backend_of("cpu" if name == "auto" else str(DeviceId.parse(name)))
            choose_plan(program, entry, backend)
        except UnavailableError as error:
            refused = refused or error
            continue
        if refused is not None:
            _log.warning("executor of %r: %s; %s is used instead", program.name, refused.what, backend.device)
        return backend
    assert refused is not None
    assert demands is not None
    from ...policies.entrances import refuse

    why = f"{refused.who} {refused.what}" + (f" ({refused.got})" if refused.got else "")
    do = f"{_RECOMPILE}, or drop target." if refused.decision is not None else refused.do
    raise refuse("Executor", "target", demands, why, do) from refused


def check_program(
    program: CompiledProgram,
    entry: EntryPoint,
    plan: ExecutionPlan,
    decision: Decision,
    demands: Resolved | None,
) -> None:
    """Raise PolicyError, UnavailableError or StrictError for a demand that the program was not compiled for."""
    if demands is None:
        return
    from ...policies.entrances import refuse

    execution = demands.policy.execution
    for field, why in _differences(program, entry, plan, execution):
        raise refuse("Executor", field, demands, why, f"{_RECOMPILE}, or drop {field}.")
    if why := broken_rule(program, [plan], demands.policy.kernel):
        raise KernelUnavailable(
            "Executor", "cannot honor kernel.rules", got=why, do=f"{_RECOMPILE}, or drop the rule."
        )
    declined = [c for c in decision.rejected if c.code.value == "build_failed"]
    if execution.strict and declined:
        raise StrictError(
            "Executor",
            "strict=True, and a library does not support a chosen kernel",
            got="; ".join(f"{c.name}: {c.reason}" for c in declined),
            do="Compile the model again on this machine, or drop strict.",
        )


def _differences(
    program: CompiledProgram, entry: EntryPoint, plan: ExecutionPlan, execution: Any
) -> Iterator[tuple[str, str]]:
    """Yield each field that the program does not satisfy, and why."""
    recorded = _recorded(program)
    precision = execution.precision
    if precision not in (None, "model", recorded.get("precision")):
        computed = computed_in(plan)
        wanted = DType.of(precision)
        # As everywhere: integers that cannot be had become the model's own precision.
        if wanted.is_integer and execution.allow_fallback:
            _log.warning(
                "executor of %r: precision %s cannot be had; the program keeps its own",
                program.name,
                precision,
            )
        elif computed != {wanted}:
            shown = ", ".join(sorted(d.value for d in computed)) or "no floats"
            yield "precision", f"the program was compiled for {shown}"
    for name, size in (execution.fixed_shapes or {}).items():
        shape = next((s.shape for s in entry.inputs if s.name == name), None)
        has: Any = entry.symbols.get(name) if shape is None else list(shape)
        if has != (size if isinstance(size, int) else list(size)):
            text = "has no such dim or input" if has is None else f"was compiled for {name}={has}"
            yield "fixed_shapes", f"the program {text}"
    level = execution.optimization_level
    if level is not None and level != recorded.get("optimization_level"):
        at = recorded.get("optimization_level")
        text = "passes that were listed by name" if at is None else f"the passes of level {at}"
        yield "optimization_level", f"the program was compiled with {text}"


def _recorded(program: CompiledProgram) -> Mapping[str, Any]:
    """Return the demands that ``compile`` kept to. The file is data of others, so whatever is no mapping counts as none."""
    recorded = program.facts.get("demands")
    return recorded if isinstance(recorded, Mapping) else {}


def demanded_precision(program: CompiledProgram) -> DType | None:
    """Return the precision that the program was compiled for; None where that was the model's own."""
    named = _recorded(program).get("precision")
    return next((d for d in DType if d.value == named), None)


def computed_in(plan: ExecutionPlan) -> frozenset[DType]:
    """Return the float types of what a plan keeps between kernels; of its inputs and outputs where there is nothing between."""
    inner = [b.spec.dtype for b in plan.buffers if b.kind is BufferKind.SCRATCH]
    floats = frozenset(d for d in inner if d.is_float)
    return floats or frozenset(b.spec.dtype for b in plan.buffers if b.spec.dtype.is_float)


def broken_rule(program: CompiledProgram, plans: Iterable[ExecutionPlan], policy: KernelPolicy) -> str:
    """Return which rule the calls of a program break, as a sentence; empty where they keep to every rule.

    A rule that the program was compiled under holds. Conditions on shapes and phases cannot be read off a call and count as met.
    """
    from ...policies.fields.record import dump

    listed = _recorded(program).get("rules")
    known = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    calls = [(p, c) for p in plans for c in p.calls]
    for layer in policy.layers:
        for rule in layer.rules:
            if dump(rule) not in known and (why := _broken(rule, calls)):
                return f"{why} ({layer.origin})" if layer.origin else why
    return ""


def _broken(rule: Rule, calls: Sequence[tuple[ExecutionPlan, KernelCall]]) -> str:
    from ...policies.fields.pins import plain_kernel

    conditions = replace(rule, shape=None, phase=())
    for plan, call in calls:
        if not any(conditions.matches(f) for f in _facts(plan, call)):
            continue
        kernel = call.kernel.partition("/")[2]
        names = {kernel, plain_kernel(kernel)}
        at = f"{call.nodes[0] if call.nodes else call.symbol} is computed by {call.kernel}"
        if rule.use is not None and rule.use not in names:
            return f"a rule forces kernel {rule.use!r} ({rule.label()}), but the program was compiled with another one: {at}"
        if names & set(rule.forbid):
            return f"a rule forbids {kernel!r} ({rule.label()}), but {at}"
        if rule.workspace_bytes is not None or rule.deterministic:
            demand = "deterministic" if rule.workspace_bytes is None else "workspace_bytes"
            return f"the program does not say whether {call.kernel} keeps to {demand} ({rule.label()})"
    return ""


def _facts(plan: ExecutionPlan, call: KernelCall) -> Iterator[NodeFacts]:
    """Yield what rules may ask of a call, once for each family that its kernel or one of its ops belongs to."""
    from ...policies import NodeFacts

    dtype = plan.buffer(call.outputs[0]).spec.dtype if call.outputs else None
    for family in dict.fromkeys((call.kernel.partition("/")[0], *map(family_of_aten, call.ops))):
        yield NodeFacts(node=call.symbol, family=family, sources=call.nodes, dtype=dtype)
