"""What a KernelPolicy means for a region that a vendor engine owns.

Inside a black box no kernel is ours to choose: where the vendor has an option for a demand it is set (``vendor_kernels``); else ``prefer`` (which is
what plain keywords mean) is recorded as not applicable, and ``use`` is honoured or an error. One decision stands for all nodes that get the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..decisions import Candidate, Decision, Reason, Support
from ..errors import KernelUnavailable
from ..policies import KernelPolicy, NodeFacts, Offer, choose
from ..program.plan import PlanNode, Region
from ..types import DType
from .node_facts import NodeDetail

__all__ = ["kernel_decisions"]


def kernel_decisions(
    policy: KernelPolicy,
    nodes: Sequence[PlanNode],
    details: Mapping[str, NodeDetail],
    region: Region,
    met: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Decision, ...]:
    """The decisions that the policy causes in a vendor's region. Raises KernelUnavailable for a ``use`` that matches and no option meets.

    met: by op family the kernel that the vendor's options bring about, and the options (``vendor_kernels``).
    """
    if not policy.layers:
        return ()
    own = Offer(f"{region.engine}'s own", Support.yes(), workspace_bytes=None)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Decision]] = {}
    all_facts = [_facts(node, details.get(node.name), region) for node in nodes]
    by_option: Counter[str] = Counter()
    for facts in all_facts:
        if facts.family in met:
            by_option[facts.family] += 1
            continue
        _, decision = choose(policy, facts, (own,))
        _check_forbidden(policy, facts, region)
        if decision.rejected:
            key = (decision.question, tuple((c.name, c.reason) for c in decision.rejected))
            groups.setdefault(key, []).append(decision)
    made = [_grouped(group, region) for group in groups.values()]
    options = [_by_option(family, count, met[family], region) for family, count in by_option.items()]
    return (*made, *options, *_undecided(policy, all_facts, region))


_LIBRARIES = frozenset({"cublas", "cublasLt", "cudnn", "flash", "flash_decode", "flash_v2", "onednn"})
"""Kernels that a vendor may have inside, too. The others are the native engine's alone, so a vendor never takes them."""


def _check_forbidden(policy: KernelPolicy, facts: NodeFacts, region: Region) -> None:
    """Raises KernelUnavailable where a rule forbids a library's kernel: a vendor chooses itself, and cannot be held to that."""
    rules = (r for layer in policy.layers for r in layer.rules if r.forbid and r.matches(facts))
    for rule in rules:
        if names := [n for n in rule.forbid if n in _LIBRARIES]:
            raise KernelUnavailable(
                f"node {facts.node}",
                f"{region.engine} cannot be held to a rule that forbids {', '.join(names)}: it chooses its kernels itself",
                got=f"rule for {rule.label()}",
                do="Name engine='native', whose kernels are chosen by rules, or drop the rule.",
            )


def _facts(node: PlanNode, detail: NodeDetail | None, region: Region) -> NodeFacts:
    spec = detail.spec if detail else None
    return NodeFacts(
        node=node.name,
        family=node.family,
        sources=(node.name,),
        dtype=spec.dtype if spec else DType.of(region.precision),
        dims=detail.dims.get(node.family, {}) if detail else {},
        device=region.device,
    )


def _grouped(group: Sequence[Decision], region: Region) -> Decision:
    first = group[0]
    subject = first.subject if len(group) == 1 else f"{len(group)} nodes of {region.id}"
    text = f"{region.engine} owns the region and chooses its kernels itself"
    chosen = first.chosen and Candidate(first.chosen.name, Reason.ONLY_ONE, text)
    rejected = tuple(
        Candidate(c.name, Reason.NOT_APPLICABLE, f"{text}; {c.reason}", c.do) for c in first.rejected
    )
    return Decision(first.question, subject, chosen, rejected)


def _by_option(family: str, count: int, met: Sequence[str], region: Region) -> Decision:
    """A demand that the vendor has an option for."""
    kernel, option = met
    text = f"{region.engine} is told so by its option {option}"
    return Decision(
        f"{family} kernel", f"{count} nodes of {region.id}", Candidate(kernel, Reason.REQUESTED, text)
    )


def _undecided(policy: KernelPolicy, nodes: Sequence[NodeFacts], region: Region) -> list[Decision]:
    """Rules that decide nothing here, since no node matches or their condition on shapes cannot be read: what they wish is
    not lost without a word.
    """
    made = []
    for rule in (rule for layer in policy.layers for rule in layer.rules):
        unread = [facts.node for facts in nodes if rule.undecided(facts)]
        if unread:
            text = f"its condition on shapes cannot be read for {len(unread)} nodes before they run: {', '.join(unread[:3])}"
        elif any(rule.matches(facts) for facts in nodes):
            continue
        else:
            text = f"it matches none of the {len(nodes)} nodes of {region.id}"
        no = Candidate(
            rule.use or ", ".join(rule.prefer or rule.forbid) or "limits", Reason.NOT_APPLICABLE, text
        )
        own = Candidate(f"{region.engine}'s own", Reason.ONLY_ONE, f"{region.engine} owns the region")
        made.append(Decision(f"kernel rule ({rule.label()})", region.id, own, (no,)))
    return made
