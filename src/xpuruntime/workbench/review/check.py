"""``xpu check``: the result of each rule on a plan, receipt, program or lock, alone or against another of its kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...policies.fields.pins import plain_kernel
from ...policies.rule import matches_name
from ...profiler.receipt import Receipt
from ...program.plan import Transfer
from ...targets import DeviceId
from .files import read_snapshot
from .rules import (
    KIND_OF,
    CheckRule,
    CoverageAtLeast,
    EnginesAllowed,
    KernelsOf,
    MemoryAtMost,
    NoNewHostCopy,
    NoPrecisionLoss,
    ReceiptConfirmed,
    RuleFile,
    StaysOn,
    TimeWithin,
    load_rules,
)
from .snapshot import NodeState, Snapshot

__all__ = ["CheckReport", "RuleResult", "check", "check_files"]

_SHOWN = 5  # nodes in a text


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule.

    status: ``passed``, ``failed``, or ``unknown`` if the files do not say what the rule tests. An unknown rule is not satisfied.
    text:   what was found, with values. nodes: the nodes that break the rule.
    """

    name: str
    kind: str
    status: str
    text: str
    nodes: tuple[str, ...] = ()
    line: int = 0

    @property
    def ok(self) -> bool:
        """Return True if the rule is satisfied."""
        return self.status == "passed"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "rule": self.kind,
            "status": self.status,
            "text": self.text,
            "nodes": list(self.nodes),
            "line": self.line or None,
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The results of all rules of a file. against: the file that was compared with; empty without one."""

    file: str
    against: str
    rules: str
    results: tuple[RuleResult, ...]

    @property
    def ok(self) -> bool:
        """Return True if every rule is satisfied."""
        return all(r.ok for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "format": "xpuruntime-check",
            "version": 1,
            "file": self.file,
            "against": self.against or None,
            "rules": self.rules,
            "ok": self.ok,
            "results": [r.to_json() for r in self.results],
        }


def check_files(
    file: str | os.PathLike[str],
    rules: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Apply a rules file. Raises PolicyError for the rules, FormatError for the files, InputError as ``check``."""
    loaded = load_rules(rules)
    return check(read_snapshot(file), loaded, None if against is None else read_snapshot(against))


def check(snapshot: Snapshot, rules: RuleFile, against: Snapshot | None = None) -> CheckReport:
    """Apply rules to a snapshot. Raises InputError for files of two kinds, and for a rule that needs ``against``."""
    if against is not None and against.kind != snapshot.kind:
        raise InputError(
            "check",
            "compares two files of one kind",
            got=f"a {snapshot.kind} ({snapshot.name}) and a {against.kind} ({against.name})",
            do="Give two plans, two receipts, two programs or two locks.",
        )
    results = []
    for i, rule in enumerate(rules.rules):
        kind = KIND_OF[type(rule)]
        line = rules.lines[i] if i < len(rules.lines) else 0
        if against is None and _needs_other(rule):
            where = f"{rules.name}:{line}" if line else rules.name
            raise InputError(
                f"rules {where}",
                f"rule {kind} compares with another file",
                do="Give --against FILE, or remove the rule.",
            )
        status, text, nodes = _CHECKS[kind](rule, snapshot, against)
        results.append(RuleResult(rule.name or _label(rule), kind, status, text, nodes, line))
    return CheckReport(snapshot.name, "" if against is None else against.name, rules.name, tuple(results))


def _needs_other(rule: CheckRule) -> bool:
    return isinstance(rule, NoPrecisionLoss | TimeWithin) or (
        isinstance(rule, StaysOn) and rule.device is None
    )


def _label(rule: CheckRule) -> str:
    """Return the kind and the values of a rule in one line."""
    values = [str(rule)[str(rule).index("(") + 1 : -1]]
    return " ".join([KIND_OF[type(rule)], *filter(None, values)])


Result = tuple[str, str, tuple[str, ...]]


def _result(broken: Sequence[tuple[NodeState, str]], fine: str) -> Result:
    """Return the result of a rule that each node must satisfy. ``broken``: nodes and what is wrong with them."""
    if not broken:
        return "passed", fine, ()
    names = tuple(dict.fromkeys(n.name for n, _ in broken))
    texts = [f"{n.name}: {why}" for n, why in broken[:_SHOWN]]
    more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return "failed", f"{len(names)} node{'' if len(names) == 1 else 's'}: {'; '.join(texts)}{more}", names


def _unknown(what: str, snapshot: Snapshot) -> Result:
    return "unknown", f"{snapshot.name} is a {snapshot.kind} that does not say {what}", ()


def _pairs(snapshot: Snapshot, against: Snapshot) -> list[tuple[NodeState, NodeState]]:
    """Return the nodes of both files: that of ``against``, then that of ``snapshot``."""
    before = {n.name: n for n in against.nodes}
    return [(before[n.name], n) for n in snapshot.nodes if n.name in before]


def _no_pairs(snapshot: Snapshot, against: Snapshot) -> Result:
    return "unknown", f"{snapshot.name} and {against.name} have no node of the same name", ()


# ── one function per kind ──


def _stays_on(rule: StaysOn, snapshot: Snapshot, against: Snapshot | None) -> Result:
    if rule.device is not None:
        if not any(n.device for n in snapshot.nodes):
            return _unknown("the devices of nodes", snapshot)
        device = DeviceId.parse(rule.device)
        away = [(n, f"on {n.device}") for n in snapshot.nodes if not _is_on(n.device, device, rule.device)]
        return _result(away, f"{len(snapshot.nodes)} nodes are on {rule.device}")
    assert against is not None
    pairs = _pairs(snapshot, against)
    if not pairs:
        return _no_pairs(snapshot, against)
    moved = [(n, f"{old.device} -> {n.device}") for old, n in pairs if old.device != n.device]
    return _result(moved, f"{len(pairs)} nodes are where they were")


def _is_on(device: str, wanted: DeviceId, word: str) -> bool:
    """Return True if a device is the wanted one. ``cuda`` also admits ``cuda:1``, ``cuda:0`` does not."""
    if not device:
        return False
    actual = DeviceId.parse(device)
    same_kind = actual.kind == wanted.kind or (
        wanted.kind == "gpu" and actual.kind in ("cuda", "metal", "webgpu")
    )
    return same_kind and (":" not in word or actual.index == wanted.index)


def _engines(rule: EnginesAllowed, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del against
    others = [(n, n.engine or "no engine") for n in snapshot.nodes if n.engine not in rule.allow]
    return _result(others, f"{len(snapshot.nodes)} nodes run on {', '.join(rule.allow)}")


def _no_new_host_copy(rule: NoNewHostCopy, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del rule
    known = {t.value for t in _host_copies(against)} if against is not None else set()
    copies = [
        t
        for t in _host_copies(snapshot)
        if t.value not in known and not (against is None and t.destination == "caller")
    ]
    if not copies:
        return "passed", f"{len(_host_copies(snapshot))} copies to the host, none of them new", ()
    texts = [
        f"{t.value} ({t.source} -> {t.destination}{'' if t.bytes is None else f', {t.bytes} bytes'})"
        for t in copies
    ]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "failed", f"{len(copies)} new: {', '.join(texts[:_SHOWN])}{more}", tuple(t.value for t in copies)


def _host_copies(snapshot: Snapshot) -> list[Transfer]:
    """Return the transfers from a device's own memory to the host."""

    def on_host(region: str) -> bool:
        return region == "caller" or snapshot.regions.get(region, region).partition(":")[0] in (
            "cpu",
            "auto",
            "",
        )

    return [
        t for t in snapshot.transfers if not t.shared and on_host(t.destination) and not on_host(t.source)
    ]


_BITS: Mapping[str, tuple[int, int]] = {
    "float64": (52, 11),
    "float32": (23, 8),
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float8_e4m3fn": (3, 4),
    "float8_e5m2": (2, 5),
    "int16": (15, 0),
    "int8": (7, 0),
    "int4": (3, 0),
}
"""Bits of significance and of the exponent."""


def _no_precision_loss(rule: NoPrecisionLoss, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del rule
    assert against is not None
    pairs = [
        (old, n) for old, n in _pairs(snapshot, against) if old.precision in _BITS and n.precision in _BITS
    ]
    if not pairs:
        return _unknown("the precisions of nodes that both have", snapshot)
    lost = []
    for old, n in pairs:
        (digits, exponent), (new_digits, new_exponent) = _BITS[old.precision], _BITS[n.precision]
        if new_digits < digits or new_exponent < exponent:
            lost.append((n, f"{old.precision} -> {n.precision}"))
    return _result(lost, f"{len(pairs)} nodes compute at least as precisely as before")


def _time_within(rule: TimeWithin, snapshot: Snapshot, against: Snapshot | None) -> Result:
    assert against is not None
    assert rule.percent is not None
    for side in (snapshot, against):
        if side.time_us is None:
            return _unknown("measured times", side)
    assert snapshot.time_us is not None
    assert against.time_us is not None
    runs = min(snapshot.timed_runs, against.timed_runs)
    spreads = (snapshot.spread_us, against.spread_us)
    spread = "spread unknown" if None in spreads else f"spread {max(s or 0.0 for s in spreads):.1f} us"
    change = (snapshot.time_us / against.time_us - 1) * 100
    text = (
        f"{against.time_us:.1f} us -> {snapshot.time_us:.1f} us, {change:+.1f}% (at most +{rule.percent:g}%);"
        f" {spread}, each time is the sum over steps of medians of {runs} runs"
    )
    text += _sources(snapshot, against)
    if runs < (rule.min_runs or 1):
        return "unknown", f"{text}; the rule needs {rule.min_runs or 1} runs", ()
    return ("passed" if change <= rule.percent else "failed"), text, ()


def _sources(*snapshots: Snapshot) -> str:
    """Return how the times of two receipts were measured, if in different ways: a profiler adds to each step."""
    ways = [
        dict.fromkeys(e.times_from.partition(",")[0] for e in s.source.evidence.values() if e.time_source)
        for s in snapshots
        if isinstance(s.source, Receipt)
    ]
    if len(ways) < 2 or ways[0] == ways[1]:
        return ""
    here, before = (" and ".join(w) or "no time" for w in ways)
    return f"; the times are from {before} before and from {here} now, so they are not alike"


def _coverage(rule: CoverageAtLeast, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del against
    assert rule.percent is not None
    if snapshot.coverage is None:
        return _unknown("what ran", snapshot)
    share = snapshot.coverage * 100
    text = f"{share:.1f}% of {len(snapshot.nodes)} nodes are named by a step that ran (at least {rule.percent:g}%)"
    if isinstance(snapshot.source, Receipt):
        explained = snapshot.source.attribution.node_share
        text += f"; with those that have a reason (folded, fused, removed), {explained:.1%} are explained"
    return ("passed" if share >= rule.percent else "failed"), text, ()


def _kernels(rule: KernelsOf, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del against
    if not any(n.kernel for n in snapshot.nodes):
        return _unknown("the kernels of nodes", snapshot)
    broken, count = [], 0
    for node in snapshot.nodes:
        if (rule.op and node.family not in rule.op) or not node.kernel:
            continue
        if rule.node and not any(matches_name(p, node.name) for p in rule.node):
            continue
        count += 1
        words = [k.partition("/")[2] or k for k in node.kernel.split(" + ")]
        names = {*words, *map(plain_kernel, words)}
        if bad := names & set(rule.forbid):
            broken.append((node, f"{', '.join(sorted(bad))} is forbidden"))
        elif rule.require and not names & set(rule.require):
            broken.append((node, f"has {node.kernel}"))
    return _result(broken, f"{count} nodes match, and none breaks the rule")


def _confirmed(rule: ReceiptConfirmed, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del rule, against
    if snapshot.confirmed is None:
        return _unknown("what ran", snapshot)
    if snapshot.confirmed:
        return "passed", "the evidence confirms the plan", ()
    return "failed", "; ".join(snapshot.unconfirmed) or "the evidence contradicts the plan", ()


def _memory(rule: MemoryAtMost, snapshot: Snapshot, against: Snapshot | None) -> Result:
    del against
    assert isinstance(rule.bytes, int)
    if snapshot.memory_bytes is None:
        return _unknown("how much memory is needed", snapshot)
    text = f"{snapshot.memory_bytes} bytes of scratch memory and weights (at most {rule.bytes})"
    return ("passed" if snapshot.memory_bytes <= rule.bytes else "failed"), text, ()


_CHECKS: Mapping[str, Callable[[Any, Snapshot, Snapshot | None], Result]] = {
    "stays_on": _stays_on,
    "engines": _engines,
    "no_new_host_copy": _no_new_host_copy,
    "no_precision_loss": _no_precision_loss,
    "time_within": _time_within,
    "coverage": _coverage,
    "kernels": _kernels,
    "confirmed": _confirmed,
    "memory": _memory,
}
