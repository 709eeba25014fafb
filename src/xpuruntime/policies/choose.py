"""choose: one kernel for one node, by policy, support, limits and measurements. Pure; every answer carries its Decision.

Order of demands
1. Support, limits (workspace, determinism) and ``forbid`` take candidates away, each with its reason.
2. ``use`` forces one kernel: it is taken, or KernelUnavailable. Force beats preference in whatever layer it stands.
3. ``prefer`` rules, then plain keywords, layer by layer from the highest; the first kernel that is left is taken.
4. Else the fastest, when every kernel that is left was measured; else the first in the catalogue's order. A kernel that changes
   results is not among them: only ``use`` and ``prefer`` take it.

Within one layer two different ``use`` rules on one node are a PolicyError, as are ``use`` and ``forbid`` of one kernel. Between layers the higher one wins:
it may force what a lower one forbids, and forbid what a lower one forces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..decisions import Candidate, Decision, Reason, Support, first_advice
from ..errors import KernelUnavailable, PolicyError
from .kernel_policy import KernelPolicy
from .pins import plain_kernel
from .rule import NodeFacts, Rule
from .vocabulary import KERNELS_NOT_IMPLEMENTED, LIBRARY_KERNELS

__all__ = ["Offer", "choose", "vendor_keeps_to"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One kernel that the catalogue has for a node.

    time_us: measured microseconds per call, None where not measured. workspace_bytes: bytes that it needs beside its operands; None where it
             does not say.
    deterministic: whether equal inputs give equal bits on every run, whatever the threads; None where it does not say.
    on_request: it is taken only where a policy names it; ``asks`` says why, as a clause.
    """

    name: str
    support: Support
    time_us: float | None = None
    workspace_bytes: int | None = 0
    deterministic: bool | None = None
    on_request: bool = False
    asks: str = "changes results"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def known(self) -> dict[str, Any]:
        """Its facts as plain data, for the Decision."""
        own = {
            "time_us": self.time_us,
            "workspace_bytes": self.workspace_bytes or None,
            "deterministic": self.deterministic,
        }
        return {k: v for k, v in own.items() if v is not None} | dict(self.facts)


@dataclass(frozen=True, slots=True)
class _Demands:
    """What the policy says about one node: kernel -> the words of who says it."""

    use: tuple[str, str] | None
    prefer: dict[str, str]
    forbid: dict[str, str]
    limit: tuple[int, str] | None
    exact: str  # who wants equal bits on every run; "" for nobody

    def forbids(self, name: str) -> str:
        """Who forbids a kernel, or the plain kernel of one with pins that he does not force himself; "" for nobody."""
        if name in self.forbid:
            return self.forbid[name]
        return "" if self.use is not None and self.use[0] == name else self.forbid.get(plain_kernel(name), "")


def choose(policy: KernelPolicy, facts: NodeFacts, offers: Sequence[Offer]) -> tuple[str, Decision]:
    """Return the name of the kernel for a node, and the Decision with every other candidate and why not.

    ``offers`` stand in the catalogue's order, each name once. Raises KernelUnavailable (with the Decision) where a forced kernel
    cannot be had or nothing is left, PolicyError where demands of one layer exclude each other, ValueError for a name offered twice.
    """
    by_name = {o.name: o for o in offers}
    if len(by_name) != len(offers):
        raise ValueError(f"a kernel is offered twice for {facts.node!r}: {[o.name for o in offers]}")
    demands = _demands(policy, facts)
    out = {o.name: c for o in offers if (c := _taken_away(o, demands, facts)) is not None}
    left = [o for o in offers if o.name not in out]
    strangers = dict.fromkeys([*([demands.use[0]] if demands.use else ()), *demands.prefer])
    for name in strangers.keys() - by_name.keys():
        who = demands.prefer.get(name) or (demands.use[1] if demands.use else "")
        if plain_kernel(name) in KERNELS_NOT_IMPLEMENTED.get(facts.family, ()):
            reason = f"this release has no such kernel of {facts.family}, though {who} asks for it"
            out[name] = Candidate(name, Reason.NOT_IMPLEMENTED, reason)
        else:
            reason = f"no kernel of this name computes {facts.family} here, though {who} asks for it"
            out[name] = Candidate(name, Reason.NOT_APPLICABLE, reason)
    chosen = _pick(left, len(offers), demands)
    rejected = [
        out.get(name) or _passed_over(by_name[name], chosen, demands)
        for name in [*by_name, *(n for n in strangers if n not in by_name)]
        if chosen is None or name != chosen.name
    ]
    decision = Decision(f"kernel {facts.family}", facts.node, chosen, tuple(rejected))
    if chosen is None:
        raise _unavailable(facts, demands, decision)
    return chosen.name, decision


def vendor_keeps_to(policy: KernelPolicy, facts: NodeFacts, engine: str) -> Support:
    """Return whether a vendor engine can be held to what the rules limit for a node. Kernels that are forced are not its business.

    A vendor says neither how much workspace a kernel needs, nor whether its bits are always the same, nor which library computes.
    Raises PolicyError where demands of one layer exclude each other.
    """
    demands = _demands(policy, facts)
    do = "Name engine='native', whose kernels are chosen by rules, or drop the rule."
    if demands.use is not None:
        return Support.yes()
    if demands.limit is not None:
        limit, who = demands.limit
        why = f"{engine} does not say how much workspace {facts.node} needs; {who} allows {limit}"
        return Support.no(Reason.WORKSPACE_EXCEEDED, why, do=do)
    if demands.exact:
        why = f"{engine} does not say whether the bits of {facts.node} are always the same; {demands.exact} asks for deterministic kernels"
        return Support.no(Reason.FORBIDDEN, why, do=do)
    names = [n for n in demands.forbid if n in LIBRARY_KERNELS]
    if names:
        why = f"{engine} cannot be held to a rule that forbids {', '.join(names)}: it chooses its kernels itself; {demands.forbid[names[0]]}"
        return Support.no(Reason.FORBIDDEN, f"{why} matches {facts.node}", do=do)
    return Support.yes()


def _demands(policy: KernelPolicy, facts: NodeFacts) -> _Demands:
    use: tuple[str, str] | None = None
    prefer: dict[str, str] = {}
    forbid: dict[str, str] = {}
    limit: tuple[int, str] | None = None
    exact: str | None = None
    overruled: set[str] = set()  # kernels that a higher layer forces: a lower one cannot forbid them
    for layer in policy.layers:
        rules = [(r, _who(layer, i, r)) for i, r in enumerate(layer.rules) if r.matches(facts)]
        forced = _forced(rules, facts)
        mine = {name: who for r, who in rules for name in r.forbid}
        if forced is not None and forced[0] in mine:
            raise _conflict(facts, forced[1], f"forces {forced[0]!r}, which {mine[forced[0]]} forbids")
        if use is None and forced is not None and forced[0] not in forbid:
            use = forced
            overruled.add(forced[0])
        for name, who in mine.items():
            if name not in overruled:
                forbid.setdefault(name, who)
        for name, who in _preferred(layer, rules, facts):
            prefer.setdefault(name, who)
        limits = [(int(r.workspace_bytes), who) for r, who in rules if r.workspace_bytes is not None]
        if limit is None and limits:
            limit = min(limits)
        wishes = [(r.deterministic, who) for r, who in rules if r.deterministic is not None]
        if exact is None and wishes:
            exact = next((who for wish, who in wishes if wish), "")
    return _Demands(use, prefer, forbid, limit, exact or "")


def _forced(rules: Sequence[tuple[Rule, str]], facts: NodeFacts) -> tuple[str, str] | None:
    forced = [(r.use, who) for r, who in rules if r.use is not None]
    for name, who in forced[1:]:
        if name != forced[0][0]:
            raise _conflict(facts, who, f"forces {name!r}, while {forced[0][1]} forces {forced[0][0]!r}")
    return forced[0] if forced else None


def _preferred(
    layer: KernelPolicy, rules: Sequence[tuple[Rule, str]], facts: NodeFacts
) -> Iterator[tuple[str, str]]:
    for rule, who in rules:
        for name in rule.prefer:
            yield name, who
    for family, names in layer.preferences():
        if family == facts.family:
            for name in names:
                yield name, f"{family}= of {layer.origin or 'the policy'}"


def _who(layer: KernelPolicy, index: int, rule: Rule) -> str:
    because = f": {rule.reason}" if rule.reason else ""
    return f"rules[{index}] of {layer.origin or 'the policy'} ({rule.label()}{because})"


def _conflict(facts: NodeFacts, who: str, what: str) -> PolicyError:
    return PolicyError(
        f"node {facts.node}", f"{who} {what}", do="Make the conditions of the two rules exclude each other."
    )


def _taken_away(offer: Offer, demands: _Demands, facts: NodeFacts) -> Candidate | None:
    """Why an offer is out before preferences count, or None."""
    limits = [*([demands.limit] if demands.limit else ()), (facts.workspace_bytes, "the device")]
    no: Support | None = None
    forbidder = demands.forbids(offer.name)
    if forbidder:
        no = Support.no(Reason.FORBIDDEN, f"{forbidder} forbids it")
    elif not offer.support:
        no = offer.support
    elif demands.exact and not offer.deterministic:
        why = (
            "may give other bits on another run"
            if offer.deterministic is False
            else "does not say whether its bits are always the same"
        )
        no = Support.no(Reason.FORBIDDEN, f"{why}; {demands.exact} asks for deterministic kernels")
    else:
        for limit, who in limits:
            if limit is not None and offer.workspace_bytes is None:
                text = f"does not say how much workspace it needs; {who} allows {limit}"
            elif limit is not None and offer.workspace_bytes is not None and offer.workspace_bytes > limit:
                text = f"needs {offer.workspace_bytes} bytes of workspace; {who} allows {limit}"
            else:
                continue
            no = Support.no(Reason.WORKSPACE_EXCEEDED, text)
            break
    return None if no is None else Candidate.rejected(offer.name, no, **offer.known())


def _pick(left: Sequence[Offer], offered: int, demands: _Demands) -> Candidate | None:
    by_name = {o.name: o for o in left}

    def take(offer: Offer, code: Reason, reason: str) -> Candidate:
        return Candidate(offer.name, code, reason, facts=offer.known())

    if demands.use is not None:
        name, who = demands.use
        return take(by_name[name], Reason.FORCED, f"{who} forces it") if name in by_name else None
    for name, who in demands.prefer.items():
        if name in by_name:
            return take(by_name[name], Reason.PREFERRED, f"{who} prefers it")
    left = [o for o in left if not o.on_request]
    if not left:
        return None
    if offered == 1:
        return take(left[0], Reason.ONLY_ONE, "no other candidate exists")
    times = [o.time_us for o in left if o.time_us is not None]
    if len(left) > 1 and len(times) == len(left):
        best = min(left, key=lambda o: o.time_us or 0.0)
        return take(best, Reason.FASTEST, f"{best.time_us:g} us, the least of {len(left)} measured")
    return take(left[0], Reason.DEFAULT, "first usable one in the catalogue's order")


def _passed_over(offer: Offer, chosen: Candidate | None, demands: _Demands) -> Candidate:
    """Why an offer that could have been taken was not."""
    known = offer.known()
    if demands.use is not None:
        reason = f"{demands.use[1]} forces {demands.use[0]!r}"
        return Candidate(offer.name, Reason.NOT_REQUESTED, reason, facts=known)
    if offer.on_request:
        reason = f"{offer.asks}, and no policy asks for it"
        return Candidate(offer.name, Reason.NOT_REQUESTED, reason, facts=known)
    assert chosen is not None
    if chosen.code is Reason.FASTEST:
        return Candidate(
            offer.name,
            Reason.SLOWER,
            f"{offer.time_us:g} us against {chosen.facts['time_us']:g} us",
            facts=known,
        )
    return Candidate(offer.name, Reason.LOWER_PREFERENCE, f"{chosen.name!r} stands before it", facts=known)


def _unavailable(facts: NodeFacts, demands: _Demands, decision: Decision) -> KernelUnavailable:
    if demands.use is not None:
        name, who = demands.use
        why = next((c for c in decision.rejected if c.name == name), None)
        got = why.reason if why is not None else None
        do = (why.do if why is not None else "") or "Remove the rule, or write prefer instead of use."
        return KernelUnavailable(
            f"node {facts.node}",
            f"{who} forces {name!r}, which cannot be had",
            got=got,
            do=do,
            decision=decision,
        )
    do = (
        first_advice(decision.rejected)
        or "Loosen forbid, workspace_bytes or deterministic, or use a vendor engine for this model."
    )
    return KernelUnavailable(
        f"node {facts.node}",
        f"no kernel for {facts.family} is left",
        got="; ".join(f"{c.name}: {c.reason}" for c in decision.rejected) or "no candidate",
        do=do,
        decision=decision,
    )
