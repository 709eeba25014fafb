"""Snapshot: a plan, a receipt, a program or a lock as one form, so that two of a kind can be compared and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...decisions import Decision
from ...evidence import Evidence
from ...families import family_of_aten
from ...inference.models.edges import call_reads
from ...ir import OPS
from ...profiler.receipt import Receipt
from ...program.lock import Lock, LockedProgram
from ...program.plan import Plan, Transfer
from ...program.program import BufferKind, CompiledProgram, ExecutionPlan
from ...program.segment import Segment

__all__ = ["NodeState", "OutputState", "Snapshot", "of_lock", "of_plan", "of_program", "of_receipt"]


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: where it runs, and how.

    op, family:  as in the model. group: the nodes that one kernel or step computes together with it, itself included.
    kernel:      the kernels or the vendor's steps that compute it; empty if none does, or if the file does not say.
    precision:   element type that it computes in; empty if the file does not say.
    time_us, spread_us: median time of its group, and the largest minus the smallest; None if not measured.
    reads:       names of the nodes whose results it reads; empty if the file does not say.
    """

    name: str
    op: str = ""
    family: str = ""
    engine: str = ""
    device: str = ""
    region: str = ""
    kernel: str = ""
    precision: str = ""
    group: tuple[str, ...] = ()
    time_us: float | None = None
    spread_us: float | None = None
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputState:
    """One recorded output: its type, the sha256 of its bytes, and its statistics. values: all elements of a small output."""

    name: str
    spec: str
    digest: str
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    not_finite: int = 0
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a file that differences and rules need. None: this kind of file does not hold it.

    kind:       ``plan``, ``receipt``, ``program`` or ``lock``. name: the file's name, for texts.
    regions:    device of each region. transfers: values that cross regions. decisions: by question and subject, the choice and its reason code.
    time_us:    time of one run: the sum of the measured steps. spread_us: the sum of their spreads. timed_runs: number of measured runs.
    memory_bytes: scratch memory and weights. coverage: share of nodes that evidence names. confirmed: whether evidence confirms the plan.
    inputs:     sha256 of each input by name. outputs: what was recorded of each output.
    source:     the content of the file.
    """

    kind: str
    name: str
    model: str
    model_digest: str
    nodes: tuple[NodeState, ...]
    devices: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    regions: Mapping[str, str] = field(default_factory=dict)
    transfers: tuple[Transfer, ...] = ()
    decisions: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    time_us: float | None = None
    spread_us: float | None = None
    timed_runs: int = 0
    memory_bytes: int | None = None
    coverage: float | None = None
    confirmed: bool | None = None
    unconfirmed: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[OutputState, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    source: Plan | Receipt | CompiledProgram | Lock | None = field(default=None, repr=False, compare=False)

    def node(self, name: str) -> NodeState | None:
        """Return a node by name, or None."""
        return next((n for n in self.nodes if n.name == name), None)


def of_plan(plan: Plan, name: str) -> Snapshot:
    """Return the snapshot of a plan."""
    regions = {r.id: r for r in plan.regions}
    nodes = []
    for node in plan.nodes:
        region = regions.get(node.region)
        nodes.append(
            NodeState(
                node.name,
                node.op,
                node.family,
                region.engine if region else "",
                region.device if region else "",
                node.region,
                node.kernel,
                region.precision if region else "",
                (node.name,),
                reads=node.reads,
            )
        )
    return Snapshot(
        "plan",
        name,
        plan.model["name"],
        plan.model["digest"],
        tuple(nodes),
        tuple(dict.fromkeys(r.device for r in plan.regions)),
        tuple(dict.fromkeys(r.engine for r in plan.regions)),
        {r.id: r.device for r in plan.regions},
        plan.transfers,
        decisions_of(plan.decisions),
        facts={f"{r.engine} version": r.engine_version for r in plan.regions},
        source=plan,
    )


def decisions_of(decisions: Iterable[Decision]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return all decisions except those on the kernel of one call, which are in the nodes."""
    return {
        (d.question, d.subject): ("nothing", "") if d.chosen is None else (d.chosen.name, d.chosen.code.value)
        for d in decisions
        if not d.question.startswith(("kernel ", "self_check"))
    }


def of_receipt(
    receipt: Receipt, name: str, inputs: Mapping[str, str], outputs: tuple[OutputState, ...]
) -> Snapshot:
    """Return the snapshot of a receipt, with the plan's facts on a node replaced by the evidence on it."""
    base = of_plan(receipt.plan, name)
    executed: dict[str, NodeState] = {}
    by_name = {n.name: n for n in base.nodes}
    for region, evidence in receipt.evidence.items():
        for state in _executed(region, evidence, by_name):
            before = executed.get(state.name)
            executed[state.name] = state if before is None else _joined(before, state)
    rows = [row for e in receipt.evidence.values() for row in e.rows]
    timed = [row.time_us for row in rows if row.time_us is not None]
    spreads = [row.spread_us for row in rows if row.spread_us is not None]
    return Snapshot(
        "receipt",
        name,
        base.model,
        base.model_digest,
        tuple(executed.get(n.name, n) for n in base.nodes),
        tuple(dict.fromkeys((*base.devices, *(row.device for row in rows if row.device)))),
        base.engines,
        base.regions,
        base.transfers,
        base.decisions,
        sum(timed) if timed else None,
        sum(spreads) if timed and len(spreads) == len(timed) else None,
        max((e.timed_runs for e in receipt.evidence.values()), default=0),
        None,
        receipt.coverage,
        receipt.confirmed,
        tuple(f"{f.claim}: {f.seen}" for f in receipt.findings if not f.ok),
        inputs,
        outputs,
        base.facts,
        receipt,
    )


def _executed(region: str, evidence: Evidence, by_name: Mapping[str, NodeState]) -> Iterable[NodeState]:
    for row in evidence.rows:
        kernel = row.kernel.partition(": ")[0] if evidence.engine == "native" else row.kernel
        for node in row.nodes:
            planned = by_name.get(node)
            if planned is not None:
                yield NodeState(
                    node,
                    planned.op,
                    planned.family,
                    planned.engine,
                    row.device or planned.device,
                    region,
                    kernel,
                    row.precision if "float" in row.precision else planned.precision,
                    row.nodes,
                    row.time_us,
                    row.spread_us,
                    planned.reads,
                )


def _joined(a: NodeState, b: NodeState) -> NodeState:
    """Return a node that several steps compute."""

    def added(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x + y

    kernels = dict.fromkeys((*a.kernel.split(" + "), b.kernel))
    return NodeState(
        a.name,
        a.op,
        a.family,
        a.engine,
        b.device,
        a.region,
        " + ".join(kernels),
        b.precision,
        tuple(dict.fromkeys((*a.group, *b.group))),
        added(a.time_us, b.time_us),
        added(a.spread_us, b.spread_us),
        tuple(dict.fromkeys((*a.reads, *b.reads))),
    )


def of_program(program: CompiledProgram, name: str) -> Snapshot:
    """Return the snapshot of a compiled program. A node of several entry points is listed once for each."""
    several = len(program.entries) > 1
    nodes: list[NodeState] = []
    targets: dict[str, None] = {}
    for entry in program.entries:
        plan = entry.plans[0]
        targets[plan.target] = None
        nodes += _nodes_of_calls(plan, f"{entry.name}/" if several else "")
    weights = sum(r.spec.size_bytes or 0 for r in program.recipes)
    arena = max((p.arena_bytes for e in program.entries for p in e.plans), default=0)
    facts = {str(k): str(v) for k, v in program.facts.items() if isinstance(v, str | int)}
    return Snapshot(
        "program",
        name,
        program.name,
        _weights_digest(program),
        tuple(nodes),
        tuple(dict.fromkeys(t.partition(":")[0] for t in targets)),
        ("native",),
        {},
        (),
        decisions_of(program.decisions) | {("target", program.name): (", ".join(targets), "")},
        memory_bytes=arena + weights,
        facts=facts,
        source=program,
    )


def of_lock(lock: Lock, name: str) -> Snapshot:
    """Return the snapshot of a lock. Its validators, its regions, and per shape bucket its program, are facts."""
    groups: dict[str, tuple[str, ...]] = {n: c.nodes for p in lock.programs for c in p.calls for n in c.nodes}
    nodes = tuple(
        NodeState(
            n["name"],
            n.get("op", ""),
            n.get("family", ""),
            n.get("engine", ""),
            n.get("device", ""),
            "r0",
            n.get("kernel", ""),
            n.get("precision", ""),
            groups.get(n["name"], (n["name"],)),
        )
        for n in lock.nodes
    )
    buckets = {_bucket(p): p for p in lock.programs}
    facts = {k: v for k, v in lock.validators.items() if k != "model"} | {"threads": str(lock.threads)}
    facts |= {f"code of {c.nodes[0]} for {b}": c.code for b, p in buckets.items() for c in p.calls if c.nodes}
    facts |= {f"compiler for {b}": "; ".join(p.compilers) for b, p in buckets.items()}
    facts |= {"on mismatch": lock.on_mismatch}
    for r in lock.regions:
        options = ", ".join(f"{k}={v}" for k, v in sorted(r.options.items()))
        facts[f"region {r.id}"] = (
            f"{r.engine} {r.version} on {r.device}, {r.precision}{options and ', '}{options}"
        )
        facts[f"borders of region {r.id}"] = f"{', '.join(r.inputs)} -> {', '.join(r.outputs)}"
    memory: dict[str, int] = {}
    for p in lock.programs:  # of each region, its largest program
        memory[p.region] = max(memory.get(p.region, 0), p.arena_bytes + p.weight_bytes)
    return Snapshot(
        "lock",
        name,
        lock.model["name"],
        lock.model["digest"],
        nodes,
        tuple(dict.fromkeys(n.device for n in nodes)),
        tuple(dict.fromkeys(n.engine for n in nodes)),
        memory_bytes=sum(memory.values()) or None,
        facts=facts,
        source=lock,
    )


def _bucket(program: LockedProgram) -> str:
    sizes = ", ".join(f"{k}={v}" for k, v in sorted(program.shapes.items())) or "fixed shapes"
    return f"{sizes} in region {program.region}" if program.region else sizes


def _weights_digest(program: CompiledProgram) -> str:
    """Return the sha256 of inputs, outputs and weights: what a program keeps of its model."""
    specs = [[s.name, str(s)] for e in program.entries for s in (*e.inputs, *e.outputs)]
    parts = [
        specs,
        [
            [w.name, str(w.spec), w.digest or (w.data.digest if isinstance(w.data, Segment) else w.file)]
            for w in program.weights
        ],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _nodes_of_calls(plan: ExecutionPlan, prefix: str) -> list[NodeState]:
    types = {b.name: b.spec.dtype for b in plan.buffers if b.kind is not BufferKind.WEIGHT}
    device = plan.target.partition(":")[0]
    reads = call_reads(plan)
    states: dict[str, NodeState] = {}
    for call in plan.calls:
        precision = next((types[o].value for o in call.outputs if o in types), "")
        for i, node in enumerate(call.nodes):
            op = call.ops[i] if len(call.ops) == len(call.nodes) else call.ops[0] if call.ops else ""
            family = OPS[op].family if op in OPS else family_of_aten(op)
            group = tuple(prefix + n for n in call.nodes)
            before_it = tuple(prefix + n for n in reads[node])
            state = NodeState(
                prefix + node,
                op,
                family,
                "native",
                device,
                "r0",
                call.kernel,
                precision,
                group,
                reads=before_it,
            )
            before = states.get(state.name)
            states[state.name] = state if before is None else _joined(before, state)
    return list(states.values())
