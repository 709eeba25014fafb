"""The difference of two policies as single changes, and the smallest set of them that has an effect (delta debugging).

Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002: the set is 1-minimal, so without any one of its changes
the effect is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...families import FAMILIES
from ...policies import Policy, Rule
from ...policies.fields.record import dump

__all__ = ["PolicyChange", "applied", "changes_between", "rule_for", "smallest"]

_Item = TypeVar("_Item")
_LISTS = ("rules", "without_passes")
_MAPPINGS = ("fixed_shapes", "engine_options", "engine_order", "place")


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One field, entry or rule that differs. ``path``: its keys in the document. ``before``, ``after``: None where it is not set."""

    path: tuple[str, ...]
    before: Any
    after: Any

    def __str__(self) -> str:
        name = ".".join(self.path)
        if self.path[-1] in _LISTS:
            return f"{name} - {self.before}" if self.after is None else f"{name} + {self.after}"
        return f"{name}: {_shown(self.before)} -> {_shown(self.after)}"


def _shown(value: Any) -> str:
    return (
        "not set" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    )


def changes_between(before: Policy, after: Policy) -> list[PolicyChange]:
    """Return the changes that turn one policy into another, in the order of the document. Each pass that is left out is one change."""
    old, new = dict(_leaves(_split(before.to_dict()))), dict(_leaves(_split(after.to_dict())))
    changes = []
    for path in dict.fromkeys((*old, *new)):
        a, b = old.get(path), new.get(path)
        if a == b:
            continue
        if path[-1] in _LISTS:
            changes += [PolicyChange(path, rule, None) for rule in a or [] if rule not in (b or [])]
            changes += [PolicyChange(path, None, rule) for rule in b or [] if rule not in (a or [])]
        else:
            changes.append(PolicyChange(path, a, b))
    return changes


def _split(data: dict[str, Any]) -> dict[str, Any]:
    """Turn the text of the engine option ``without_passes`` into a list."""
    native = data.get("execution", {}).get("engine_options", {}).get("native", {})
    if isinstance(passes := native.get("without_passes"), str):
        native["without_passes"] = [name.strip() for name in passes.split(",") if name.strip()]
    return data


def _joined(data: dict[str, Any]) -> dict[str, Any]:
    """Turn the list of ``_split`` into the option's text; none for an empty list."""
    native = data.get("execution", {}).get("engine_options", {}).get("native", {})
    if "without_passes" in native and not native["without_passes"]:
        del native["without_passes"]
    elif "without_passes" in native:
        native["without_passes"] = ",".join(native["without_passes"])
    return data


def _leaves(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and (not path or key in _MAPPINGS or path[-1] in _MAPPINGS):
            yield from _leaves(value, (*path, key))
        elif path:  # the version is not a demand
            yield (*path, key), value


def applied(before: Policy, changes: Sequence[PolicyChange]) -> Policy:
    """Return the policy after some changes. Raises PolicyError if they are no valid policy without the others."""
    data = _split(before.to_dict())
    for change in changes:
        holder = data
        for key in change.path[:-1]:
            holder = holder.setdefault(key, {})
        key = change.path[-1]
        if key in _LISTS:
            rules = [r for r in holder.get(key, []) if change.before is None or r != change.before]
            holder[key] = rules + ([] if change.after is None else [change.after])
        elif change.after is None:
            holder.pop(key, None)
        else:
            holder[key] = change.after
    return Policy.from_dict(_joined(data))


def rule_for(nodes: Sequence[str], kernel: str, reason: str) -> dict[str, Any]:
    """Return the rule that makes one kernel of the catalogue compute nodes, as a document's data.

    It is a demand where the kernel's family is one of policies, so that other ops of fused nodes are left alone; else a preference.
    """
    family, _, word = kernel.partition("/")
    patterns = [f"re:{re.escape(name)}" for name in nodes]
    if family in FAMILIES:
        rule = Rule(op=[family], node=patterns, use=word, reason=reason)
    else:
        rule = Rule(node=patterns, prefer=[word], reason=reason)
    data: dict[str, Any] = dump(rule)
    return data


def smallest(items: Sequence[_Item], has_effect: Callable[[Sequence[_Item]], bool]) -> list[_Item]:
    """Return a 1-minimal subset that has the effect, which the whole set has. Each subset is tried once."""
    tried: dict[tuple[int, ...], bool] = {}

    def test(indices: Sequence[int]) -> bool:
        key = tuple(indices)
        if key not in tried:
            tried[key] = has_effect([items[i] for i in key])
        return tried[key]

    left, parts = list(range(len(items))), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[i : i + size] for i in range(0, len(left), size)]
        chosen = next((c for c in chunks if test(c)), None)
        if chosen is not None:
            left, parts = chosen, 2
            continue
        rest = next(
            (r for c in chunks if (r := [i for i in left if i not in c]) and len(chunks) > 2 and test(r)),
            None,
        )
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif len(chunks) == len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return [items[i] for i in left]
