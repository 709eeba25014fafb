"""What a vendor says ran: the steps, where, by which kernel, how long, and how that was learned. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Evidence", "EvidenceRow", "SeenKernel"]


@dataclass(frozen=True, slots=True)
class SeenKernel:
    """One piece of work that a device's driver recorded: a kernel, or a copy or fill (then without a grid).

    name:         the function's, as its author wrote it. grid: blocks; block: threads of each.
    registers:    of a thread; shared_bytes: of a block; bytes: of a copy or a fill.
    time_us:      by the device's clock, in that one run; start_us: when it began, after the first of the run.
    """

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    shared_bytes: int = 0
    bytes: int = 0
    time_us: float = 0.0
    start_us: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {k: list(v) if isinstance(v := getattr(self, k), tuple) else v for k in self.__slots__}

    def __str__(self) -> str:
        sizes = f"{self.bytes} bytes"
        if any(self.grid):
            grid, block = ("x".join(map(str, s)) for s in (self.grid, self.block))
            sizes = f"{grid} of {block}, {self.registers} registers, {self.shared_bytes} bytes shared"
        return f"{self.name} ({sizes}) {self.time_us:.1f} us"


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One step that a vendor says it ran: which source nodes it computes, where, by which kernel, how long.

    kernel:    the vendor's own name of the implementation (provider, JIT primitive, tactic).
    precision: the precision it computed in, as the vendor says; empty where the vendor does not say.
    time_us:   microseconds per run (median over the profiled runs), None where not measured.
    seen:      what the device's driver recorded for it, where it keeps a record.
    activations, weights: element types of the two operands of a convolution or matrix product, as the vendor says; empty for other steps,
               and where the vendor does not say.
    """

    nodes: tuple[str, ...]
    op: str
    device: str
    kernel: str
    precision: str = ""
    time_us: float | None = None
    seen: tuple[SeenKernel, ...] = ()
    activations: str = ""
    weights: str = ""

    @property
    def in_integers(self) -> bool:
        """True for a product of two integer operands."""
        return bool(self.weights) and all("int" in t for t in (self.activations, self.weights))

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``seen``, ``activations`` and ``weights`` only where there are any."""
        made = {k: getattr(self, k) for k in ("nodes", "op", "device", "kernel", "precision", "time_us")}
        made["nodes"] = list(self.nodes)
        made |= {k: v for k in ("activations", "weights") if (v := getattr(self, k))}
        return made | ({"seen": [s.to_json() for s in self.seen]} if self.seen else {})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a vendor says ran, and how it was learned.

    placement_source: ``session`` when it comes from the very session that runs.
    time_source:      ``profiled twin`` when a second, profiled session was timed; empty without times.
    fallbacks:        places where the vendor used something else than what was asked for, one sentence each.
    options:          options as the vendor reports them back, not as they were asked for.
    """

    engine: str
    version: str
    rows: tuple[EvidenceRow, ...]
    placement_source: str
    time_source: str = ""
    fallbacks: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "engine": self.engine,
            "version": self.version,
            "placement_source": self.placement_source,
            "time_source": self.time_source,
            "fallbacks": list(self.fallbacks),
            "options": dict(self.options),
            "notes": list(self.notes),
            "rows": [r.to_json() for r in self.rows],
        }
