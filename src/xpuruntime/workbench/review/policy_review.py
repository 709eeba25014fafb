"""``xpu lint``: findings about a policy file, and with a model also what each of its rules decides."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.entrance import fixed_symbols, targets_of
from ...compiler.review import ImportedNode, NodeReview, imported_facts, review
from ...decisions import Reason
from ...errors import InputError
from ...ir.host_waits import decided_sizes
from ...policies import Policy, Resolved, read_policy
from ...policies.fields.record import FieldPath, path_text
from ...policies.lint import LintFinding
from ...policies.matching import PolicyDemand, ambiguities, demands_of, places_of
from ..programs.compile_model import open_graph

__all__ = ["PolicyReview", "RuleCoverage", "review_policy"]

_SHOWN = 3  # names of nodes in a text
_SUPPORT = frozenset(
    set(Reason) - {Reason.FORBIDDEN, Reason.NOT_REQUESTED, Reason.LOWER_PREFERENCE, Reason.SLOWER}
)
"""Reasons for which a kernel cannot compute a node, whatever the policy says."""


@dataclass(frozen=True, slots=True)
class RuleCoverage:
    """The effect of one rule or keyword on the model.

    matches: nodes that get a kernel and that it matches. chooses: those whose kernel it chose. excludes: those at which it removed a
    candidate. All are names of nodes of the model.
    """

    at: FieldPath
    line: int | None
    label: str
    matches: tuple[str, ...]
    chooses: tuple[str, ...]
    excludes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "at": path_text(self.at),
            "line": self.line,
            "label": self.label,
            "matches": list(self.matches),
            "chooses": list(self.chooses),
            "excludes": list(self.excludes),
        }


@dataclass(frozen=True, slots=True)
class PolicyReview:
    """Findings about a policy, errors first, and its coverage of a model if one was given.

    findings: each with its line in the policy's file. target: the compilation target; empty without a model.
    nodes, untouched: names of the nodes that get a kernel, and of those that no rule and no keyword matches.
    """

    policy: str
    findings: tuple[tuple[LintFinding, int | None], ...]
    model: str = ""
    target: str = ""
    rules: tuple[RuleCoverage, ...] = ()
    nodes: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return True if no finding is an error."""
        return not any(finding.is_error for finding, _ in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "policy": self.policy,
            "model": self.model or None,
            "target": self.target or None,
            "ok": self.ok,
            "findings": [{**finding.to_json(), "line": line} for finding, line in self.findings],
            "rules": [rule.to_json() for rule in self.rules],
            "nodes": len(self.nodes),
            "untouched": list(self.untouched),
        }


def review_policy(
    policy: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    shapes: Mapping[str, int] | None = None,
    phase: str = "inference",
) -> PolicyReview:
    """Check a policy file, and its effect on a model for a compilation target.

    model:  an ONNX file or a saved graph. target: as for ``compile``; default: the policy's, else ``cpu``. It may be a device that this
            machine lacks (``cuda:sm_90``).
    shapes: sizes of symbolic dims. Without them only the matching of rules is checked.
    phase:  the phase that rules test.

    Raises PolicyError for a file that is no policy, ModelError, DeviceUnavailable for an unknown target, InputError for an unknown dim.
    """
    loaded = read_policy(os.fspath(policy), raise_conflicts=False)
    findings = list(loaded.findings)
    if model is None:
        return PolicyReview(str(policy), _sorted(findings, loaded.line))
    resolved = Resolved(loaded.policy, {})
    (generator,) = targets_of(target, resolved, [])[:1]
    graph, weights = open_graph(Path(model))
    if unknown := sorted(set(shapes or {}) - set(graph.symbols)):
        raise InputError(
            "shapes",
            "no symbolic dim of that name",
            got=repr(unknown[0]),
            do=f"Name one of {', '.join(sorted(graph.symbols)) or 'none: every dim of this model is fixed'}.",
        )
    sizes = {**fixed_symbols([graph], resolved), **(shapes or {})}
    missing = sorted(s for s in graph.symbols if s not in sizes)
    decided = {s: n for s, n in decided_sizes(graph).items() if s in missing}
    if decided:
        nodes: tuple[NodeReview, ...] = ()
        imported = imported_facts(graph, generator.name.partition(":")[0], phase)
        findings += _undecided(loaded.policy, imported)
        which = ", ".join(f"node {n!r} decides {s}" for s, n in decided.items())
        text = f"kernels were not checked: only a run knows some sizes ({which})"
        findings.append(LintFinding("unchecked", (), text, "Check a part of the model without such nodes."))
    elif missing:
        nodes = ()
        imported = imported_facts(graph, generator.name.partition(":")[0], phase)
        findings += _undecided(loaded.policy, imported)
        text = f"kernels were not checked: no size for {', '.join(missing)}"
        give = " ".join(f"--shape {s}=SIZE" for s in missing)
        findings.append(LintFinding("unchecked", (), text, f"Give {give}."))
    else:
        result = review(graph, loaded.policy, generator, shapes=sizes, phase=phase, weights=weights)
        nodes, imported = result.nodes, result.imported
        errors = [*_ambiguous(nodes), *_inapplicable(loaded.policy, nodes), *_unavailable(nodes)]
        findings += errors
        if result.problems and not any(f.is_error for f in errors):
            findings += [LintFinding("unavailable", ("kernel",), p, is_error=True) for p in result.problems]
    findings += _unreachable(loaded.policy, nodes, imported, checked=not missing)
    rules = tuple(_coverage(d, nodes, loaded.line(d.path)) for d in demands_of(loaded.policy.kernel))
    names = tuple(dict.fromkeys(n.name for n in nodes))
    touched = {n.name for n in nodes if n.matched}
    return PolicyReview(
        str(policy),
        _sorted(findings, loaded.line),
        graph.name,
        generator.name,
        rules,
        names,
        tuple(n for n in names if n not in touched),
    )


def _sorted(
    findings: Sequence[LintFinding], line: Callable[[FieldPath], int | None]
) -> tuple[tuple[LintFinding, int | None], ...]:
    unique = dict.fromkeys(findings)
    return tuple((f, line(f.path)) for f in sorted(unique, key=lambda f: not f.is_error))


def _coverage(demand: PolicyDemand, nodes: Sequence[NodeReview], line: int | None) -> RuleCoverage:
    def names(test: Callable[[NodeReview], bool]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.name for n in nodes if test(n)))

    return RuleCoverage(
        demand.path,
        line,
        demand.label,
        names(lambda n: demand in n.matched),
        names(lambda n: n.chosen_by == demand.path),
        names(lambda n: demand.path in n.excluded),
    )


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many there are if not all are shown."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more


def _count(names: Sequence[str]) -> str:
    number = len(set(names))
    return f"{number} node{'' if number == 1 else 's'}"


# ── findings of a model ──


def _ambiguous(nodes: Sequence[NodeReview]) -> Iterator[LintFinding]:
    pairs: dict[tuple[PolicyDemand, PolicyDemand, bool], list[str]] = {}
    for node in nodes:
        for pair in ambiguities(node.matched, node.facts):
            pairs.setdefault(pair, []).append(node.name)
    for (first, second, forced), names in pairs.items():
        earlier = f"rules[{first.path[-1]}]"
        at = f"for {_count(names)} ({_some(names)})"
        if forced:
            text = f"contradicts {earlier} ({first.label}) {at}"
            do = "Make their conditions exclude each other."
        else:
            verb, wanted, other = _difference(second, first)
            text = f"{verb} {wanted} where {earlier} {verb} {other} {at}; the earlier rule decides"
            do = "Put the rule that must decide first, or make their conditions exclude each other."
        yield LintFinding("ambiguous", second.path, text, do, is_error=forced)


def _difference(demand: PolicyDemand, other: PolicyDemand) -> tuple[str, str, str]:
    """Return the verb and the demands of two rules that prefer different kernels: their words for weights if these differ, else the kernels."""
    assert demand.rule is not None
    assert other.rule is not None
    words = demand.rule.weight_words, other.rule.weight_words
    if all(words) and words[0] != words[1]:
        return "says", str(words[0]), str(words[1])
    return "prefers", repr(demand.rule.prefer[0]), repr(other.rule.prefer[0])


def _inapplicable(policy: Policy, nodes: Sequence[NodeReview]) -> Iterator[LintFinding]:
    for demand in demands_of(policy.kernel):
        matched = [n for n in nodes if demand in n.matched]
        forced = demand.rule is not None and demand.rule.use is not None
        for kernel in demand.wanted:
            reasons = [
                (n.name, c.reason)
                for n in matched
                for c in n.rejected
                if c.name == kernel and (n.problem if forced else n.kernel != kernel and c.code in _SUPPORT)
            ]
            if not reasons or (not forced and len({n for n, _ in reasons}) < len({n.name for n in matched})):
                continue
            name, why = Counter(reasons).most_common(1)[0][0]
            verb = "forces" if forced else "prefers"
            names = [n for n, _ in reasons]
            all_of = f"{_count(names)} of {len({n.name for n in matched})} ({_some(names)})"
            text = f"{verb} {kernel!r}, which does not compute {all_of}: for {name}, {why}"
            do = "Narrow the rule to nodes that the kernel computes, or name another kernel."
            yield LintFinding("inapplicable", demand.path, text, do, is_error=forced)


def _unavailable(nodes: Sequence[NodeReview]) -> Iterator[LintFinding]:
    problems: dict[str, list[NodeReview]] = {}
    for node in nodes:
        forced = any(d.rule is not None and d.rule.use for d in node.matched)
        if node.problem and not forced:
            problems.setdefault(node.facts.family, []).append(node)
    for family, group in problems.items():
        names = [n.name for n in group]
        text = f"no kernel of {family} is left for {_count(names)} ({_some(names)}): {group[0].problem}"
        path = next((d.path for d in group[0].matched), ("kernel",))
        do = "Relax forbid, workspace_bytes or deterministic."
        yield LintFinding("unavailable", path, text, do, is_error=True)


def _unreachable(
    policy: Policy, nodes: Sequence[NodeReview], imported: Sequence[ImportedNode], *, checked: bool
) -> Iterator[LintFinding]:
    do = "Remove it, or correct its conditions."
    for demand in demands_of(policy.kernel):
        if any(demand in n.matched for n in nodes):
            continue
        before = [n.facts.sources[0] for n in imported if demand.matches(n.facts)]
        if not before:
            if not (demand.rule is not None and any(demand.rule.undecided(n.facts) for n in imported)):
                text = f"matches none of the {len(imported)} nodes of the model"
                yield LintFinding("unreachable", demand.path, text, do)
        elif checked:
            text = (
                f"matches {_count(before)} ({_some(before)}), but none of them gets a kernel of its own:"
                " they are constant, views, or fused into nodes that it does not match"
            )
            yield LintFinding("unreachable", demand.path, text, do)
    place = policy.execution.place or {}
    used = {p for n in imported for p in places_of(place, n.names)}
    for pattern in place:
        if pattern not in used:
            text = f"matches none of the {len(imported)} nodes of the model"
            yield LintFinding("unreachable", ("execution", "place", pattern), text, do)


def _undecided(policy: Policy, imported: Sequence[ImportedNode]) -> Iterator[LintFinding]:
    for demand in demands_of(policy.kernel):
        if demand.rule is None:
            continue
        names = [n.facts.sources[0] for n in imported if demand.rule.undecided(n.facts)]
        if names:
            text = f"its condition {demand.rule.shape!r} cannot be evaluated for {_count(names)} ({_some(names)})"
            yield LintFinding("undecided", demand.path, text, "Give sizes with --shape.")
