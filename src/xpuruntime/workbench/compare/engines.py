"""A comparison of engines on one model.

The default tolerance is that of the engines' precisions (``numerics.TOLERANCE``), since kernels round differently. It is larger for
outputs where the model amplifies rounding errors (``inference.self_check.conditioning``). Scores near 0 may also differ by some last
places of 1 (``inference.self_check.bounded``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...decisions import Decision
from ...errors import EngineUnavailable, XpuError
from ...frontends.model_file import open_model
from ...inference.native.model import native_model
from ...inference.self_check.bounded import bounded_outputs, within_last_places_of_one
from ...inference.self_check.conditioning import MARGIN, sensitivity, widened
from ...inference.self_check.onnx_reference import reference_outputs
from ...numerics import Comparison, tolerance_for
from ...protocols import Array, ModelSource
from ...types import DType
from ..engine_sessions import open_engines
from ..inputs import Inputs
from ..session_options import SessionOptions
from .report import (
    CompareReport,
    PairComparison,
    Progress,
    non_finite_outputs,
    run_engines,
    worst_comparisons,
)

__all__ = ["REFERENCE", "CompareReport", "PairComparison", "compare_engines"]

REFERENCE = "onnx.reference"


def compare_engines(
    model: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    options: SessionOptions | None = None,
    inputs: Inputs | None = None,
    samples: int = 3,
    tolerance: float | None = None,
    against: str | None = None,
    reference_seconds: float = 60.0,
    progress: Progress = lambda _: None,
) -> CompareReport:
    """Run every engine on the same inputs and compare each with one of them.

    against: an engine's name, or ``onnx.reference``: the ONNX reference evaluator, in at most ``reference_seconds`` per sample.
             Default: the first available engine.
    named:   the user named the engines, so that each must be available (see ``open_engines``).
    Raise the errors of opening a session, and EngineUnavailable if fewer than two engines can be compared or the reference is not
    available.
    """
    source, options, inputs = open_model(model), options or SessionOptions(device="cpu"), inputs or Inputs()
    with open_engines(
        source, _with_against(engines, against), options, named=named, progress=progress
    ) as sessions:
        feeds = inputs.samples(source.inputs, samples)
        outputs = run_engines(sessions, feeds, named, progress)
        info = tuple(e.to_json() for e in sessions.opened)
        precisions = {e.name: e.precision for e in sessions.opened}
        names = [s.name for s in source.outputs]
        shifts = dict.fromkeys(names, 0.0)
        if sessions.opened:
            head = sessions.opened[0]
            each = [
                sensitivity(head.outputs, names, feed, result)
                for feed, result in zip(feeds, outputs[head.name], strict=True)
            ]
            shifts = {name: max(shift[name] for shift in each) for name in names}
    expected = against if against in (REFERENCE, None) else _engine_name(against, outputs)
    if expected == REFERENCE:
        progress(f"{REFERENCE}: running {source.name}")
        outputs[REFERENCE] = [_reference(source, sample, reference_seconds) for sample in feeds]
        precisions[REFERENCE] = source.precision
    expected = expected or next(iter(outputs), "")
    if len(outputs) < 2:
        decision = Decision("engine", source.name, None, tuple(sessions.rejected))
        who, got = f"compare {source.name!r}", f"only {', '.join(outputs) or 'nothing'}"
        do = "Name another engine, or use --against reference."
        raise EngineUnavailable(who, "there is nothing to compare with", got=got, do=do, decision=decision)
    pairs, rounded = [], dict[str, str]()
    for name, arrays in outputs.items():
        if name != expected:
            base = tolerance_for(precisions[name], precisions[expected]) if tolerance is None else tolerance
            limits = widened(base, shifts) if tolerance is None else dict.fromkeys(names, tolerance)
            compared = worst_comparisons(names, arrays, outputs[expected], limits)
            if tolerance is None:
                precision = min(precisions[name], precisions[expected], key=lambda d: d.bits)
                compared = _forgive_last_places(
                    source, compared, arrays, outputs[expected], precision, rounded
                )
            pairs.append(PairComparison(name, expected, base, compared))
    return CompareReport(
        source.name,
        None,
        inputs.describe(source.inputs),
        len(feeds),
        info,
        tuple(sessions.rejected),
        tuple(pairs),
        (
            *non_finite_outputs(names, expected, outputs[expected]),
            *_amplified(pairs, shifts),
            *rounded.values(),
        ),
    )


def _forgive_last_places(
    model: ModelSource,
    compared: Sequence[Comparison],
    ours: Sequence[Sequence[Array]],
    theirs: Sequence[Sequence[Array]],
    precision: DType,
    notes: dict[str, str],
) -> tuple[Comparison, ...]:
    """Return the comparisons, where outputs of a sigmoid or the like agree if they differ by some last places of 1. Add a note for each."""
    if all(c.ok for c in compared):
        return tuple(compared)
    try:
        bounded = bounded_outputs(native_model(model).graph)
    except XpuError:  # not in the IR: what computes an output is unknown
        return tuple(compared)
    outputs = []
    for at, c in enumerate(compared):
        pairs = zip(ours, theirs, strict=True)
        if (
            not c.ok
            and c.name in bounded
            and all(within_last_places_of_one(a[at], b[at], precision) for a, b in pairs)
        ):
            notes[c.name] = (
                f"output {c.name!r} differs by {c.max_abs:.2g}, over its tolerance. It comes from a function such as the sigmoid, "
                "which engines round in last places of 1, and the difference is some of these"
            )
            c = replace(c, ok=True, reason="")
        outputs.append(c)
    return tuple(outputs)


def _with_against(engines: Sequence[str], against: str | None) -> list[str]:
    """Return the engines, with the one to compare with added if it is not listed."""
    return [*engines, *([against] if against and against != REFERENCE and against not in engines else [])]


def _engine_name(against: str, outputs: dict[str, list[list[Array]]]) -> str:
    """Return the name of an engine that ran. Raise EngineUnavailable."""
    from ...engines import lookup

    name = lookup(against).name
    if name not in outputs:
        do = "Name an engine that runs this model."
        raise EngineUnavailable("--against", "the engine cannot run the model here", got=repr(against), do=do)
    return name


def _reference(model: ModelSource, sample: dict[str, Array], seconds: float) -> list[Array]:
    outputs, support = reference_outputs(model, sample, seconds)
    if outputs is None:
        do = support.do or "Compare with an engine, or use smaller inputs (--shape)."
        raise EngineUnavailable(
            "--against reference", "the reference evaluator cannot run this model", got=support.reason, do=do
        )
    return outputs


def _amplified(pairs: Sequence[PairComparison], shifts: Mapping[str, float]) -> list[str]:
    """Return a note for each output where the model amplifies rounding errors and that affects the comparison."""
    affected = {c.name: c for p in pairs for c in p.outputs if c.tolerance > p.tolerance or not c.ok}
    return [
        f"output {name!r} changes by {shifts[name]:.2g} on one engine if its inputs change in their last bit; "
        + (f"its tolerance is {c.tolerance:.2g}" if c.ok else "so the difference may be rounding")
        for name, c in affected.items()
        if MARGIN * shifts[name] > c.tolerance or c.tolerance == MARGIN * shifts[name]
    ]
