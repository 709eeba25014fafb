"""Measured placements of a model's nodes on several engines, as ``xpu tune --regions`` writes them into a file of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PlacementTimes"]


@dataclass(frozen=True, slots=True)
class PlacementTimes:
    """Whole runs of a model on single engines and on mixes of them, measured in alternating rounds.

    model: digest of the model. place: entries of ``place`` that every mix honors. times_us: median by engine and by mix. nodes: of each mix, the
    nodes by engine. versions: by engine. intervals_us: 95% interval of the median. rounds: alternating rounds.
    """

    model: str
    shapes: Mapping[str, int]
    place: Mapping[str, str]
    times_us: Mapping[str, float]
    nodes: Mapping[str, Mapping[str, Sequence[str]]] = field(repr=False)
    versions: Mapping[str, str]
    intervals_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rounds: int = 0

    def homes(self, mix: str) -> dict[str, str]:
        """Return the engine of each node of a mix."""
        return {node: engine for engine, nodes in self.nodes[mix].items() for node in nodes}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "shapes": dict(self.shapes),
            "place": dict(self.place),
            "times_us": dict(self.times_us),
            "nodes": {mix: {e: list(n) for e, n in own.items()} for mix, own in self.nodes.items()},
            "versions": dict(self.versions),
            "intervals_us": {k: list(v) for k, v in self.intervals_us.items()},
            "rounds": self.rounds,
        }
