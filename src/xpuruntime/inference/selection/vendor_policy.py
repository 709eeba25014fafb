"""Effects of a KernelPolicy on a region that a vendor engine owns.

A vendor's kernels cannot be chosen directly. If the vendor has an option for a demand, it is set (``vendor_kernels``). Otherwise ``prefer`` (the
meaning of plain keywords) is recorded as not applicable, and ``use`` raises. One decision covers all nodes with the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ...decisions import Candidate, Decision, Reason, Support
from ...families import family_of_aten, family_of_onnx
from ...ir import OPS
from ...policies import KernelPolicy, NodeFacts, Offer, Rule, choose
from ...policies.choose import vendor_keeps_to
from ...policies.vocabulary import LIBRARY_KERNELS, WEIGHT_KERNELS
from ...program.plan import PlanNode, Region
from ...protocols import ModelSource, NodeRef
from ...targets import DeviceId
from ...types import DType
from ..models.node_facts import NodeDetail, node_details
from ..models.programs import DOMAIN as PROGRAM_OPS

__all__ = ["family_of_ref", "kernel_decisions", "limits", "vendor_refused"]


def kernel_decisions(
    policy: KernelPolicy,
    nodes: Sequence[PlanNode],
    details: Mapping[str, NodeDetail],
    region: Region,
    met: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Decision, ...]:
    """Return the policy's decisions in a vendor's region. Raises KernelUnavailable for a matching ``use`` that no option satisfies.

    met: by op family the kernel that the vendor's options select, and the options (``vendor_kernels``).
    """
    if not policy.layers:
        return ()
    own = Offer(f"{region.engine}'s own", Support.yes(), workspace_bytes=None)
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Decision]] = {}
    precision = DType.of(region.precision)
    all_facts = [_facts(n.name, n.family, details.get(n.name), precision, region.device) for n in nodes]
    by_option: Counter[str] = Counter()
    for facts in all_facts:
        if facts.family in met:
            by_option[facts.family] += 1
            continue
        _, decision = choose(policy, facts, (own,))
        if decision.rejected:
            key = (decision.question, tuple((c.name, c.reason) for c in decision.rejected))
            groups.setdefault(key, []).append(decision)
    decisions = [_grouped(group, region) for group in groups.values()]
    options = [_by_option(family, count, met[family], region) for family, count in by_option.items()]
    return (*decisions, *options, *_undecided(policy, all_facts, region))


def vendor_refused(
    model: ModelSource,
    policy: KernelPolicy | None,
    engine: str,
    device: DeviceId,
    met: Iterable[str] = (),
) -> Support:
    """Return whether a vendor engine can satisfy the rules of a KernelPolicy for a whole model.

    met: op families whose kernel the vendor's options select.
    """
    if policy is None or not any(layer.weights or any(map(limits, layer.rules)) for layer in policy.layers):
        return Support.yes()
    details = node_details(model)
    for node in model.nodes:
        family = family_of_ref(node)
        if family in met:
            continue
        facts = _facts(node.name, family, details.get(node.name), model.precision, str(device))
        if not (answer := vendor_keeps_to(policy, facts, engine)):
            return answer
    return Support.yes()


def limits(rule: Rule) -> bool:
    """Return True if no vendor engine can satisfy a rule."""
    return bool(
        rule.deterministic
        or rule.workspace_bytes is not None
        or rule.weights in WEIGHT_KERNELS
        or LIBRARY_KERNELS.intersection(rule.forbid)
    )


def family_of_ref(node: NodeRef) -> str:
    """Return the op family of a model node, as named in policies."""
    if node.domain == PROGRAM_OPS:
        return OPS[node.op].family if node.op in OPS else "other"
    if node.domain == "aten":
        return family_of_aten(node.op.removeprefix("aten."))
    return family_of_onnx(node.op, node.domain)


def _facts(name: str, family: str, detail: NodeDetail | None, precision: DType, device: str) -> NodeFacts:
    spec = detail.spec if detail else None
    return NodeFacts(
        node=name,
        family=family,
        sources=(name,),
        dtype=spec.dtype if spec else precision,
        dims=detail.dims.get(family, {}) if detail else {},
        device=device,
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
    """Return the decision for a demand that a vendor's option satisfies."""
    kernel, option = met
    text = f"set by the option {option} of {region.engine}"
    return Decision(
        f"{family} kernel", f"{count} nodes of {region.id}", Candidate(kernel, Reason.REQUESTED, text)
    )


def _undecided(policy: KernelPolicy, nodes: Sequence[NodeFacts], region: Region) -> list[Decision]:
    """Return decisions for rules without effect here, because no node matches or their shape condition cannot be evaluated. They
    appear in the plan, so that no demand is ignored silently.
    """
    decisions = []
    for rule in (rule for layer in policy.layers for rule in layer.rules):
        unread = [facts.node for facts in nodes if rule.undecided(facts)]
        if unread:
            text = f"its shape condition cannot be evaluated before a run for {len(unread)} nodes: {', '.join(unread[:3])}"
        elif any(rule.matches(facts) for facts in nodes):
            continue
        else:
            text = f"it matches none of the {len(nodes)} nodes of {region.id}"
        no = Candidate(
            rule.use or ", ".join(rule.prefer or rule.forbid) or str(rule.weight_words or "limits"),
            Reason.NOT_APPLICABLE,
            text,
        )
        own = Candidate(f"{region.engine}'s own", Reason.ONLY_ONE, f"{region.engine} owns the region")
        decisions.append(Decision(f"kernel rule ({rule.label()})", region.id, own, (no,)))
    return decisions
