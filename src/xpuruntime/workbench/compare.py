"""Do engines agree on a model, and does a model agree with another one on the same engine?

Between engines the default tolerance is that of the precisions they compute in (``numerics.TOLERANCE``): different kernels
round differently; it is wider for outputs with which the model amplifies rounding (``inference.conditioning``). On one engine, two files of the same graph run through the same kernels in the same order and give the
same bits, so there the default is what repeating a run shows, which is 0 wherever the engine repeats itself exactly;
a single changed weight is then seen even where it moves the outputs by less than two engines' rounding does. Some weights
move no output on some inputs (a dead channel, a row that no token picks): when the files' weights differ and no output does,
``_PROBES`` further inputs of other scales are tried, and if they show nothing either, the report names those weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..decisions import Candidate, Decision
from ..errors import EngineUnavailable, InputError, RunError
from ..frontends.model_file import open_model
from ..inference.conditioning import MARGIN, sensitivity, widened
from ..inference.reference import reference_outputs
from ..numerics import Comparison, compare, compare_all, tolerance_for
from ..protocols import Array, ModelSource
from .contenders import Contender, Field, field_of
from .inputs import Inputs
from .setup import Setup
from .weights_diff import changed_weights

__all__ = ["REFERENCE", "CompareReport", "Pair", "compare_engines", "compare_models"]

REFERENCE = "onnx.reference"
_PROBES = 24
_PROBE_SECONDS = 30.0  # probing stops then, whatever is left
_REPEAT_MARGIN = 2.0  # over what repeating a run shows, where an engine does not repeat itself exactly

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One contender against its reference: per output the worst comparison over all samples.

    ``tolerance`` is the base; each output carries its own, which is wider where the model amplifies rounding.
    """

    actual: str
    reference: str
    tolerance: float
    outputs: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """True when every output agrees within the tolerance."""
        return all(c.ok for c in self.outputs)

    @property
    def first_difference(self) -> Comparison | None:
        """The first output, in the model's order, that differs."""
        return next((c for c in self.outputs if not c.ok), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        first = self.first_difference
        return {
            "actual": self.actual,
            "reference": self.reference,
            "tolerance": self.tolerance,
            "ok": self.ok,
            "first_difference": None if first is None else first.name,
            "outputs": [c.to_json() for c in self.outputs],
        }


@dataclass(frozen=True, slots=True)
class CompareReport:
    """What was compared, with what, and how it came out. ``ok`` is the answer."""

    model: str
    reference_model: str | None
    inputs: str
    samples: int
    engines: tuple[dict[str, Any], ...]
    rejected: tuple[Candidate, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when every pair agrees."""
        return all(p.ok for p in self.pairs)

    @property
    def sentence(self) -> str:
        """The answer in words; a difference is named by output and pair."""
        for pair in self.pairs:
            first = pair.first_difference
            if first is not None:
                return f"{pair.actual} differs from {pair.reference}, first in output {first.name!r}: {first.reason}"
        names = dict.fromkeys(n for p in self.pairs for n in (p.actual, p.reference))
        return f"{', '.join(names)} agree"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": self.ok,
            "answer": self.sentence,
            "model": self.model,
            "reference_model": self.reference_model,
            "inputs": self.inputs,
            "samples": self.samples,
            "engines": list(self.engines),
            "rejected": [c.to_json() for c in self.rejected],
            "pairs": [p.to_json() for p in self.pairs],
            "notes": list(self.notes),
        }


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
        found = _run_all(field, feeds, named, progress)
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
            pairs.append(Pair(name, judge, base, _worst(names, outputs, found[judge], limits)))
    return CompareReport(
        source.name,
        None,
        inputs.describe(source.inputs),
        len(feeds),
        info,
        tuple(field.rejected),
        tuple(pairs),
        (*_notes(names, judge, found[judge]), *_amplified(pairs, shifts)),
    )


def compare_models(
    model: Any,
    reference: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    setup: Setup | None = None,
    inputs: Inputs | None = None,
    samples: int = 3,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> CompareReport:
    """Run two models on the same engines and inputs, and hold the first against the second, engine by engine.

    Inputs and outputs are matched by name, or by position where the names differ. ``tolerance`` None: see the module's head.
    Raises what opening raises; InputError when the two models do not take the same inputs or give as many outputs.
    """
    source, other = open_model(model), open_model(reference)
    setup, inputs = setup or Setup(device="cpu"), inputs or Inputs()
    _same_signature(source, other)
    labels = _labels(source, other)
    feeds = inputs.samples(source.inputs, samples)
    names = [s.name for s in source.outputs]
    notes: list[str] = []
    if source.digest == other.digest:
        notes.append("the two files are the same model, byte for byte")
    changed = changed_weights(source, other)
    with (
        field_of(source, engines, setup, named=named, progress=progress) as field,
        field_of(other, [c.name for c in field.contenders], setup, named=named, progress=progress) as others,
    ):
        found = _run_all(field, feeds, named, progress)
        expected = _run_all(others, [_renamed(source, other, s) for s in feeds], named, progress)
        both = [(c, o) for c in field.contenders for o in others.contenders if c.name == o.name]
        pairs = []
        for mine, _ in both:
            actual, wanted = found[mine.name], _in_order(source, other, expected[mine.name])
            limit = _repeatability(mine, names, feeds[0], actual[0]) if tolerance is None else tolerance
            outputs = _worst(names, actual, wanted, dict.fromkeys(names, limit))
            pairs.append(Pair(f"{labels[0]} on {mine.name}", f"{labels[1]} on {mine.name}", limit, outputs))
        if (
            changed
            and not inputs.files
            and all(p.ok and not any(c.mismatched for c in p.outputs) for p in pairs)
        ):
            progress(f"probing: {len(changed)} weights differ and no output does")
            pairs = [
                _probe(source, other, mine, theirs, p, inputs)
                for (mine, theirs), p in zip(both, pairs, strict=True)
            ]
        info = tuple(c.to_json() for c in field.contenders)
        if tolerance is None:
            for (mine, _), pair in zip(both, pairs, strict=True):
                notes += _export_note(pair, tolerance_for(mine.precision))
        notes += _notes(names, labels[1], next(iter(expected.values()), []))
        if changed and all(p.ok for p in pairs):
            notes.append(_unseen(changed))
    rejected = {c.name: c for c in (*field.rejected, *others.rejected)}
    if not pairs:
        decision = Decision("engine", other.name, None, tuple(rejected.values()))
        do = "Name an engine that runs both models."
        raise EngineUnavailable(
            f"compare {source.name!r}", "no engine runs both models", do=do, decision=decision
        )
    return CompareReport(
        source.name,
        other.name,
        inputs.describe(source.inputs),
        len(feeds),
        info,
        tuple(rejected.values()),
        tuple(pairs),
        tuple(dict.fromkeys(notes)),
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


def _run_all(
    field: Field, feeds: Sequence[dict[str, Array]], named: bool, progress: Progress
) -> dict[str, list[list[Array]]]:
    """Outputs by engine, then by sample. An engine that fails while running is dropped, or raises if it was named."""
    found: dict[str, list[list[Array]]] = {}
    for contender in tuple(field.contenders):
        progress(f"{contender.name}: running {len(feeds)} samples")
        try:
            found[contender.name] = [contender.outputs(sample) for sample in feeds]
        except RunError as error:
            field.drop(contender, error, named)
    return found


def _reference(model: ModelSource, sample: dict[str, Array], seconds: float) -> list[Array]:
    outputs, support = reference_outputs(model, sample, seconds)
    if outputs is None:
        do = support.do or "Compare against an engine, or on smaller inputs (--shape)."
        raise EngineUnavailable(
            "--against reference", "cannot be had for this model", got=support.reason, do=do
        )
    return outputs


def _worst(
    names: Sequence[str],
    actual: Sequence[Sequence[Array]],
    reference: Sequence[Sequence[Array]],
    limits: Mapping[str, float],
) -> tuple[Comparison, ...]:
    """Per output the comparison of its worst sample; cosine and argmax agreement are the least over the samples."""
    turns = [
        [compare(n, x, y, limits[n]) for n, x, y in zip(names, a, r, strict=True)]
        for a, r in zip(actual, reference, strict=True)
    ]
    return tuple(_merge(of_one) for of_one in zip(*turns, strict=True))


def _merge(comparisons: Sequence[Comparison]) -> Comparison:
    worst = max(comparisons, key=lambda c: (not c.ok, c.max_rel))
    cosines = [c.cosine for c in comparisons if c.cosine is not None]
    shares = [c.argmax_equal for c in comparisons if c.argmax_equal is not None]
    return replace(
        worst,
        max_abs=max(c.max_abs for c in comparisons),
        cosine=min(cosines, default=None),
        argmax_equal=min(shares, default=None),
        mismatched=sum(c.mismatched for c in comparisons),
        elements=sum(c.elements for c in comparisons),
    )


def _repeatability(
    contender: Contender, names: Sequence[str], feeds: dict[str, Array], first: list[Array]
) -> float:
    """How far a second run of the same inputs lies from the first, with a margin; 0 when the bits are equal."""
    again = compare_all(names, contender.outputs(feeds), first, math.inf)
    return _REPEAT_MARGIN * max((c.max_rel for c in again if math.isfinite(c.max_rel)), default=0.0)


def _probe(
    model: ModelSource, other: ModelSource, mine: Contender, theirs: Contender, pair: Pair, inputs: Inputs
) -> Pair:
    """The pair again with the first probe that shows a difference, or as it was. Floats are scaled and shifted anew each time."""
    names = [s.name for s in model.outputs]
    deadline = time.monotonic() + _PROBE_SECONDS
    for k in range(_PROBES):
        if time.monotonic() > deadline:
            break
        seeded = replace(inputs, seed=(inputs.seed or 0) + 7919 * (k + 1)).samples(model.inputs)[0]
        scale, shift = _PROBE_SCALES[k % len(_PROBE_SCALES)]
        feeds = {
            n: (v * scale + shift).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in seeded.items()
        }
        try:
            wanted = _in_order(model, other, [theirs.outputs(_renamed(model, other, feeds))])
            outputs = _worst(names, [mine.outputs(feeds)], wanted, dict.fromkeys(names, pair.tolerance))
        except RunError:  # a probe may be outside of what the model takes; the samples proper were not
            continue
        if not all(c.ok for c in outputs):
            return replace(pair, outputs=outputs)
    return pair


_PROBE_SCALES = ((1.0, 0.0), (0.25, 0.5), (3.0, 0.0), (1.0, 1.0), (1.0, -1.0), (0.05, 0.0))


def _unseen(changed: Sequence[str]) -> str:
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"the files' weights differ in {', '.join(changed[:3])}{more}, and no output shows it on these inputs: "
        "give real inputs (--input) or more --samples"
    )


def _renamed(model: ModelSource, other: ModelSource, sample: dict[str, Array]) -> dict[str, Array]:
    """A sample of ``model`` under the names that ``other`` has for its inputs."""
    pairs = zip(model.inputs, _matched(model.inputs, other.inputs), strict=True)
    return {theirs.name: sample[mine.name] for mine, theirs in pairs}


def _export_note(pair: Pair, rounding: float) -> list[str]:
    worst = max((c.max_rel for c in pair.outputs), default=0.0)
    if pair.ok or worst > rounding:
        return []
    return [
        f"{pair.actual} and {pair.reference} differ by less than two engines' rounding ({worst:.2g} of {rounding:.2g}): "
        f"expected of two exports of one model (then use --tolerance {rounding:g}), not of one file with equal weights"
    ]


def _amplified(pairs: Sequence[Pair], shifts: Mapping[str, float]) -> list[str]:
    """Outputs with which the model amplifies rounding, where that widened a tolerance or may explain a difference."""
    told = {c.name: c for p in pairs for c in p.outputs if c.tolerance > p.tolerance or not c.ok}
    return [
        f"output {name!r} moves by {shifts[name]:.2g} on one engine when its inputs move by their last bit; "
        + (f"its tolerance is {c.tolerance:.2g}" if c.ok else "so a difference need not be an engine's error")
        for name, c in told.items()
        if MARGIN * shifts[name] > c.tolerance or c.tolerance == MARGIN * shifts[name]
    ]


def _notes(names: Sequence[str], label: str, samples: Sequence[Sequence[Array]]) -> tuple[str, ...]:
    """Outputs on which agreement means nothing, since the reference has no finite number there."""
    empty = [
        name
        for name, *values in zip(names, *samples, strict=True)
        if all(
            v.size and v.dtype.kind in "fcV" and not np.isfinite(v.astype(np.complex128)).any()
            for v in values
        )
    ]
    return tuple(
        f"output {name!r} of {label} holds no finite number, so its agreement says nothing" for name in empty
    )


def _labels(model: ModelSource, other: ModelSource) -> tuple[str, str]:
    if model.name != other.name:
        return model.name, other.name
    return (f"{model.name} ({model.path or 'first'})", f"{other.name} ({other.path or 'second'})")


def _same_signature(model: ModelSource, other: ModelSource) -> None:
    who = f"compare {model.name!r} with {other.name!r}"
    do = "Compare two versions of one model."
    for what, a, b in (("inputs", model.inputs, other.inputs), ("outputs", model.outputs, other.outputs)):
        if len(a) != len(b):
            raise InputError(
                who, f"the two models do not have as many {what}", got=f"{len(a)} and {len(b)}", do=do
            )
    for mine, theirs in zip(model.inputs, _matched(model.inputs, other.inputs), strict=True):
        if mine.dtype is not theirs.dtype or mine.rank != theirs.rank:
            got = f"{mine.name!r} {mine} and {theirs.name!r} {theirs}"
            raise InputError(who, "the two models do not take the same inputs", got=got, do=do)


def _matched(mine: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """``theirs`` in the order of ``mine`` where the names are the same, else as they stand."""
    by_name = {s.name: s for s in theirs}
    return [by_name[s.name] for s in mine] if {s.name for s in mine} == set(by_name) else list(theirs)


def _in_order(model: ModelSource, other: ModelSource, samples: list[list[Array]]) -> list[list[Array]]:
    order = [other.outputs.index(s) for s in _matched(model.outputs, other.outputs)]
    return [[outputs[k] for k in order] for outputs in samples]
