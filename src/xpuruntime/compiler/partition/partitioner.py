"""Partitioning: a model becomes regions with one engine each, and transfers between them.

    plan = partition(graph, is_op_supported)                    # native where it can, other engines elsewhere
    plan = partition(graph, place={"conv": "native", "head*": "onnxruntime"})
    print(plan.explain())

A region is connected and convex: no path of values leaves it and returns. So regions have an execution order, and independent regions
may run concurrently. No engine is loaded: whether an engine is available is known when the regions are loaded, and each region lists the
other engines that may run it, in order.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...arguments import check_argument, check_names, check_several
from ...decisions import Candidate, Decision, Reason, Support
from ...errors import DeviceUnavailable, EngineUnavailable
from ...faults import contained, foreign
from ...ir import Graph, Node, specialize
from ...ir.extensions import LEFT_TO_PYTORCH, of_an_extension
from ...ir.family import source_names
from ...ir.shapes.decided import open_sizes
from ...policies import KernelPolicy, Policy, Resolved
from ...policies.entrances import demanded, refuse
from ...printable import logger
from ...targets import DeviceId
from ...types import DType
from ..entrance import check_static, fixed_symbols
from ..pipeline import Model, _graph
from ..resolve import resolve_target
from ..transfers import check_graph, check_plan
from .cost import Costs
from .measured import cheapest_path, crossing_bytes
from .offers import PartitionRequest, Supports
from .plan import Atom, PartitionPlan, PlanWriter, TransferOp, split_engine
from .regions import cluster, hulls
from .support import is_op_supported

__all__ = ["Costs", "PartitionPlan", "Supports", "TransferOp", "is_op_supported", "partition"]

_log = logger("xpuruntime.compiler")

OTHERS = ("onnxruntime", "openvino")


@contained("partition")
def partition(
    model: Model,
    demands: Supports | Resolved | Policy | KernelPolicy | Mapping[str, Any] | str | None = None,
    *,
    engine: str | None = None,
    others: Sequence[str] | None = None,
    place: Mapping[str, str] | None = None,
    costs: Costs | Mapping[str, Mapping[str, float]] | None = None,
    target: Any = None,
    absorb: bool = True,
) -> PartitionPlan:
    """Partition a model into regions.

    model:   a graph, its JSON form, or the path of a saved graph.
    demands: a function that returns what ``engine`` supports (by default ``is_op_supported`` for ``target``), or a policy over ``with_policy``
             and the environment, which also applies to a DAGExecutor of this plan (``docs/reference/policy-support.md``). Its ``place`` comes
             after the argument. Nodes for which a rule forces a kernel (``use``) are placed on the native engine, which has selectable kernels.
    engine:  the preferred engine, as ``engine`` or ``engine on device``. If it is named, here or by the policy, it keeps every node that it
             supports, unless ``place``, a rule or measured times assign it elsewhere. By default the policy's engine and device, else native on the CPU.
    others:  engines for the remaining nodes, in order; a region also falls back to them when its engine fails. By default the policy's
             ``engine_order``, else onnxruntime and openvino. ``interpreter`` (NumPy, slow, every op of the IR) must be named. Opaque ATen ops
             run on ``torch``.
    place:   engine by name or pattern (shell-style): of a node or its source, of its op, or of its op family. A node's own name takes
             precedence over patterns, a longer pattern over a shorter one. If a placed engine is not available, ``partition`` raises.
    costs:   measured seconds by engine and node, or rates too (``Costs``). Nodes that were measured on every candidate get the engines with the
             lowest total time, transfers included (``measured``).
    absorb:  whether to give a region to a neighbor's engine if transfers cost more than the region saves. Without it, each node gets the
             engine that is best for it alone.

    Raises EngineUnavailable (with its decision) if no engine supports a node or a placement is not available, KernelUnavailable if a kernel that a
    rule forces does not exist, PolicyError.
    """
    if engine is not None:
        check_argument("partition", "engine", engine, str, "a name", "Give 'native', or 'openvino on npu'.")
    if others is not None:
        do = "Give ['onnxruntime', 'openvino']."
        others = (others,) if isinstance(others, str) else others
        others = check_several("partition", "others", others, "several engines", do)
        for name in others:
            check_argument("partition", "others", name, str, "several engines", do)
    if place is not None:
        check_names("partition", "place", place, "engines")
    if costs is not None:
        do = "Give {'onnxruntime': {'conv1': 1e-4}}, or Costs."
        check_argument("partition", "costs", costs, Costs | Mapping, "seconds by engine and node", do)
    supports: Supports | None = _users_function(demands) if callable(demands) else None
    resolved = demanded("partition", {}, None if callable(demands) else demands)
    kernels, execution = resolved.policy.kernel, resolved.policy.execution
    graph = _graph(model)
    graph = specialize(graph, fixed_symbols([graph], resolved))
    check_static("partition", [graph], resolved)
    _check_precision(graph, resolved)
    # The policy's engine is a demand: its regions have no alternatives.
    without_alternatives = (
        engine is None and "execution.engine" in resolved.origins and not execution.allow_fallback
    )
    is_named = engine is not None or "execution.engine" in resolved.origins
    engine = engine or execution.engine or "native"
    device = _device(split_engine(engine)[0], resolved)
    if " on " not in engine and device.kind != "cpu":
        engine = f"{engine} on {device}"
    target = target or (str(device) if device.kind == "cuda" else "cpu")
    order = execution.order_for(device.kind)
    others = (order or OTHERS) if others is None else others
    place = {**(execution.place or {}), **(place or {})}
    request: dict[str, Any] = {"engine": engine, "others": list(others), "place": dict(place or {})}
    if fields := execution.set_fields():
        request["policy"] = {k: Policy(execution=execution).to_dict()["execution"][k] for k in fields}
    other_engines = tuple(o for o in others if o not in (engine, split_engine(engine)[0]))
    native = f"native on {device}" if device.kind == "cuda" else "native"
    partition_request = PartitionRequest(
        engine, other_engines, dict(place or {}), kernels, supports, target, native
    )
    rates = costs if isinstance(costs, Costs) else Costs(measured=costs or {})
    plan = replace(
        _Partitioner(graph, partition_request, rates, request, engine if is_named else "").run(absorb),
        demands=resolved,
    )
    transfers = resolved.policy.execution.transfers
    check_graph("partition", transfers, graph)
    check_plan("partition", transfers, plan.plan)
    return _without_alternatives(plan, split_engine(engine)[0]) if without_alternatives else plan


def _without_alternatives(plan: PartitionPlan, engine: str) -> PartitionPlan:
    """Remove the alternatives of an engine's regions."""
    regions = tuple(replace(r, alternatives=()) if r.engine == engine else r for r in plan.regions)
    return replace(plan, plan=replace(plan.plan, regions=regions))


def _device(engine: str, resolved: Resolved) -> DeviceId:
    """Return the policy's device for the engine; the CPU if that is unavailable and ``allow_fallback`` permits it. Raises DeviceUnavailable."""
    execution = resolved.policy.execution
    device = DeviceId.parse(execution.target or "cpu")
    if device.kind in ("auto", "cpu"):
        return DeviceId("cpu")
    if engine != "native":
        return device
    try:
        if device.kind != "cuda":
            why, do = "the native engine runs on cpu and cuda", "Name another engine for that device."
            raise refuse("partition", "target", resolved, why, do)
        resolve_target(str(device))
    except DeviceUnavailable as error:
        if not execution.allow_fallback:
            raise
        _log.warning("partition: %s; cpu is used instead", error.what)
        return DeviceId("cpu")
    return device


def _check_precision(graph: Graph, resolved: Resolved) -> None:
    """Raise PrecisionUnavailable for a precision other than the graph's own."""
    named = resolved.policy.execution.precision
    if named in (None, "model"):
        return
    specs = [v.spec for n in graph.nodes for v in n.outputs if v.spec is not None]
    if DType.of(named).is_integer and resolved.policy.execution.allow_fallback:
        _log.warning("partition: precision %s is not available; the model keeps its own", named)
    elif {s.dtype for s in specs if s.dtype.is_float} != {DType.of(named)}:
        why = "regions of several engines run in the model's own precision"
        raise refuse(
            "partition", "precision", resolved, why, "Leave precision out, or use an InferenceSession."
        )


def _users_function(supports: Supports) -> Supports:
    """Wrap the user's function, so that its errors are reported as the user's."""

    @functools.wraps(supports)
    def asked(*args: Any) -> Any:
        with foreign():
            return supports(*args)

    return asked


class _Partitioner:
    def __init__(
        self,
        graph: Graph,
        engines: PartitionRequest,
        costs: Costs,
        request: Mapping[str, Any],
        named: str,
    ) -> None:
        self.named = named  # by the user: predictions move no node away from it
        self.graph, self.engines, self.costs, self.request = graph, engines, costs, request
        self.nodes = [n for n in graph.nodes if n.op != "constant"]
        self.producer = {v.name: i for i, n in enumerate(self.nodes) for v in n.outputs}
        self.deciding = graph.deciding
        self.atoms: list[Atom] = []
        self.before: list[set[int]] = []

    def run(self, absorb: bool) -> PartitionPlan:
        self._make_atoms()
        if absorb:
            self._choose_by_times()
        groups = self._groups()
        while absorb and (move := self._cheaper(groups)) is not None:
            group, engine, why = move
            for atom in (self.atoms[i] for i in group):
                atom.engine, atom.code, atom.why, atom.moved = engine, Reason.SLOWER, why, True
            groups = self._groups()
        writer = PlanWriter(self.graph, self.nodes, self.request)
        return writer.plan([[self.atoms[a] for a in group] for group in groups])

    # ── atoms ──

    def _reads(self, index: int) -> set[int]:
        """Return the nodes that run first: those whose values the node reads, and those that decide its sizes."""
        node = self.nodes[index]
        values = {*node.values, *(self.deciding[s] for s in open_sizes(node) if s in self.deciding)}
        return {self.producer[v] for v in values if v in self.producer} - {index}

    def _make_atoms(self) -> None:
        reads = [self._reads(i) for i in range(len(self.nodes))]
        groups = cluster(reads, self._together(reads))
        self.of = {i: a for a, group in enumerate(groups) for i in group}
        self.before = [{self.of[r] for i in group for r in reads[i]} - {a} for a, group in enumerate(groups)]
        self.atoms = [self._atom(group) for group in groups]

    def _together(self, reads: Sequence[set[int]]) -> list[object]:
        """Return labels of nodes that must stay together: those of one ONNX node, and those that exchange a value of unknown type."""
        whole = bool(self.graph.metadata.get("opset"))
        labels: list[object] = [
            (n.sources[0].name if whole and n.sources and n.sources[0].name else i)
            for i, n in enumerate(self.nodes)
        ]
        untyped = [
            {i, *(self.producer[u.outputs[0].name] for u in self.graph.users(v.name))}
            for i, n in enumerate(self.nodes)
            for v in n.outputs
            if v.spec is None and self.graph.users(v.name)
        ]
        for hull in hulls(reads, untyped) if untyped else ():
            for i in hull:
                labels[i] = ("untyped", hull[0])
        return labels

    def _atom(self, group: list[int]) -> Atom:
        graph = self.graph
        nodes = [self.nodes[i] for i in group]
        answers = [self.engines.offers(graph, n) for n in nodes]
        offers = {
            e: next((o[e] for o in answers if e in o and not o[e]), Support.yes()) for e in _union(answers)
        }
        for engine in offers:  # torch is a candidate only for ops that need it
            if any(engine not in o for o in answers):
                offers[engine] = Support.no(
                    Reason.OP_UNSUPPORTED, "it supports only some of the nodes that must stay together"
                )
        forced = [f for n in nodes if (f := self.engines.forced(graph, n)) is not None]
        if forced:
            for node in nodes:
                self.engines.check_kernels(graph, node)
            engine, why = forced[0]
            clash = next((f for f in forced if f[0] != engine), None)
            support = next(
                (s for n in nodes if not (s := self.engines.answer(graph, n, engine))), Support.yes()
            )
            rule = next((r for n in nodes if (r := self.engines.forcing(graph, n)) is not None), None)
            if rule is not None and split_engine(engine)[0] != "native":
                support = Support.no(
                    Reason.FORBIDDEN,
                    f"the rule for {rule.label()} uses kernel {rule.use!r} of the native engine",
                )
            if clash is not None:
                support = Support.no(Reason.FORBIDDEN, f"{clash[1]} requires {clash[0]} for a part of it")
            if not support:
                raise self._no_engine(
                    nodes, {engine: support}, f"{why} requires {engine}, which is not available"
                )
            return Atom(group, {engine: support}, engine, Reason.FORCED, why, forced=True)
        usable = [e for e, s in offers.items() if s]
        if not usable:
            raise self._no_engine(nodes, offers, "no engine supports it")
        times = {e: [self.costs.measured_s(n, split_engine(e)[0]) for n in nodes] for e in usable}
        if len(usable) > 1 and all(None not in t for t in times.values()):
            totals = {e: sum(t for t in ts if t is not None) for e, ts in times.items()}
            best = min(totals, key=lambda e: totals[e])
            return Atom(group, offers, best, Reason.FASTEST, "lowest measured time")
        first = next(iter(offers))
        if usable[0] == first:
            return Atom(
                group,
                offers,
                first,
                Reason.DEFAULT,
                f"{first} supports it and is first in the preference order",
            )
        return Atom(group, offers, usable[0], Reason.FALLBACK, f"{first}: {offers[first].reason}")

    def _choose_by_times(self) -> None:
        """Choose the cheapest path of engines for measured nodes. Unmeasured nodes keep their engine."""
        times = [self._times(a) for a in self.atoms]
        if all(len(t) < 2 for t in times):
            return
        names = [[self.nodes[i].name for i in a.nodes] for a in self.atoms]
        path = cheapest_path(times, crossing_bytes(self.graph, names, self.costs), self.costs)
        for atom, engine, seconds in zip(self.atoms, path, times, strict=True):
            if len(seconds) < 2:
                continue
            fastest = min(seconds, key=lambda e: seconds[e])
            why = "lowest measured time, including transfers between regions"
            if engine != fastest:
                why = f"{fastest} would save {(seconds[engine] - seconds[fastest]) * 1e6:.3g} us here, less than its transfers cost"
            atom.engine, atom.code, atom.why, atom.moved = engine, Reason.FASTEST, why, True

    def _times(self, atom: Atom) -> dict[str, float]:
        """Return seconds by engine if all candidates were measured; otherwise only the atom's own engine."""
        usable = [atom.engine] if atom.forced else [e for e, s in atom.offers.items() if s]
        nodes = [self.nodes[i] for i in atom.nodes]
        measured = {e: [self.costs.measured_s(n, split_engine(e)[0]) for n in nodes] for e in usable}
        if any(None in t for t in measured.values()):
            return {atom.engine: 0.0}
        return {e: sum(t for t in times if t is not None) for e, times in measured.items()}

    def _no_engine(
        self, nodes: Sequence[Node], offers: Mapping[str, Support], what: str
    ) -> EngineUnavailable:
        name = source_names(nodes[0])[0]
        rejected = tuple(Candidate.rejected(e, s) for e, s in offers.items() if not s)
        do = "Name another engine in others= or place=; 'interpreter' runs every op of the IR, slowly."
        if of_an_extension(self.graph, nodes[0]):
            do = f"{LEFT_TO_PYTORCH}, or write it with PyTorch's own ops."
        return EngineUnavailable(
            f"partition of {self.graph.name!r}",
            f"{nodes[0].op} ({name}): {what}",
            got="; ".join(f"{c.name}: {c.reason}" for c in rejected),
            do=do,
            decision=Decision("engine", name, None, rejected),
        )

    # ── regions ──

    def _groups(self) -> list[list[int]]:
        return cluster(self.before, [a.engine for a in self.atoms])

    def _cheaper(self, groups: Sequence[Sequence[int]]) -> tuple[Sequence[int], str, str] | None:
        """Return a region that is cheaper on a neighbor's engine, because its transfers cost more than its own engine saves."""
        owner = {a: g for g, group in enumerate(groups) for a in group}
        cost = [sum(self._predicted(a) for a in group) for group in groups]
        for g in sorted(range(len(groups)), key=lambda g: cost[g]):
            atoms = [self.atoms[a] for a in groups[g]]
            if any(a.forced or a.moved for a in atoms):
                continue
            engine = atoms[0].engine
            if engine == self.named:
                continue
            neighbors = self._neighbors(groups[g], owner)
            for other in dict.fromkeys(self.atoms[groups[n][0]].engine for n in neighbors):
                if other == engine or not all(a.offers.get(other) for a in atoms):
                    continue
                saved = self._saves(groups[g], engine, other, cost[g])
                spent = self.costs.enter_s(split_engine(engine)[0])
                if split_engine(engine)[1] != split_engine(other)[1]:
                    values = {
                        v
                        for n, vs in neighbors.items()
                        if self.atoms[groups[n][0]].engine == other
                        for v in vs
                    }
                    spent += sum(self.costs.copy_s(self.graph.values[v].spec) for v in values)
                if spent > saved:
                    why = f"{engine} would save {saved * 1e6:.3g} us here at most, by prediction; its transfers cost {spent * 1e6:.3g} us"
                    return groups[g], other, why
        return None

    def _predicted(self, atom: int) -> float:
        return sum(self.costs.predicted_s(self.graph, self.nodes[i]) for i in self.atoms[atom].nodes)

    def _saves(self, group: Sequence[int], engine: str, other: str, predicted: float) -> float:
        """Return the seconds that the region's own engine saves: measured on both, otherwise at most the whole work."""
        nodes = [self.nodes[i] for a in group for i in self.atoms[a].nodes]
        ours, theirs = (
            [self.costs.measured_s(n, split_engine(e)[0]) for n in nodes] for e in (engine, other)
        )
        total = sum(t for t in theirs if t is not None) if None not in theirs else predicted
        if None in theirs or None in ours:
            return total
        return total - sum(t for t in ours if t is not None)

    def _neighbors(self, group: Sequence[int], owner: Mapping[int, int]) -> dict[int, set[str]]:
        """Return adjacent regions, with the values that are transferred to or from them."""
        own_region = owner[group[0]]
        crossing: dict[int, set[str]] = defaultdict(set)
        for a in group:
            for i in self.atoms[a].nodes:
                node = self.nodes[i]
                for value in node.values:
                    if (
                        value in self.producer
                        and (other := owner[self.of[self.producer[value]]]) != own_region
                    ):
                        crossing[other].add(value)
                for value in (v.name for v in node.outputs):
                    for user in self.graph.users(value):
                        if (other := owner[self.of[self.producer[user.name]]]) != own_region:
                            crossing[other].add(value)
        return crossing


def _union(offers: Iterable[Mapping[str, Support]]) -> list[str]:
    return list(dict.fromkeys(e for o in offers for e in o))
