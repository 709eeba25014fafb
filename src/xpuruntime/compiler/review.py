"""Review of a policy on one model: which rule decides the kernel of each node, and which rules cannot be satisfied.

The model is lowered as ``compile`` does it, but a demand that cannot be met is recorded instead of raised, and the node gets its default
kernel. Nothing is assembled, so no C++ compiler and no device is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..codegen.target import CodegenTarget
from ..decisions import Candidate
from ..errors import KernelUnavailable, PolicyError, XpuError
from ..ir import Graph, Node, specialize, verify
from ..ir.family import family_of, source_names
from ..kernels import offers
from ..kernels.kernel import NodeCall
from ..passes import find_passes, laid_out, run_passes
from ..passes.layout import Layouts
from ..policies import KernelPolicy, NodeFacts, Policy
from ..policies.choose import RuleRef, node_demands
from ..policies.fields.record import FieldPath
from ..policies.matching import PolicyDemand, demands_of
from .chooser import Chooser, Chosen, OffersOf
from .demands import Demands, facts_of
from .entrance import check_phase, settled_precision
from .lower import lower_with

__all__ = ["NodeReview", "Review", "imported_facts", "review"]


@dataclass(frozen=True, slots=True)
class NodeReview:
    """One node that gets a kernel, and the policy's part in that.

    name:     name of the first node of the model that it computes. sources: names of all of them.
    op, kernel: its IR op and the chosen kernel; ``naive`` if the op is expanded.
    matched:  demands of the policy that match it. chosen_by: the one that chose the kernel, if any did.
    excluded: demands that removed a candidate (``forbid``, ``workspace_bytes``, ``deterministic``).
    rejected: the candidates that were not chosen. problem: the demand that cannot be met; empty if all are.
    """

    name: str
    sources: tuple[str, ...]
    op: str
    facts: NodeFacts
    kernel: str
    matched: tuple[PolicyDemand, ...] = ()
    chosen_by: FieldPath | None = None
    excluded: tuple[FieldPath, ...] = ()
    rejected: tuple[Candidate, ...] = field(default=(), repr=False)
    problem: str = ""


class ImportedNode(NamedTuple):
    """A node of the model before the passes: its facts and every name that ``place`` may use."""

    facts: NodeFacts
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Review:
    """The review of one model on one target.

    nodes:    the nodes that get a kernel. imported: the nodes of the model before the passes.
    problems: demands that stopped the passes.
    """

    target: str
    nodes: tuple[NodeReview, ...]
    imported: tuple[ImportedNode, ...]
    problems: tuple[str, ...] = ()


def imported_facts(graph: Graph, device: str, phase: str = "inference") -> tuple[ImportedNode, ...]:
    """Return the facts of every node of a graph. Dims may be symbolic."""
    nodes = []
    for node in graph.nodes:
        names = frozenset({node.name, node.op, family_of(node), *source_names(node)})
        nodes.append(ImportedNode(facts_of(graph, node, phase=phase, device=device), names))
    return tuple(nodes)


def review(
    graph: Graph,
    policy: Policy,
    target: CodegenTarget,
    *,
    shapes: Mapping[str, int] | None = None,
    phase: str = "inference",
    weights: Mapping[str, Any] | None = None,
) -> Review:
    """Review a policy on a model. ``shapes``: sizes of all symbolic dims.

    Raises IrError for a symbol without a size, KernelUnavailable for an op that no kernel computes, PrecisionUnavailable.
    """
    check_phase("lint", phase)
    static = specialize(graph, shapes or {})
    verify(static)
    kind = target.name.partition(":")[0]
    level = policy.execution.optimization_level
    steps = find_passes(3 if level is None and target.takes_fused else 1 if level is None else level)
    settled, casts = settled_precision("lint", [static], policy, [], pairs=target.kind == "cpu")
    names = [s.name for s in steps] + (["cast_precision"] if casts else [])
    problems: list[str] = []

    def rewritten(kernel: KernelPolicy) -> tuple[Graph, _ObservedDemands]:
        demands = _ObservedDemands(_with_kernel(settled, kernel), [target], phase, weights or {})
        return run_passes(static, names, context=demands.context()), demands

    try:
        fused, demands = rewritten(policy.kernel)
    except (KernelUnavailable, PolicyError) as error:
        problems.append(_error_text(error))
        fused, demands = rewritten(KernelPolicy())
    laid: Graph = fused
    layouts: Layouts = {}
    if target.takes_fused and any(s.physical for s in steps):
        laid, layouts = laid_out(
            fused,
            target.config.channel_alignment_bytes,
            target.any_layout,
            target.row_major_taps,
            target.row_major_filters,
        )
    chooser = _ReviewChooser(laid, target, policy.kernel, offers, phase, {n.name for n in fused.nodes})
    lower_with(laid, layouts, chooser)
    expanded = [_review_of(policy.kernel, n, f, "naive", (), "") for n, f in demands.expanded]
    return Review(
        target.name, (*expanded, *chooser.reviews), imported_facts(static, kind, phase), tuple(problems)
    )


def _with_kernel(policy: Policy, kernel: KernelPolicy) -> Policy:
    """Return the policy with another kernel half."""
    return Policy(kernel=kernel, execution=policy.execution)


class _ObservedDemands(Demands):
    """Demands that record the nodes that are expanded, since lowering does not see them."""

    def __init__(
        self, policy: Policy, targets: Sequence[CodegenTarget], phase: str, weights: Mapping[str, Any]
    ) -> None:
        super().__init__(policy, targets, phase, weights)
        self.expanded: list[tuple[Node, NodeFacts]] = []

    def _expands(self, graph: Graph, node: Node) -> bool:
        if not super()._expands(graph, node):
            return False
        kind = self.targets[0].name.partition(":")[0]
        self.expanded.append((node, facts_of(graph, node, phase=self.phase, device=kind)))
        return True


class _ReviewChooser(Chooser):
    """A Chooser that records each node, and chooses as without a policy where a demand cannot be met."""

    def __init__(
        self,
        graph: Graph,
        target: CodegenTarget,
        policy: KernelPolicy,
        offers_of: OffersOf,
        phase: str,
        model_nodes: Set[str],
    ) -> None:
        super().__init__(graph, target, policy, offers_of, phase)
        self.reviews: list[NodeReview] = []
        self._model_nodes = model_nodes
        self._default = Chooser(graph, target, KernelPolicy(), offers_of, phase)

    def choose(self, node: Node, call: NodeCall) -> Chosen:
        """Return the kernel for a node. Raises KernelUnavailable only if no kernel computes it under any policy."""
        problem = ""
        try:
            chosen, decision = self.decide(node, call)
            rejected = decision.rejected
        except (KernelUnavailable, PolicyError) as error:
            problem = _error_text(error)
            rejected = () if error.decision is None else error.decision.rejected
            chosen = self._default.choose(node, call)
        if node.name in self._model_nodes:  # others are copies, counters and conversions of layouts
            word = chosen.kernel.name.partition("/")[2]
            facts = self.facts(node)
            self.reviews.append(_review_of(self.policy, node, facts, word, rejected, problem))
        return chosen


def _review_of(
    policy: KernelPolicy,
    node: Node,
    facts: NodeFacts,
    kernel: str,
    rejected: tuple[Candidate, ...],
    problem: str,
) -> NodeReview:
    sources = source_names(node)
    matched = tuple(d for d in demands_of(policy) if d.matches(facts))
    plain = NodeReview(sources[0], sources, node.op, facts, kernel, matched, None, (), rejected, problem)
    if problem:
        return plain
    demands = node_demands(policy, facts)
    chosen_by = demands.use[1] if demands.use else demands.prefer.get(kernel)
    names = {c.name: c.code.value for c in rejected}
    excluded: list[RuleRef] = [r for n in names if (r := demands.forbids(n)) is not None]
    if demands.limit is not None and "workspace_exceeded" in names.values():
        excluded.append(demands.limit[1])
    if demands.exact is not None and any("demands deterministic" in c.reason for c in rejected):
        excluded.append(demands.exact)
    paths = tuple(dict.fromkeys(ref.path for ref in excluded))
    return replace(plain, chosen_by=None if chosen_by is None else chosen_by.path, excluded=paths)


def _error_text(error: XpuError) -> str:
    """Return what is wrong and the value, in one clause."""
    return error.what + (f": {error.got}" if error.got is not None else "")
