"""Diff: what changed between two plans, receipts, programs or locks, as plain data. Nodes are matched by name only."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import InputError
from ...program.plan import Transfer
from .files import read_snapshot
from .snapshot import NodeState, OutputState, Snapshot

__all__ = [
    "DecisionChange",
    "Diff",
    "FieldChange",
    "NodeChange",
    "OutputChange",
    "TimeChange",
    "diff",
    "diff_files",
]

_FIELDS: Mapping[str, Callable[[NodeState], str]] = {
    "engine": lambda n: n.engine,
    "device": lambda n: n.device,
    "kernel": lambda n: n.kernel,
    "precision": lambda n: n.precision,
}
"""The fields of a node that are compared. Regions are compared by their nodes."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a node or of a file: its name, the old and the new value."""

    field: str
    old: str
    new: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"field": self.field, "old": self.old, "new": self.new}

    def __str__(self) -> str:
        return f"{self.field} {self.old or 'none'} -> {self.new or 'none'}"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The changes of one node. together: further nodes that one kernel computes with it, and that changed in the same way."""

    name: str
    op: str
    family: str
    fields: tuple[FieldChange, ...]
    together: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the node and those that changed with it."""
        return (self.name, *self.together)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "op": self.op,
            "family": self.family,
            "together": list(self.together),
            "fields": [f.to_json() for f in self.fields],
        }


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """A decision with another choice. ``nothing``: no candidate was usable; empty: the file has no such decision."""

    question: str
    subject: str
    old: str
    new: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"question": self.question, "subject": self.subject, "old": self.old, "new": self.new}


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Two measured times in microseconds. spread_us: the larger of the two spreads; None if they were not recorded.

    runs: the smaller number of runs that a time rests on.
    """

    name: str
    old_us: float
    new_us: float
    spread_us: float | None
    runs: int

    @property
    def within_spread(self) -> bool | None:
        """Return True if the difference is not larger than the spread; None if that is not known."""
        return None if self.spread_us is None else abs(self.new_us - self.old_us) <= self.spread_us

    @property
    def ratio(self) -> float:
        """Return new / old."""
        return self.new_us / self.old_us if self.old_us else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "old_us": self.old_us,
            "new_us": self.new_us,
            "difference_us": self.new_us - self.old_us,
            "spread_us": self.spread_us,
            "within_spread": self.within_spread,
            "runs": self.runs,
        }

    def __str__(self) -> str:
        change = f"{self.old_us:.1f} us -> {self.new_us:.1f} us ({self.new_us - self.old_us:+.1f} us"
        if self.old_us:
            change += f", {self.ratio - 1:+.1%}"
        known = "unknown spread" if self.spread_us is None else f"spread {self.spread_us:.1f} us"
        return f"{change}; {known}, {self.runs} runs)"


@dataclass(frozen=True, slots=True)
class OutputChange:
    """One output that both files recorded. max_abs: largest difference of an element, if all elements are recorded, else None."""

    name: str
    equal_bits: bool
    fields: tuple[FieldChange, ...] = ()
    max_abs: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "equal_bits": self.equal_bits,
            "max_abs": self.max_abs,
            "fields": [f.to_json() for f in self.fields],
        }


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences from file ``a`` to file ``b``, both of one kind.

    model:      the digests of two different models; empty for the same one.
    changed:    nodes of both that run in another way. removed, added: names of nodes that only one of them has.
    new_transfers, vanished_transfers: copies between regions.
    facts:      versions and other facts that differ. time: of a whole run. times: of the nodes whose time both measured.
    memory:     bytes of both if they differ. outputs: recorded outputs of equal inputs. notes: what could not be compared, and why.
    """

    kind: str
    a: str
    b: str
    model: tuple[FieldChange, ...] = ()
    changed: tuple[NodeChange, ...] = ()
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    new_transfers: tuple[Transfer, ...] = ()
    vanished_transfers: tuple[Transfer, ...] = ()
    decisions: tuple[DecisionChange, ...] = ()
    facts: tuple[FieldChange, ...] = ()
    time: TimeChange | None = None
    times: tuple[TimeChange, ...] = ()
    memory: tuple[int, int] | None = None
    outputs: tuple[OutputChange, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Return True if nothing differs except measured times."""
        return not any(
            (
                self.model,
                self.changed,
                self.removed,
                self.added,
                self.new_transfers,
                self.vanished_transfers,
                self.decisions,
                self.facts,
                self.memory,
                [o for o in self.outputs if not o.equal_bits],
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "format": "xpuruntime-diff",
            "version": 1,
            "kind": self.kind,
            "a": self.a,
            "b": self.b,
            "empty": self.empty,
            "model": [f.to_json() for f in self.model],
            "nodes": [c.to_json() for c in self.changed],
            "removed": list(self.removed),
            "added": list(self.added),
            "new_transfers": [_transfer_json(t) for t in self.new_transfers],
            "vanished_transfers": [_transfer_json(t) for t in self.vanished_transfers],
            "decisions": [d.to_json() for d in self.decisions],
            "facts": [f.to_json() for f in self.facts],
            "time": None if self.time is None else self.time.to_json(),
            "node_times": [t.to_json() for t in self.times],
            "memory": None if self.memory is None else {"old": self.memory[0], "new": self.memory[1]},
            "outputs": [o.to_json() for o in self.outputs],
            "notes": list(self.notes),
        }


def diff_files(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Diff:
    """Compare two files of one kind. Raises FormatError for a file of another format, InputError for two kinds."""
    return diff(read_snapshot(a), read_snapshot(b))


def diff(a: Snapshot, b: Snapshot) -> Diff:
    """Compare two snapshots of one kind. Raises InputError for two kinds."""
    if a.kind != b.kind:
        raise InputError(
            "diff",
            "compares two files of one kind",
            got=f"a {a.kind} ({a.name}) and a {b.kind} ({b.name})",
            do="Give two plans, two receipts, two programs or two locks.",
        )
    old, new = {n.name: n for n in a.nodes}, {n.name: n for n in b.nodes}
    notes: list[str] = []
    fields = [f for f in _FIELDS if _known(f, a, b, notes)]
    removed, added = [n for n in old if n not in new], [n for n in new if n not in old]
    if removed and added and _ops(old, removed) == _ops(new, added):
        notes.append(
            "the removed and the added nodes have the same ops: they may be renamed, which is not guessed"
        )
    outputs: tuple[OutputChange, ...] = ()
    if a.outputs and b.outputs:
        if a.inputs == b.inputs:
            outputs = _outputs(a.outputs, b.outputs)
        else:
            notes.append("outputs are not compared: the recorded runs had different inputs")
    memory = (a.memory_bytes, b.memory_bytes)
    return Diff(
        a.kind,
        a.name,
        b.name,
        () if a.model_digest == b.model_digest else _model(a, b),
        _changed(old, new, fields),
        tuple(removed),
        tuple(added),
        _only_in(b.transfers, a.transfers),
        _only_in(a.transfers, b.transfers),
        _decisions(a.decisions, b.decisions),
        tuple(
            FieldChange(k, a.facts.get(k, ""), b.facts.get(k, ""))
            for k in dict.fromkeys((*a.facts, *b.facts))
            if a.facts.get(k) != b.facts.get(k)
        ),
        _total(a, b),
        _times(a, b),
        (memory[0], memory[1])
        if memory[0] != memory[1] and memory[0] is not None and memory[1] is not None
        else None,
        outputs,
        tuple(notes),
    )


def _model(a: Snapshot, b: Snapshot) -> tuple[FieldChange, ...]:
    names = (FieldChange("model", a.model, b.model),) if a.model != b.model else ()
    return (*names, FieldChange("model digest", a.model_digest, b.model_digest))


def _known(field: str, a: Snapshot, b: Snapshot, notes: list[str]) -> bool:
    """Return True if both files say something about a field of nodes. If only one does, add a note."""
    says = [any(_FIELDS[field](n) for n in s.nodes) for s in (a, b)]
    if says[0] != says[1] and a.nodes and b.nodes:
        silent = (a if not says[0] else b).name
        notes.append(f"{field}s are not compared: {silent} does not say them")
    return all(says)


def _ops(nodes: Mapping[str, NodeState], names: Iterable[str]) -> Counter[str]:
    return Counter(nodes[n].op for n in names)


# ── nodes ──


def _changed(
    old: Mapping[str, NodeState], new: Mapping[str, NodeState], fields: Sequence[str]
) -> tuple[NodeChange, ...]:
    """Return the changed nodes. Those that one kernel computes together, before and after, and that changed alike are one entry."""
    image = _region_image(old, new)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            continue
        changes = [
            FieldChange(f, _FIELDS[f](before), _FIELDS[f](after))
            for f in fields
            if _FIELDS[f](before) != _FIELDS[f](after)
        ]
        if image.get(before.region, after.region) != after.region:
            changes.append(FieldChange("region", before.region, after.region))
        if changes:
            together = before.group if len(before.group) > 1 and before.group == after.group else (name,)
            groups.setdefault((together, tuple(changes)), []).append(name)
    result = []
    for (_, changes), names in groups.items():
        first = _anchor([new[n] for n in names])
        others = tuple(n for n in names if n != first.name)
        result.append(NodeChange(first.name, first.op, first.family, tuple(changes), others))
    return tuple(result)


def _anchor(nodes: Sequence[NodeState]) -> NodeState:
    """Return the node that the kernel is named after, else the first."""
    return next((n for n in nodes if n.kernel.startswith(f"{n.family}/")), nodes[0])


def _region_image(old: Mapping[str, NodeState], new: Mapping[str, NodeState]) -> dict[str, str]:
    """Return the new id of each region: the one with which it shares most nodes. Regions are numbered anew whenever one is added."""
    shared = Counter((n.region, new[name].region) for name, n in old.items() if name in new)
    image: dict[str, str] = {}
    for (before, after), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if before not in image and after not in image.values():
            image[before] = after
    return image


# ── the rest ──


def _only_in(these: Sequence[Transfer], others: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """Return the copies that the other file lacks. Regions are compared by nothing but their ids, values by name."""
    known = {(t.value, t.destination == "caller", t.source == "caller") for t in others if not t.shared}
    return tuple(
        t
        for t in these
        if not t.shared and (t.value, t.destination == "caller", t.source == "caller") not in known
    )


def _transfer_json(transfer: Transfer) -> dict[str, Any]:
    return asdict(transfer)


def _decisions(
    old: Mapping[tuple[str, str], tuple[str, str]], new: Mapping[tuple[str, str], tuple[str, str]]
) -> tuple[DecisionChange, ...]:
    changes = []
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key, ("", ""))[0], new.get(key, ("", ""))[0]
        if before != after:
            changes.append(DecisionChange(*key, before, after))
    return tuple(changes)


def _total(a: Snapshot, b: Snapshot) -> TimeChange | None:
    if a.time_us is None or b.time_us is None:
        return None
    return TimeChange("run", a.time_us, b.time_us, _larger(a.spread_us, b.spread_us), _runs(a, b))


def _times(a: Snapshot, b: Snapshot) -> tuple[TimeChange, ...]:
    """Return the times of the groups of nodes that both files measured, largest difference first."""
    old: dict[tuple[str, ...], list[NodeState]] = {}
    for node in a.nodes:
        if node.time_us is not None:
            old.setdefault(node.group, []).append(node)
    new = {n.group: n for n in b.nodes if n.time_us is not None}
    changes = []
    for group, nodes in old.items():
        before, after = _anchor(nodes), new.get(group)
        if after is not None and before.time_us is not None and after.time_us is not None:
            spread = _larger(before.spread_us, after.spread_us)
            changes.append(TimeChange(before.name, before.time_us, after.time_us, spread, _runs(a, b)))
    return tuple(sorted(changes, key=lambda t: -abs(t.new_us - t.old_us)))


def _larger(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)


def _runs(a: Snapshot, b: Snapshot) -> int:
    return min(a.timed_runs, b.timed_runs)


def _outputs(old: Sequence[OutputState], new: Sequence[OutputState]) -> tuple[OutputChange, ...]:
    by_name = {o.name: o for o in new}
    changes = []
    for before in old:
        after = by_name.get(before.name)
        if after is None:
            continue
        equal = before.digest == after.digest
        fields = [
            FieldChange(name, str(x), str(y))
            for name, x, y in (
                ("spec", before.spec, after.spec),
                ("min", before.minimum, after.minimum),
                ("max", before.maximum, after.maximum),
                ("mean", before.mean, after.mean),
                ("not_finite", before.not_finite, after.not_finite),
            )
            if x != y
        ]
        changes.append(OutputChange(before.name, equal, tuple(fields), _max_abs(before, after)))
    return tuple(changes)


def _max_abs(a: OutputState, b: OutputState) -> float | None:
    """Return the largest difference of recorded elements; None if they are not recorded, or not finite numbers."""
    if a.values is None or b.values is None or len(a.values) != len(b.values) or a.spec != b.spec:
        return None
    numbers = [*a.values, *b.values]
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in numbers):
        return None
    return max((abs(x - y) for x, y in zip(a.values, b.values, strict=True)), default=0.0)
