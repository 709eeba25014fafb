"""``PartitionPlan``: a graph and the table of its regions. ``PlanWriter`` builds it from groups of atoms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...decisions import Candidate, Decision, Reason, Support
from ...ir import Graph, Node
from ...ir.family import family_of
from ...ir.graph import Output
from ...ir.shapes.decided import open_sizes
from ...policies import Policy, Resolved
from ...program.plan import Plan, PlanNode, Region, Transfer
from ...types import DType, TensorSpec

__all__ = ["Atom", "PartitionPlan", "PlanWriter", "TransferOp", "size_sources", "split_engine"]

TransferOp = Transfer
"""The specification's name."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A graph and the plan of its regions. ``plan`` contains no graph and can be saved; a DAGExecutor compiles both.

    members: names of the nodes of each region, in order. Constants belong to every region that reads them.
    demands: the policy of the partitioning; a DAGExecutor runs the regions with it.
    """

    graph: Graph
    plan: Plan
    members: Mapping[str, tuple[str, ...]] = field(repr=False)
    demands: Resolved = field(default=Resolved(Policy(), MappingProxyType({})), repr=False, compare=False)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions in an execution order."""
        return self.plan.regions

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every value that is transferred between regions, once for each region that reads it."""
        return self.plan.transfers

    def size_sources(self) -> dict[str, tuple[str, ...]]:
        """Return, for each region with sizes that other regions' results decide, the values that these are known from."""
        return size_sources(self.graph, {r: map(self.graph.node, names) for r, names in self.members.items()})

    def subgraph(self, region: str) -> Graph:
        """Return a region as a graph of its own; outputs have the values' names. Raises KeyError."""
        record, graph = self.plan.region(region), self.graph
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
            tuple(graph.values[v] for v in record.inputs),
            tuple(Output(v, v) for v in record.outputs),
            (*constants.values(), *nodes),
            tuple(w for w in graph.weights if w.name in read),
            (),
            graph.metadata,
        )

    def explain(self, *, nodes: bool = False) -> str:
        """Return readable text: regions, decisions, transfers, and optionally every node."""
        return self.plan.explain(nodes=nodes)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return self.plan.to_json()

    def __str__(self) -> str:
        return str(self.plan)


@dataclass(slots=True)
class Atom:
    """Nodes that must stay together, the engines that support all of them, the chosen engine, and the reason.

    nodes:  indices among the graph's nodes without constants.
    forced: whether a placement or rule determines the engine.
    moved:  whether it was moved to a neighbor's engine.
    """

    nodes: list[int]
    offers: dict[str, Support]
    engine: str
    code: Reason
    why: str
    forced: bool = False
    moved: bool = False


class PlanWriter:
    """Builds the plan of one graph."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], request: Mapping[str, Any]) -> None:
        self.graph, self.nodes, self.request = graph, nodes, request

    def plan(self, groups: Sequence[Sequence[Atom]]) -> PartitionPlan:
        """Return the plan of groups of atoms, which are in an execution order."""
        graph = self.graph
        names = [f"r{i}" for i in range(len(groups))]
        members = {
            r: [self.nodes[i] for i in sorted(i for atom in group for i in atom.nodes)]
            for r, group in zip(names, groups, strict=True)
        }
        home = {v.name: r for r, nodes in members.items() for n in nodes for v in n.outputs}
        readers: dict[str, list[str]] = defaultdict(list)
        for r, nodes in members.items():
            for value in dict.fromkeys(v for n in nodes for v in n.values):
                readers[value].append(r)
        for r, values in size_sources(graph, members).items():
            for value in values:
                readers[value].append(r)
        regions, decisions = [], []
        for r, atoms in zip(names, groups, strict=True):
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
            nodes=tuple(_plan_node(graph, n, home[n.name]) for n in self.nodes),
            transfers=self._transfers(regions, home, readers),
            decisions=tuple(decisions),
        )
        return PartitionPlan(graph, plan, {r: tuple(n.name for n in nodes) for r, nodes in members.items()})

    def _region(
        self,
        name: str,
        nodes: Sequence[Node],
        atoms: Sequence[Atom],
        home: Mapping[str, str],
        readers: Mapping[str, list[str]],
    ) -> Region:
        graph = self.graph
        external = {v.name for v in graph.inputs} | {s.name for s in graph.states}
        inputs = [
            v
            for v in dict.fromkeys(v for n in nodes for v in n.values)
            if v in external or home.get(v, name) != name
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
        engine, device = split_engine(atoms[0].engine)
        forced = any(a.forced for a in atoms)
        spare = [e for e in atoms[0].offers if e != atoms[0].engine and all(a.offers.get(e) for a in atoms)]
        return Region(
            id=name,
            engine=engine,
            engine_version="",
            device=device,
            precision=(floats.most_common(1)[0][0] if floats else DType.FLOAT32).value,
            alternatives=() if forced else tuple(" on ".join(split_engine(e)) for e in spare),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )

    def _decision(self, region: str, atoms: Sequence[Atom]) -> Decision:
        """Return the reason for this engine, and the first reason against each other engine.

        The reason is the most frequent one among the atoms that a demand assigns; without demands, among all atoms.
        """
        reasons = Counter((a.code, a.why) for a in atoms)
        demands = Counter((a.code, a.why) for a in atoms if a.forced)
        ((code, why), count) = (demands or reasons).most_common(1)[0]
        suffix = f"; {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        engine = atoms[0].engine
        text = f"{why} ({count} of {len(atoms)} steps{suffix})" if len(atoms) > 1 else why
        if code is Reason.SLOWER:
            code = Reason.PREFERRED
        chosen = Candidate(" on ".join(split_engine(engine)), code, text)
        rejected = []
        for other in dict.fromkeys(e for a in atoms for e in a.offers if e != engine):
            no = next((a.offers[other] for a in atoms if other in a.offers and not a.offers[other]), None)
            name = " on ".join(split_engine(other))
            placed = [a for a in atoms if a.forced]
            if no is not None:
                rejected.append(Candidate.rejected(name, no))
            elif placed:
                text = f"{placed[0].why} assigns {len(placed)} of {len(atoms)} steps to {engine}"
                rejected.append(Candidate(name, Reason.NOT_REQUESTED, text))
            else:
                rejected.append(
                    Candidate(name, Reason.LOWER_PREFERENCE, f"supports all of it; {engine} was chosen")
                )
        return Decision("engine", region, chosen, tuple(rejected))

    def _transfers(
        self, regions: Sequence[Region], home: Mapping[str, str], readers: Mapping[str, list[str]]
    ) -> tuple[Transfer, ...]:
        device = {r.id: r.device for r in regions}
        transfers = []
        for region in regions:
            for value in region.inputs:
                source = home.get(value, "caller")
                transfers.append(
                    self._transfer(value, source, region.id, device.get(source, "cpu"), region.device)
                )
        transfers += [
            self._transfer(v, home[v], "caller", device[home[v]], "cpu")
            for v in sorted(self.graph.kept)
            if v in home
        ]
        # Transfers between the caller's memory and the host copy nothing, so they are not listed.
        return tuple(t for t in transfers if "caller" not in (t.source, t.destination) or not t.shared)

    def _transfer(
        self, value: str, source: str, destination: str, source_device: str, target_device: str
    ) -> Transfer:
        spec = self.graph.values[value].spec
        size = spec.size_bytes if spec is not None and spec.is_static else None
        return Transfer(value, source, destination, size, source_device == target_device)


def size_sources(graph: Graph, members: Mapping[str, Iterable[Node]]) -> dict[str, tuple[str, ...]]:
    """Return, for each region with sizes that other regions' results decide, the first values that determine them."""
    deciding = graph.deciding
    if not deciding:
        return {}
    nodes = {r: tuple(n) for r, n in members.items()}
    home = {v.name: r for r, ns in nodes.items() for n in ns for v in n.outputs}
    needed = {
        r: dict.fromkeys(deciding[s] for n in ns for s in sorted(open_sizes(n)) if s in deciding)
        for r, ns in nodes.items()
    }
    return {r: tuple(v for v in values if home.get(v, r) != r) for r, values in needed.items()}


def split_engine(engine: str) -> tuple[str, str]:
    """Split ``native on npu`` into engine and device; the device defaults to cpu."""
    name, _, device = engine.partition(" on ")
    return name, device or "cpu"


def _named(name: str, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype, name)


def _plan_node(graph: Graph, node: Node, region: str) -> PlanNode:
    opaque = node.op == "opaque"
    inputs = {v.name for v in graph.inputs}
    producers = dict.fromkeys(p.name for v in node.values if (p := graph.producer(v)) and p.op != "constant")
    return PlanNode(
        name=node.name,
        op=str(node.attrs["op_type"]) if opaque else node.op,
        family=family_of(node),
        region=region,
        domain=str(node.attrs["domain"]) if opaque else "",
        spec="" if node.outputs[0].spec is None else str(node.outputs[0].spec),
        lowered=f"opaque: {node.attrs['reason']}" if opaque else "",
        reads=tuple(producers),
        inputs=tuple(dict.fromkeys(v for v in node.values if v in inputs)),
    )
