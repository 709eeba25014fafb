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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SeenKernel:
        """Build the value from ``to_json``'s data. Raises ValueError for fields of other types, KeyError."""
        grid, block = (tuple(map(_count, data[k])) for k in ("grid", "block"))
        registers, shared, size = (_count(data[k]) for k in ("registers", "shared_bytes", "bytes"))
        times = (_number(data[k]) or 0.0 for k in ("time_us", "start_us"))
        return cls(_text(data["name"]), grid, block, registers, shared, size, *times)

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalledCode:
        """Build the value from ``to_json``'s data. Raises ValueError for fields of other types, KeyError."""
        return cls(*(_text(data[k]) for k in cls.__slots__))


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One step that a vendor reports: the source nodes it computes, the device, the kernel, the time.

    kernel:    the vendor's name of the implementation (provider, JIT primitive, tactic).
    precision: the precision that the vendor reports; empty if it reports none.
    time_us:   microseconds per run (median over the profiled runs); None if not measured.
    seen:      the activities that the device's driver recorded for the step, if it records any.
    activations, weights: element types of the two operands of a convolution or matrix product, as the vendor reports them; empty for
               other steps, and if the vendor reports none.
    spread_us: the largest minus the smallest time of the profiled runs; None if the engine reports one number.
    code:      the function that the step calls, if the engine can read it from memory.
    flops, bytes: arithmetic operations and minimum memory traffic of the step; 0 if the engine does not report them.
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
    spread_us: float | None = None
    code: CalledCode | None = None
    flops: int = 0
    bytes: int = 0

    @property
    def in_integers(self) -> bool:
        """True for a product of two integer operands."""
        return bool(self.weights) and all("int" in t for t in (self.activations, self.weights))

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ``seen``, ``activations``, ``weights``, ``spread_us``, ``code``, ``flops`` and ``bytes`` are left out when empty."""
        data = {k: getattr(self, k) for k in ("nodes", "op", "device", "kernel", "precision", "time_us")}
        data["nodes"] = list(self.nodes)
        data |= {k: v for k in ("activations", "weights", "flops", "bytes") if (v := getattr(self, k))}
        data |= {} if self.spread_us is None else {"spread_us": self.spread_us}
        data |= {"seen": [s.to_json() for s in self.seen]} if self.seen else {}
        return data | ({} if self.code is None else {"code": self.code.to_json()})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvidenceRow:
        """Build the value from ``to_json``'s data. Raises ValueError for fields of other types, KeyError."""
        op, device, kernel, precision = (_text(data[k]) for k in ("op", "device", "kernel", "precision"))
        return cls(
            _texts(data["nodes"]),
            op,
            device,
            kernel,
            precision,
            _number(data["time_us"]),
            tuple(map(SeenKernel.from_json, data.get("seen", ()))),
            _text(data.get("activations", "")),
            _text(data.get("weights", "")),
            _number(data.get("spread_us")),
            CalledCode.from_json(data["code"]) if "code" in data else None,
            *(_count(data.get(k, 0)) for k in ("flops", "bytes")),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """A vendor's report of one session's work, and the origin of its facts.

    placement_source: ``session`` if the session itself reports the placement.
    time_source:      ``profiled twin`` if a second, profiled session was timed; empty without times.
    fallbacks:        deviations of the vendor from the request, one sentence each.
    options:          options as the vendor reports them, not as they were requested.
    timed_runs:       number of runs that each time rests on; 0 without times.
    explained:        nodes that no step names, and what became of each: computed when loading, removed, part of another step.
    binaries:         the executable code of whole binaries, if the engine can read it from memory.
    transfers:        copies since the session was opened, where they happen: ``h2d``, ``d2h`` and ``p2p`` (from GPU to GPU), with ``_bytes``;
                      ``inner_h2d``, ``inner_d2h`` and ``inner_p2p`` (of values inside the model); ``waits`` (of the host for the device). Empty if
                      nothing was copied or reported.
    """

    engine: str
    version: str
    rows: tuple[EvidenceRow, ...]
    placement_source: str
    time_source: str = ""
    fallbacks: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    timed_runs: int = 0
    explained: Mapping[str, str] = field(default_factory=dict)
    binaries: tuple[CalledCode, ...] = ()
    transfers: Mapping[str, int] = field(default_factory=dict)

    @property
    def times_from(self) -> str:
        """Return the source of the times with its article: ``a profiled twin, ...``, ``this session, ...``."""
        return self.time_source if self.time_source.startswith("this ") else f"a {self.time_source}"

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
            "timed_runs": self.timed_runs,
            "rows": [r.to_json() for r in self.rows],
            "explained": dict(self.explained),
            "binaries": [b.to_json() for b in self.binaries],
            "transfers": dict(self.transfers),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """Build the value from ``to_json``'s data. Raises ValueError for fields of other types, KeyError."""
        words = {k: _text(data[k]) for k in ("engine", "version", "placement_source", "time_source")}
        options = data["options"]
        if not isinstance(options, Mapping):
            raise ValueError("options must be an object")
        return cls(
            rows=tuple(map(EvidenceRow.from_json, data["rows"])),
            fallbacks=_texts(data["fallbacks"]),
            options={str(k): _text(v) for k, v in options.items()},
            notes=_texts(data["notes"]),
            timed_runs=_count(data.get("timed_runs", 0)),
            explained={str(k): _text(v) for k, v in dict(data.get("explained", {})).items()},
            binaries=tuple(map(CalledCode.from_json, data.get("binaries", ()))),
            transfers={str(k): _count(v) for k, v in dict(data.get("transfers", {})).items()},
            **words,
        )


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"must be text, not {type(value).__name__}")
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"must be a list of texts, not {type(values).__name__}")
    return tuple(map(_text, values))


def _count(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"must be a whole number, not {type(value).__name__}")
    return value


def _number(value: object) -> float | None:
    """Return a finite number as a float; None stays."""
    if value is None:
        return None
    if type(value) not in (int, float) or not -1e300 < value < 1e300:  # type: ignore[operator]
        raise ValueError(f"must be a finite number, not {str(value)[:40]}")
    return float(value)  # type: ignore[arg-type]
