"""A comparison of two models on the same engines.

Two files of one graph run through the same kernels in the same order and give equal bits. The default tolerance is therefore the
difference between two runs of one session, which is 0 for deterministic engines. A single changed weight then shows even if its
effect is smaller than the rounding differences between engines.

Some weights change no output on some inputs (a dead channel, an unused row of an embedding). If the weights differ and no output does,
``_PROBES`` further inputs of other scales are tried. If they show nothing either, the report names those weights. Generated masks are
fully open, so a mask that one file lost changes nothing; models with mask inputs are probed with half-closed masks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...decisions import Decision
from ...errors import EngineUnavailable, InputError, RunError
from ...frontends.model_file import open_model
from ...numerics import compare_all, tolerance_for
from ...protocols import Array, ModelSource
from ..engine_sessions import EngineSession, open_engines
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
from .weights_diff import changed_weights

__all__ = ["compare_models"]

_PROBES = 24
_MASK_PROBES = 4  # for equal weights, where only a mask may differ
_PROBE_SECONDS = 30.0  # time limit of all probes
_PROBE_SCALES = ((1.0, 0.0), (0.25, 0.5), (3.0, 0.0), (1.0, 1.0), (1.0, -1.0), (0.05, 0.0))  # scale, shift
_REPEAT_MARGIN = 2.0  # factor on the difference of two runs, for engines that are not deterministic


def compare_models(
    model: Any,
    reference: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    options: SessionOptions | None = None,
    inputs: Inputs | None = None,
    samples: int = 3,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> CompareReport:
    """Run two models on the same engines and inputs, and compare the first with the second on each engine.

    Inputs and outputs are matched by name, or by position if the names differ. The module's docstring describes the default tolerance.
    Raise the errors of opening a session, and InputError if the models' inputs or numbers of outputs differ.
    """
    source, other = open_model(model), open_model(reference)
    options, inputs = options or SessionOptions(device="cpu"), inputs or Inputs()
    _same_signature(source, other)
    labels = _labels(source, other)
    feeds = inputs.samples(source.inputs, samples)
    names = [s.name for s in source.outputs]
    notes: list[str] = []
    if source.digest == other.digest:
        notes.append("the two files are the same model, byte for byte")
    changed = changed_weights(source, other)
    with (
        open_engines(source, engines, options, named=named, progress=progress) as sessions,
        open_engines(
            other, [e.name for e in sessions.opened], options, named=named, progress=progress
        ) as others,
    ):
        results = run_engines(sessions, feeds, named, progress)
        expected = run_engines(others, [_renamed(source, other, s) for s in feeds], named, progress)
        pairs_of_sessions = [(e, o) for e in sessions.opened for o in others.opened if e.name == o.name]
        pairs = []
        for session, _ in pairs_of_sessions:
            actual, reference_arrays = results[session.name], _in_order(source, other, expected[session.name])
            limit = _repeatability(session, names, feeds[0], actual[0]) if tolerance is None else tolerance
            outputs = worst_comparisons(names, actual, reference_arrays, dict.fromkeys(names, limit))
            pairs.append(
                PairComparison(
                    f"{labels[0]} on {session.name}", f"{labels[1]} on {session.name}", limit, outputs
                )
            )
        masks = _masks(source) if source.digest != other.digest else []
        if (
            (changed or masks)
            and not inputs.files
            and all(p.ok and not any(c.mismatched for c in p.outputs) for p in pairs)
        ):
            progress("probing: the files differ and no output does")
            probes = _PROBES if changed else _MASK_PROBES
            pairs = [
                _probe(source, other, session, other_session, p, inputs, probes)
                for (session, other_session), p in zip(pairs_of_sessions, pairs, strict=True)
            ]
        info = tuple(e.to_json() for e in sessions.opened)
        if tolerance is None:
            for (session, _), pair in zip(pairs_of_sessions, pairs, strict=True):
                notes += _export_note(pair, tolerance_for(session.precision))
        notes += non_finite_outputs(names, labels[1], next(iter(expected.values()), []))
        if changed and all(p.ok for p in pairs):
            notes.append(_unseen(changed))
    rejected = {c.name: c for c in (*sessions.rejected, *others.rejected)}
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


def _repeatability(
    engine: EngineSession, names: Sequence[str], feeds: dict[str, Array], first: list[Array]
) -> float:
    """Return the difference of a second run of the same inputs, with a margin; 0 for equal bits."""
    again = compare_all(names, engine.outputs(feeds), first, math.inf)
    return _REPEAT_MARGIN * max((c.max_rel for c in again if math.isfinite(c.max_rel)), default=0.0)


def _masks(model: ModelSource) -> list[str]:
    """Return the inputs that are masks by name and type."""
    return [s.name for s in model.inputs if "mask" in s.name.lower() and not s.dtype.is_float and s.rank]


def _half_closed(mask: Array) -> Array:
    """Return the mask with the second half of its last axis closed."""
    closed = mask.copy()
    closed[..., (mask.shape[-1] + 1) // 2 :] = 0
    return closed


def _probe(
    model: ModelSource, other: ModelSource, session: EngineSession, other_session: EngineSession, pair: PairComparison, inputs: Inputs, probes: int
) -> PairComparison:  # fmt: skip
    """Return the comparison of the first probe that shows a difference, or the given one. Probes scale and shift floats; every
    second probe half-closes masks.
    """
    names = [s.name for s in model.outputs]
    deadline = time.monotonic() + _PROBE_SECONDS
    for k in range(probes):
        if time.monotonic() > deadline:
            break
        seeded = replace(inputs, seed=(inputs.seed or 0) + 7919 * (k + 1)).samples(model.inputs)[0]
        scale, shift = _PROBE_SCALES[k % len(_PROBE_SCALES)]
        feeds = {
            n: (v * scale + shift).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in seeded.items()
        }
        if k % 2 == 0:
            feeds |= {n: _half_closed(feeds[n]) for n in _masks(model)}
        try:
            expected = _in_order(model, other, [other_session.outputs(_renamed(model, other, feeds))])
            outputs = worst_comparisons(
                names, [session.outputs(feeds)], expected, dict.fromkeys(names, pair.tolerance)
            )
        except RunError:  # The model may not accept the values of a probe.
            continue
        if not all(c.ok for c in outputs):
            return replace(pair, outputs=outputs)
    return pair


def _unseen(changed: Sequence[str]) -> str:
    rest = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"the files' weights differ in {', '.join(changed[:3])}{rest}, but no output differs on these inputs: "
        "use real inputs (--input) or more --samples"
    )


def _renamed(model: ModelSource, other: ModelSource, sample: dict[str, Array]) -> dict[str, Array]:
    """Return a sample of ``model`` under the input names of ``other``."""
    pairs = zip(model.inputs, _matched(model.inputs, other.inputs), strict=True)
    return {other_spec.name: sample[spec.name] for spec, other_spec in pairs}


def _export_note(pair: PairComparison, rounding: float) -> list[str]:
    worst = max((c.max_rel for c in pair.outputs), default=0.0)
    if pair.ok or worst > rounding:
        return []
    return [
        f"{pair.actual} and {pair.reference} differ by less than two engines' rounding ({worst:.2g} of {rounding:.2g}): "
        f"normal for two exports of one model (then use --tolerance {rounding:g}), but not for two files with equal weights"
    ]


def _labels(model: ModelSource, other: ModelSource) -> tuple[str, str]:
    if model.name != other.name:
        return model.name, other.name
    return (f"{model.name} ({model.path or 'first'})", f"{other.name} ({other.path or 'second'})")


def _same_signature(model: ModelSource, other: ModelSource) -> None:
    who = f"compare {model.name!r} with {other.name!r}"
    do = "Compare two versions of one model."
    for noun, a, b in (("inputs", model.inputs, other.inputs), ("outputs", model.outputs, other.outputs)):
        if len(a) != len(b):
            raise InputError(
                who, f"the two models have different numbers of {noun}", got=f"{len(a)} and {len(b)}", do=do
            )
    for spec, other_spec in zip(model.inputs, _matched(model.inputs, other.inputs), strict=True):
        if spec.dtype is not other_spec.dtype or spec.rank != other_spec.rank:
            got = f"{spec.name!r} {spec} and {other_spec.name!r} {other_spec}"
            raise InputError(who, "the two models have different inputs", got=got, do=do)


def _matched(specs: Sequence[Any], other_specs: Sequence[Any]) -> list[Any]:
    """Return ``theirs`` in the order of ``mine`` if the names are the same, else unchanged."""
    by_name = {s.name: s for s in other_specs}
    return [by_name[s.name] for s in specs] if {s.name for s in specs} == set(by_name) else list(other_specs)


def _in_order(model: ModelSource, other: ModelSource, samples: list[list[Array]]) -> list[list[Array]]:
    order = [other.outputs.index(s) for s in _matched(model.outputs, other.outputs)]
    return [[outputs[k] for k in order] for outputs in samples]
