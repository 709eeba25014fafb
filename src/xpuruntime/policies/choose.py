"""The choice of one kernel for one node, by policy, support, limits and measurements. Pure functions; every result has its Decision.

Order of demands
1. Support, limits (workspace, determinism) and ``forbid`` remove candidates, each with a reason.
2. ``use`` forces one kernel: it is chosen, or KernelUnavailable is raised. ``use`` in any layer beats ``prefer`` in every layer.
3. ``weights`` with its ``activations``, from the highest layer that says ``weights``: its kernel comes first (with
   ``activations: int8`` that of integers, then that of floats), and other such kernels are not preferred. Then ``prefer`` rules, then
   plain keywords, from the highest layer to the lowest. The first remaining kernel is chosen.
4. Otherwise the fastest kernel, if all remaining ones were measured; else the first in the catalogue's order. Kernels that change
   results are excluded here: only ``use`` and ``prefer`` choose them.

Within one layer two different ``use`` rules on one node are a PolicyError, as are ``use`` and ``forbid`` of one kernel. Between layers the higher one wins:
it may force what a lower one forbids, and forbid what a lower one forces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..decisions import Candidate, Decision, Reason, Support, first_advice
from ..errors import KernelUnavailable, PolicyError
from .fields.pins import plain_kernel
from .fields.record import FieldPath
from .kernel_policy import KernelPolicy
from .rule import NodeFacts, Rule
from .vocabulary import KERNELS_NOT_IMPLEMENTED, LIBRARY_KERNELS, WORDS_OF_KERNELS, WeightWords

__all__ = ["NodeDemands", "Offer", "RuleRef", "choose", "node_demands", "vendor_keeps_to", "weights_of"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One kernel of the catalogue for a node.

    time_us: measured microseconds per call; None if not measured. workspace_bytes: memory in addition to the operands; None if unknown.
    deterministic: True if equal inputs give equal bits on every run with any number of threads; None if unknown.
    batch_invariant: True if a row of the results has the same bits in every batch; None if unknown.
    on_request: chosen only if a policy names it; ``opt_in_reason`` is the reason, as a clause.
    """

    name: str
    support: Support
    time_us: float | None = None
    workspace_bytes: int | None = 0
    deterministic: bool | None = None
    batch_invariant: bool | None = None
    on_request: bool = False
    opt_in_reason: str = "changes results"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def known(self) -> dict[str, Any]:
        """Return the known facts as plain data, for the Decision."""
        facts = {
            "time_us": self.time_us,
            "workspace_bytes": self.workspace_bytes or None,
            "deterministic": self.deterministic,
        }
        return {k: v for k, v in facts.items() if v is not None} | dict(self.facts)


@dataclass(frozen=True, slots=True)
class RuleRef:
    """One rule, or one plain keyword, of a policy: its path in the document and its description in reasons."""

    path: FieldPath
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class NodeDemands:
    """The policy's demands on one node: each kernel with the rule that names it.

    exact: the rule that demands deterministic kernels; None if there is none. invariant: that demands batch-invariant ones.
    """

    use: tuple[str, RuleRef] | None
    prefer: dict[str, RuleRef]
    forbid: dict[str, RuleRef]
    limit: tuple[int, RuleRef] | None
    exact: RuleRef | None
    invariant: RuleRef | None = None

    def forbids(self, name: str) -> RuleRef | None:
        """Return the rule that forbids a kernel, or forbids the plain kernel of a pinned one; None without any."""
        if name in self.forbid:
            return self.forbid[name]
        return None if self.use is not None and self.use[0] == name else self.forbid.get(plain_kernel(name))


def choose(policy: KernelPolicy, facts: NodeFacts, offers: Sequence[Offer]) -> tuple[str, Decision]:
    """Choose the kernel for a node. Return its name, and the Decision with the reason against every other candidate.

    ``offers`` are in the catalogue's order, each name once. Raises KernelUnavailable (with the Decision) if a forced kernel is
    unavailable or no candidate remains, PolicyError if demands of one layer conflict, ValueError for a name offered twice.
    """
    by_name = {o.name: o for o in offers}
    if len(by_name) != len(offers):
        raise ValueError(f"a kernel is offered twice for {facts.node!r}: {[o.name for o in offers]}")
    demands = node_demands(policy, facts)
    removed = {o.name: c for o in offers if (c := _rejection_of(o, demands, facts)) is not None}
    remaining = [o for o in offers if o.name not in removed]
    named_by_policy = dict.fromkeys([*([demands.use[0]] if demands.use else ()), *demands.prefer])
    for name in named_by_policy.keys() - by_name.keys():
        who = demands.prefer.get(name) or (demands.use[1] if demands.use else None)
        if plain_kernel(name) in KERNELS_NOT_IMPLEMENTED.get(facts.family, ()):
            reason = f"this release does not implement this kernel of {facts.family} ({who} names it)"
            removed[name] = Candidate(name, Reason.NOT_IMPLEMENTED, reason)
        else:
            reason = f"no kernel of this name computes {facts.family} here ({who} names it)"
            removed[name] = Candidate(name, Reason.NOT_APPLICABLE, reason)
    chosen = _pick(remaining, len(offers), demands)
    rejected = [
        removed.get(name) or _not_chosen(by_name[name], chosen, demands)
        for name in [*by_name, *(n for n in named_by_policy if n not in by_name)]
        if chosen is None or name != chosen.name
    ]
    decision = Decision(f"kernel {facts.family}", facts.node, chosen, tuple(rejected))
    if chosen is None:
        raise _unavailable(facts, demands, decision)
    return chosen.name, decision


_EXACT_ENGINES = ("interpreter",)
"""Engines whose results have the same bits in every run: NumPy computes each op in one order."""


def vendor_keeps_to(policy: KernelPolicy, facts: NodeFacts, engine: str) -> Support:
    """Tell if a vendor engine can satisfy the limits that rules set for a node. Forced kernels are checked elsewhere.

    Vendors do not report the workspace of a kernel, its determinism, or the library that computes it.
    Raises PolicyError if demands of one layer conflict.
    """
    demands = node_demands(policy, facts)
    do = "Use engine='native', whose kernels follow rules, or remove the rule."
    if demands.use is not None:
        return Support.yes()
    if demands.limit is not None:
        limit, who = demands.limit
        why = f"{engine} does not report how much workspace {facts.node} needs; {who} allows {limit}"
        return Support.no(Reason.WORKSPACE_EXCEEDED, why, do=do)
    if demands.exact and engine not in _EXACT_ENGINES:
        why = f"{engine} does not report if its kernel for {facts.node} is deterministic; {demands.exact} demands deterministic kernels"
        return Support.no(Reason.FORBIDDEN, why, do=do)
    if demands.invariant:
        why = f"{engine} does not report if its kernel for {facts.node} is batch invariant; {demands.invariant} demands it"
        return Support.no(Reason.FORBIDDEN, why, do=do)
    stored = weights_of(policy, facts)
    if stored is not None and stored[0].kernels:
        why = f"{engine} does not store the weights of {facts.node} in {stored[0].weights}, which {stored[1]} demands"
        return Support.no(Reason.NOT_APPLICABLE, why, do=do)
    names = [n for n in demands.forbid if n in LIBRARY_KERNELS]
    if names:
        why = f"{engine} chooses its kernels itself, so it cannot follow a rule that forbids {', '.join(names)}: {demands.forbid[names[0]]}"
        return Support.no(Reason.FORBIDDEN, f"{why} matches {facts.node}", do=do)
    return Support.yes()


def node_demands(policy: KernelPolicy, facts: NodeFacts) -> NodeDemands:
    """Return the demands on a node over all layers. Raises PolicyError if demands of one layer conflict."""
    use: tuple[str, RuleRef] | None = None
    prefer: dict[str, RuleRef] = {}
    forbid: dict[str, RuleRef] = {}
    limit: tuple[int, RuleRef] | None = None
    deterministic_rule: RuleRef | None = None
    settled = False  # a layer says whether kernels must be deterministic
    forced_above: set[str] = set()  # kernels that a higher layer forces, which a lower layer cannot forbid
    for at, layer in _layers_of(policy):
        rules = [(r, _who(at, layer, i, r)) for i, r in enumerate(layer.rules) if r.matches(facts)]
        forced = _forced(rules, facts)
        forbidden = {name: who for r, who in rules for name in r.forbid}
        if forced is not None and forced[0] in forbidden:
            raise _conflict(facts, forced[1], f"forces {forced[0]!r}, which {forbidden[forced[0]]} forbids")
        if use is None and forced is not None and forced[0] not in forbid:
            use = forced
            forced_above.add(forced[0])
        for name, who in forbidden.items():
            if name not in forced_above:
                forbid.setdefault(name, who)
        for name, who in _preferred(at, layer, rules, facts):
            prefer.setdefault(name, who)
        limits = [(int(r.workspace_bytes), who) for r, who in rules if r.workspace_bytes is not None]
        if limit is None and limits:
            limit = min(limits, key=lambda bound: bound[0])
        demands_of_layer = [(r.deterministic, who) for r, who in rules if r.deterministic is not None]
        if not settled and demands_of_layer:
            settled = True
            deterministic_rule = next((who for demanded, who in demands_of_layer if demanded), None)
    if (stored := weights_of(policy, facts)) is not None:
        words, by = stored
        others = {name: who for name, who in prefer.items() if name not in WORDS_OF_KERNELS}
        prefer = dict.fromkeys(words.kernels, by) | others
    return NodeDemands(use, prefer, forbid, limit, deterministic_rule, _invariance(policy))


def _invariance(policy: KernelPolicy) -> RuleRef | None:
    """Return what demands batch-invariant kernels; None if the highest layer that has the word does not."""
    at, layer = next(((a, x) for a, x in _layers_of(policy) if x.batch_invariant is not None), ((), None))
    if layer is None or not layer.batch_invariant:
        return None
    return RuleRef((*at, "batch_invariant"), f"batch_invariant of {layer.origin or 'the policy'}")


def weights_of(policy: KernelPolicy, facts: NodeFacts) -> tuple[WeightWords, RuleRef] | None:
    """Return the demand on weights that applies to a node, and the rule or keyword that makes it; None without one, or for other op families."""
    if facts.family != "matmul":
        return None
    for at, layer in _layers_of(policy):
        for i, rule in enumerate(layer.rules):
            if rule.weight_words is not None and rule.matches(facts):
                return rule.weight_words, _who(at, layer, i, rule)
        if layer.weight_words is not None:
            text = f"{layer.weight_words} of {layer.origin or 'the policy'}"
            return layer.weight_words, RuleRef((*at, "weights"), text)
    return None


def _layers_of(policy: KernelPolicy) -> Iterator[tuple[FieldPath, KernelPolicy]]:
    """Yield each layer that is not empty with its path in the document, highest first."""
    for layer in policy.layers:
        index = next((i for i, lower in enumerate(policy.under) if lower is layer), None)
        yield (("kernel",) if index is None else ("kernel", "under", index)), layer


def _forced(rules: Sequence[tuple[Rule, RuleRef]], facts: NodeFacts) -> tuple[str, RuleRef] | None:
    forced = [(r.use, who) for r, who in rules if r.use is not None]
    for name, who in forced[1:]:
        if name != forced[0][0]:
            raise _conflict(facts, who, f"forces {name!r}, while {forced[0][1]} forces {forced[0][0]!r}")
    return forced[0] if forced else None


def _preferred(
    at: FieldPath, layer: KernelPolicy, rules: Sequence[tuple[Rule, RuleRef]], facts: NodeFacts
) -> Iterator[tuple[str, RuleRef]]:
    for rule, who in rules:
        for name in rule.prefer:
            yield name, who
    for family, names in layer.preferences():
        if family == facts.family:
            for name in names:
                yield name, RuleRef((*at, family), f"{family}= of {layer.origin or 'the policy'}")


def _who(at: FieldPath, layer: KernelPolicy, index: int, rule: Rule) -> RuleRef:
    because = f": {rule.reason}" if rule.reason else ""
    text = f"rules[{index}] of {layer.origin or 'the policy'} ({rule.label()}{because})"
    return RuleRef((*at, "rules", index), text)


def _conflict(facts: NodeFacts, who: RuleRef, problem: str) -> PolicyError:
    return PolicyError(
        f"node {facts.node}",
        f"{who} {problem}",
        do="Make the conditions of the two rules exclude each other.",
    )


def _rejection_of(offer: Offer, demands: NodeDemands, facts: NodeFacts) -> Candidate | None:
    """Return the rejection of an offer that support, a limit or ``forbid`` rules out, else None."""
    limits: list[tuple[int | None, object]] = [(facts.workspace_bytes, "the device")]
    if demands.limit is not None:
        limits.insert(0, demands.limit)
    rejection: Support | None = None
    forbidder = demands.forbids(offer.name)
    if forbidder:
        rejection = Support.no(Reason.FORBIDDEN, f"{forbidder} forbids it")
    elif not offer.support:
        rejection = offer.support
    elif demands.exact and not offer.deterministic:
        why = (
            "is not deterministic"
            if offer.deterministic is False
            else "does not report if it is deterministic"
        )
        rejection = Support.no(Reason.FORBIDDEN, f"{why}; {demands.exact} demands deterministic kernels")
    elif demands.invariant and not offer.batch_invariant:
        why = f"does not promise a row the same bits in every batch; {demands.invariant} demands it"
        rejection = Support.no(Reason.FORBIDDEN, why)
    else:
        for limit, who in limits:
            if limit is not None and offer.workspace_bytes is None:
                text = f"does not report how much workspace it needs; {who} allows {limit}"
            elif limit is not None and offer.workspace_bytes is not None and offer.workspace_bytes > limit:
                text = f"needs {offer.workspace_bytes} bytes of workspace; {who} allows {limit}"
            else:
                continue
            rejection = Support.no(Reason.WORKSPACE_EXCEEDED, text)
            break
    return None if rejection is None else Candidate.rejected(offer.name, rejection, **offer.known())


def _pick(remaining: Sequence[Offer], num_offers: int, demands: NodeDemands) -> Candidate | None:
    by_name = {o.name: o for o in remaining}

    def take(offer: Offer, code: Reason, reason: str) -> Candidate:
        return Candidate(offer.name, code, reason, facts=offer.known())

    if demands.use is not None:
        name, who = demands.use
        return take(by_name[name], Reason.FORCED, f"{who} forces it") if name in by_name else None
    for name, who in demands.prefer.items():
        if name in by_name:
            return take(by_name[name], Reason.PREFERRED, f"{who} prefers it")
    remaining = [o for o in remaining if not o.on_request]
    if not remaining:
        return None
    if num_offers == 1:
        return take(remaining[0], Reason.ONLY_ONE, "it is the only candidate")
    times = [o.time_us for o in remaining if o.time_us is not None]
    if len(remaining) > 1 and len(times) == len(remaining):
        best = min(remaining, key=lambda o: o.time_us or 0.0)
        return take(best, Reason.FASTEST, f"{best.time_us:g} us, the fastest of {len(remaining)} measured")
    return take(remaining[0], Reason.DEFAULT, "the first usable one in the catalogue's order")


def _not_chosen(offer: Offer, chosen: Candidate | None, demands: NodeDemands) -> Candidate:
    """Return the candidate of a usable offer that was not chosen, with the reason."""
    facts = offer.known()
    if demands.use is not None:
        reason = f"{demands.use[1]} forces {demands.use[0]!r}"
        return Candidate(offer.name, Reason.NOT_REQUESTED, reason, facts=facts)
    if offer.on_request and offer.name not in demands.prefer:
        reason = f"{offer.opt_in_reason}, and no policy names it"
        return Candidate(offer.name, Reason.NOT_REQUESTED, reason, facts=facts)
    assert chosen is not None
    if chosen.code is Reason.FASTEST:
        return Candidate(
            offer.name,
            Reason.SLOWER,
            f"{offer.time_us:g} us, slower than {chosen.facts['time_us']:g} us",
            facts=facts,
        )
    return Candidate(
        offer.name,
        Reason.LOWER_PREFERENCE,
        f"{chosen.name!r} is earlier in the preference order",
        facts=facts,
    )


def _unavailable(facts: NodeFacts, demands: NodeDemands, decision: Decision) -> KernelUnavailable:
    if demands.use is not None:
        name, who = demands.use
        rejection = next((c for c in decision.rejected if c.name == name), None)
        reason = rejection.reason if rejection is not None else None
        do = (
            rejection.do if rejection is not None else ""
        ) or "Remove the rule, or write prefer instead of use."
        return KernelUnavailable(
            f"node {facts.node}",
            f"{who} forces {name!r}, which is unavailable",
            got=reason,
            do=do,
            decision=decision,
        )
    do = (
        first_advice(decision.rejected)
        or "Relax forbid, workspace_bytes or deterministic, or use a vendor engine for this model."
    )
    return KernelUnavailable(
        f"node {facts.node}",
        f"no usable kernel for {facts.family}",
        got="; ".join(f"{c.name}: {c.reason}" for c in decision.rejected) or "no candidate",
        do=do,
        decision=decision,
    )
