"""``xpu tune``: the time of every usable kernel of each call, measured inside the model on this device.

Each shape bucket is compiled in several variants, as many as any of its calls has kernels: variant ``i`` uses the ``i``-th kernel of every call. A
round runs all variants in turn, every second round in the opposite order, and takes the time of each call from the executor's clock. So a
kernel is measured with the caches and the clock rate that it has in the model, and a slowdown of the machine affects all kernels alike.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from ...compiler.times import CallDetail, EngineTimes, KernelTimes, MeasuredRun
from ...engines import lookup
from ...errors import InputError, WrongResult
from ...inference.lock_checks.programs import bucket_text
from ...inference.locks.opening import bucket_of
from ...inference.native.engine import TIMES, machine_facts, recorded_lock
from ...inference.native.executable import NativeExecutable
from ...inference.native.model import sized_model
from ...inference.partitioned.mixed_search import ROUNDS as SEARCHES
from ...inference.session import InferenceSession
from ...inference.tuning.samples import collected, details_of, measured_round, medians
from ...inference.tuning.timing import WHOLE, Sample, whole_runs
from ...inference.tuning.tunable import KernelVariant, TunableProgram, call_of, measured_words
from ...numerics import compare_all, tolerance_for
from ...policies import Policy
from ...profiler.statistics import median_interval, paired_ratio
from ...protocols import Array, Closeable, EngineRequest
from ...runtime.execution.executor import Executor
from ...storage.files import file_error, write_atomic
from ...types import DType
from ..inputs import Inputs
from ..session_options import SessionOptions
from .journal import STAGES, Journal, Round
from .placements import NODE_ROUNDS, REGION_ROUNDS, EngineNodes, PlacedRuns, Placements, without_auto
from .report import TunedCall, TuneResult

__all__ = ["ROUNDS", "tune"]

ROUNDS = 15
"""Alternating rounds by default. A 95% interval of a median needs six."""
Progress = Callable[[str], None]


def tune(
    model: Any,
    output: Path | str,
    options: SessionOptions | None = None,
    buckets: Sequence[Mapping[str, int]] = (),
    *,
    budget_s: float = 60.0,
    rounds: int = ROUNDS,
    engines: Sequence[str] = (),
    regions: bool = False,
    progress: Progress = lambda _: None,
) -> TuneResult:
    """Measure the kernels of a model on the native engine, and write the file of times.

    engines:  other engines, whose whole runs are measured in turn with the native engine and its fastest kernels. One that is not available,
              or whose outputs differ by more than the precision's tolerance, raises.
    regions:  also search for placements of the model's nodes on these engines, and measure the best ones. They decide for sessions with
              ``place: {"*": auto}``; other entries of the policy's ``place`` hold in every placement.
    buckets:  sizes of symbolic dims, each measured. budget_s: seconds for compilation and rounds, over all processes that a journal joins; at least
              one round is measured. rounds: alternating rounds of each bucket.
    progress: called with a line for each round.
    The journal ``OUTPUT.journal`` makes a later call continue after a kill or a spent budget; it is deleted when all rounds are measured.
    Raises the errors of ``InferenceSession``, WrongResult, InputError for unknown or missing sizes, FormatError for a journal of another tuning, StoreError.
    """
    started, path = time.monotonic(), Path(output)
    if rounds < 1 or not budget_s > 0:
        raise InputError("tune", "needs at least one round and a positive budget", got=f"rounds={rounds}, budget_s={budget_s}", do="Give rounds=15, budget_s=60.")  # fmt: skip
    if path.is_dir():
        raise file_error(path, "cannot write", OSError(errno.EISDIR, "is a folder"))
    others = tuple(dict.fromkeys(name for e in engines if (name := lookup(e).name) != "native"))
    options = replace(options or SessionOptions(), engine="native", tune_s=0.0).with_device()
    policy, place = without_auto(options.policy) if regions else (Policy(), {})
    if regions:
        _check_regions(model, others, buckets)
        options = replace(options, policy=policy)
    with options.open(model) as session:
        for engine in others:
            if not lookup(engine).installed():
                options.on(engine).open(session.model).close()  # raises with the reason
        opened = list(_buckets(session, buckets))
        subject = _subject(session, opened, rounds, others) | ({"place": place} if regions else {})
        with Journal(path.with_name(f"{path.name}.journal"), subject) as journal:
            resumed = len(journal.rounds)
            tunables: list[_TunableModel] = []

            def write() -> KernelTimes:
                times = _times(tunables, journal, options, subject["facts"])
                text = json.dumps(times.to_json(), indent=1, sort_keys=True)
                write_atomic(path, text.encode() + b"\n")
                return times

            tuner = _Tuner(journal, rounds, budget_s - journal.seconds, started, progress, write)
            for number, bucket in enumerate(opened):
                tunables.append(_TunableModel(number, session, bucket, options, others))
                if regions:
                    tunables[-1].placements = Placements(
                        session.executable_model, bucket.shapes, dict(bucket.feeds), ("native", *others), place, bucket.executor.threads, policy, path
                    )  # fmt: skip
                tuner.measure(tunables[-1])
            times = write()
            finished = tuner.finished
            if finished:
                journal.remove()
        return TuneResult(
            path,
            times,
            tuple(c for tunable in tunables for c in tunable.tuned(journal)),
            finished,
            resumed,
            len(journal.rounds) - resumed,
            journal.seconds,
        )


def _check_regions(model: Any, engines: Sequence[str], buckets: Sequence[Mapping[str, int]]) -> None:
    who = f"tune {Path(str(model)).stem!r}"
    if not engines:
        do = "Name them: --engine onnxruntime --engine openvino."
        raise InputError(who, "needs engines on which regions may be placed", got="native alone", do=do)
    if len(buckets) > 1:
        do = "Give one --bucket, or leave --regions out."
        raise InputError(who, "places regions for one set of sizes", got=f"{len(buckets)} sets", do=do)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One set of sizes: its inputs, the session's executor for them, and the request that its program was compiled for."""

    shapes: Mapping[str, int]
    feeds: Mapping[str, Array]
    executor: Executor
    request: EngineRequest


def _buckets(session: InferenceSession, sizes: Sequence[Mapping[str, int]]) -> Iterator[_Bucket]:
    """Run the session once for each set of sizes. Raises InputError for a program, which has one kernel per call, and for missing sizes."""
    executable = session.executable
    who = f"tune {session.model.name!r}"
    if session.model.format == "program":
        do = "Tune the model that the program was compiled from."
        raise InputError(who, "is a compiled program, whose kernels are fixed", do=do)
    if not isinstance(executable, NativeExecutable):
        engines = dict.fromkeys(r.engine for r in session.plan.regions)
        raise InputError(
            who, "does not run on the native engine alone, so its calls cannot be timed inside the model", got=" + ".join(engines),
            do="Remove place and rules that force kernels. If NumPy has nodes whose sizes only a run knows, tune parts of the model without them.",
        )  # fmt: skip
    symbols = {s for spec in session.input_info for s in spec.symbols}
    if symbols and not sizes:
        names = ",".join(f"{s}=..." for s in sorted(symbols))
        raise InputError(
            who, "has symbolic dims, and kernels are measured for sizes", got=", ".join(sorted(symbols)),
            do=f"Give --bucket {names}, once for each set of sizes.",
        )  # fmt: skip
    for bucket in sizes or ({},):
        feeds = Inputs((), 0, bucket).samples(session.model.inputs)[0]
        session.run(feeds)
        executor = executable.executor_for(feeds)
        request = next(r for e, r in executable.executors() if e is executor)
        options = {k: v for k, v in request.options.items() if k != TIMES}
        yield _Bucket(bucket_of(executable, executor), feeds, executor, replace(request, options=options))


def _subject(
    session: InferenceSession, buckets: Sequence[_Bucket], rounds: int, engines: Sequence[str]
) -> dict[str, Any]:
    """Return what the journal measures: a tuning with another value of one of these does not continue it."""
    request = buckets[0].request
    policy = repr((request.precision, request.optimization, request.kernels))
    others = {"engines": {e: lookup(e).version() for e in engines}} if engines else {}
    return others | {
        "model": session.model.digest,
        "policy": hashlib.sha256(policy.encode()).hexdigest()[:16],
        "threads": buckets[0].executor.threads,
        "buckets": [dict(b.shapes) for b in buckets],
        "rounds": rounds,
        "facts": {**machine_facts(request.device), "model": session.model.name},
    }


class _EngineSide:
    """The model on another engine, opened for one bucket. Raises WrongResult if its outputs differ from the native engine's."""

    def __init__(self, engine: str, tunable: _TunableModel) -> None:
        bucket, self.name = tunable.bucket, engine
        self.session = tunable.options.on(engine).open(tunable.session.model)
        try:
            regions = [r.engine for r in self.session.plan.regions]
            if regions != [engine]:
                raise InputError(
                    f"tune {tunable.session.model.name!r}", f"{engine} does not run the whole model",
                    got=", ".join(dict.fromkeys(regions)), do="Leave it out, or drop what places nodes elsewhere.",
                )  # fmt: skip
            self.feeds = dict(bucket.feeds)
            outputs = self.session.executable.run(self.feeds)
            _check_outputs(tunable, engine, outputs)
        except BaseException:
            self.session.close()
            raise

    def run_times(self) -> Iterator[Sample]:
        """Yield the time of a whole run."""
        run = self.session.executable.run
        yield from whole_runs(self.name, lambda: run(self.feeds))

    def close(self) -> None:
        """Free the engine."""
        self.session.close()


def _check_outputs(tunable: _TunableModel, side: str, outputs: Sequence[Array]) -> None:
    """Raise WrongResult if outputs differ from the native engine's."""
    do = "Leave it out, or find the node: xpu bisect MODEL MODEL --engine-a native --engine-b ENGINE."
    names = [s.name for s in tunable.session.output_info]
    reference = tunable.session.executable.run(dict(tunable.bucket.feeds))
    precision = tunable.session.plan.regions[0].precision
    tolerance = tolerance_for(DType.of(precision))
    for result in compare_all(names, outputs, reference, tolerance):
        if not result.ok:
            raise WrongResult(
                f"tune {tunable.session.model.name!r}", f"{side} and native give different outputs",
                got=f"{result.name}: {result.reason or f'max|d|/max|ref| {result.max_rel:.3g}, tolerance {tolerance:g}'}", do=do,
            )  # fmt: skip


class _Side(Protocol):
    def run_times(self) -> Iterator[Sample]: ...

    def close(self) -> None: ...


_S = TypeVar("_S", bound=Closeable)


class _TunableModel:
    """The tunable of one bucket, with the journal's figures and the sides that are no variants of its program."""

    def __init__(
        self,
        number: int,
        session: InferenceSession,
        bucket: _Bucket,
        options: SessionOptions,
        engines: tuple[str, ...],
    ) -> None:
        self.number, self.bucket, self.session = number, bucket, session
        self.options, self.engines = options, engines
        self.programs = TunableProgram(
            lambda words: recorded_lock(session.model, bucket.request, bucket.shapes, words),
            sized_model(session.model, bucket.shapes).weights,
            bucket.request.device,
            bucket.executor.threads,
            bucket.feeds,
            bucket.request.store,
        )
        self.placements: Placements | None = None

    def fastest(self, journal: Journal) -> dict[str, str]:
        """Return the fastest kernel of each call, as ``compile(times=)`` chooses it: the default if a kernel was not measured."""
        best = {}
        times_of, lock = self.medians(journal), self.programs.lock
        for key, words in lock.alternatives.items():
            times = times_of.get(call_of(key), {})
            measured = measured_words(words, times)
            best[key] = min(measured, key=times.__getitem__) if len(measured) > 1 else lock.kernels[key]
        return best

    def samples(self, journal: Journal) -> dict[str, dict[str, list[float]]]:
        """Return the times of each call by kernel, one for each finished round."""
        return collected(done.times_us for done in journal.done(self.number, "calls"))

    def medians(self, journal: Journal) -> dict[str, dict[str, float]]:
        """Return the median time of each call by kernel."""
        return medians(self.samples(journal))

    def predicted(self, journal: Journal, words: Mapping[str, str]) -> float:
        """Return the sum of the times of all nodes with these kernels, in microseconds."""
        times = self.medians(journal)
        keys = dict.fromkeys(k for k in self.programs.keys if k)
        return sum(times.get(call_of(k), {}).get(words[k], 0.0) for k in keys)

    def tuned(self, journal: Journal) -> Iterator[TunedCall]:
        """Yield the calls with more than one kernel that were measured."""
        samples, nodes = self.samples(journal), self.programs.nodes()
        for key, able in self.programs.kernels.items():
            times = samples.get(key, {})
            words = measured_words(able, times)
            if len(words) < 2:
                continue
            us = {w: float(np.median(times[w])) for w in words}
            default, fastest = self.programs.default[key], min(words, key=us.__getitem__)
            ratio = paired_ratio(times[default], times[fastest])
            yield TunedCall(
                key, *nodes[key], default, fastest, us, ratio.value, ratio.interval.low, ratio.interval.high
            )


@dataclass(slots=True)
class _Tuner:
    """Measures rounds while the budget lasts, and adds each to the journal."""

    journal: Journal
    rounds: int
    budget_s: float
    started: float
    progress: Progress
    write: Callable[[], object]
    finished: bool = True

    def measure(self, tunable: _TunableModel) -> None:
        """Measure the rounds of a bucket that the journal does not have."""
        programs = tunable.programs
        variants = {str(v): programs.words(v) for v in range(programs.variants)}
        self._stage(tunable, "calls", _variants(tunable, variants), KernelVariant.call_times)
        if not self.finished:
            return
        fastest = tunable.fastest(self.journal)
        sides = {"tuned": fastest, "default": dict(programs.lock.kernels)}
        self._stage(tunable, "runs", _variants(tunable, sides), KernelVariant.run_times)
        if not self.finished or not tunable.engines:
            return
        engines: list[Callable[[], _Side]] = [*_variants(tunable, {"native": fastest})]
        engines += [functools.partial(_EngineSide, e, tunable) for e in tunable.engines]
        self._stage(tunable, "engines", engines, _run_times)
        if tunable.placements is not None and self.finished:
            try:
                self._place(tunable, tunable.placements)
            finally:
                tunable.placements.close()

    def _place(self, tunable: _TunableModel, placements: Placements) -> None:
        """Search for mixes of engines, and measure the best ones next to the single engines."""
        self.write()  # the native engine's kernels for the stages below
        nodes = [functools.partial(EngineNodes, e, placements) for e in placements.engines]
        self._stage(tunable, "nodes", nodes, EngineNodes.times, NODE_ROUNDS)
        for search in range(len(SEARCHES)):
            if not self.finished:
                return
            mixes = placements.proposed(self.journal, tunable.number, search)
            if not mixes:
                break
            openers = [functools.partial(placements.opened, m) for m in mixes]
            self._stage(tunable, f"regions {search + 1}", openers, PlacedRuns.region_times, REGION_ROUNDS)
        if self.finished:
            names = [*placements.engines, *placements.best(self.journal, tunable.number)]
            sides = [functools.partial(_checked, tunable, placements, name) for name in names]
            self._stage(tunable, "mixes", sides, PlacedRuns.run_times)

    def _stage(
        self,
        tunable: _TunableModel,
        stage: str,
        openers: Sequence[Callable[[], _S | None]],
        measure: Callable[[_S], Iterator[Sample]],
        most: int | None = None,
    ) -> None:
        """Measure the missing rounds of a stage. openers: open each of its sides; None is left out. most: the highest number of rounds."""
        rounds = min(self.rounds, most or self.rounds)
        first = len(self.journal.done(tunable.number, stage))
        if first >= rounds:
            return
        if self._spent():
            self.finished = False
            return
        with ExitStack() as stack:
            variants = []
            for opener in openers:
                if (side := opener()) is not None:
                    variants.append(side)
                    stack.callback(side.close)
            for index in range(first, rounds if variants else first):
                if self._spent():
                    self.finished = False
                    return
                began = time.monotonic()
                times = measured_round(variants, index, measure)
                self.journal.add(Round(tunable.number, stage, index, time.monotonic() - began, times))
                what = STAGES[stage]
                sizes = f" for {bucket_text(tunable.bucket.shapes)}" if tunable.bucket.shapes else ""
                self.progress(f"{what}{sizes}: round {index + 1} of {rounds}")

    def _spent(self) -> bool:
        return bool(self.journal.rounds) and time.monotonic() - self.started > self.budget_s


def _run_times(side: _Side) -> Iterator[Sample]:
    return side.run_times()


def _checked(tunable: _TunableModel, placements: Placements, name: str) -> PlacedRuns | None:
    """Open a placement, and check its outputs. Raises WrongResult."""
    side = placements.opened(name)
    if side is not None:
        try:
            _check_outputs(tunable, name, side.loaded.executable.run(side.feeds))
        except BaseException:
            side.close()
            raise
    return side


def _variants(
    tunable: _TunableModel, kernels: Mapping[str, Mapping[str, str]]
) -> list[Callable[[], KernelVariant]]:
    """Return functions that open the model with these kernels, by the variant's name."""
    return [functools.partial(tunable.programs.open, name, words) for name, words in kernels.items()]


def _times(
    tunables: Sequence[_TunableModel], journal: Journal, options: SessionOptions, facts: Mapping[str, str]
) -> KernelTimes:
    """Return the content of the file."""
    calls: dict[str, dict[str, float]] = {}
    details: dict[str, CallDetail] = {}
    runs = []
    engines: list[EngineTimes] = []
    for tunable in tunables:
        samples = tunable.samples(journal)
        calls |= medians(samples)
        details |= details_of(samples, tunable.programs.nodes())
        whole = [r.times_us[WHOLE] for r in journal.done(tunable.number, "runs")]
        if whole:
            tuned, default = (float(np.median([w[side] for w in whole])) for side in ("tuned", "default"))
            predicted = tunable.predicted(journal, tunable.fastest(journal))
            if predicted > 0:
                runs.append(MeasuredRun(tunable.bucket.shapes, predicted, tuned, default, len(whole)))
        if rows := [r.times_us[WHOLE] for r in journal.done(tunable.number, "engines")]:
            engines.append(_engine_times(tunable, rows))
    found = [c.placements.result(journal, c.number) for c in tunables if c.placements is not None]
    placements = tuple(p for p in found if p is not None)
    first = tunables[0]
    target = first.programs.entry.plans[0].target
    return KernelTimes(
        target,
        first.bucket.executor.threads,
        calls,
        facts,
        details,
        tuple(runs),
        tuple(engines),
        placements,
    )


def _engine_times(tunable: _TunableModel, rows: Sequence[Mapping[str, float]]) -> EngineTimes:
    """Return the medians of whole runs. rows: microseconds by engine, one for each finished round."""
    samples = {name: [row[name] for row in rows] for name in ("native", *tunable.engines)}
    intervals = {n: median_interval(us) for n, us in samples.items() if len(us) >= 6}
    return EngineTimes(
        tunable.session.executable_model.digest,
        tunable.bucket.shapes,
        {n: float(np.median(us)) for n, us in samples.items()},
        {n: lookup(n).version() or "" for n in samples},
        {n: (i.low, i.high) for n, i in intervals.items()},
        len(rows),
    )
