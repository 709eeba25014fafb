"""engine="auto": the fastest candidate with correct outputs, measured once on the same inputs.

Outputs are correct if they agree with the ONNX reference evaluator, where it can run in time, otherwise with most candidates.
If two candidates disagree, the one earlier in the built-in order is chosen with a warning. Runs alternate between candidates,
so that a change of the machine's speed affects all of them. All measuring is bounded in seconds.
Candidates that break a tie of equal scores differently are still correct; a warning names the node of the tie.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...decisions import Candidate, Decision, Reason, Support
from ...errors import WrongResult, XpuError
from ...numerics import compare, compare_all, tolerance_for
from ...profiler import trace
from ...protocols import Array, Executable, ModelSource
from ...types import DType
from ..native.model import native_model
from ..self_check.conditioning import sensitivity, widened
from ..self_check.locate import Located, first_tie
from ..self_check.onnx_reference import reference_outputs

__all__ = ["CLOCK", "Contender", "measure"]

CLOCK = time.perf_counter_ns
"""The clock of the measurement. A one-thread benchmark on a busy machine may set ``time.process_time_ns``."""

_MAX_RUNS = 50
_BURST_NS = 20_000_000
"""Nanoseconds that a candidate runs before the next one has its turn."""
_MIN_RUNS = 3
_REFERENCE_SHARE = 0.4  # of the time bound


@dataclass(slots=True)
class Contender:
    """One loaded candidate of a measurement and its results."""

    name: str
    executable: Executable
    precision: DType
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: Sequence[Array] = ()
    times_us: list[float] = field(default_factory=list)
    no: Support | None = None
    shifts: Mapping[str, float] | None = None

    def moves(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how far the outputs move with the last bits of the inputs, measured on first use (``conditioning``)."""
        if self.shifts is None:
            self.shifts = sensitivity(self.executable.run, names, self.feeds, self.outputs)
        return self.shifts

    @property
    def median_us(self) -> float:
        """Return the median of its timed runs in microseconds."""
        return statistics.median(self.times_us)


@dataclass(slots=True)
class _Case:
    """One measurement. ``tie``: a choice among equal scores, searched for up to ``seconds`` when candidates first disagree."""

    model: ModelSource
    feeds: Mapping[str, Array]
    seconds: float
    tie: Located | None = None
    excused: bool = False

    def excuses(self, output: str) -> bool:
        """Return True if candidates may differ in this output because they break a tie differently."""
        if self.tie is None:
            try:
                self.tie = first_tie(native_model(self.model), self.feeds, self.model.precision, self.seconds)
            except XpuError:  # the model cannot be lowered to the IR
                self.tie = Located("")
        self.excused |= output in self.tie.undecided
        return output in self.tie.undecided


def measure(
    model: ModelSource,
    contenders: Sequence[Contender],
    feeds: dict[str, Array],
    seconds: float,
    told: str = "seeded inputs",
) -> tuple[Decision, tuple[str, ...]]:
    """Return the decision among contenders (in built-in order) and warnings. ``chosen`` is None if none could run. ``told`` names the feeds."""
    trace.mark(f"measure: {len(contenders)} candidates for {model.name}")
    deadline = time.monotonic() + seconds
    for c in contenders:
        _first_run(c, feeds, told)
    able = [c for c in contenders if c.no is None]
    warnings: list[str] = []
    judge: Support = Support.no(Reason.ONLY_ONE, "nothing to compare with")
    if len(able) > 1:
        case = _Case(model, feeds, seconds * _REFERENCE_SHARE)
        judge, warnings = _judge(case, able, seconds * _REFERENCE_SHARE)
        if case.excused and case.tie is not None:
            judge = Support.no(Reason.NOT_CHECKED, f"but for outputs after a choice: {case.tie.text}")
            warnings = [*warnings, f"candidates disagree on {model.name}: {case.tie.text}"]
        able = [c for c in able if c.no is None]
        _alternate(able, feeds, deadline)
    return _decide(model, contenders, able, judge, told), tuple(warnings)


def _first_run(c: Contender, feeds: dict[str, Array], told: str) -> None:
    try:
        c.feeds, c.outputs = feeds, c.executable.run(feeds)
    except WrongResult as error:
        c.no = Support.no(Reason.WRONG_RESULT, f"{error.what}: {error.got}", do=error.do)
    except XpuError as error:  # the native engine compiles a new shape during its first run, which may fail
        c.no = Support.no(Reason.RUN_FAILED, f"failed on {told}: {error.got or error.what}")


def _judge(case: _Case, able: Sequence[Contender], seconds: float) -> tuple[Support, list[str]]:
    """Mark wrong contenders. Return whether the reference evaluator decided, and warnings."""
    model = case.model
    reference, support = reference_outputs(model, case.feeds, seconds)
    if reference is not None:
        for c in able:
            c.no = _disagreement(case, c, reference, model.precision, "the ONNX reference evaluator")
        if any(c.no is None for c in able):
            return support, []
        for c in able:  # if every candidate disagrees with the reference, the reference is in doubt
            c.no = None
        support = Support.no(Reason.WRONG_RESULT, "no candidate agrees with the ONNX reference evaluator")
    group = _largest_group(case, able)
    if len(group) * 2 > len(able):
        for c in able:
            if c not in group:
                c.no = _disagreement(case, c, group[0].outputs, group[0].precision, group[0].name)
        return support, []
    for c in able[1:]:
        c.no = _disagreement(case, c, able[0].outputs, able[0].precision, able[0].name)
    told = "; ".join(f"{c.name}: {c.no.reason}" for c in able[1:] if c.no is not None)
    text = f"{' and '.join(c.name for c in able)} disagree on {model.name} and no reference was available ({told})"
    return support, [f"{text}; {able[0].name} is chosen because it is earlier in the preference order"]


def _largest_group(case: _Case, able: Sequence[Contender]) -> list[Contender]:
    groups = [
        [c for c in able if _disagreement(case, c, a.outputs, a.precision, a.name) is None] for a in able
    ]
    return max(groups, key=len)


def _disagreement(
    case: _Case, c: Contender, reference: Sequence[Array], precision: DType, judge: str
) -> Support | None:
    names = [s.name for s in case.model.outputs]
    base = tolerance_for(c.precision, precision)
    if all(r.ok for r in compare_all(names, c.outputs, reference, base)):
        return None
    limits = widened(base, c.moves(names))
    for name, output, wanted in zip(names, c.outputs, reference, strict=True):
        r = compare(name, output, wanted, limits[name])
        if not r.ok and not case.excuses(name):
            return Support.no(Reason.WRONG_RESULT, f"output {name!r} disagrees with {judge}: {r.reason}")
    return None


def _alternate(able: Sequence[Contender], feeds: dict[str, Array], deadline: float) -> None:
    for turn in range(_MAX_RUNS):
        if turn >= _MIN_RUNS and time.monotonic() > deadline:
            return
        for c in able:
            c.executable.run(feeds)  # warm the caches again after the other candidates' runs
            begun = CLOCK()
            while not c.times_us or CLOCK() - begun < _BURST_NS:
                start = CLOCK()
                c.executable.run(feeds)
                c.times_us.append((CLOCK() - start) / 1e3)


def _decide(
    model: ModelSource, contenders: Sequence[Contender], able: Sequence[Contender], judge: Support, told: str
) -> Decision:
    best = min(able, key=lambda c: c.median_us if c.times_us else 0.0, default=None)
    chosen, rejected = None, []
    for c in contenders:
        facts: dict[str, Any] = (
            {"median_us": round(c.median_us, 1), "runs": len(c.times_us)} if c.times_us else {}
        )
        if c is best and not c.times_us:
            chosen = Candidate(
                c.name, Reason.ONLY_ONE, "the only candidate that runs this model here", facts=facts
            )
        elif c is best:
            by = "the ONNX reference evaluator" if judge else f"the other candidates ({judge.reason})"
            text = f"median {c.median_us:.0f} us on {told}; outputs agree with {by}"
            chosen = Candidate(c.name, Reason.FASTEST, text, facts=facts)
        elif c.no is not None:
            rejected.append(Candidate.rejected(c.name, c.no, **facts))
        elif best is not None:
            text = f"median {c.median_us:.0f} us, {c.median_us / best.median_us:.2f}x the time of {best.name}"
            rejected.append(Candidate(c.name, Reason.SLOWER, text, facts=facts))
    return Decision("engine", model.name, chosen, tuple(rejected))
