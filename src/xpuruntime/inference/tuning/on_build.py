"""``tune: {on_build: SECONDS}``: the kernels of a program are measured when it is built, within a bound, the most expensive calls first.

The program is compiled without times, and one run of it tells what each call costs. Then calls are measured in groups, as ``xpu tune`` measures
all of them: variant ``i`` of the program uses the ``i``-th kernel of the group's calls, and the variants run in alternating rounds. All calls
form one group if their variants are compiled in half of the time that is left; otherwise a group has the most expensive calls, which are half of
the remaining time. A call with fewer than ``LEAST_ROUNDS`` rounds counts as not measured. The kernels are then chosen as by a file of times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...compiler.locked import KernelLock
from ...compiler.times import KernelTimes
from ...decisions import Candidate, Decision, Reason
from ...errors import FormatError, XpuError
from ...printable import logger
from ...profiler import trace
from ...program.program import CompiledProgram
from ...protocols import Array, TuneRequest
from ...targets import DeviceId
from .contest import Contest, KernelVariant, call_of
from .samples import RoundTimes, collected, details_of, measured_round, medians

__all__ = ["FACT", "LEAST_ROUNDS", "ROUNDS", "TunedSubject", "record_of", "tuned_program"]

FACT = "tune"
"""The fact of a program that records what was measured."""
ROUNDS, LEAST_ROUNDS = 9, 3
"""The highest number of alternating rounds of a group, and the least that counts."""
_SHOWN = 6  # names of nodes in a text
_log = logger("xpuruntime.session")

CompileTimed = Callable[[KernelLock | None, KernelTimes | None], CompiledProgram]
"""Compiles with a lock, or with measured times. An empty lock records the kernels."""


@dataclass(frozen=True, slots=True)
class TunedSubject:
    """The program that is measured. source: the model's arrays by name. facts: device and versions. invariant: the policy demands batch invariance."""

    name: str
    source: Mapping[str, Array] = field(repr=False)
    device: DeviceId
    threads: int | None
    facts: Mapping[str, str]
    invariant: bool = False


def tuned_program(compile_timed: CompileTimed, subject: TunedSubject, tune: TuneRequest) -> CompiledProgram:
    """Return the program whose kernels are chosen by times that are measured now, or that ``tune`` has. It records them. Raises as ``compile``."""
    record = tune.record
    if record is None:
        if tune.anew:
            _log.warning("native, model %s: kernels are measured anew: %s", subject.name, tune.anew)
        name = f"measure: kernels of {subject.name}"
        record = trace.timed(name, _Measurement(compile_timed, subject, tune).record)
    program = compile_timed(None, KernelTimes.load(record["times"]))
    decisions = (Decision.from_json(record["decision"]), *program.decisions)
    return replace(program, decisions=decisions, facts={**program.facts, FACT: dict(record)})


def record_of(program: CompiledProgram) -> Mapping[str, Any] | None:
    """Return what a program records about its measurement; None if it was built without one. Raises FormatError."""
    record = program.facts.get(FACT)
    if record is not None and not (isinstance(record, Mapping) and {"times", "decision"} <= record.keys()):
        raise FormatError(
            f"program {program.name!r}",
            "has a record of measured kernels that this release does not read",
            got=str(record)[:80],
            do="Compile it again.",
        )
    return record


class _Measurement:
    """One measurement: the calls that wait for it, the finished rounds by call, and why a call is not measured."""

    def __init__(self, compile_timed: CompileTimed, subject: TunedSubject, tune: TuneRequest) -> None:
        self.subject, self.tune = subject, tune
        self.compile_timed = compile_timed
        self.rounds: list[RoundTimes] = []
        self.unmeasured: dict[str, tuple[Reason, str]] = {}
        self.first_s = 0.0  # the compilation without times, which may have been in the store
        self.variant_s = 0.0  # the longest compilation of a variant so far
        self.round_s = 0.0  # the longest round of one variant so far

    def record(self) -> dict[str, Any]:
        """Measure, and return the record as plain data."""
        contest = Contest(self._compiled, self.subject.source, self.subject.device, self.subject.threads)
        began = time.monotonic()
        self.deadline = began + self.tune.seconds
        contested = [k for k, words in contest.kernels.items() if len(words) > 1]
        self._leave_demanded(contest, contested)
        open_calls = [k for k in contested if k not in self.unmeasured]
        if open_calls:
            with ExitStack() as stack:
                self._measure(contest, open_calls, stack)
        samples = collected(self.rounds)
        measured = [k for k in open_calls if k not in self.unmeasured]
        rows = {k: samples[k] for k in measured}
        nodes = contest.nodes()
        times = KernelTimes(
            contest.entry.plans[0].target,
            self.subject.threads or 0,
            medians(rows),
            {**self.subject.facts, "model": self.subject.name},
            details_of(rows, nodes),
        )
        names = {k: ", ".join(nodes[k][1]) or nodes[k][0] for k in contested}
        decision = self._decision(times, names, measured, time.monotonic() - began)
        _log.info("%s", decision)
        return {
            "on_build": self.tune.seconds,
            "seconds": round(time.monotonic() - began, 3),
            "measured": [names[k] for k in measured],
            "unmeasured": {names[k]: why for k, (_, why) in self.unmeasured.items()},
            "times": times.to_json(),
            "decision": decision.to_json(),
        }

    def _compiled(self, words: Mapping[str, str] | None) -> tuple[CompiledProgram, KernelLock]:
        lock, began = KernelLock(words), time.monotonic()
        program = self.compile_timed(lock, None)
        seconds = time.monotonic() - began
        if words is None:
            self.first_s = seconds
        else:
            self.variant_s = max(self.variant_s, seconds)
        return program, lock

    @property
    def compiling_s(self) -> float:
        """Seconds that a compilation of another variant is expected to take."""
        return self.variant_s or self.first_s

    def _leave_demanded(self, contest: Contest, contested: Sequence[str]) -> None:
        """Leave out calls whose bits a policy demands to be equal in every build: times differ from build to build."""
        for call in contested:
            demands = [d for k, d in contest.lock.demands.items() if call_of(k) == call]
            if self.subject.invariant:
                why = "batch_invariant demands one kernel for every batch, and times may choose another for each"
                self.unmeasured[call] = Reason.FORBIDDEN, why
            elif demands:
                why = f"{demands[0]} demands equal bits in every build, and times may choose another kernel in each"
                self.unmeasured[call] = Reason.FORBIDDEN, why

    def _measure(self, contest: Contest, calls: Sequence[str], stack: ExitStack) -> None:
        """Measure groups of calls until all are measured or the time is spent."""
        try:
            base = contest.open("default", contest.lock.kernels)
            stack.callback(base.close)
            cost = self._costs(contest, base)
        except XpuError as error:
            why = f"the program does not run on seeded inputs: {error.what}"
            self.unmeasured |= dict.fromkeys(calls, (Reason.RUN_FAILED, why))
            return
        waiting = sorted(calls, key=lambda call: -cost.get(call, 0.0))
        while waiting:
            group = self._group(contest, waiting, cost)
            if not group:
                break
            waiting = [call for call in waiting if call not in group]
            self._measure_group(contest, group, base)
            self._say(contest, group, len(waiting))
        why = f"the bound of {self.tune.seconds:g} s leaves no time for it"
        self.unmeasured |= dict.fromkeys(waiting, (Reason.TIMED_OUT, why))

    def _costs(self, contest: Contest, base: KernelVariant) -> dict[str, float]:
        """Return the time of all nodes with each call in a run with the default kernels."""
        began = time.monotonic()
        times = measured_round([base], 0, KernelVariant.call_times)
        self.round_s = time.monotonic() - began
        keys = dict.fromkeys(k for k in contest.keys if k)
        cost: dict[str, float] = {}
        for call in map(call_of, keys):
            cost[call] = cost.get(call, 0.0) + sum(times.get(call, {}).values())
        return cost

    @property
    def _left(self) -> float:
        """Seconds that are left, less those of the last compilation, with the chosen kernels."""
        return self.deadline - time.monotonic() - self.compiling_s

    def _needed(self, contest: Contest, group: Sequence[str]) -> float:
        """Return seconds for compiling the variants of a group and for the least number of rounds."""
        variants = max((len(contest.kernels[call]) for call in group), default=1)
        return (variants - 1) * self.compiling_s + LEAST_ROUNDS * variants * self.round_s

    def _group(self, contest: Contest, waiting: Sequence[str], cost: Mapping[str, float]) -> list[str]:
        """Return the calls that are measured next: all, or the most expensive ones, or none if the time is spent."""
        left = self._left
        if self._needed(contest, waiting) <= left / 2:
            return list(waiting)
        half, total = 0, 0.0
        while half < len(waiting) and total < sum(cost.get(c, 0.0) for c in waiting) / 2:
            total += cost.get(waiting[half], 0.0)
            half += 1
        groups = (waiting[: max(half, 1)], waiting[:1])
        return next((list(group) for group in groups if self._needed(contest, group) <= left), [])

    def _measure_group(self, contest: Contest, group: Sequence[str], base: KernelVariant) -> None:
        """Measure the kernels of a group's calls in alternating rounds."""
        count = max(len(contest.kernels[call]) for call in group)
        with ExitStack() as stack:
            variants = [base]
            for index in range(1, count):
                try:
                    variants.append(contest.open(str(index), contest.words(index, group)))
                    stack.callback(variants[-1].close)
                except XpuError as error:  # a library that declines a call when it is opened
                    self._lose(contest, group, index, f"a kernel cannot be opened: {error.what}")
            rounds: list[RoundTimes] = []
            for index in range(ROUNDS):
                began = time.monotonic()
                if self._left < len(variants) * self.round_s:
                    break
                try:
                    times = measured_round(variants, index, KernelVariant.call_times)
                except XpuError as error:
                    why = f"a variant of the program fails on seeded inputs: {error.what}"
                    self.unmeasured |= dict.fromkeys(group, (Reason.RUN_FAILED, why))
                    return
                self.round_s = max(self.round_s, (time.monotonic() - began) / len(variants))
                rounds.append({call: times[call] for call in group})
        if len(rounds) < LEAST_ROUNDS:
            why = (
                f"the bound of {self.tune.seconds:g} s was spent after {len(rounds)} of {LEAST_ROUNDS} rounds"
            )
            for call in group:
                self.unmeasured.setdefault(call, (Reason.TIMED_OUT, why))
        self.rounds += rounds

    def _lose(self, contest: Contest, group: Sequence[str], index: int, why: str) -> None:
        """Note the calls that have a kernel only in this variant: without all times, none decides."""
        for call in group:
            if index < len(contest.kernels[call]):
                self.unmeasured[call] = Reason.BUILD_FAILED, why

    def _say(self, contest: Contest, group: Sequence[str], waiting: int) -> None:
        _log.info(
            "tune %s: %d calls measured in %d variants; %d wait; %.1f s are left",
            self.subject.name, len(group), max(len(contest.kernels[c]) for c in group), waiting, max(self._left, 0.0),
        )  # fmt: skip

    def _decision(
        self, times: KernelTimes, names: Mapping[str, str], measured: Sequence[str], seconds: float
    ) -> Decision:
        """Return what was measured, and each call that was not, with the reason."""
        rounds = min((d.rounds for d in times.details.values()), default=0)
        several = f"{len(measured)} of {len(names)} calls with several kernels"
        text = f"{several} {times.origin} in {seconds:.1f} s, at least {rounds} alternating rounds"
        if not names:
            text = "no call has several kernels that a measurement may choose"
        elif not measured:
            text = f"none of {len(names)} calls with several kernels was measured"
        else:
            text += f": {_shown([names[k] for k in measured])}"
        if self.tune.anew:
            text += f"; measured anew: {self.tune.anew}"
        reasons: dict[tuple[Reason, str], list[str]] = {}
        for call, reason in self.unmeasured.items():
            reasons.setdefault(reason, []).append(names[call])
        rejected = [Candidate(_shown(nodes), code, why) for (code, why), nodes in reasons.items()]
        facts = {"measured": len(measured), "unmeasured": len(self.unmeasured)}
        head = Candidate(f"on_build {self.tune.seconds:g} s", Reason.RECORDED, text, facts=facts)
        return Decision("tune", self.subject.name, head, tuple(rejected))


def _shown(names: Sequence[str]) -> str:
    """Return the first names as text."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
