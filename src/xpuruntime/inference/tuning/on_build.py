"""``tune: {on_build: SECONDS}``: the kernels of a program are measured when it is built, within a bound, the most expensive calls first.

The program is compiled without times, and one run of it tells what each call costs. Then calls are measured in groups, as ``xpu tune`` measures
all of them: variant ``i`` of the program uses the ``i``-th kernel of the group's calls, and the variants run in alternating rounds. All calls
form one group if their variants are compiled in half of the time that is left; otherwise a group has the most expensive calls, which are half of
the remaining time. Each kernel runs once before: one that takes ``MAX_SLOWDOWN`` times as long as another has no rounds, and its variants are compiled
again without it. A call with fewer than ``MIN_ROUNDS`` rounds of the others counts as not measured. The kernels are then chosen as by a file of times.
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
from ...storage.store import Store
from ...targets import DeviceId
from .samples import RoundTimes, Samples, collected, details_of, measured_round, medians
from .tunable import KernelVariant, TunableProgram, call_of

__all__ = ["FACT", "MAX_SLOWDOWN", "MIN_ROUNDS", "ROUNDS", "TunedSubject", "record_of", "tuned_program"]

FACT = "tune"
"""The fact of a program that records what was measured."""
ROUNDS, MIN_ROUNDS = 9, 3
"""The highest number of alternating rounds of a group, and the least that counts."""
MAX_SLOWDOWN = 3.0
"""A kernel that takes so many times the fastest one's time in its first run is not measured further."""
_FIRST_RUN_FACTOR = (
    10.0  # a first run of all kernels is expected to take so many times a run with the default ones
)
_REMEDIES = {Reason.TIMED_OUT: "Raise on_build."}
_SHOWN = 6  # names of nodes in a text
_log = logger("xpuruntime.session")

CompileTimed = Callable[[KernelLock | None, KernelTimes | None], CompiledProgram]
"""Compiles with a lock, or with measured times. An empty lock records the kernels."""


@dataclass(frozen=True, slots=True)
class TunedSubject:
    """The program that is measured. source: the model's arrays by name. facts: device and versions. invariant: the policy demands batch invariance.

    store: as for ``Executor``.
    """

    name: str
    source: Mapping[str, Array] = field(repr=False)
    device: DeviceId
    threads: int | None
    facts: Mapping[str, str]
    invariant: bool = False
    store: Store | None = field(default=None, repr=False)


def tuned_program(compile_timed: CompileTimed, subject: TunedSubject, tune: TuneRequest) -> CompiledProgram:
    """Return the program whose kernels are chosen by times that are measured now, or that ``tune`` has. It records them. Raises as ``compile``."""
    record = tune.record
    if record is None:
        if tune.remeasure_reason:
            _log.warning(
                "native, model %s: kernels are measured anew: %s", subject.name, tune.remeasure_reason
            )
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
        self.run_s = 0.0  # a run with the default kernels

    def record(self) -> dict[str, Any]:
        """Measure, and return the record as plain data."""
        tunable = TunableProgram(
            self._compiled,
            self.subject.source,
            self.subject.device,
            self.subject.threads,
            store=self.subject.store,
        )
        began = time.monotonic()
        self.deadline = began + self.tune.seconds
        contested = [k for k, words in tunable.kernels.items() if len(words) > 1]
        self._exclude_demanded(tunable, contested)
        open_calls = [k for k in contested if k not in self.unmeasured]
        if open_calls:
            with ExitStack() as stack:
                self._measure(tunable, open_calls, stack)
        samples = collected(self.rounds)
        measured = [k for k in open_calls if k not in self.unmeasured]
        rows = {k: samples[k] for k in measured}
        nodes = tunable.nodes()
        times = KernelTimes(
            tunable.entry.plans[0].target,
            self.subject.threads or 0,
            medians(rows),
            {**self.subject.facts, "model": self.subject.name},
            details_of(rows, nodes),
        )
        names = {k: _name(*nodes[k]) for k in contested}
        decision = self._decision(times, rows, names, measured, time.monotonic() - began)
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

    def _exclude_demanded(self, tunable: TunableProgram, contested: Sequence[str]) -> None:
        """Leave out calls whose bits a policy demands to be equal in every build: times differ from build to build."""
        for call in contested:
            demands = [d for k, d in tunable.lock.demands.items() if call_of(k) == call]
            if self.subject.invariant:
                why = "batch_invariant demands one kernel for every batch, and times may choose another for each"
                self.unmeasured[call] = Reason.FORBIDDEN, why
            elif demands:
                why = f"{demands[0]} demands equal bits in every build, and times may choose another kernel in each"
                self.unmeasured[call] = Reason.FORBIDDEN, why

    def _measure(self, tunable: TunableProgram, calls: Sequence[str], stack: ExitStack) -> None:
        """Measure groups of calls until all are measured or the time is spent."""
        try:
            base = tunable.open("default", tunable.lock.kernels)
            stack.callback(base.close)
            cost = self._costs(tunable, base)
        except XpuError as error:
            why = f"the program does not run on seeded inputs: {error.what}"
            self.unmeasured |= dict.fromkeys(calls, (Reason.RUN_FAILED, why))
            return
        waiting = sorted(calls, key=lambda call: -cost.get(call, 0.0))
        while waiting:
            group = self._group(tunable, waiting, cost)
            if not group:
                break
            waiting = [call for call in waiting if call not in group]
            self._measure_group(tunable, group, base)
            self._log_group(tunable, group, len(waiting))
        why = f"the bound of {self.tune.seconds:g} s leaves no time for it"
        self.unmeasured |= dict.fromkeys(waiting, (Reason.TIMED_OUT, why))

    def _costs(self, tunable: TunableProgram, base: KernelVariant) -> dict[str, float]:
        """Return the time of all nodes with each call in a run with the default kernels."""
        began = time.monotonic()
        times = measured_round([base], 0, KernelVariant.call_times)
        self.round_s = time.monotonic() - began
        keys = dict.fromkeys(k for k in tunable.keys if k)
        cost: dict[str, float] = {}
        for call in map(call_of, keys):
            cost[call] = cost.get(call, 0.0) + sum(times.get(call, {}).values())
        self.run_s = sum(cost.values()) / 1e6
        return cost

    @property
    def _left(self) -> float:
        """Seconds that are left, less those of the last compilation, with the chosen kernels."""
        return self.deadline - time.monotonic() - self.compiling_s

    def _needed(self, tunable: TunableProgram, group: Sequence[str]) -> float:
        """Return seconds for compiling the variants of a group, their first runs and the least number of rounds."""
        variants = max((len(tunable.kernels[call]) for call in group), default=1)
        first = (variants - 1) * (self.compiling_s + _FIRST_RUN_FACTOR * self.run_s)
        return first + MIN_ROUNDS * variants * self.round_s

    def _group(self, tunable: TunableProgram, waiting: Sequence[str], cost: Mapping[str, float]) -> list[str]:
        """Return the calls that are measured next: all, or the most expensive ones, or none if the time is spent."""
        left = self._left
        if self._needed(tunable, waiting) <= left / 2:
            return list(waiting)
        half, total = 0, 0.0
        while half < len(waiting) and total < sum(cost.get(c, 0.0) for c in waiting) / 2:
            total += cost.get(waiting[half], 0.0)
            half += 1
        groups = (waiting[: max(half, 1)], waiting[:1])
        return next((list(group) for group in groups if self._needed(tunable, group) <= left), [])

    def _measure_group(self, tunable: TunableProgram, group: Sequence[str], base: KernelVariant) -> None:
        """Run every kernel of a group's calls once, then measure those that may be the fastest in alternating rounds."""
        kernels = {call: list(tunable.kernels[call]) for call in group}
        with ExitStack() as stack:
            variants = self._opened(tunable, kernels, base, stack)
            kernels = {
                call: [w for w in words if w not in tunable.refused.get(call, {})]
                for call, words in kernels.items()
            }
            close = [call for call in kernels if call not in self.unmeasured]
            try:
                probes = self._probed(kernels, variants)
                close = [call for call in close if call not in self.unmeasured]
                rest = {call: self._contenders(call, kernels[call], probes[call]) for call in close}
                if any(len(rest[call]) < len(kernels[call]) for call in close):
                    stack.close()
                    rest_of = {call: words for call, words in rest.items() if len(words) > 1}
                    variants = self._opened(tunable, rest_of, base, stack) if rest_of else []
                rounds = self._rounds([c for c in rest if len(rest[c]) > 1], variants)
            except XpuError as error:
                why = f"a variant of the program fails on seeded inputs: {error.what}"
                self.unmeasured |= dict.fromkeys(close, (Reason.RUN_FAILED, why))
                return
        self.rounds += rounds
        # One round has the kernels that were too slow in their first run.
        self.rounds.append({c: {w: us for w, us in probes[c].items() if w not in rest[c] or len(rest[c]) < 2} for c in rest})  # fmt: skip

    def _opened(
        self,
        tunable: TunableProgram,
        kernels: Mapping[str, Sequence[str]],
        base: KernelVariant,
        stack: ExitStack,
    ) -> list[KernelVariant]:
        """Return the variants in which the kernels of calls take turns. ``base`` is the first one if these begin with the default kernels."""
        variants = [base] if all(words[0] == tunable.default[call] for call, words in kernels.items()) else []
        for index in range(len(variants), max(map(len, kernels.values()), default=1)):
            try:
                variants.append(tunable.open(str(index), tunable.words(index, kernels)))
                stack.callback(variants[-1].close)
            except XpuError as error:  # a library that declines a call when it is opened
                # Without the times of all kernels, none decides.
                lost = [call for call, words in kernels.items() if index < len(words)]
                why = f"a kernel cannot be opened: {error.what}"
                self.unmeasured |= dict.fromkeys(lost, (Reason.BUILD_FAILED, why))
        return variants

    def _probed(
        self, kernels: Mapping[str, Sequence[str]], variants: Sequence[KernelVariant]
    ) -> dict[str, dict[str, float]]:
        """Return the microseconds of each kernel of the calls in one run, which ends with the time that is left."""
        probes: dict[str, dict[str, float]] = {call: {} for call in kernels}
        for variant in variants:
            words = {call_of(key): word for key, word in variant.words.items()}
            for call, us in variant.probe_times(max(self._left, 1e-3)).items():
                if call in probes:
                    probes[call].setdefault(words[call], us)
        why = f"the bound of {self.tune.seconds:g} s was spent in the first run of its kernels"
        for call, words_of in kernels.items():
            if set(words_of) - probes[call].keys():
                self.unmeasured.setdefault(call, (Reason.TIMED_OUT, why))
        return probes

    def _contenders(self, call: str, words: Sequence[str], probe: Mapping[str, float]) -> list[str]:
        """Return the kernels of a call that may be the fastest, in their order."""
        fastest = min(probe.values())
        return [w for w in words if probe[w] <= MAX_SLOWDOWN * fastest]

    def _rounds(self, calls: Sequence[str], variants: Sequence[KernelVariant]) -> list[RoundTimes]:
        """Measure calls in alternating rounds while there is time."""
        rounds: list[RoundTimes] = []
        for index in range(ROUNDS if calls else 0):
            began = time.monotonic()
            if self._left < len(variants) * self.round_s:
                break
            times = measured_round(variants, index, KernelVariant.call_times)
            self.round_s = max(self.round_s, (time.monotonic() - began) / len(variants))
            rounds.append({call: times[call] for call in calls})
        if calls and len(rounds) < MIN_ROUNDS:
            spent = f"the bound of {self.tune.seconds:g} s was spent"
            why = f"{spent} after {len(rounds)} of {MIN_ROUNDS} rounds"
            for call in calls:
                self.unmeasured.setdefault(call, (Reason.TIMED_OUT, why))
        return rounds

    def _log_group(self, tunable: TunableProgram, group: Sequence[str], waiting: int) -> None:
        _log.info(
            "tune %s: %d calls measured in %d variants; %d wait; %.1f s are left",
            self.subject.name, len(group), max(len(tunable.kernels[c]) for c in group), waiting, max(self._left, 0.0),
        )  # fmt: skip

    def _decision(
        self,
        times: KernelTimes,
        rows: Samples,
        names: Mapping[str, str],
        measured: Sequence[str],
        seconds: float,
    ) -> Decision:
        """Return what was measured, and each call that was not, with the reason."""
        rounds = max((len(us) for row in rows.values() for us in row.values()), default=0)
        several = f"{len(measured)} of {len(names)} calls with several kernels"
        text = f"{several} {times.origin} in {seconds:.1f} s, up to {rounds} alternating rounds"
        if not names:
            text = "no call has several kernels that a measurement may choose"
        elif not measured:
            text = f"none of {len(names)} calls with several kernels was measured"
        else:
            text += f": {_shown([names[k] for k in measured])}"
        if self.tune.remeasure_reason:
            text += f"; measured anew: {self.tune.remeasure_reason}"
        reasons: dict[tuple[Reason, str], list[str]] = {}
        for call, reason in self.unmeasured.items():
            reasons.setdefault(reason, []).append(names[call])
        rejected = [
            Candidate(_shown(nodes), code, why, _REMEDIES.get(code, ""))
            for (code, why), nodes in reasons.items()
        ]
        facts = {"measured": len(measured), "unmeasured": len(self.unmeasured)}
        head = Candidate(f"on_build {self.tune.seconds:g} s", Reason.RECORDED, text, facts=facts)
        return Decision("tune", self.subject.name, head, tuple(rejected))


def _name(op: str, nodes: Sequence[str]) -> str:
    """Return the name of a call for texts: its first node, and how many others it computes."""
    if not nodes:
        return op
    return nodes[0] + (f" (+{len(nodes) - 1})" if len(nodes) > 1 else "")


def _shown(names: Sequence[str]) -> str:
    """Return the first names as text."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
