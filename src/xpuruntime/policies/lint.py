"""Lint: contradictions and dead rules of a policy, found without a model.

Every finding is proven. Shape conditions that only compare names with constants are decided by trying each name at every constant
and its neighbors (their truth cannot change in between). Other conditions count only if a witness is found. Name patterns are compared
only if they are equal, absent, or plain names. The number of tries is bounded, so that a policy of a thousand rules still loads
quickly. Whatever lint cannot decide, ``choose`` decides per node.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .fields.expression import Condition
from .fields.kinds import kernels_of
from .fields.pins import plain_kernel
from .fields.record import FieldPath, path_text
from .kernel_policy import KernelPolicy
from .policy import Policy
from .rule import Rule, parsed, phase_covered
from .vocabulary import KERNELS, PHASES, WORDS_OF_KERNELS, WeightWords

__all__ = ["CODES", "MODEL_CODES", "WEIGHTS_ADVICE", "LintFinding", "lint", "weights_clash"]

CODES: dict[str, str] = {
    "conflict": "two rules of one layer force different kernels on the same op, or weights meets precision: int8 (an error)",
    "never": "no shape satisfies the shape condition of a rule",
    "shadowed": "a rule never has an effect, since another rule decides wherever it matches",
    "forbids_all": "rules without further conditions forbid every known kernel of a family",
    "forbidden_preference": "a preferred kernel is forbidden wherever the preference applies",
    "deprecated": "a kernel has a newer spelling, which a later release requires",
    "unused_options": "options are set for an engine that the policy does not choose",
}
"""Findings of ``lint``, which needs no model."""

MODEL_CODES: dict[str, str] = {
    "ambiguous": "two rules of one layer demand different kernels for a node of the model (an error if they force them)",
    "inapplicable": "a kernel does not compute the nodes for which a rule names it (an error if the rule forces it)",
    "unavailable": "no kernel of a node is left (an error)",
    "unreachable": "a rule, keyword or place matches no node of the model that gets a kernel",
    "undecided": "a shape condition cannot be evaluated, because a dim of the model has no size",
    "unchecked": "kernels were not checked, because a dim of the model has no size",
}
"""Findings about a policy and a model (``xpu lint POLICY MODEL``)."""

WEIGHTS_ADVICE = "Remove weights, which a quantized model has no use for, or remove precision: int8."
_TRIES = 20_000  # evaluations per call of lint
_PAIRS = 200_000  # pairs of rules per call of lint


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding: its code (``CODES`` or ``MODEL_CODES``), its path and its text.

    is_error: True if no choice of kernels satisfies the policy.
    """

    code: str
    path: FieldPath
    text: str
    do: str = ""
    is_error: bool = False

    def __str__(self) -> str:
        end = "" if self.text.endswith((".", "!", "?")) else "."
        at = f"{path_text(self.path)}: " if self.path else ""
        return f"{at}{self.text}{end}" + (f" {self.do}" if self.do else "")

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        level = "error" if self.is_error else "warning"
        return {
            "code": self.code,
            "level": level,
            "at": path_text(self.path),
            "text": self.text,
            "do": self.do,
        }


def lint(policy: Policy) -> tuple[LintFinding, ...]:
    """Return every finding, conflicts first."""
    findings: list[LintFinding] = []
    solver = _Solver()
    layers: list[tuple[FieldPath, KernelPolicy]] = [(("kernel",), policy.kernel)]
    layers += [(("kernel", "under", i), layer) for i, layer in enumerate(policy.kernel.under)]
    for at, layer in layers:
        findings += _conflicts(at, layer.rules, solver)
        findings += _never(at, layer.rules, solver)
        findings += _shadowed(at, layer.rules, solver)
        findings += _forbidden(at, layer)
        findings += _deprecated(at, layer)
    findings += _integers_and_floats(policy)
    findings += _unused_options(policy)
    return tuple(sorted(findings, key=lambda f: not f.is_error))


def _conflicts(at: FieldPath, rules: Sequence[Rule], solver: _Solver) -> Iterator[LintFinding]:
    pairs = itertools.combinations(enumerate(rules), 2)
    for (i, a), (j, b) in itertools.islice(pairs, _PAIRS):
        if _apart(a, b):
            continue
        if a.use and b.use and a.use != b.use and (where := _overlap(a, b, solver)):
            text = f"forces {b.use!r} where rules[{i}] forces {a.use!r} ({where})"
            do = "Make their conditions exclude each other."
            yield LintFinding("conflict", (*at, "rules", j, "use"), text, do, is_error=True)
        for forbids, uses, first in ((a, b, True), (b, a, False)):
            if uses.use and uses.use in forbids.forbid and (where := _overlap(a, b, solver)):
                index = i if first else j
                text = f"forces {uses.use!r}, which rules[{index}] forbids ({where})"
                where_at = (*at, "rules", j if first else i, "use")
                yield LintFinding("conflict", where_at, text, "Remove one of the two.", is_error=True)


def _never(at: FieldPath, rules: Sequence[Rule], solver: _Solver) -> Iterator[LintFinding]:
    for i, rule in enumerate(rules):
        if rule.shape and solver.never_true([rule.shape], lambda truths: truths[0] is True):
            yield LintFinding("never", (*at, "rules", i, "shape"), f"no shape satisfies {rule.shape!r}")


def _shadowed(at: FieldPath, rules: Sequence[Rule], solver: _Solver) -> Iterator[LintFinding]:
    shadowed: set[int] = set()
    for (j, rule), (i, wider) in itertools.islice(itertools.permutations(enumerate(rules), 2), _PAIRS):
        if j not in shadowed and not _apart(rule, wider) and _covers(wider, rule, solver):
            same_demand = i < j and (rule.use, rule.prefer) == (wider.use, wider.prefer)
            only_choice = not rule.forbid and not any(limit is not None for limit in _limits(rule)[1:])
            if only_choice and wider.use and (rule.prefer or (same_demand and rule.use)):
                why = f"rules[{i}] forces {wider.use!r} wherever it matches"
            elif same_demand and _limits(rule) == _limits(wider):
                why = f"rules[{i}] demands the same wherever it matches"
            else:
                continue
            shadowed.add(j)
            yield LintFinding(
                "shadowed",
                (*at, "rules", j),
                f"never has an effect: {why}",
                "Remove it, or narrow the other rule.",
            )


def _limits(rule: Rule) -> tuple[object, ...]:
    return rule.forbid, rule.workspace_bytes, rule.deterministic, rule.weights, rule.activations


def _forbidden(at: FieldPath, layer: KernelPolicy) -> Iterator[LintFinding]:
    always: dict[str, set[str]] = {family: set() for family in KERNELS}
    for rule in layer.rules:
        if not (rule.node or rule.dtype or rule.shape or rule.phase):
            for family in rule.op or KERNELS:
                always.setdefault(family, set()).update(rule.forbid)
    for family, names in KERNELS.items():
        if set(names) <= always[family]:
            yield LintFinding("forbids_all", (*at, "rules"), f"every known kernel of {family} is forbidden")
    for family, preferred in layer.preferences():
        for name in preferred:
            if plain_kernel(name) in always[family]:
                yield LintFinding(
                    "forbidden_preference", (*at, family), f"{name!r} is preferred, but a rule forbids it"
                )
    for i, rule in enumerate(layer.rules):
        for name in rule.prefer:
            plain = plain_kernel(name)
            if rule.op and all(
                plain in always[f] for f in rule.op if plain in kernels_of([f]) or "." in plain
            ):
                yield LintFinding(
                    "forbidden_preference",
                    (*at, "rules", i, "prefer"),
                    f"{name!r} is preferred, but a rule forbids it",
                )


def _deprecated(at: FieldPath, layer: KernelPolicy) -> Iterator[LintFinding]:
    keywords = [((*at, family), names) for family, names in layer.preferences()]
    demands = [
        ((*at, "rules", i, key), names)
        for i, rule in enumerate(layer.rules)
        for key, names in (("use", (rule.use or "",)), ("prefer", rule.prefer), ("forbid", rule.forbid))
    ]
    for path, names in (*keywords, *demands):
        for name in names:
            if (words := WORDS_OF_KERNELS.get(name)) is not None:
                if path[-1] == "forbid":
                    words = WeightWords("model" if words.activations is None else words.weights)
                yield LintFinding("deprecated", path, f"{name!r} is deprecated", f"Write {words} instead.")


def _integers_and_floats(policy: Policy) -> Iterator[LintFinding]:
    if clash := weights_clash(policy):
        yield LintFinding("conflict", ("kernel",), clash, WEIGHTS_ADVICE, is_error=True)


def weights_clash(policy: Policy) -> str:
    """Return why weight-only quantization cannot be combined with the precision, or an empty text."""
    words = policy.kernel.stored_words()
    if words is None or policy.execution.precision != "int8":
        return ""
    return f"{words} is for models of floats, while precision: int8 demands the integer arithmetic of a quantized model"


def _unused_options(policy: Policy) -> Iterator[LintFinding]:
    policy_engine = policy.execution.engine
    for name in policy.execution.engine_options or {}:
        if policy_engine not in (None, "auto", name):
            yield LintFinding(
                "unused_options",
                ("execution", "engine_options", name),
                f"has no effect with engine {policy_engine!r}",
            )


# -- comparing rules


def _apart(a: Rule, b: Rule) -> bool:
    """Return True if the bounds of their shape conditions alone exclude each other: cheap, and decides most pairs."""
    if a.shape is None or b.shape is None:
        return False
    ranges_a, ranges_b = _ranges(a.shape), _ranges(b.shape)
    return any(
        n in ranges_b and (low > ranges_b[n][1] or ranges_b[n][0] > high)
        for n, (low, high) in ranges_a.items()
    )


@functools.lru_cache(maxsize=4096)
def _ranges(text: str) -> dict[str, tuple[float, float]]:
    return parsed(text).ranges()


def _overlap(a: Rule, b: Rule, solver: _Solver) -> str:
    """Describe where both rules match; empty if that cannot be proven."""
    ops = set(a.op or KERNELS) & set(b.op or KERNELS)
    phases = [p for p in PHASES if all(not r.phase or phase_covered(p, r.phase) for r in (a, b))]
    dtypes = not a.dtype or not b.dtype or set(a.dtype) & set(b.dtype)
    if not ops or not phases or not dtypes or not _names_meet(a.node, b.node):
        return ""
    shapes = [r.shape for r in (a, b) if r.shape]
    witness = solver.witness(shapes, all) if shapes else {}
    if witness is None:
        return ""
    parts = [min(ops) if a.op or b.op else "any op", *(f"{k}={v}" for k, v in witness.items())]
    return "for example " + ", ".join(parts)


def _covers(wide: Rule, narrow: Rule, solver: _Solver) -> bool:
    """Return True if ``wide`` provably matches wherever ``narrow`` does."""
    return bool(
        (not wide.op or (narrow.op and set(narrow.op) <= set(wide.op)))
        and (not wide.dtype or (narrow.dtype and set(narrow.dtype) <= set(wide.dtype)))
        and (not wide.phase or (narrow.phase and all(phase_covered(p, wide.phase) for p in narrow.phase)))
        and (not wide.node or (narrow.node and set(narrow.node) <= set(wide.node)))
        and (not wide.shape or (narrow.shape and solver.implies(narrow.shape, wide.shape)))
    )


def _names_meet(a: str | Sequence[str], b: str | Sequence[str]) -> bool:
    if not a or not b or set(a) & set(b):
        return True
    return any(_is_name(p) and _glob(q, p) for x, y in ((a, b), (b, a)) for p in x for q in y)


def _is_name(pattern: str) -> bool:
    return not pattern.startswith("re:") and not set(pattern) & set("*?[")


def _glob(pattern: str, name: str) -> bool:
    return not pattern.startswith("re:") and fnmatch.fnmatchcase(name, pattern)


# -- deciding conditions by trying values


class _Solver:
    """A decision procedure for shape conditions that tries values of dims. All questions of one lint share a budget, which bounds
    its time. When it is used up, every further question is undecided.
    """

    def __init__(self) -> None:
        self.left = _TRIES

    def never_true(self, texts: Sequence[str], test: _Test) -> bool:
        """Return True if no shape makes ``test`` true; False also if that cannot be decided."""
        conditions = [parsed(t) for t in texts]
        decidable = all(atom is not None for c in conditions for atom in c.atoms())
        if not decidable or math.prod(map(len, _points(conditions).values())) > self.left:
            return False
        return self.witness(texts, test) is None

    def implies(self, narrow: str, wide: str) -> bool:
        """Return True if ``wide`` provably holds wherever ``narrow`` does."""
        return narrow == wide or self.never_true([narrow, wide], lambda t: t[0] is True and t[1] is not True)

    def witness(self, texts: Sequence[str], test: _Test) -> dict[str, int] | None:
        """Return dims for which ``test`` of the conditions' truth values holds, or None if none was found."""
        conditions = [parsed(t) for t in texts]
        points = _points(conditions)
        for combination in itertools.product(*points.values()):
            if self.left == 0:
                return None
            self.left -= 1
            dims = dict(zip(points, combination, strict=True))
            if test([c.holds(dims) for c in conditions]):
                return dims
        return None


_Test = Callable[[list["bool | None"]], bool]


def _points(conditions: Sequence[Condition]) -> dict[str, list[int]]:
    """Return values to try per name: each constant that the name is compared with, its neighbors, and some more."""
    points: dict[str, set[int]] = {n: {0, 1, 8} for c in conditions for n in c.names}
    for condition in conditions:
        for atom in condition.atoms():
            if atom is not None:
                name, value = atom
                points[name] |= {v for v in (value - 1, value, value + 1) if v >= 0}
            else:
                for name in condition.names:
                    points[name] |= {2, 3, 16, 64, 1024}
    return {name: sorted(points[name]) for name in sorted(points)}
