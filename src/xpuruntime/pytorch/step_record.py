"""A record of a training step: the ops that ran, forward and backward, their kernels, and why PyTorch's own operators ran instead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..printable import line

if TYPE_CHECKING:
    from .programs import Prepared

__all__ = ["StepRecord", "note", "note_skipped", "record"]


class StepRecord:
    """The ops of a step in the order of their calls. ``str(record)`` is a table, ``to_json`` plain data."""

    def __init__(self) -> None:
        self.prepared: list[Prepared] = []
        self.skipped: Counter[str] = Counter()
        self.skip_reasons: dict[str, str] = {}

    def ops(self, phase: str = "") -> list[str]:
        """Return the names of the ops that ran, of one phase or of both."""
        return [p.op for p in self.prepared if not phase or p.phase == phase]

    def kernels(self, phase: str = "") -> list[str]:
        """Return the kernels that ran, as ``family/kernel: function``."""
        return [k for p in self.prepared if not phase or p.phase == phase for k in p.kernels]

    @property
    def fallbacks(self) -> dict[str, str]:
        """Return the reason for each op that ran on PyTorch's own operator."""
        reasons = {f"{p.op} ({p.phase})": p.support.reason for p in self.prepared if not p.support}
        return reasons | self.skip_reasons

    def to_json(self) -> dict[str, Any]:
        """Return plain data: one entry per distinct op, phase and kernels, with the number of calls."""
        counts = Counter(id(p) for p in self.prepared)
        distinct = {id(p): p for p in self.prepared}
        return {
            "ops": [
                {
                    "op": p.op,
                    "phase": p.phase,
                    "calls": counts[key],
                    "kernels": list(p.kernels),
                    "reason": p.support.reason,
                    "decisions": [d.to_json() for d in p.decisions],
                }
                for key, p in distinct.items()
            ],
            "skipped": dict(self.skipped),
            "skip_reasons": dict(self.skip_reasons),
        }

    def __str__(self) -> str:
        lines = []
        for entry in self.to_json()["ops"]:
            how = ", ".join(entry["kernels"]) or f"PyTorch's own operator: {entry['reason']}"
            lines.append(f"{entry['phase']:15} {entry['calls']:5} x {entry['op']:25} {line(how)}")
        for name, count in self.skipped.items():
            lines.append(f"{'':15} {count:5} x {name:25} PyTorch's own operator: {self.skip_reasons[name]}")
        return "\n".join(lines)


_LOCK = threading.Lock()
_active: tuple[StepRecord, ...] = ()


def note(prepared: Prepared) -> None:
    """Add a call to every open record. A record receives the calls of all threads, since autograd runs backward in its own threads."""
    for each in _active:
        each.prepared.append(prepared)


def note_skipped(function: Any, family: str, reason: str) -> None:
    """Add a call that PyTorch's own operators compute although the policy names its op family.

    function: PyTorch's function, or the name of an op. reason: why no op of this package takes the call.
    """
    for each in _active:
        name = f"{getattr(function, '__name__', str(function))} ({family})"
        each.skipped[name] += 1
        each.skip_reasons[name] = reason


@contextmanager
def record() -> Iterator[StepRecord]:
    """Record the ops that run inside the block, in any thread.

    >>> with record() as step:
    ...     loss = model(x).sum()
    ...     loss.backward()
    >>> print(step)
    """
    global _active
    mine = StepRecord()
    with _LOCK:
        _active = (*_active, mine)
    try:
        yield mine
    finally:
        with _LOCK:
            _active = tuple(r for r in _active if r is not mine)
