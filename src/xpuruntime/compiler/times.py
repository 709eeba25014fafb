"""Kernel times: measured times of kernels by call, in a file that ``compile`` reads and ``xpu tune`` writes.

A file has what was measured on one target (instruction set) with one number of threads::

    {"format": "xpuruntime kernel times", "version": 1, "target": "cpu:x86-64-v4", "threads": 2,
     "calls": {"9f86d081884c7d65": {"times_us": {"gemv": 11.5, "generated": 14.0}}}}

A call is identified by ``call_key``: op, attributes, operands and results with their layouts. Times decide only if the policy names no kernel
and every usable kernel of the call was measured (``policies.choose``).

The other fields are optional and decide nothing: ``facts`` (device, versions, model), and for each call its ``op``, its ``nodes``,
``intervals_us`` (a 95% interval by kernel) and ``rounds``; ``runs`` has whole runs, from which the error of a prediction follows.
``engines`` has whole runs on several engines. They decide for a session with ``engine: auto`` (``inference.selection.engine_times``).
``placements`` has whole runs on mixes of engines. They decide for ``place: {"*": auto}`` (``inference.partitioned.placement_times``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import FormatError
from ..kernels.kernel import NodeCall, Operand
from ..storage.files import read_regular
from ..types import TensorSpec
from .placement_times import PlacementTimes

__all__ = ["CallDetail", "EngineTimes", "KernelTimes", "MeasuredRun", "call_key"]

FORMAT, VERSION = "xpuruntime kernel times", 1
_MAX_BYTES = 1 << 28
_NONE: Mapping[str, float] = MappingProxyType({})


def call_key(call: NodeCall) -> str:
    """Return 16 hexadecimal digits of the sha256 of all that determines a call's code: op, attributes, types, layouts, weights."""

    def text(spec: TensorSpec) -> str:
        layout = "" if spec.is_dense or spec.layout is None else f"{spec.layout.order}{spec.layout.alloc}"
        return f"{spec.dtype.value}{list(spec.shape)}{layout}"

    operands = [
        f"{'weight ' if o.is_weight else ''}{text(o.spec)}{'' if o.const is None else o.const}"
        if isinstance(o, Operand)
        else repr(o)
        for o in call.inputs
    ]
    parts = [call.op, str(call.attrs), *operands, "->", *map(text, call.outputs)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class CallDetail:
    """How a call was measured. intervals_us: 95% interval of the median by kernel. rounds: alternating rounds."""

    op: str = ""
    nodes: tuple[str, ...] = ()
    intervals_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rounds: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        intervals = {k: list(v) for k, v in self.intervals_us.items()}
        return {"op": self.op, "nodes": list(self.nodes), "intervals_us": intervals, "rounds": self.rounds}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A whole run of the tuned model for one set of sizes, in microseconds.

    predicted_us: the sum of the calls' times. tuned_us: measured with the fastest kernel of each call. default_us: measured with the kernels
    that are chosen without times. rounds: alternating rounds of the two.
    """

    shapes: Mapping[str, int]
    predicted_us: float
    tuned_us: float
    default_us: float
    rounds: int

    @property
    def error(self) -> float:
        """Return the calibration error: how far the prediction is from the measured time, as a share of the measured time."""
        return self.predicted_us / self.tuned_us - 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "shapes": dict(self.shapes),
            "predicted_us": self.predicted_us,
            "tuned_us": self.tuned_us,
            "default_us": self.default_us,
            "rounds": self.rounds,
        }


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Whole runs of a model on several engines for one set of sizes, measured in alternating rounds.

    model: digest of the model. times_us: median by engine; ``native`` with the fastest kernels. intervals_us: 95% interval of the median.
    versions: by engine. rounds: alternating rounds.
    """

    model: str
    shapes: Mapping[str, int]
    times_us: Mapping[str, float]
    versions: Mapping[str, str]
    intervals_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rounds: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "shapes": dict(self.shapes),
            "times_us": dict(self.times_us),
            "versions": dict(self.versions),
            "intervals_us": {k: list(v) for k, v in self.intervals_us.items()},
            "rounds": self.rounds,
        }


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Microseconds by call: ``calls[call_key(call)][kernel]``. Empty if nothing was measured.

    target, threads: those of the measurement. The times are not used for other targets.
    facts: device, versions, digests and model of the measurement. details: by call. runs: whole runs.
    engines: whole runs on several engines, if they were measured. placements: whole runs on mixes of engines, if they were measured.
    caveat: a clause that says what is different here; not part of the file.
    """

    target: str = ""
    threads: int = 0
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, CallDetail] = field(default_factory=dict)
    runs: tuple[MeasuredRun, ...] = ()
    engines: tuple[EngineTimes, ...] = ()
    placements: tuple[PlacementTimes, ...] = ()
    caveat: str = ""

    def compared(self, here: Mapping[str, str], threads: int | None = None) -> KernelTimes:
        """Return the times with a caveat that names each fact that is different here."""
        differ = [
            f"{name} is {value} here, {self.facts[name]} in the file"
            for name, value in here.items()
            if self.facts.get(name, value) != value
        ]
        if threads is not None and self.threads not in (0, threads):
            differ.append(f"threads are {threads} here, {self.threads} in the file")
        return replace(self, caveat="; ".join(differ))

    def of(self, call: NodeCall, target: str) -> Mapping[str, float]:
        """Return the times of a call by kernel (``gemv``); empty if it was not measured."""
        return self.calls.get(call_key(call), _NONE) if self.calls and target == self.target else _NONE

    @property
    def digest(self) -> str:
        """sha256 of the content; ``""`` if it is empty."""
        if not self.calls:
            return ""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def origin(self) -> str:
        """Return where the times were measured, as a clause."""
        device = self.facts.get("device", "a device that the file does not name")
        threads = f", {self.threads} thread{'s' if self.threads != 1 else ''}" if self.threads else ""
        return f"measured on {device} ({self.target}{threads})"

    @property
    def calibration(self) -> str:
        """Return how far predictions by these times are from measured runs, as a sentence."""
        if not self.runs:
            return "the file has no whole run, so the error of a prediction is unknown"
        worst = max(self.runs, key=lambda r: abs(r.error))
        sizes = ", ".join(f"{k}={v}" for k, v in worst.shapes.items())
        return (
            f"calibration error {100 * worst.error:+.1f}%: predicted {worst.predicted_us:.1f} us, measured {worst.tuned_us:.1f} us"
            f"{f' for {sizes}' if sizes else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            "threads": self.threads,
            "calls": {
                k: (self.details[k].to_json() if k in self.details else {}) | {"times_us": dict(v)}
                for k, v in sorted(self.calls.items())
            },
        }
        if self.facts:
            body["facts"] = dict(sorted(self.facts.items()))
        if self.runs:
            body["runs"] = [r.to_json() for r in self.runs]
        if self.engines:
            body["engines"] = [e.to_json() for e in self.engines]
        if self.placements:
            body["placements"] = [p.to_json() for p in self.placements]
        return body

    @classmethod
    def load(cls, source: KernelTimes | Mapping[str, Any] | str | os.PathLike[str] | None) -> KernelTimes:
        """Load from a file's path or its content. Raises FormatError."""
        if source is None:
            return cls()
        if isinstance(source, cls):
            return source
        who = "kernel times"
        data: Any = source
        if isinstance(source, str | os.PathLike):
            who = f"kernel times {Path(source).name!r}"
            try:
                data = json.loads(read_regular(source, _MAX_BYTES).decode("utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise FormatError(
                    who,
                    "cannot be read",
                    got=error,
                    do="Check the path, or measure again (xpu tune MODEL -o FILE).",
                ) from error
        if not isinstance(data, Mapping) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise FormatError(
                who,
                f'must be a file of format "{FORMAT}", version {VERSION}',
                got=f"{data.get('format')!r}, version {data.get('version')!r}"
                if isinstance(data, Mapping)
                else type(data).__name__,
                do="Measure again with this release.",
            )
        calls = data.get("calls")
        if not isinstance(data.get("target"), str) or not isinstance(calls, Mapping):
            raise FormatError(who, "has no target or no calls", do="Measure again with this release.")
        times = {str(key): _times(who, str(key), row) for key, row in calls.items()}
        threads = data.get("threads", 0)
        try:
            facts = {str(k): _text(v) for k, v in _object(data.get("facts", {})).items()}
            details = {str(k): _detail(row) for k, row in calls.items() if "intervals_us" in row}
            runs = tuple(map(_run, _items(data.get("runs", []))))
            engines = tuple(map(_engines, _items(data.get("engines", []))))
            placements = tuple(map(_placement, _items(data.get("placements", []))))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(
                who, "has a field that this release does not read", got=error, do="Measure again."
            ) from error
        return cls(
            data["target"],
            threads if type(threads) is int else 0,
            times,
            facts,
            details,
            runs,
            engines,
            placements,
        )


def _times(who: str, key: str, row: Any) -> dict[str, float]:
    times = row.get("times_us") if isinstance(row, Mapping) else None
    if not isinstance(times, Mapping):
        raise FormatError(who, f"call {key} has no times_us", got=row, do="Measure again.")
    for kernel, us in times.items():
        if type(us) not in (int, float) or not _is_time(us):
            raise FormatError(
                who,
                f"call {key}: the time of {kernel} must be a positive number",
                got=us,
                do="Measure again.",
            )
    return {str(k): float(v) for k, v in times.items()}


def _is_time(us: float) -> bool:
    try:
        return math.isfinite(us) and us > 0
    except OverflowError:  # a whole number beyond any float
        return False


def _detail(row: Mapping[str, Any]) -> CallDetail:
    intervals = {}
    for kernel, interval in _object(row["intervals_us"]).items():
        low, high = map(_number, _items(interval))
        intervals[str(kernel)] = (low, high)
    nodes = tuple(map(_text, _items(row.get("nodes", []))))
    return CallDetail(_text(row.get("op", "")), nodes, intervals, _count(row.get("rounds", 0)))


def _run(row: Any) -> MeasuredRun:
    shapes = {str(k): _count(v) for k, v in _object(_object(row)["shapes"]).items()}
    predicted, tuned, default = (_number(row[k]) for k in ("predicted_us", "tuned_us", "default_us"))
    return MeasuredRun(shapes, predicted, tuned, default, _count(row["rounds"]))


def _engines(row: Any) -> EngineTimes:
    shapes, times, intervals = _alternating(row)
    versions = {str(k): _text(v) for k, v in _object(row["versions"]).items()}
    if set(times) != set(versions):
        raise ValueError("each engine needs a time and a version")
    return EngineTimes(_text(row["model"]), shapes, times, versions, intervals, _count(row["rounds"]))


def _placement(row: Any) -> PlacementTimes:
    shapes, times, intervals = _alternating(row)
    versions = {str(k): _text(v) for k, v in _object(row["versions"]).items()}
    place = {str(k): _text(v) for k, v in _object(row["place"]).items()}
    nodes = {
        str(mix): {str(e): tuple(map(_text, _items(names))) for e, names in _object(own).items()}
        for mix, own in _object(row["nodes"]).items()
    }
    if not times or set(times) - set(nodes) - set(versions) or set(nodes) - set(times):
        raise ValueError("each engine needs a version, and each mix its nodes and a time")
    if any(set(own) - set(versions) for own in nodes.values()):
        raise ValueError("each engine of a mix needs a version")
    return PlacementTimes(
        _text(row["model"]), shapes, place, times, nodes, versions, intervals, _count(row["rounds"])
    )


def _alternating(
    row: Any,
) -> tuple[dict[str, int], dict[str, float], dict[str, tuple[float, float]]]:
    """Return sizes, medians and intervals of whole runs in alternating rounds."""
    shapes = {str(k): _count(v) for k, v in _object(_object(row)["shapes"]).items()}
    times = {str(k): _number(v) for k, v in _object(row["times_us"]).items()}
    intervals = {}
    for name, interval in _object(row["intervals_us"]).items():
        low, high = map(_number, _items(interval))
        intervals[str(name)] = (low, high)
    return shapes, times, intervals


def _object(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"must be an object, not {type(value).__name__}")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"must be a list, not {type(value).__name__}")
    return list(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {type(value).__name__}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not _is_time(value):
        raise ValueError(f"must be a positive number, not {str(value)[:40]}")
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"must be a whole number from 0, not {str(value)[:40]}")
    return value
