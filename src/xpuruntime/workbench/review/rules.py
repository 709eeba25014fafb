"""The rules of ``xpu check`` as data: a file of rules, each of a kind from a closed table.

    version: 1
    rules:
      - {rule: stays_on, device: cuda}
      - {rule: time_within, percent: 5}
      - {rule: kernels, op: matmul, forbid: naive}

``python -m xpuruntime.workbench.review.rules`` prints the JSON Schema; the committed copy is ``docs/schema/check.schema.json``.
"""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ...policies import KernelPolicy, Policy, Rule
from ...policies.fields import checks, kinds
from ...policies.fields.record import (
    FieldKind,
    FieldPath,
    Problem,
    build,
    dump,
    of_kind,
    record,
    schema_of,
    shown,
)
from ...policies.files.document import Lines, line_of, located, read_document, save_document, to_json_text
from ...policies.names import check_names
from ...policies.vocabulary import nearest

__all__ = ["RULE_KINDS", "CheckRule", "RuleFile", "check_schema", "load_rules", "parse_rules"]

VERSION = 1
MAX_RULES = 1000


def _percent(low: float, high: float) -> FieldKind:
    def check(value: object, path: FieldPath) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise Problem(path, f"must be a number from {low:g} to {high:g}", got=shown(value))
        return float(value)  # type: ignore[arg-type]

    return FieldKind(check, {"type": "number", "minimum": low, "maximum": high}, lambda value: value)


_SHARE, _CHANGE = _percent(0, 100), _percent(0, 10_000)


def _words(check: Callable[[Any, FieldPath], Any], pattern: str) -> FieldKind:
    """Return the kind of one name or a list. Its schema has no list of names, so that it stays the same when names are added."""
    item = {"type": "string", "pattern": pattern}
    listed = {"type": "array", "items": item, "minItems": 1, "maxItems": checks.MAX_LIST, "uniqueItems": True}
    return FieldKind(checks.several(check), {"anyOf": [item, listed]}, kinds.one_or_list)


_ENGINES = _words(checks.engine_name, checks.NAME)
_KERNELS = _words(checks.kernel_name, r"^[A-Za-z_][A-Za-z0-9_.-]{0,200}(\[[a-z0-9=,]{1,100}\])?$")
_COUNT = FieldKind(
    checks.integer(1, 1_000_000), {"type": "integer", "minimum": 1, "maximum": 1_000_000}, lambda value: value
)
_NAME = "shown in results; default: the rule's kind and values"


def _require(field: str, value: object, example: str) -> None:
    """Raise Problem if a field without a default is not given."""
    if value in (None, (), []):
        raise Problem((field,), "is missing", do=f"Write {field}: {example}.")


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class StaysOn:
    """No node leaves a device. Without ``device``: no node leaves the device that it has in the file to compare with."""

    device: str | None = of_kind(
        kinds.DEVICE, "device that every node must run on; default: that of --against"
    )
    name: str | None = of_kind(kinds.REASON, _NAME)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesAllowed:
    """Only these engines run nodes."""

    allow: Any = of_kind(_ENGINES, "engine, or a list of them", default=())
    name: str | None = of_kind(kinds.REASON, _NAME)

    def _check_together(self) -> None:
        _require("allow", self.allow, "native, or a list")


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class NoNewHostCopy:
    """No value is copied to the host that was not copied in the file to compare with; without one, none except the outputs."""

    name: str | None = of_kind(kinds.REASON, _NAME)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class NoPrecisionLoss:
    """No node computes in a narrower float type than in the file to compare with."""

    name: str | None = of_kind(kinds.REASON, _NAME)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWithin:
    """The measured time of a run is at most this many percent longer than in the file to compare with."""

    percent: float | None = of_kind(_CHANGE, "allowed increase in percent")
    min_runs: int | None = of_kind(_COUNT, "runs that both times must rest on, at least; default: 1")
    name: str | None = of_kind(kinds.REASON, _NAME)

    def _check_together(self) -> None:
        _require("percent", self.percent, "5")


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageAtLeast:
    """Evidence names at least this share of the nodes."""

    percent: float | None = of_kind(_SHARE, "share of the model's nodes in percent")
    name: str | None = of_kind(kinds.REASON, _NAME)

    def _check_together(self) -> None:
        _require("percent", self.percent, "90")


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsOf:
    """Kernels that nodes of an op family must, or must not, have."""

    op: Any = of_kind(kinds.OPS, "op family, or a list; default: every node", default=())
    node: Any = of_kind(
        kinds.PATTERN, "pattern of node names, as in a policy; default: every node", default=()
    )
    forbid: Any = of_kind(_KERNELS, "kernels that no such node may have", default=())
    require: Any = of_kind(_KERNELS, "kernels of which every such node must have one", default=())
    name: str | None = of_kind(kinds.REASON, _NAME)

    def _check_together(self) -> None:
        if not self.forbid and not self.require:
            raise Problem((), "demands nothing", do="Add forbid or require.")


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptConfirmed:
    """The evidence of the run confirms the plan."""

    name: str | None = of_kind(kinds.REASON, _NAME)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAtMost:
    """Scratch memory and weights take at most this many bytes."""

    bytes: int | str | None = of_kind(kinds.SIZE, "bytes, or a text such as '512 MiB'")
    name: str | None = of_kind(kinds.REASON, _NAME)

    def _check_together(self) -> None:
        _require("bytes", self.bytes, "512 MiB")


CheckRule: TypeAlias = (
    "StaysOn | EnginesAllowed | NoNewHostCopy | NoPrecisionLoss | TimeWithin | CoverageAtLeast | KernelsOf"
    " | ReceiptConfirmed | MemoryAtMost"
)

RULE_KINDS: Mapping[str, type[Any]] = {
    "stays_on": StaysOn,
    "engines": EnginesAllowed,
    "no_new_host_copy": NoNewHostCopy,
    "no_precision_loss": NoPrecisionLoss,
    "time_within": TimeWithin,
    "coverage": CoverageAtLeast,
    "kernels": KernelsOf,
    "confirmed": ReceiptConfirmed,
    "memory": MemoryAtMost,
}
"""Every kind of rule."""
KIND_OF: Mapping[type[Any], str] = {cls: word for word, cls in RULE_KINDS.items()}


@dataclass(frozen=True, slots=True)
class RuleFile:
    """Rules in the order of their file, each with its line; 0 for rules that are no file."""

    name: str
    rules: tuple[CheckRule, ...]
    lines: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document."""
        return {"version": VERSION, "rules": [{"rule": KIND_OF[type(r)], **dump(r)} for r in self.rules]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document atomically, JSON or YAML by the suffix. Raises PolicyError, StoreError."""
        save_document(path, self.to_dict())


def load_rules(path: str | os.PathLike[str]) -> RuleFile:
    """Read a rules file (.yaml, .yml or .json). Raises PolicyError with file, line, key and the nearest known word."""
    who = f"rules {os.fspath(path)}"
    data, lines = read_document(Path(path), "rules")
    try:
        return parse_rules(data, os.fspath(path), lines)
    except Problem as problem:
        raise located(problem, who, lines) from None


def parse_rules(data: Any, name: str = "rules", lines: Lines | None = None) -> RuleFile:
    """Build rules from a document's plain data. Raises Problem."""
    if not isinstance(data, Mapping):
        raise Problem((), "must be a mapping", got=shown(data), do=f"Write version: {VERSION}, then rules:.")
    for key in data:
        if key not in ("version", "rules"):
            near = nearest(key, ("version", "rules")) if isinstance(key, str) else ""
            raise Problem((str(key)[:80],), "unknown key", do=f"{near}Known keys: version, rules.")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        do = f"Write version: {VERSION}."
        raise Problem(
            ("version",),
            f"must be {VERSION}",
            got=shown(version) if "version" in data else "no version",
            do=do,
        )
    listed = data.get("rules")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_RULES:
        raise Problem(("rules",), f"must be a list of 1 to {MAX_RULES} rules", got=shown(listed))
    rules = tuple(_rule(item, ("rules", i)) for i, item in enumerate(listed))
    for i, rule in enumerate(rules):
        if isinstance(rule, KernelsOf):
            _check_kernels(rule, ("rules", i))
    return RuleFile(name, rules, tuple(line_of(("rules", i), lines or {}) or 0 for i in range(len(rules))))


def _rule(item: Any, path: FieldPath) -> CheckRule:
    if not isinstance(item, Mapping):
        raise Problem(path, "must be a mapping", got=shown(item), do="Write {rule: KIND, ...}.")
    word = item.get("rule")
    known = f"Kinds: {', '.join(RULE_KINDS)}."
    if not isinstance(word, str) or word not in RULE_KINDS:
        near = nearest(word, RULE_KINDS) if isinstance(word, str) else ""
        got = shown(word) if "rule" in item else "no kind"
        raise Problem((*path, "rule"), "no such kind of rule", got=got, do=f"{near}{known}")
    rule: CheckRule = build(RULE_KINDS[word], {k: v for k, v in item.items() if k != "rule"}, path)
    return rule


def _check_kernels(rule: KernelsOf, path: FieldPath) -> None:
    """Raise Problem for a kernel that does not exist: a rule that forbids a misspelled name would always be satisfied."""
    for field, names in (("forbid", rule.forbid), ("require", rule.require)):
        if names:
            named = KernelPolicy(rules=[Rule(op=rule.op, forbid=names)])
            try:
                check_names(Policy(kernel=named))
            except Problem as problem:
                raise Problem((*path, field), problem.what, got=problem.got, do=problem.do) from None


def check_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a rules document."""
    each = []
    for word, cls in RULE_KINDS.items():
        schema = schema_of(cls)
        properties = {"rule": {"const": word}, **schema["properties"]}
        required = ["rule", *_REQUIRED.get(word, ())]
        each.append(
            {
                "description": (cls.__doc__ or "").strip(),
                **schema,
                "properties": properties,
                "required": required,
            }
            | ({"anyOf": [{"required": ["forbid"]}, {"required": ["require"]}]} if word == "kernels" else {})
        )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:xpuruntime:check:1",
        "title": "xpuruntime check rules",
        "description": "Rules that a plan, receipt, program or lock must satisfy (xpu check). JSON or YAML.",
        "type": "object",
        "required": ["version", "rules"],
        "additionalProperties": False,
        "properties": {
            "version": {"description": "version of this format", "type": "integer", "enum": [VERSION]},
            "rules": {"type": "array", "minItems": 1, "maxItems": MAX_RULES, "items": {"oneOf": each}},
        },
    }


_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "engines": ("allow",),
    "time_within": ("percent",),
    "coverage": ("percent",),
    "memory": ("bytes",),
}


if __name__ == "__main__":
    print(to_json_text(check_schema()), end="")
