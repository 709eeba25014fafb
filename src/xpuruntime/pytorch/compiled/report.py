"""What PyTorch's graphs became: regions, and the nodes that stay with PyTorch, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CompiledGraphReport", "compiled_graphs", "forget_graphs", "remember_graph"]

_MOST = 256


@dataclass(frozen=True, slots=True)
class CompiledGraphReport:
    """One graph of PyTorch's compiler.

    phase:   ``train_forward``, ``train_backward`` or ``inference``.
    regions: number of regions. taken: nodes in them.
    left:    node that stays with PyTorch -> the reason.
    """

    name: str
    phase: str
    regions: int
    taken: int
    left: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.name} ({self.phase}): {self.taken} ops in {self.regions} regions, {len(self.left)} with PyTorch"
        ]
        return "\n".join([*lines, *(f"  {node}: {reason}" for node, reason in self.left.items())])

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "phase": self.phase,
            "regions": self.regions,
            "taken": self.taken,
            "left": dict(self.left),
        }


_graphs: list[CompiledGraphReport] = []


def compiled_graphs() -> tuple[CompiledGraphReport, ...]:
    """Return the graphs that ``torch.compile(backend="xpuruntime")`` compiled in this process, the latest last (at most 256)."""
    return tuple(_graphs)


def remember_graph(report: CompiledGraphReport) -> None:
    """Add a report."""
    _graphs.append(report)
    del _graphs[:-_MOST]


def forget_graphs() -> None:
    """Drop all reports."""
    _graphs.clear()
