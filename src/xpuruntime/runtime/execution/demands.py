"""Policies at an executor. It applies the device and ``strict``. The other demands were applied at compile time, so the program must
satisfy them.

``compile`` records the demands that it satisfied (``CompiledProgram.facts["demands"]``). A demand that is not recorded is checked
against the plan. If the plan does not show whether it is satisfied, it is an error.
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
    from ...policies.vocabulary import WeightWords
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
"""The policy of an executor whose caller has already applied every demand. No policy is looked up."""


def demands_around(policy: Any) -> Resolved | None:
    """Return the demands of the argument, ``with_policy`` and the environment; None without any. Raises PolicyError, UnavailableError.

    Running a program does not need the package ``policies``, so it is imported only if a policy may be set.
    """
    if policy is SETTLED:
        return None
    in_environment = any(os.environ.get(v, "").strip() for v in _VARIABLES)
    if policy is None and not in_environment and "xpuruntime.policies" not in sys.modules:
        return None
    from ...policies.entrances import demanded

    resolved = demanded("Executor", {}, policy)
    return resolved if resolved.origins else None


def device_for(
    device: Any, program: CompiledProgram, entry: EntryPoint, demands: Resolved | None
) -> RuntimeBackend:
    """Return the backend of the argument, else of the policy's device, else of the host.

    If the policy's device is unavailable, or the program has no code for it, the first usable device of ``allow_fallback`` is used, with
    a warning. Raises UnavailableError.
    """
    execution = None if demands is None else demands.policy.execution
    if device is not None or execution is None or execution.target in (None, "auto"):
        return backend_of("cpu" if device is None else device)
    candidates = (execution.target, *(execution.allow_fallback or ()))
    refused: UnavailableError | None = None
    for name in candidates:
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
    if (execution.transfers or {}).get("sync") == "none" and any(e.is_body for e in program.entries):
        why = "the program branches or loops, and the host decides what runs next"
        do = "Compile a model without control flow, or leave sync out."
        raise refuse("Executor", "transfers", demands, why, do)
    if why := broken_rule(program, [plan], demands.policy.kernel):
        raise KernelUnavailable(
            "Executor", "cannot honor the kernel policy", got=why, do=f"{_RECOMPILE}, or drop the demand."
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
        requested = DType.of(precision)
        # An integer precision that is unavailable falls back to the model's own, as in sessions.
        if requested.is_integer and execution.allow_fallback:
            _log.warning(
                "executor of %r: precision %s is unavailable; the program keeps its own",
                program.name,
                precision,
            )
        elif computed != {requested}:
            computed_names = ", ".join(sorted(d.value for d in computed)) or "no floats"
            yield "precision", f"the program was compiled for {computed_names}"
    for name, size in (execution.fixed_shapes or {}).items():
        shape = next((s.shape for s in entry.inputs if s.name == name), None)
        has: Any = entry.symbols.get(name) if shape is None else list(shape)
        if has != (size if isinstance(size, int) else list(size)):
            text = "has no such dim or input" if has is None else f"was compiled for {name}={has}"
            yield "fixed_shapes", f"the program {text}"
    level = execution.optimization_level
    if level is not None and level != recorded.get("optimization_level"):
        compiled_level = recorded.get("optimization_level")
        text = (
            "a list of passes by name" if compiled_level is None else f"the passes of level {compiled_level}"
        )
        yield "optimization_level", f"the program was compiled with {text}"


def _recorded(program: CompiledProgram) -> Mapping[str, Any]:
    """Return the demands that ``compile`` satisfied. A program file is untrusted, so anything but a mapping counts as none."""
    recorded = program.facts.get("demands")
    return recorded if isinstance(recorded, Mapping) else {}


def demanded_precision(program: CompiledProgram) -> DType | None:
    """Return the precision that the program was compiled for; None if it was the model's own."""
    precision = _recorded(program).get("precision")
    return next((d for d in DType if d.value == precision), None)


def computed_in(plan: ExecutionPlan) -> frozenset[DType]:
    """Return the float types of a plan's intermediate buffers; of all its buffers if there are none."""
    inner = [b.spec.dtype for b in plan.buffers if b.kind is BufferKind.SCRATCH]
    floats = frozenset(d for d in inner if d.is_float)
    return floats or frozenset(b.spec.dtype for b in plan.buffers if b.spec.dtype.is_float)


def broken_rule(program: CompiledProgram, plans: Iterable[ExecutionPlan], policy: KernelPolicy) -> str:
    """Return the rule that the calls of a program violate, as a sentence; empty if they satisfy every rule.

    A rule that was applied at compile time counts as satisfied. A call does not show shapes and phases, so conditions on them count as true.
    """
    from ...policies.fields.record import dump

    listed = _recorded(program).get("rules")
    applied = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    calls = [(p, c) for p in plans for c in p.calls]
    if policy.demands_batch_invariance() and not _recorded(program).get("batch_invariant"):
        return "the policy demands batch_invariant kernels, and the program was compiled without this demand"
    if why := _other_words(_recorded(program), policy.keyword_words()):
        return why
    for layer in policy.layers:
        for rule in layer.rules:
            if dump(rule) not in applied and (why := _broken(rule, calls)):
                return f"{why} ({layer.origin})" if layer.origin else why
    return ""


def _other_words(recorded: Mapping[str, Any], words: WeightWords | None) -> str:
    """Return how the words for weights differ from the recorded ones; empty if they do not, or the policy has none."""
    from ...policies.vocabulary import WeightWords

    compiled = WeightWords(str(recorded.get("weights", "model")), recorded.get("activations"))
    if words is None or words == compiled:
        return ""
    return f"the policy demands {words}, and the program was compiled for {compiled}"


def _broken(rule: Rule, calls: Sequence[tuple[ExecutionPlan, KernelCall]]) -> str:
    from ...policies.fields.pins import plain_kernel
    from ...policies.vocabulary import WORDS_OF_KERNELS

    conditions = replace(rule, shape=None, phase=())
    for plan, call in calls:
        if not any(conditions.matches(f) for f in _facts(plan, call)):
            continue
        kernel = call.kernel.partition("/")[2]
        names = {kernel, plain_kernel(kernel)}
        fact = f"{call.nodes[0] if call.nodes else call.symbol} is computed by {call.kernel}"
        if rule.use is not None and rule.use not in names:
            return f"a rule forces kernel {rule.use!r} ({rule.label()}), but the program was compiled with another one: {fact}"
        if names & set(rule.forbid):
            return f"a rule forbids {kernel!r} ({rule.label()}), but {fact}"
        words = rule.weight_words
        if words is not None and call.kernel.startswith("matmul/"):
            computed = WORDS_OF_KERNELS.get(kernel)
            if computed != (words if words.kernels else None):
                return f"a rule demands {words} ({rule.label()}), but {fact}"
        if rule.workspace_bytes is not None or rule.deterministic:
            demand = "deterministic" if rule.workspace_bytes is None else "workspace_bytes"
            return f"the program does not say if {call.kernel} satisfies {demand} ({rule.label()})"
    return ""


def _facts(plan: ExecutionPlan, call: KernelCall) -> Iterator[NodeFacts]:
    """Yield the facts of a call that rules are matched with, once per op family of its kernel and ops."""
    from ...policies import NodeFacts

    dtype = plan.buffer(call.outputs[0]).spec.dtype if call.outputs else None
    for family in dict.fromkeys((call.kernel.partition("/")[0], *map(family_of_aten, call.ops))):
        yield NodeFacts(node=call.symbol, family=family, sources=call.nodes, dtype=dtype)
