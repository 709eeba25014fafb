"""The result of a bisection."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..values.statistics import DifferenceStatistics

__all__ = ["Bisection", "FaultyNode", "Reproduction"]


@dataclass(frozen=True, slots=True)
class FaultyNode:
    """The node whose result differs although its inputs agree.

    value:   name of its result. nodes, ops: the nodes that compute it from values that agree; several if an engine fuses them.
    kernels: the kernel of each side, empty if the engine does not report it.
    module, file, line: where the model's source computes it, if the model records that.
    """

    value: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    kernels: tuple[str, str]
    statistics: DifferenceStatistics
    tolerance: float
    module: str = ""
    file: str = ""
    line: int = 0

    @property
    def reason(self) -> str:
        """Return the difference in words."""
        return self.statistics.reason(self.tolerance)

    @property
    def source(self) -> str:
        """Return the location in the model's source, as one clause; empty if unknown."""
        position = f"{self.file}:{self.line}" if self.file else ""
        return " in ".join(text for text in (position, self.module) if text)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "value": self.value,
            "nodes": list(self.nodes),
            "ops": list(self.ops),
            "kernels": list(self.kernels),
            "tolerance": self.tolerance,
            "reason": self.reason,
            "module": self.module,
            "file": self.file,
            "line": self.line,
            "difference": self.statistics.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A folder with everything that repeats the difference alone.

    scope:   ``node`` (the node alone), ``prefix`` (the model up to the node) or ``model``.
    fails:   True if a fresh process showed the difference; False if it did not; None if it was not tried.
    command: the command that repeats it in the folder.
    """

    folder: Path
    scope: str
    fails: bool | None
    command: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"folder": str(self.folder), "scope": self.scope, "fails": self.fails, "command": self.command}


@dataclass(frozen=True, slots=True)
class Bisection:
    """The two sides, and where they differ.

    node:    None if the outputs agree, or if the difference is in a policy whose effect on values was not searched.
    changes: the smallest set of policy changes that makes the outputs differ; empty for a search over values alone.
    values:  number of values that can be read on both sides.
    runs:    runs of both sides together in the search over values. bound: their maximum.
    trials:  sessions opened in the search over policies.
    """

    actual: str
    reference: str
    differs: bool
    node: FaultyNode | None = None
    changes: tuple[str, ...] = ()
    values: int = 0
    runs: int = 0
    bound: int = 0
    trials: int = 0
    reproduction: Reproduction | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Return True if the sides agree."""
        return not self.differs

    @property
    def sentence(self) -> str:
        """Return the answer in words."""
        if not self.differs:
            return f"{self.actual} and {self.reference} agree"
        text = f"{self.actual} differs from {self.reference}"
        if self.changes:
            text += f" by {' and '.join(self.changes)}"
        if self.node is not None:
            names = ", ".join(map(repr, self.node.nodes)) or repr(self.node.value)
            kind = "nodes" if len(self.node.nodes) > 1 else "node"
            text += f", first at {kind} {names} ({'+'.join(self.node.ops)})"
            text += f" from {self.node.source}" if self.node.source else ""
            text += f": {self.node.reason}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "answer": self.sentence,
            "actual": self.actual,
            "reference": self.reference,
            "node": None if self.node is None else self.node.to_json(),
            "changes": list(self.changes),
            "values": self.values,
            "runs": self.runs,
            "bound": self.bound,
            "trials": self.trials,
            "reproduction": None if self.reproduction is None else self.reproduction.to_json(),
            "notes": list(self.notes),
        }
