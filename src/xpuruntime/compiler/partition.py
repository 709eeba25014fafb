"""partition: a model becomes regions, each for one engine, and the transfers between them.

    plan = partition(graph, is_op_supported)                    # native where it can, other engines elsewhere
    plan = partition(graph, place={"conv": "native", "head*": "onnxruntime"})
    print(plan.explain())

A region is connected and convex: no value leaves it and comes back, so regions have an order, and those that do not wait for each other
may run side by side. Needs no vendor: whether an engine of the list can be had shows when the regions are loaded, and each carries
the others that may take it, in order.
"""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..decisions import Candidate, Decision, Reason, Support
from ..errors import EngineUnavailable
from ..ir import Graph, Node
from ..ir.family import family_of, source_names
from ..ir.graph import Output
from ..kernels.kernel import NodeCall
from ..policies import KernelPolicy, Policy, Rule, load_policy
from ..program.plan import Plan, PlanNode, Region, Transfer
from ..types import DType, TensorSpec
from .demands import facts_of
from .partition_cost import Costs
from .partition_regions import cluster, hulls
from .partition_support import call_of, demand_kernels, is_op_supported
from .pipeline import Model, _graph

__all__ = ["PartitionPlan", "Supports", "TransferOp", "is_op_supported", "partition"]

TransferOp = Transfer
"""The specification's name."""

Supports: TypeAlias = Callable[[NodeCall], "Support | bool"]
"""Whether an engine takes a node; ``is_op_supported`` is one."""

OTHERS = ("onnxruntime", "openvino")
_ATEN = frozenset({"aten", "torch"})


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A graph and the plan of its regions. ``plan`` holds no graph and can be saved; this is what a DAGExecutor compiles.

    members: names of the nodes of each region, in order. Nodes that hold a constant belong to every region that reads them.
    """

    graph: Graph
    plan: Plan
    members: Mapping[str, tuple[str, ...]] = field(repr=False)

    @property
    def regions(self) -> tuple[Region, ...]:
        """In an order in which they can run."""
        return self.plan.regions

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every value that crosses a border, once for each region that reads it."""
        return self.plan.transfers

    def subgraph(self, region: str) -> Graph:
        """A region as a graph of its own; outputs are named as the values are. Raises KeyError."""
        border, graph = self.plan.region(region), self.graph
        nodes = [graph.node(n) for n in self.members[region]]
        constants = {
            v: p
            for n in nodes
            for v in n.values
            if (p := graph.producer(v)) is not None and p.op == "constant"
        }
        read = {v for n in nodes for v in n.values}
        return Graph(
            f"{graph.name}.{region}",
            tuple(graph.values[v] for v in border.inputs),
            tuple(Output(v, v) for v in border.outputs),
            (*constants.values(), *nodes),
            tuple(w for w in graph.weights if w.name in read),
            (),
            graph.metadata,
        )

    def explain(self, *, nodes: bool = False) -> str:
        """Readable text: regions, every decision, transfers, and on request every node."""
        return self.plan.explain(nodes=nodes)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return self.plan.to_json()

    def __str__(self) -> str:
        return str(self.plan)


def partition(
    model: Model,
    demands: Supports | Policy | KernelPolicy | Mapping[str, Any] | str | None = None,
    *,
    engine: str = "native",
    others: Sequence[str] = OTHERS,
    place: Mapping[str, str] | None = None,
    costs: Costs | Mapping[str, Mapping[str, float]] | None = None,
    target: Any = "cpu",
    absorb: bool = True,
) -> PartitionPlan:
    """Cut a model into regions.

    model:   a graph, its JSON form, or the path of a saved one.
    demands: a function that says what ``engine`` takes (by default ``is_op_supported`` for ``target``), or a policy: its ``engine`` comes
             first, and nodes that a kernel rule forces (``use``) are placed on the native engine, whose kernels can be chosen.
    engine:  takes what it can; as ``engine`` or ``engine on device`` (cpu without one).
    others:  engines for the rest, in order; they are also what a region falls to when its engine fails. ``interpreter`` (NumPy, slow,
             every op of the IR) only where it is named. Opaque ATen ops go to ``torch``.
    place:   engine by name or pattern (shell-style): of a node or its source, of its op, or of its op family. A node's own name wins
             over patterns, a longer pattern over a shorter one. It is had, or an error.
    costs:   measured seconds by engine and node, or rates too (``Costs``). A node that every candidate was measured on goes to the
             fastest.
    absorb:  give a region to a neighbour's engine where a border costs more than the region saves.

    Raises EngineUnavailable (with its decision) where no engine takes a node or a placement cannot be had, KernelUnavailable for a kernel that
    a rule forces and nobody has, PolicyError.
    """
    graph = _graph(model)
    supports: Supports | None = None
    kernels = KernelPolicy()
    if callable(demands):
        supports = demands
    elif demands is not None:
        policy = load_policy(demands)
        kernels = policy.kernel
        named = policy.execution.engine
        engine = named if named not in (None, "auto") else engine
    request: dict[str, Any] = {"engine": engine, "others": list(others), "place": dict(place or {})}
    rest = tuple(o for o in others if o != engine)
    wanted = _Wanted(engine, rest, dict(place or {}), kernels, supports, target)
    rates = costs if isinstance(costs, Costs) else Costs(measured=costs or {})
    return _Partitioner(graph, wanted, rates, request).run(absorb)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Who may take what. ``supports`` speaks for ``engine`` where the user gave it."""

    engine: str
    others: tuple[str, ...]
    place: Mapping[str, str]
    kernels: KernelPolicy
    supports: Supports | None
    target: Any

    def forced(self, graph: Graph, node: Node) -> tuple[str, str] | None:
        """The engine that somebody placed the node on, and who."""
        own = next((n for n in (node.name, *source_names(node)) if n in self.place), None)
        if own is not None:
            return self.place[own], f"place {own!r}"
        names = {node.name, node.op, family_of(node), *source_names(node)}
        for pattern in sorted(self.place, key=lambda p: (-len(p), p)):
            if any(fnmatch.fnmatchcase(n, pattern) for n in names):
                return self.place[pattern], f"place {pattern!r}"
        rule = self.forcing(graph, node)
        return None if rule is None else ("native", f"the rule for {rule.label()} uses kernel {rule.use!r}")

    def forcing(self, graph: Graph, node: Node) -> Rule | None:
        """The rule that forces a kernel for the node."""
        if not any(rule.use for layer in self.kernels.layers for rule in layer.rules):
            return None
        facts = facts_of(graph, node, phase="inference", device="cpu")
        rules = (rule for layer in self.kernels.layers for rule in layer.rules)
        return next((rule for rule in rules if rule.use and rule.matches(facts)), None)

    def check_kernels(self, graph: Graph, node: Node) -> None:
        """Raises KernelUnavailable where the kernel that a rule forces cannot be had."""
        call = call_of(graph, node)
        if self.forcing(graph, node) is not None and not isinstance(call, Support):
            demand_kernels(call, self.kernels, self.target)

    def offers(self, graph: Graph, node: Node) -> dict[str, Support]:
        """Every engine with its answer, in order of preference."""
        engines = [self.engine, *self.others]
        if node.op == "opaque" and node.attrs["domain"] in _ATEN and "torch" not in engines:
            engines.append("torch")
        return {e: self.answer(graph, node, e) for e in engines}

    def answer(self, graph: Graph, node: Node, engine: str) -> Support:
        """Whether an engine takes the node, as far as this can be told without the engine."""
        name = engine.partition(" on ")[0]
        asked = self.supports if engine == self.engine else None
        if asked is None and name == "native":
            asked = lambda call: is_op_supported(call, self.target)  # noqa: E731
        if asked is not None:
            call = call_of(graph, node)
            if isinstance(call, Support):
                return call
            said = asked(call)
            if isinstance(said, Support):
                return said
            no = Support.no(Reason.OP_UNSUPPORTED, f"the support function says no to {node.op}")
            return Support.yes() if said else no
        aten = node.op == "opaque" and node.attrs["domain"] in _ATEN
        if name == "torch":
            no = Support.no(Reason.OP_UNSUPPORTED, "the torch engine evaluates opaque ATen ops only")
            return Support.yes() if aten else no
        if name == "interpreter" and node.op == "opaque":
            return Support.no(Reason.OP_UNSUPPORTED, f"{node.attrs['op_type']} has no form in the IR")
        if aten:
            return Support.no(Reason.OP_UNSUPPORTED, f"{node.attrs['op_type']} is an op of PyTorch only")
        return Support.yes()


@dataclass(slots=True)
class _Atom:
    """Nodes that stay together, and who may take them all."""

    nodes: list[int]
    offers: dict[str, Support]
    engine: str
    code: Reason
    why: str
    forced: bool = False
    moved: bool = False


class _Partitioner:
    def __init__(self, graph: Graph, wanted: _Wanted, costs: Costs, request: Mapping[str, Any]) -> None:
        self.graph, self.wanted, self.costs, self.request = graph, wanted, costs, request
        self.nodes = [n for n in graph.nodes if n.op != "constant"]
        self.place = {v.name: i for i, n in enumerate(self.nodes) for v in n.outputs}
        self.atoms: list[_Atom] = []
        self.before: list[set[int]] = []

    def run(self, absorb: bool) -> PartitionPlan:
        self._make_atoms()
        groups = self._groups()
        while absorb and (move := self._cheaper(groups)) is not None:
            group, engine, why = move
            for atom in (self.atoms[i] for i in group):
                atom.engine, atom.code, atom.why, atom.moved = engine, Reason.SLOWER, why, True
            groups = self._groups()
        return self._plan(groups)

    # ── atoms ──

    def _reads(self, node: Node) -> set[int]:
        return {self.place[v] for v in node.values if v in self.place}

    def _make_atoms(self) -> None:
        reads = [self._reads(n) for n in self.nodes]
        groups = cluster(reads, self._together(reads))
        self.of = {i: a for a, group in enumerate(groups) for i in group}
        self.before = [{self.of[r] for i in group for r in reads[i]} - {a} for a, group in enumerate(groups)]
        self.atoms = [self._atom(group) for group in groups]

    def _together(self, reads: Sequence[set[int]]) -> list[object]:
        """A label for nodes that may not be parted: they are one ONNX node, or hand on a value whose type nobody knows."""
        whole = bool(self.graph.metadata.get("opset"))
        labels: list[object] = [
            (n.sources[0].name if whole and n.sources and n.sources[0].name else i)
            for i, n in enumerate(self.nodes)
        ]
        untyped = [
            {i, *(self.place[u.outputs[0].name] for u in self.graph.users(v.name))}
            for i, n in enumerate(self.nodes)
            for v in n.outputs
            if v.spec is None and self.graph.users(v.name)
        ]
        for hull in hulls(reads, untyped) if untyped else ():
            for i in hull:
                labels[i] = ("untyped", hull[0])
        return labels

    def _atom(self, group: list[int]) -> _Atom:
        graph = self.graph
        nodes = [self.nodes[i] for i in group]
        asked = [self.wanted.offers(graph, n) for n in nodes]
        offers = {e: next((o[e] for o in asked if e in o and not o[e]), Support.yes()) for e in _union(asked)}
        for engine in offers:  # torch is offered only where it is needed
            if any(engine not in o for o in asked):
                offers[engine] = Support.no(
                    Reason.OP_UNSUPPORTED, "it takes only a part of what stays together"
                )
        forced = [f for n in nodes if (f := self.wanted.forced(graph, n)) is not None]
        if forced:
            for node in nodes:
                self.wanted.check_kernels(graph, node)
            engine, why = forced[0]
            clash = next((f for f in forced if f[0] != engine), None)
            said = next((s for n in nodes if not (s := self.wanted.answer(graph, n, engine))), Support.yes())
            if clash is not None:
                said = Support.no(Reason.FORBIDDEN, f"{clash[1]} wants {clash[0]} for a part of it")
            if not said:
                raise self._nobody(nodes, {engine: said}, f"{why} wants {engine}, which cannot be had")
            return _Atom(group, {engine: said}, engine, Reason.FORCED, why, forced=True)
        able = [e for e, s in offers.items() if s]
        if not able:
            raise self._nobody(nodes, offers, "no engine takes it")
        times = {e: [self.costs.measured_s(n, e.partition(" on ")[0]) for n in nodes] for e in able}
        if len(able) > 1 and all(None not in t for t in times.values()):
            totals = {e: sum(t for t in ts if t is not None) for e, ts in times.items()}
            best = min(totals, key=lambda e: totals[e])
            return _Atom(
                group, offers, best, Reason.FASTEST, "least measured time of every engine that takes it"
            )
        first = next(iter(offers))
        if able[0] == first:
            return _Atom(group, offers, first, Reason.DEFAULT, f"{first} takes it and comes first")
        return _Atom(group, offers, able[0], Reason.FALLBACK, f"{first}: {offers[first].reason}")

    def _nobody(self, nodes: Sequence[Node], offers: Mapping[str, Support], what: str) -> EngineUnavailable:
        name = source_names(nodes[0])[0]
        rejected = tuple(Candidate.rejected(e, s) for e, s in offers.items() if not s)
        return EngineUnavailable(
            f"partition of {self.graph.name!r}",
            f"{nodes[0].op} ({name}): {what}",
            got="; ".join(f"{c.name}: {c.reason}" for c in rejected),
            do="Name another engine in others= or place=; 'interpreter' runs every op of the IR, slowly.",
            decision=Decision("engine", name, None, rejected),
        )

    # ── regions ──

    def _groups(self) -> list[list[int]]:
        return cluster(self.before, [a.engine for a in self.atoms])

    def _cheaper(self, groups: Sequence[Sequence[int]]) -> tuple[Sequence[int], str, str] | None:
        """A region that costs less on a neighbour's engine: what its borders cost there is more than its own engine can save."""
        owner = {a: g for g, group in enumerate(groups) for a in group}
        cost = [sum(self._predicted(a) for a in group) for group in groups]
        for g in sorted(range(len(groups)), key=lambda g: cost[g]):
            atoms = [self.atoms[a] for a in groups[g]]
            if any(a.forced or a.moved for a in atoms):
                continue
            here = atoms[0].engine
            borders = self._borders(groups[g], owner)
            for there in dict.fromkeys(self.atoms[groups[n][0]].engine for n in borders):
                if there == here or not all(a.offers.get(there) for a in atoms):
                    continue
                saved = self._saves(groups[g], here, there, cost[g])
                spent = self.costs.enter_s(here.partition(" on ")[0])
                if _device(here) != _device(there):
                    values = {
                        v for n, vs in borders.items() if self.atoms[groups[n][0]].engine == there for v in vs
                    }
                    spent += sum(self.costs.copy_s(self.graph.values[v].spec) for v in values)
                if spent > saved:
                    why = f"{here} would save {saved * 1e6:.3g} us here at most, its borders cost {spent * 1e6:.3g} us"
                    return groups[g], there, why
        return None

    def _predicted(self, atom: int) -> float:
        return sum(self.costs.predicted_s(self.graph, self.nodes[i]) for i in self.atoms[atom].nodes)

    def _saves(self, group: Sequence[int], here: str, there: str, predicted: float) -> float:
        """Seconds that the region's own engine saves: measured on both, else at most all the work there is."""
        nodes = [self.nodes[i] for a in group for i in self.atoms[a].nodes]
        ours, theirs = (
            [self.costs.measured_s(n, e.partition(" on ")[0]) for n in nodes] for e in (here, there)
        )
        total = sum(t for t in theirs if t is not None) if None not in theirs else predicted
        if None in theirs or None in ours:
            return total
        return total - sum(t for t in ours if t is not None)

    def _borders(self, group: Sequence[int], owner: Mapping[int, int]) -> dict[int, set[str]]:
        """Neighbouring regions with the values that cross to or from them."""
        mine = owner[group[0]]
        found: dict[int, set[str]] = defaultdict(set)
        for a in group:
            for i in self.atoms[a].nodes:
                node = self.nodes[i]
                for value in node.values:
                    if value in self.place and (other := owner[self.of[self.place[value]]]) != mine:
                        found[other].add(value)
                for value in (v.name for v in node.outputs):
                    for user in self.graph.users(value):
                        if (other := owner[self.of[self.place[user.name]]]) != mine:
                            found[other].add(value)
        return found

    # ── plan ──

    def _plan(self, groups: Sequence[Sequence[int]]) -> PartitionPlan:
        graph = self.graph
        names = [f"r{i}" for i in range(len(groups))]
        members = {
            r: [self.nodes[i] for i in sorted(i for a in group for i in self.atoms[a].nodes)]
            for r, group in zip(names, groups, strict=True)
        }
        home = {v.name: r for r, nodes in members.items() for n in nodes for v in n.outputs}
        readers: dict[str, list[str]] = defaultdict(list)
        for r, nodes in members.items():
            for value in dict.fromkeys(v for n in nodes for v in n.values):
                readers[value].append(r)
        regions, decisions = [], []
        for r, group in zip(names, groups, strict=True):
            atoms = [self.atoms[a] for a in group]
            regions.append(self._region(r, members[r], atoms, home, readers))
            decisions.append(self._decision(r, atoms))
        plan = Plan(
            model={"name": graph.name, "digest": graph.digest, "format": "ir"},
            request=self.request,
            inputs=tuple(_named(v.name, v.spec) for v in graph.inputs if v.spec is not None),
            outputs=tuple(
                _named(o.name, s) for o in graph.outputs if (s := graph.values[o.value].spec) is not None
            ),
            regions=tuple(regions),
            nodes=tuple(_plan_node(n, home[n.name]) for n in self.nodes),
            transfers=self._transfers(regions, home, readers),
            decisions=tuple(decisions),
        )
        return PartitionPlan(graph, plan, {r: tuple(n.name for n in nodes) for r, nodes in members.items()})

    def _region(
        self,
        name: str,
        nodes: Sequence[Node],
        atoms: Sequence[_Atom],
        home: Mapping[str, str],
        readers: Mapping[str, list[str]],
    ) -> Region:
        graph = self.graph
        given = {v.name for v in graph.inputs} | {s.name for s in graph.states}
        inputs = [
            v
            for v in dict.fromkeys(v for n in nodes for v in n.values)
            if v in given or home.get(v, name) != name
        ]
        outputs = [
            v.name
            for n in nodes
            for v in n.outputs
            if v.name and (v.name in graph.kept or any(r != name for r in readers.get(v.name, ())))
        ]
        floats = Counter(
            v.spec.dtype for n in nodes for v in n.outputs if v.spec is not None and v.spec.dtype.is_float
        )
        engine, device = _split(atoms[0].engine)
        forced = any(a.forced for a in atoms)
        spare = [e for e in atoms[0].offers if e != atoms[0].engine and all(a.offers.get(e) for a in atoms)]
        return Region(
            id=name,
            engine=engine,
            engine_version="",
            device=device,
            precision=(floats.most_common(1)[0][0] if floats else DType.FLOAT32).value,
            alternatives=() if forced else tuple(" on ".join(_split(e)) for e in spare),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )

    def _decision(self, region: str, atoms: Sequence[_Atom]) -> Decision:
        """Why this engine, by how many nodes; and why not the others, by the first node that says so."""
        reasons = Counter((a.code, a.why) for a in atoms)
        (code, why), count = reasons.most_common(1)[0]
        rest = f"; {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        engine = atoms[0].engine
        text = f"{why} ({count} of {len(atoms)} steps{rest})" if len(atoms) > 1 else why
        if code is Reason.SLOWER:
            code = Reason.PREFERRED
        chosen = Candidate(" on ".join(_split(engine)), code, text)
        rejected = []
        for other in dict.fromkeys(e for a in atoms for e in a.offers if e != engine):
            no = next((a.offers[other] for a in atoms if other in a.offers and not a.offers[other]), None)
            name = " on ".join(_split(other))
            if no is not None:
                rejected.append(Candidate.rejected(name, no))
            else:
                rejected.append(
                    Candidate(name, Reason.LOWER_PREFERENCE, f"takes all of it too; {engine} was chosen")
                )
        return Decision("engine", region, chosen, tuple(rejected))

    def _transfers(
        self, regions: Sequence[Region], home: Mapping[str, str], readers: Mapping[str, list[str]]
    ) -> tuple[Transfer, ...]:
        device = {r.id: r.device for r in regions}
        made = []
        for region in regions:
            for value in region.inputs:
                source = home.get(value, "caller")
                made.append(
                    self._transfer(value, source, region.id, device.get(source, "cpu"), region.device)
                )
        made += [
            self._transfer(v, home[v], "caller", device[home[v]], "cpu")
            for v in sorted(self.graph.kept)
            if v in home
        ]
        # Between the caller's memory and the host nothing happens that is worth a line.
        return tuple(t for t in made if "caller" not in (t.source, t.destination) or not t.shared)

    def _transfer(self, value: str, source: str, destination: str, here: str, there: str) -> Transfer:
        spec = self.graph.values[value].spec
        size = spec.size_bytes if spec is not None and spec.is_static else None
        return Transfer(value, source, destination, size, here == there)


def _split(engine: str) -> tuple[str, str]:
    name, _, device = engine.partition(" on ")
    return name, device or "cpu"


def _device(engine: str) -> str:
    return _split(engine)[1]


def _union(offers: Iterable[Mapping[str, Support]]) -> list[str]:
    return list(dict.fromkeys(e for o in offers for e in o))


def _named(name: str, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype, name)


def _plan_node(node: Node, region: str) -> PlanNode:
    opaque = node.op == "opaque"
    return PlanNode(
        name=node.name,
        op=str(node.attrs["op_type"]) if opaque else node.op,
        family=family_of(node),
        region=region,
        domain=str(node.attrs["domain"]) if opaque else "",
        spec="" if node.outputs[0].spec is None else str(node.outputs[0].spec),
        lowered=f"opaque: {node.attrs['reason']}" if opaque else "",
    )
