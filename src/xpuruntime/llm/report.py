"""Plan and receipt of a language model, in the form of a session's: a region for each entry point that is open.

A region has the name of its entry point (``decode``, ``sample``, ``prefill_128``). Nodes are those that its calls compute; their names begin
with the region's, because entry points compute nodes of the same names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any, Protocol

from .. import __version__
from ..decisions import Candidate, Decision, Reason
from ..inference.native.executor_evidence import Observations, evidence_of
from ..inference.selection.request import demanded_fields
from ..policies import Resolved
from ..profiler.receipt import Receipt
from ..program.node_kernels import kernels_by_node
from ..program.plan import Plan, PlanNode, Region
from ..program.program import CompiledProgram
from ..protocols import Evidence
from ..runtime import Executor
from ..targets import DeviceId
from ..types import DType
from .build import VERIFY, phase_of
from .checkpoint.config import DecoderConfig
from .checkpoint.data import UNQUANTIZED, Checkpoint
from .programs import DecoderPrograms
from .speculation import Drafts

__all__ = ["DescribedModel", "DescribedSteps", "plan_of", "receipt_of"]


class DescribedSteps(Protocol):
    """The steps of an open model. last: inputs of the last run of each entry point."""

    last: dict[str, list[Any]]

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Return the executors that are open, the first entry point's first."""
        ...

    def unit(self, entry: str) -> str:
        """Return what one run of an entry point computes."""
        ...


class DescribedModel(Protocol):
    """An open language model: what its plan and receipt are made of."""

    checkpoint: Checkpoint
    config: DecoderConfig
    program: CompiledProgram
    programs: DecoderPrograms
    request: Resolved
    arguments: dict[str, str]
    notes: tuple[str, ...]
    device: Any
    devices: tuple[str, ...]
    dtype: DType
    observations: Observations

    @property
    def steps(self) -> DescribedSteps:
        """Return the steps."""
        ...

    @property
    def drafts(self) -> Drafts:
        """Return the counts of speculative decoding."""
        ...


def plan_of(model: DescribedModel) -> Plan:
    """Return the plan."""
    executors, first = _executors(model), model.steps.executors[0]
    return Plan(
        model={
            "name": model.checkpoint.name,
            "digest": model.program.digest,
            "format": "language model",
            "family": model.config.family,
        },
        request=_request(model),
        inputs=first.entry.inputs,
        outputs=first.entry.outputs,
        regions=tuple(_region(model, entry, executor) for entry, executor in executors.items()),
        nodes=tuple(n for entry, executor in executors.items() for n in _nodes(entry, executor)),
        decisions=(*_own_decisions(model), *_kernel_decisions(model)),
        warnings=model.notes,
    )


def receipt_of(model: DescribedModel, *, times: bool) -> Receipt:
    """Return the receipt. ``times``: measure the calls of each entry point that ran, on its last inputs."""
    evidence = {
        entry: _evidence(model, entry, executor, times) for entry, executor in _executors(model).items()
    }
    runs = sum(e.counters["runs"] for e in model.steps.executors)
    return Receipt.write(plan_of(model), evidence, runs)


def _request(model: DescribedModel) -> dict[str, Any]:
    """Return every demand with its origin. Arguments take precedence over the policy."""
    return demanded_fields(model.request) | {k: f"{v} (argument)" for k, v in model.arguments.items()}


def _executors(model: DescribedModel) -> dict[str, Executor]:
    return {e.entry.name: e for e in model.steps.executors}


def _region(model: DescribedModel, entry: str, executor: Executor) -> Region:
    return Region(
        id=entry,
        engine="native",
        engine_version=__version__,
        device=str(executor.device),
        precision=model.dtype.value,
        threads=executor.threads if executor.device.kind == "cpu" else None,
        inputs=tuple(s.name for s in executor.entry.inputs),
        outputs=tuple(s.name for s in executor.entry.outputs),
    )


def _nodes(entry: str, executor: Executor) -> list[PlanNode]:
    """Return the nodes that the calls compute, each once, with the kernels of all its calls."""
    calls = executor.plan.calls
    kernels = kernels_by_node(calls)
    ops: dict[str, dict[str, None]] = {}
    for call in calls:
        for node in call.nodes:
            ops.setdefault(node, {}).update(dict.fromkeys(call.ops))
    return [
        PlanNode(
            f"{entry}/{node}",
            "+".join(own),
            kernels[node].partition("/")[0],
            entry,
            "xpuruntime",
            kernel=kernels[node],
        )
        for node, own in ops.items()
    ]


def _own_decisions(model: DescribedModel) -> list[Decision]:
    """Return the decisions on engine, precision, and the origin of each program."""
    name, execution = model.checkpoint.name, model.request.policy.execution
    device = str(DeviceId.parse(model.device))
    engine = Candidate(
        f"native on {device}", Reason.ONLY_ONE, "only the native engine runs language models token by token"
    )
    asked = model.arguments.get("precision") or execution.precision
    own = asked in (None, "model") or DType.of(asked) is not model.dtype
    precision = (
        Candidate(model.dtype.value, Reason.DEFAULT, "the checkpoint's own")
        if own
        else Candidate(model.dtype.value, Reason.REQUESTED, "demanded by an argument or the policy")
    )
    programs = []
    for entries, opened in model.programs.opened.items():
        seconds = round(opened.seconds, 4)
        facts = {"from_store": opened.from_store, "load_s" if opened.from_store else "build_s": seconds}
        why = "taken from the store" if opened.from_store else "compiled"
        if not opened.from_store and execution.caching is False:
            why = "compiled; the policy forbids the store"
        code = Reason.RECORDED if opened.from_store else Reason.DEFAULT
        head = Candidate(opened.program.digest[:12], code, f"{why} in {seconds:.2f} s", facts=facts)
        programs.append(Decision("program", ", ".join(entries), head))
    if (loaded := model.programs.loaded) is not None:
        facts = {
            "from_store": loaded.from_store,
            "bytes": loaded.size_bytes,
            "load_s": round(loaded.seconds, 4),
        }
        way = "mapped from the store" if loaded.from_store else "loaded from the checkpoint"
        code = Reason.RECORDED if loaded.from_store else Reason.DEFAULT
        why = f"{loaded.size_bytes} bytes, {way} in {loaded.seconds:.2f} s"
        programs.append(Decision("weights", name, Candidate("packed", code, why, facts=facts)))
    programs += _formats(model)
    if (ranks := len(model.devices)) > 1:
        why = f"linear layers are divided over {', '.join(model.devices)}"
        programs.append(Decision("parallel", name, Candidate(f"tensor: {ranks}", Reason.REQUESTED, why)))
    if execution.kv_cache == "fp8":
        why = "keys and values are rounded to float8_e4m3fn, and saturate at 448"
        programs.append(Decision("kv_cache", name, Candidate("fp8", Reason.REQUESTED, why)))
    return [Decision("engine", name, engine), Decision("precision", name, precision), *programs]


def _formats(model: DescribedModel) -> list[Decision]:
    """Return the decision on the formats of a GGUF file: for each, the number of weights that stay in their blocks, and of those that are read as floats."""
    name = model.checkpoint.name
    quantized = {n: f for n, f in model.checkpoint.formats.items() if f not in UNQUANTIZED}
    if not quantized:
        return []
    blocks, also = model.programs.in_blocks()
    counts = {
        "in blocks": Counter(quantized[n] for n in blocks),
        "as floats": Counter(f for n, f in quantized.items() if n not in blocks or n in also),
    }
    texts = [f"{n} {f} {form}" for form, own in counts.items() for f, n in sorted(own.items())]
    chosen, code = ("stored", Reason.REQUESTED) if blocks else ("floats", Reason.DEFAULT)
    facts = {form: dict(own) for form, own in counts.items()}
    return [Decision("stored weights", name, Candidate(chosen, code, ", ".join(texts), facts=facts))]


def _kernel_decisions(model: DescribedModel) -> list[Decision]:
    """Return the compiler's decisions. Their subjects begin with entry points."""
    decisions = []
    for entries, opened in model.programs.opened.items():
        for decision in opened.program.decisions:
            alone = len(entries) == 1
            decisions.append(
                replace(decision, subject=f"{entries[0]}: {decision.subject}") if alone else decision
            )
    return decisions


def _evidence(model: DescribedModel, entry: str, executor: Executor, times: bool) -> Evidence:
    """Return the evidence of one entry point."""
    runs, calls = executor.counters["runs"], len(executor.plan.calls)
    # Ranks run together only: a run of one of them, to measure it, would wait for the others.
    arrays = model.steps.last.get(entry) if times and len(model.devices) == 1 else None
    notes = [f"{calls} calls for {model.steps.unit(entry)}; {runs} runs"]
    checks = entry.startswith(VERIFY)
    if checks:
        notes.append(model.drafts.text)
    if len(model.devices) > 1:
        notes.append(
            f"divided over {', '.join(model.devices)}, of which the first is shown; calls are not timed"
        )
    options = {"phase": phase_of(entry), "runs": str(runs), "calls": str(calls)}
    if checks:
        options |= {k: str(v) for k, v in asdict(model.drafts).items()}
    evidence = evidence_of(
        executor, arrays, model.observations, source="this language model", notes=notes, options=options
    )
    named = tuple(replace(r, nodes=tuple(f"{entry}/{n}" for n in r.nodes)) for r in evidence.rows)
    return replace(evidence, rows=named)
