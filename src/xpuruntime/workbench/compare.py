"""Do engines agree on a model?

The default tolerance is that of the precisions they compute in (``numerics.TOLERANCE``): different kernels round differently; it
is wider for outputs with which the model amplifies rounding (``inference.conditioning``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..decisions import Decision
from ..errors import EngineUnavailable
from ..frontends.model_file import open_model
from ..inference.self_check.conditioning import MARGIN, sensitivity, widened
from ..inference.self_check.onnx_reference import reference_outputs
from ..numerics import tolerance_for
from ..protocols import Array, ModelSource
from .agreement import CompareReport, Pair, Progress, run_all, vacuous, worst
from .contenders import field_of
from .inputs import Inputs
from .setup import Setup

__all__ = ["REFERENCE", "CompareReport", "Pair", "compare_engines"]

REFERENCE = "onnx.reference"


def compare_engines(
    model: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    setup: Setup | None = None,
    inputs: Inputs | None = None,
    samples: int = 3,
    tolerance: float | None = None,
    against: str | None = None,
    reference_seconds: float = 60.0,
    progress: Progress = lambda _: None,
) -> CompareReport:
    """Run every engine on the same inputs and hold each against one of them.

    against: an engine's name, or ``onnx.reference``: the ONNX reference evaluator, in at most ``reference_seconds`` per sample.
             None: the first engine that can be had.
    named:   whether each engine must be had (see ``contenders.field_of``).
    Raises what opening raises; EngineUnavailable when fewer than two can be compared, or the reference cannot be had.
    """
    source, setup, inputs = open_model(model), setup or Setup(device="cpu"), inputs or Inputs()
    with field_of(source, _with_against(engines, against), setup, named=named, progress=progress) as field:
        feeds = inputs.samples(source.inputs, samples)
        found = run_all(field, feeds, named, progress)
        info = tuple(c.to_json() for c in field.contenders)
        precisions = {c.name: c.precision for c in field.contenders}
        names = [s.name for s in source.outputs]
        shifts = dict.fromkeys(names, 0.0)
        if field.contenders:
            head = field.contenders[0]
            shifts = sensitivity(head.outputs, names, feeds[0], found[head.name][0])
    judge = against if against in (REFERENCE, None) else _match(against, found)
    if judge == REFERENCE:
        progress(f"{REFERENCE}: running {source.name}")
        found[REFERENCE] = [_reference(source, sample, reference_seconds) for sample in feeds]
        precisions[REFERENCE] = source.precision
    judge = judge or next(iter(found), "")
    if len(found) < 2:
        decision = Decision("engine", source.name, None, tuple(field.rejected))
        who, got = f"compare {source.name!r}", f"only {', '.join(found) or 'nothing'}"
        do = "Name another engine, or use --against reference."
        raise EngineUnavailable(who, "there is nothing to compare with", got=got, do=do, decision=decision)
    pairs = []
    for name, outputs in found.items():
        if name != judge:
            base = tolerance_for(precisions[name], precisions[judge]) if tolerance is None else tolerance
            limits = widened(base, shifts) if tolerance is None else dict.fromkeys(names, tolerance)
            pairs.append(Pair(name, judge, base, worst(names, outputs, found[judge], limits)))
    return CompareReport(
        source.name,
        None,
        inputs.describe(source.inputs),
        len(feeds),
        info,
        tuple(field.rejected),
        tuple(pairs),
        (*vacuous(names, judge, found[judge]), *_amplified(pairs, shifts)),
    )


def _with_against(engines: Sequence[str], against: str | None) -> list[str]:
    """The engine to compare against takes part even when it was not listed."""
    return [*engines, *([against] if against and against != REFERENCE and against not in engines else [])]


def _match(against: str, found: dict[str, list[list[Array]]]) -> str:
    from ..engines import lookup

    name = lookup(against).name
    if name not in found:
        do = "Name an engine that runs this model."
        raise EngineUnavailable(
            "--against", "that engine cannot run the model here", got=repr(against), do=do
        )
    return name


def _reference(model: ModelSource, sample: dict[str, Array], seconds: float) -> list[Array]:
    outputs, support = reference_outputs(model, sample, seconds)
    if outputs is None:
        do = support.do or "Compare against an engine, or on smaller inputs (--shape)."
        raise EngineUnavailable(
            "--against reference", "cannot be had for this model", got=support.reason, do=do
        )
    return outputs


def _amplified(pairs: Sequence[Pair], shifts: Mapping[str, float]) -> list[str]:
    """Outputs with which the model amplifies rounding, where that widened a tolerance or may explain a difference."""
    told = {c.name: c for p in pairs for c in p.outputs if c.tolerance > p.tolerance or not c.ok}
    return [
        f"output {name!r} moves by {shifts[name]:.2g} on one engine when its inputs move by their last bit; "
        + (f"its tolerance is {c.tolerance:.2g}" if c.ok else "so a difference need not be an engine's error")
        for name, c in told.items()
        if MARGIN * shifts[name] > c.tolerance or c.tolerance == MARGIN * shifts[name]
    ]
