"""The rules of a policy that match a node, and those of equal rank that demand different kernels for it."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .fields.record import FieldPath
from .kernel_policy import KernelPolicy
from .rule import NodeFacts, Rule

__all__ = ["PolicyDemand", "ambiguities", "demands_of", "places_of"]


@dataclass(frozen=True, slots=True)
class PolicyDemand:
    """One rule or plain keyword of a KernelPolicy, with its path in the document.

    rule: the rule; None for a keyword. family, names: of a keyword, the op family and the kernels in order.
    """

    path: FieldPath
    rule: Rule | None
    family: str = ""
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the conditions in one line."""
        return f"op={self.family}" if self.rule is None else self.rule.label()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the kernels that it forces or prefers, in order."""
        if self.rule is None:
            return self.names
        if self.rule.use:
            return (self.rule.use,)
        words = self.rule.weight_words
        return (*(words.kernels if words else ()), *self.rule.prefer)

    def matches(self, facts: NodeFacts) -> bool:
        """Return True if it applies to the node."""
        return facts.family == self.family if self.rule is None else self.rule.matches(facts)


def demands_of(policy: KernelPolicy) -> tuple[PolicyDemand, ...]:
    """Return every rule and keyword of every layer, highest layer first, in the order of precedence within a layer."""
    layers: list[tuple[FieldPath, KernelPolicy]] = [(("kernel",), policy)]
    layers += [(("kernel", "under", i), layer) for i, layer in enumerate(policy.under)]
    demands: list[PolicyDemand] = []
    for at, layer in layers:
        demands += [PolicyDemand((*at, "rules", i), rule) for i, rule in enumerate(layer.rules)]
        if layer.weight_words is not None:
            demands.append(PolicyDemand((*at, "weights"), None, "matmul", layer.weight_words.kernels))
        demands += [PolicyDemand((*at, f), None, f, names) for f, names in layer.preferences()]
    return tuple(demands)


def ambiguities(
    demands: Collection[PolicyDemand], facts: NodeFacts
) -> Iterator[tuple[PolicyDemand, PolicyDemand, bool]]:
    """Yield pairs of rules of one layer that demand different kernels for a node: the earlier one, the later one, and whether both are forced.

    ``demands`` match the node. A rule that forces a kernel and one that forbids it are such a pair, too.
    """
    rules = [(d, d.rule) for d in demands if d.rule is not None]
    forced = any(rule.use for _, rule in rules)
    for at, (first, a) in enumerate(rules):
        for second, b in rules[at + 1 :]:
            if first.path[:-1] != second.path[:-1]:
                continue
            forces_forbidden = (a.use and a.use in b.forbid) or (b.use and b.use in a.forbid)
            if forces_forbidden or (a.use and b.use and a.use != b.use):
                yield first, second, True
            elif (a.weight_words and b.weight_words and not forced and a.weight_words != b.weight_words) or (
                a.prefer and b.prefer and not forced and a.prefer[0] != b.prefer[0]
            ):
                yield first, second, False


def places_of(place: Mapping[str, str], names: Collection[str]) -> Iterator[str]:
    """Yield the patterns of ``place`` that match one of the names of a node: its own, its sources', its op, its op family."""
    for pattern in place:
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            yield pattern
