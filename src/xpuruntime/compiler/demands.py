"""Demands: a policy as predicates for the passes.

A rule with ``use`` forces a kernel for source nodes. Fusing such a node into a node of another family would bypass that kernel, so it is
blocked, and a decision records it. A rewrite within the family is allowed only if the forced or preferred kernel also computes the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from ..codegen.target import CodegenTarget
from ..decisions import Candidate, Decision, Reason, Support
from ..ir import Graph, Node
from ..ir.family import family_of, source_names
from ..ir.shapes.named_dims import named_dims
from ..kernels import has_kernel, offers
from ..kernels.catalogue import kernel_words
from ..kernels.kernel import Kernel, NodeCall, Operand
from ..kernels.user.kernel import user_kernels
from ..passes.context import PassContext
from ..plugins.registered import registered_kernels
from ..policies import KernelPolicy, NodeFacts, Offer, Policy, choose
from ..policies.choose import node_demands, weights_of
from ..types import DType
from .weights import KnownValues

__all__ = ["Demands", "facts_of", "is_forced"]

NAIVE = "naive"
"""The kernel of a policy that an expansion is, unless the catalogue has a kernel of that name."""
# Families that name a fused node; elementwise families do not.
_VECTOR_ELEMENTS = 8
"""16-bit elements of a vector load of 16 bytes."""
_ANCHORS = ("conv", "matmul", "attention", "softmax", "norm", "reduce", "pool", "rope")


def facts_of(graph: Graph | None, node: Node, *, phase: str, device: str) -> NodeFacts:
    """Return the facts of a node that rules test."""
    spec = node.outputs[0].spec if node.outputs else None
    return NodeFacts(
        node=node.name,
        family=family_of(node),
        sources=source_names(node),
        dtype=None if spec is None else spec.dtype,
        dims={} if graph is None else named_dims(graph, node),
        phase=phase,
        device=device,
    )


def is_forced(policy: KernelPolicy, node: Node, facts: NodeFacts, kinds: Iterable[str]) -> bool:
    """Return whether a rule forces the kernel of a node, or the policy names a user's. ``kinds``: those of the targets."""
    return any(r.use and r.matches(facts) for layer in policy.layers for r in layer.rules) or bool(
        _users_kernel(policy, node, facts, kinds)
    )


def _named_kernels(policy: KernelPolicy, facts: NodeFacts) -> Iterator[str]:
    """Yield the kernels that a policy names for a node, in its order."""
    stored = weights_of(policy, facts)
    if stored is not None:
        yield from stored[0].kernels
    for layer in policy.layers:
        for rule in layer.rules:
            if rule.matches(facts):
                yield from (rule.use,) if rule.use else rule.prefer
        for family, words in layer.preferences():
            if family == facts.family:
                yield from words


def _users_kernel(policy: KernelPolicy, node: Node, facts: NodeFacts, kinds: Iterable[str]) -> str:
    """Return the user's kernel that a policy names for a node; empty if there is none."""
    if not policy.layers or not registered_kernels():
        return ""
    registered = {k.name.partition("/")[2] for kind in kinds for k in user_kernels(node.op, kind)}
    return next((n for n in _named_kernels(policy, facts) if n in registered), "")


class Demands:
    """A policy's demands on the passes of one graph. It records the fusions that it blocked."""

    def __init__(
        self,
        policy: Policy,
        targets: Sequence[CodegenTarget],
        phase: str,
        weights: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        self.kernel: KernelPolicy = policy.kernel
        self.targets, self.phase, self.weights = targets, phase, weights
        self.decisions: list[Decision] = []
        named = policy.execution.precision
        self.precision = None if named in (None, "model") else DType.of(named)
        self._forced = [r for layer in self.kernel.layers for r in layer.rules if r.use]
        self._kinds = tuple(t.kind for t in targets)
        self._of_users = bool(registered_kernels()) and bool(self.kernel.layers)
        self._known: KnownValues | None = None  # those of the last graph

    def context(self) -> PassContext:
        """Return the predicates for the passes."""
        return PassContext(
            may_fuse=self._may_fuse,
            may_become=self._may_become,
            has_kernel=self._has_kernel,
            expands=self._expands,
            computes=self._computes,
            repays=self._repays,
            few_rows=min((t.few_rows for t in self.targets), default=PassContext().few_rows),
            few_rows_16_bits=min(
                (t.few_rows_16_bits for t in self.targets), default=PassContext().few_rows_16_bits
            ),
            gates_many_rows=bool(self.targets)
            and all(t.gates_many_rows for t in self.targets)
            and not self.kernel.demands_batch_invariance(),
            product_multiple=self._product_multiple(),
            wide_products=self.phase == "train_backward",
            joins_readers=self.phase == "train_backward",
            library_ops=all(t.kind == "cuda" for t in self.targets) and self.phase == "inference",
            uneven_padding=all(t.kind == "cpu" for t in self.targets) and self.phase == "inference",
            strided_einsum=all(t.kind == "cpu" for t in self.targets) and self.phase == "inference",
            at_load=self._at_load,
            is_forced=self.is_forced,
            storage=self._storage,
            peek=lambda weight: weight.array() if weight.data else self.weights.get(weight.name),
        )

    def _at_load(self, graph: Graph) -> KnownValues:
        if self._known is None or self._known.graph is not graph:
            self._known = KnownValues(graph, self.is_forced).taken()
        return self._known

    def _product_multiple(self) -> int:
        """Return the elements of a vector load if every target has tensor cores that vector loads feed, in training only: a session has its weights once."""
        tensor_cores = all(t.kind == "cuda" for t in self.targets) and bool(self.targets)
        return _VECTOR_ELEMENTS if tensor_cores and self.phase.startswith("train") else 1

    def _has_kernel(self, op: str) -> bool:
        return all(has_kernel(op, t) for t in self.targets)

    def _expands(self, graph: Graph, node: Node) -> bool:
        """Return True if the policy chooses the expansion, which competes with the kernels as ``naive``.

        Raises KernelUnavailable if the policy forces another kernel that cannot be had.
        """
        call = _static_call(graph, node)
        if call is None:
            return False
        for target in self.targets:
            kind = target.name.partition(":")[0]
            facts = facts_of(graph, node, phase=self.phase, device=kind)
            kernels = [_offer_of(k, s, call, target) for k, s in offers(call, target)]
            if any(o.name == NAIVE and o.support for o in kernels):
                continue  # the kernel of that name precedes the expansion
            # The nodes of the expansion are held to the limits by themselves.
            naive = Offer(NAIVE, Support.yes(), deterministic=True, batch_invariant=True)
            chosen, decision = choose(self.kernel, facts, [*(o for o in kernels if o.name != NAIVE), naive])
            if chosen == NAIVE:
                if decision not in self.decisions:
                    self.decisions.append(decision)
                return True
        return False

    def _computes(self, graph: Graph, node: Node) -> Support:
        call = _static_call(graph, node)
        if call is None:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "sizes are not known yet")
        for target in self.targets:
            answers = [answer for _, answer in offers(call, target)]
            if not any(answers):
                return next(iter(answers), Support.no(Reason.OP_UNSUPPORTED, f"no kernel computes {node.op}"))
        return Support.yes()

    def _repays(self, graph: Graph, node: Node, weights: Collection[str]) -> Support:
        call = _static_call(graph, node, weights)
        if call is None:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "sizes are not known yet")
        if any(n.op == "dequantize_blocks" for n in graph.nodes):
            call = _with_groups(call, self._at_load(graph))
        for target in self.targets:
            facts = facts_of(graph, node, phase=self.phase, device=target.name.partition(":")[0])
            demands = node_demands(self.kernel, facts)
            able = [k for k, s in offers(call, target) if s]
            usable = [k for k in able if not k.on_request]
            allowed = [k for k in usable if not demands.forbids(k.name.partition("/")[2])]
            if not allowed:
                return Support.no(
                    Reason.OP_UNSUPPORTED, f"no kernel that the policy allows computes {node.op}"
                )
            names = [k.name.partition("/")[2] for k in able]
            wanted = next(
                (n for n in _named_kernels(self.kernel, facts) if n in self._kernels(node.op)), None
            )
            if wanted is not None and wanted not in names:
                return Support.no(
                    Reason.LOWER_PREFERENCE,
                    f"{wanted}, which the policy names, computes the parts of {node.op}",
                )
            if not allowed[0].repays_fusion(call, target):
                return Support.no(Reason.LOWER_PREFERENCE, f"kernels of the parts of {node.op} are faster")
        return Support.yes()

    def _storage(self, node: Node) -> DType | None:
        """Return the demanded precision for float32 values."""
        spec = node.outputs[0].spec if node.outputs else None
        if self.precision is None or spec is None or spec.dtype is not DType.FLOAT32:
            return None
        return self.precision

    def is_forced(self, graph: Graph, node: Node) -> bool:
        """Return whether a rule of the policy names the node's kernel, or it names a user's."""
        facts = facts_of(graph, node, phase=self.phase, device="cpu")
        return is_forced(self.kernel, node, facts, self._kinds)

    def _may_fuse(self, graph: Graph, nodes: Sequence[Node]) -> Support:
        if not self._forced and not self._of_users:
            return Support.yes()
        families = [family_of(n) for n in nodes]
        anchor = next((f for f in _ANCHORS if f in families), families[-1])
        for node, family in zip(nodes, families, strict=True):
            facts = facts_of(graph, node, phase=self.phase, device="cpu")
            if (word := _users_kernel(self.kernel, node, facts, self._kinds)) and len(nodes) > 1:
                reason = (
                    f"the policy selects the user's kernel {word}, which computes {node.op} without fusion"
                )
                self._block(node, anchor, reason)
                return Support.no(Reason.FORCED, reason)
            rule = next((r for r in self._forced if r.matches(facts)), None)
            if rule is not None and family != anchor:
                reason = f"a rule forces {rule.use} for {source_names(node)[0]}, which would become part of a node of family {anchor}"
                self._block(node, anchor, reason)
                return Support.no(Reason.FORCED, reason)
        return Support.yes()

    def _may_become(self, op: str, graph: Graph, nodes: Sequence[Node]) -> Support:
        if not self.kernel.layers:
            return Support.yes()
        available = self._kernels(op)
        for node in nodes:
            facts = facts_of(graph, node, phase=self.phase, device="cpu")
            rule = next((r for r in self._forced if r.matches(facts)), None)
            kernels = self._kernels(node.op)
            name = (
                rule.use
                if rule is not None
                else next((n for n in _named_kernels(self.kernel, facts) if n in kernels), None)
            )
            if name is not None and name not in available:
                verb = "forces" if rule is not None else "prefers"
                reason = f"the policy {verb} {name} for {source_names(node)[0]}, which would become {op}; {name} does not compute {op}"
                self._block(node, op, reason)
                return Support.no(Reason.FORCED, reason)
        return Support.yes()

    def _kernels(self, op: str) -> frozenset[str]:
        """Return the kernels of an op that every target has, without their family."""
        return frozenset[str].intersection(*(kernel_words(op, t.kind) for t in self.targets))

    def _block(self, node: Node, anchor: str, reason: str) -> None:
        unfused = Candidate("kernel of its own", Reason.FORCED, reason)
        fused = Candidate(f"fused into {anchor}", Reason.FORBIDDEN, reason)
        decision = Decision("fusion", source_names(node)[0], unfused, (fused,))
        if decision not in self.decisions:
            self.decisions.append(decision)


def _offer_of(kernel: Kernel, support: Support, call: NodeCall, target: CodegenTarget) -> Offer:
    name = kernel.name.partition("/")[2]
    if not support:
        return Offer(name, support)
    lowered = kernel.lower(call, target)
    return Offer(
        name,
        support,
        workspace_bytes=lowered.workspace_bytes,
        deterministic=lowered.deterministic,
        batch_invariant=lowered.batch_invariant,
    )


def _static_call(graph: Graph, node: Node, weights: Collection[str] = ()) -> NodeCall | None:
    """Return a node as kernels see it; None if a size is dynamic. ``weights``: values that are weights for kernels."""
    specs = [graph.spec(i) for i in node.values] + [v.spec for v in node.outputs if v.spec is not None]
    if not all(isinstance(d, int) for s in specs for d in s.shape):
        return None
    inputs = tuple(Operand(i, graph.spec(i), i in weights) if isinstance(i, str) else i for i in node.inputs)
    return NodeCall(node, inputs, tuple(v.spec for v in node.outputs if v.spec is not None))


def _with_groups(call: NodeCall, known: KnownValues) -> NodeCall:
    """Return the call with the groups of weights that are stored in blocks."""
    inputs = (
        replace(i, groups=known.groups(i.name)) if isinstance(i, Operand) and i.name in known else i
        for i in call.inputs
    )
    return replace(call, inputs=tuple(inputs))
