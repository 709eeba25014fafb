"""A vendor's report of what ran: steps, devices, kernels, times, and where each fact comes from. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CalledCode", "Evidence", "EvidenceRow", "SeenKernel"]


@dataclass(frozen=True, slots=True)
class SeenKernel:
    """One activity that a device's driver recorded: a kernel, or a copy or fill (without a grid).

    name:         the demangled function name. grid: number of blocks; block: threads per block.
    registers:    per thread; shared_bytes: per block; bytes: of a copy or a fill.
    time_us:      duration in that one run, by the device's clock; start_us: start relative to the run's first activity.
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
        """Return plain data."""
        return {k: list(v) if isinstance(v := getattr(self, k), tuple) else v for k in self.__slots__}

    def __str__(self) -> str:
        sizes = f"{self.bytes} bytes"
        if any(self.grid):
            grid, block = ("x".join(map(str, s)) for s in (self.grid, self.block))
            sizes = f"{grid} of {block}, {self.registers} registers, {self.shared_bytes} bytes shared"
        return f"{self.name} ({sizes}) {self.time_us:.1f} us"


@dataclass(frozen=True, slots=True)
class CalledCode:
    """Machine code that a run executes, read from memory, next to what the program holds.

    name, digest:      as called: the loader's name of the function's address, and sha256 of the bytes there.
    planned, expected: as planned: the function's name, and sha256 of its bytes in the program.
    A whole binary has the name of its target, and the digest of its executable code.
    """

    name: str
    digest: str
    planned: str
    expected: str

    @property
    def same(self) -> bool:
        """True if the program's own code is called."""
        return self.name == self.planned and self.digest == self.expected

    @property
    def text(self) -> str:
        """The difference, as one clause; empty if there is none."""
        if self.name != self.planned:
            return f"{self.name} was called instead of {self.planned}"
        if self.digest != self.expected:
            return f"the code of {self.name} is {self.digest[:12]} in memory and {self.expected[:12]} in the program"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {k: getattr(self, k) for k in self.__slots__}


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One step that a vendor reports: the source nodes it computes, the device, the kernel, the time.

    kernel:    the vendor's name of the implementation (provider, JIT primitive, tactic).
    precision: the precision that the vendor reports; empty if it reports none.
    time_us:   microseconds per run (median over the profiled runs); None if not measured.
    seen:      the activities that the device's driver recorded for the step, if it records any.
    activations, weights: element types of the two operands of a convolution or matrix product, as the vendor reports them; empty for
               other steps, and if the vendor reports none.
    code:      the function that the step calls, if the engine can read it from memory.
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
    code: CalledCode | None = None

    @property
    def in_integers(self) -> bool:
        """True for a product of two integer operands."""
        return bool(self.weights) and all("int" in t for t in (self.activations, self.weights))

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ``seen``, ``activations``, ``weights`` and ``code`` are left out when empty."""
        data = {k: getattr(self, k) for k in ("nodes", "op", "device", "kernel", "precision", "time_us")}
        data["nodes"] = list(self.nodes)
        data |= {k: v for k in ("activations", "weights") if (v := getattr(self, k))}
        data |= {"seen": [s.to_json() for s in self.seen]} if self.seen else {}
        return data | ({} if self.code is None else {"code": self.code.to_json()})


@dataclass(frozen=True, slots=True)
class Evidence:
    """A vendor's report of one session's work, and the origin of its facts.

    placement_source: ``session`` if the session itself reports the placement.
    time_source:      ``profiled twin`` if a second, profiled session was timed; empty without times.
    fallbacks:        deviations of the vendor from the request, one sentence each.
    options:          options as the vendor reports them, not as they were requested.
    explained:        nodes that no step names, and what became of each: computed when loading, removed, part of another step.
    binaries:         the executable code of whole binaries, if the engine can read it from memory.
    """

    engine: str
    version: str
    rows: tuple[EvidenceRow, ...]
    placement_source: str
    time_source: str = ""
    fallbacks: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explained: Mapping[str, str] = field(default_factory=dict)
    binaries: tuple[CalledCode, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "engine": self.engine,
            "version": self.version,
            "placement_source": self.placement_source,
            "time_source": self.time_source,
            "fallbacks": list(self.fallbacks),
            "options": dict(self.options),
            "notes": list(self.notes),
            "rows": [r.to_json() for r in self.rows],
            "explained": dict(self.explained),
            "binaries": [b.to_json() for b in self.binaries],
        }
