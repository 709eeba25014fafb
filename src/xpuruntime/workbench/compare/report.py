"""The report of a comparison: each engine against its reference, output by output, the answer in words, and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...decisions import Candidate
from ...errors import RunError
from ...numerics import Comparison, compare
from ...protocols import Array
from ..engine_sessions import EngineSessions

__all__ = [
    "CompareReport",
    "PairComparison",
    "Progress",
    "non_finite_outputs",
    "run_engines",
    "worst_comparisons",
]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PairComparison:
    """An engine or a model against its reference: for each output, the worst comparison over all samples.

    ``tolerance`` is the base. Each output has its own tolerance, which is larger where the model amplifies rounding.
    """

    actual: str
    reference: str
    tolerance: float
    outputs: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """True if every output agrees within its tolerance."""
        return all(c.ok for c in self.outputs)

    @property
    def first_difference(self) -> Comparison | None:
        """First output that differs, in the model's order."""
        return next((c for c in self.outputs if not c.ok), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
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
    """The models, inputs, engines and results of a comparison. ``ok`` is the answer."""

    model: str
    reference_model: str | None
    inputs: str
    samples: int
    engines: tuple[dict[str, Any], ...]
    rejected: tuple[Candidate, ...]
    pairs: tuple[PairComparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every pair agrees."""
        return all(p.ok for p in self.pairs)

    @property
    def sentence(self) -> str:
        """Answer in words; of a difference, the pair and the first output."""
        for pair in self.pairs:
            first = pair.first_difference
            if first is not None:
                return f"{pair.actual} differs from {pair.reference}, first in output {first.name!r}: {first.reason}"
        names = dict.fromkeys(n for p in self.pairs for n in (p.actual, p.reference))
        return f"{', '.join(names)} agree"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
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


def run_engines(
    sessions: EngineSessions, feeds: Sequence[dict[str, Array]], named: bool, progress: Progress
) -> dict[str, list[list[Array]]]:
    """Return outputs by engine, then by sample. An engine that fails to run is dropped, or raises if the user named it."""
    outputs: dict[str, list[list[Array]]] = {}
    for engine in tuple(sessions.opened):
        progress(f"{engine.name}: running {len(feeds)} samples")
        try:
            outputs[engine.name] = [engine.outputs(sample) for sample in feeds]
        except RunError as error:
            sessions.drop(engine, error, named)
    return outputs


def worst_comparisons(
    names: Sequence[str],
    actual: Sequence[Sequence[Array]],
    reference: Sequence[Sequence[Array]],
    limits: Mapping[str, float],
) -> tuple[Comparison, ...]:
    """Return, for each output, the comparison of its worst sample; cosine and argmax agreement are minima over the samples."""
    by_sample = [
        [compare(n, x, y, limits[n]) for n, x, y in zip(names, a, r, strict=True)]
        for a, r in zip(actual, reference, strict=True)
    ]
    return tuple(_merge(comparisons) for comparisons in zip(*by_sample, strict=True))


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


def non_finite_outputs(
    names: Sequence[str], label: str, samples: Sequence[Sequence[Array]]
) -> tuple[str, ...]:
    """Return a note for each output without a finite number in the reference, since agreement there shows nothing."""
    empty = [
        name
        for name, *values in zip(names, *samples, strict=True)
        if all(
            v.size and v.dtype.kind in "fcV" and not np.isfinite(v.astype(np.complex128)).any()
            for v in values
        )
    ]
    return tuple(
        f"output {name!r} of {label} holds no finite number, so its agreement shows nothing" for name in empty
    )
