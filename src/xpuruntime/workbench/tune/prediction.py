"""Prediction of a model's time on a device that this machine may not have, from a file of measured times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler import compile as compile_graph
from ...compiler.entrance import targets_of
from ...compiler.locked import KernelLock
from ...compiler.times import KernelTimes
from ...decisions import Decision
from ...errors import InputError
from ...inference.models.programs import is_program
from ...policies.entrances import demanded
from ...targets import GPUS
from ..programs.compile_model import open_graph

__all__ = ["PredictedCall", "Prediction", "predict", "target_for"]


@dataclass(frozen=True, slots=True)
class PredictedCall:
    """One call of the program. time_us: the measured time of its kernel; None if the file does not have it."""

    nodes: tuple[str, ...]
    op: str
    kernel: str
    time_us: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"nodes": list(self.nodes), "op": self.op, "kernel": self.kernel, "time_us": self.time_us}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What would run on a target, and how long its calls take according to a file of times.

    calls: in order. predicted_us: sum of the known times. unknown: calls that the file does not have.
    """

    model: str
    target: str
    times: KernelTimes
    calls: tuple[PredictedCall, ...]
    decisions: tuple[Decision, ...]

    @property
    def predicted_us(self) -> float:
        """Sum of the measured times."""
        return sum(c.time_us or 0.0 for c in self.calls)

    @property
    def unknown(self) -> int:
        """Number of calls without a measured time."""
        return sum(c.time_us is None for c in self.calls)

    @property
    def sentence(self) -> str:
        """Answer in words."""
        text = f"{self.model} on {self.target}: {self.predicted_us:.1f} us predicted for {len(self.calls) - self.unknown} of {len(self.calls)} calls"
        return f"{text}, {self.times.origin}; {self.times.calibration}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "target": self.target,
            "answer": self.sentence,
            "predicted_us": self.predicted_us,
            "unknown": self.unknown,
            "calls": [c.to_json() for c in self.calls],
            "calibration": [r.to_json() | {"error": r.error} for r in self.times.runs],
            "facts": dict(self.times.facts),
            "decisions": [d.to_json() for d in self.decisions],
        }


def target_for(device: str | None, times: KernelTimes) -> str:
    """Return the compilation target for a device's name (``h200``, ``cuda:h200``, ``cpu``); the target of the times without a name."""
    if device is None:
        return times.target
    word = device.lower()
    return f"cuda:{word}" if word in GPUS else word


def predict(
    model: str | os.PathLike[str],
    times: KernelTimes | Mapping[str, Any] | str | os.PathLike[str],
    *,
    device: str | None = None,
    policy: Any = None,
    shapes: Mapping[str, int] | None = None,
) -> Prediction:
    """Compile a model for a device with a file of measured times, without the device, and return what each call takes there.

    device: ``h200``, ``cuda:sm_90``, ``cpu:x86-64-v4``, ...; the default is the target of the times.
    Raises FormatError for a file of times that cannot be read, InputError for times of another target or for a compiled program, and the errors
    of ``compile``.
    """
    path = Path(model)
    if is_program(str(path)):
        raise InputError(
            f"prediction for {path.name!r}",
            "is a compiled program, whose kernels are fixed",
            do="Give the model that it was compiled from.",
        )
    measured = KernelTimes.load(times)
    (target,) = targets_of(target_for(device, measured), demanded("compile", {}, policy), [])[:1]
    if target.name != measured.target:
        raise InputError(
            f"prediction for {path.name!r}",
            f"needs times of {target.name}",
            got=f"times {measured.origin}",
            do="Measure on such a device (xpu tune), or name a device of the file's target.",
        )
    graph, weights = open_graph(path)
    lock = KernelLock()
    program = compile_graph(
        graph,
        target=target,
        policy=policy,
        shapes=shapes or {},
        weights=weights,
        times=measured,
        lock=lock,
    )
    entry = program.entries[0]
    plan = entry.plans[0]
    calls: dict[str, tuple[dict[str, None], str]] = {}
    for key, call in zip(lock.stages[entry.name], plan.calls, strict=True):
        if key:
            calls.setdefault(key, ({}, "+".join(call.ops)))[0].update(dict.fromkeys(call.nodes))
    rows = []
    for key, (nodes, op) in calls.items():
        kernel = lock.kernels[key]
        known = measured.calls.get(key.partition(" ")[0], {})
        rows.append(PredictedCall(tuple(nodes), op, kernel, known.get(kernel)))
    return Prediction(path.stem, plan.target, measured, tuple(rows), program.decisions)
