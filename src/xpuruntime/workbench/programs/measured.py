"""Kernels that are measured on this machine before a model's file is compiled (``xpu compile --tune``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...compiler.times import KernelTimes
from ...decisions import Decision
from ...errors import InputError
from ...inference.execution.seeded_inputs import sample_feeds
from ...inference.native.executable import NativeExecutable
from ...inference.tuning.on_build import record_of
from ...policies.entrances import demanded
from ...targets import DeviceId
from ..session_options import SessionOptions

__all__ = ["MeasuredKernels", "measured_kernels"]


@dataclass(frozen=True, slots=True)
class MeasuredKernels:
    """The times of all sets of sizes, and a decision for each of them."""

    times: KernelTimes
    decisions: tuple[Decision, ...]


def measured_kernels(
    model: Path,
    target: str | Sequence[str] | None,
    policy: Any,
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]],
    seconds: float,
) -> MeasuredKernels:
    """Measure the kernels of a model for each set of sizes, within ``seconds`` each, or take them from the store.

    Raise InputError for a target that is not this machine's device or a graph that is not an ONNX file, and the errors of ``InferenceSession``.
    """
    who = f"compile {model.name!r}"
    device = _device(who, target, policy)
    if model.suffix.lower() in (".json", ".txt"):
        do = "Give the ONNX model, or leave --tune out."
        raise InputError(who, "is a graph without its weights' file format, so it cannot be measured", do=do)
    options = SessionOptions("native", device, policy, tune_s=seconds)
    sizes = [shapes] if isinstance(shapes, Mapping) else list(shapes) or [{}]
    records = []
    with options.open(str(model)) as session:
        executable = session.executable
        if not isinstance(executable, NativeExecutable):
            do = "Leave --tune out."
            raise InputError(who, "does not run on the native engine alone, so it cannot be measured", do=do)
        for symbols in sizes:
            executor = executable.executor_for(sample_feeds(session.input_info, symbols=symbols))
            if (record := record_of(executor.program)) is not None:
                records.append(record)
    times = [KernelTimes.load(record["times"]) for record in records]
    calls = {key: row for t in times for key, row in t.calls.items()}
    details = {key: row for t in times for key, row in t.details.items()}
    return MeasuredKernels(
        replace(times[0], calls=calls, details=details),
        tuple(Decision.from_json(record["decision"]) for record in records),
    )


def _device(who: str, target: str | Sequence[str] | None, policy: Any) -> str:
    """Return the device of this machine that the target names. Raise InputError for another target."""
    words = [target] if isinstance(target, str) else list(target or ())
    word = words[0] if words else demanded("compile", {}, policy).policy.execution.target or "cpu"
    kind, _, index = word.partition(":")
    if len(words) > 1 or kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise InputError(
            who,
            "kernels are measured on this machine's device, and the target is not one",
            got=", ".join(words),
            do="Name the target cpu, cuda or cuda:0, or leave --tune out.",
        )
    return "cpu" if kind == "auto" else str(DeviceId.parse(word))
