"""Reports of compiled graphs: regions, and the nodes that stay with PyTorch, each with a reason."""

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
    losses:  cross entropy -> how its logits are computed: fused with their layer, or why they are stored.
    saved:   values that forward keeps for backward -> their bytes; without parameters and inputs.
    """

    name: str
    phase: str
    regions: int
    taken: int
    left: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.name} ({self.phase}): {self.taken} ops in {self.regions} regions, {len(self.left)} with PyTorch"
        ]
        if self.saved:
            lines.append(
                f"  {sum(self.saved.values())} bytes in {len(self.saved)} values are kept for backward"
            )
        return "\n".join(
            [*lines, *(f"  {node}: {text}" for node, text in (*self.losses.items(), *self.left.items()))]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "phase": self.phase,
            "regions": self.regions,
            "taken": self.taken,
            "left": dict(self.left),
            "losses": dict(self.losses),
            "saved": dict(self.saved),
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
