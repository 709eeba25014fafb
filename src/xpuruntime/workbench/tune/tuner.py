"""``xpu tune``: the time of every usable kernel of each call, measured inside the model on this device.

Each shape bucket is compiled as many times as its call with the most kernels has kernels; variant ``i`` uses the ``i``-th kernel of every call. A
round runs all variants in turn, every second round in the opposite order, and takes the time of each call from the executor's clock. So a
kernel is measured with the caches and the clock rate that it has in the model, and a slowdown of the machine affects all kernels alike.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...compiler.times import CallDetail, EngineTimes, KernelTimes, MeasuredRun
from ...engines import lookup
from ...errors import InputError, WrongResult
from ...inference.locks.opening import bucket_of, bucket_text
from ...inference.native.engine import TIMES, machine_facts, recorded_lock
from ...inference.native.executable import NativeExecutable
from ...inference.native.model import sized_model
from ...inference.session import InferenceSession
from ...numerics import compare_all, tolerance_for
from ...protocols import Array, EngineRequest
from ...runtime.device import Device
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.weights.load import Weights, load_weights
from ...storage.files import write_atomic
from ...types import DType
from ..bench.statistics import median_interval, paired_ratio
from ..inputs import Inputs
from ..session_options import SessionOptions
from .journal import Journal, Round
from .report import TunedCall, TuneResult

__all__ = ["ROUNDS", "tune"]

ROUNDS = 15
"""Alternating rounds by default. A 95% interval of a median needs six."""
_REPEATS, _MOST_REPEATS = 3, 30  # timed runs of a variant in one round, after one that warms up
_LEAST_S = 0.002  # short runs are repeated for this long
_WHOLE = "whole run"
_STAGES = {"calls": "kernels", "runs": "whole runs", "engines": "engines"}
Progress = Callable[[str], None]
_Time = tuple[str, str, float]
"""A call's key, its kernel, and microseconds."""


def tune(
    model: Any,
    output: Path | str,
    options: SessionOptions | None = None,
    buckets: Sequence[Mapping[str, int]] = (),
    *,
    budget_s: float = 60.0,
    rounds: int = ROUNDS,
    engines: Sequence[str] = (),
    progress: Progress = lambda _: None,
) -> TuneResult:
    """Measure the kernels of a model on the native engine, and write the file of times.

    engines:  other engines, whose whole runs are measured in turn with the native engine and its fastest kernels. One that is not available,
              or whose outputs differ by more than the precision's tolerance, raises.

    buckets:  sizes of symbolic dims, each measured. budget_s: seconds for compilation and rounds, over all processes that a journal joins; at least
              one round is measured. rounds: alternating rounds of each bucket.
    progress: called with a line for each round.
    The journal ``OUTPUT.journal`` makes a later call continue after a kill or a spent budget; it is deleted when all rounds are measured.
    Raises the errors of ``InferenceSession``, WrongResult, InputError for unknown or missing sizes, FormatError for a journal of another tuning, StoreError.
    """
    started, path = time.monotonic(), Path(output)
    if rounds < 1 or not budget_s > 0:
        raise InputError("tune", "needs at least one round and a positive budget", got=f"rounds={rounds}, budget_s={budget_s}", do="Give rounds=15, budget_s=60.")  # fmt: skip
    others = tuple(dict.fromkeys(name for e in engines if (name := lookup(e).name) != "native"))
    options = replace(options or SessionOptions(), engine="native").with_device()
    with options.open(model) as session:
        opened = list(_buckets(session, buckets))
        subject = _subject(session, opened, rounds, others)
        with Journal(path.with_name(f"{path.name}.journal"), subject) as journal:
            tuner = _Tuner(journal, rounds, budget_s - journal.seconds, started, progress)
            resumed = len(journal.rounds)
            contests = []
            for number, bucket in enumerate(opened):
                contests.append(_Contest(number, session, bucket, options, others))
                tuner.measure(contests[-1])
            times = _times(contests, journal, options, subject["facts"])
            text = json.dumps(times.to_json(), indent=1, sort_keys=True)
            write_atomic(path, text.encode() + b"\n")
            finished = tuner.finished
            if finished:
                journal.remove()
        return TuneResult(
            path,
            times,
            tuple(c for contest in contests for c in contest.tuned(journal)),
            finished,
            resumed,
            len(journal.rounds) - resumed,
            journal.seconds,
        )


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
    if session.model.format == "program" or not isinstance(executable, NativeExecutable):
        raise InputError(
            who,
            "is compiled already, or is placed on several engines, so no kernel is left to choose",
            got=session.model.format,
            do="Tune the model that the program was compiled from, on one engine.",
        )
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


@dataclass(frozen=True, slots=True)
class _Variant:
    """A program of the model that is measured.

    name: the name under which the times of whole runs are stored. words: the kernel of each call. keys: the key of each stage, empty for a
    stage of no node. arrays: the inputs in the program's order.
    """

    name: str
    words: Mapping[str, str]
    executor: Executor
    keys: tuple[str, ...]
    arrays: list[NDArray[Any]]

    def call_times(self) -> Iterator[_Time]:
        """Yield the time of each node's call: the sum of its stages in a run. The clock has a resolution of one nanosecond."""
        for _ in self._repeated():
            clock = np.zeros(len(self.executor.plan.calls), np.int64)
            self.executor.run_arrays(self.arrays, times=clock)
            sums: dict[str, int] = defaultdict(int)
            for key, ns in zip(self.keys, clock.tolist(), strict=True):
                if key:
                    sums[key] += ns
            for key, ns in sums.items():
                yield _call(key), self.words[key], max(ns, 1) / 1e3

    def run_times(self) -> Iterator[_Time]:
        """Yield the time of a whole run without the executor's clock."""
        for _ in self._repeated():
            began = time.perf_counter_ns()
            self.executor.run_arrays(self.arrays)
            yield _WHOLE, self.name, max(time.perf_counter_ns() - began, 1) / 1e3

    def _repeated(self) -> Iterator[int]:
        """Warm up, then yield once for each timed run of a round."""
        self.executor.run_arrays(self.arrays)
        yield from _repeats()

    def close(self) -> None:
        """Free the program."""
        self.executor.close()


def _repeats() -> Iterator[int]:
    began = time.monotonic()
    for i in range(_MOST_REPEATS):
        if i >= _REPEATS and time.monotonic() - began > _LEAST_S:
            return
        yield i


class _EngineSide:
    """The model on another engine, opened for one bucket. Raises WrongResult if its outputs differ from the native engine's."""

    def __init__(self, engine: str, contest: _Contest) -> None:
        bucket, self.name = contest.bucket, engine
        self.session = contest.options.on(engine).open(contest.session.model)
        try:
            regions = [r.engine for r in self.session.plan.regions]
            if regions != [engine]:
                raise InputError(
                    f"tune {contest.session.model.name!r}", f"{engine} does not run the whole model",
                    got=", ".join(dict.fromkeys(regions)), do="Leave it out, or drop what places nodes elsewhere.",
                )  # fmt: skip
            self.feeds = dict(bucket.feeds)
            outputs = self.session.executable.run(self.feeds)
            self._check(contest, outputs)
        except BaseException:
            self.session.close()
            raise

    def _check(self, contest: _Contest, outputs: Sequence[Array]) -> None:
        names = [s.name for s in contest.session.output_info]
        reference = contest.session.executable.run(dict(contest.bucket.feeds))
        precision = contest.session.plan.regions[0].precision
        tolerance = tolerance_for(DType.of(precision))
        for result in compare_all(names, outputs, reference, tolerance):
            if not result.ok:
                raise WrongResult(
                    f"tune {contest.session.model.name!r}", f"{self.name} and native give different outputs",
                    got=f"{result.name}: {result.reason or f'max|d|/max|ref| {result.max_rel:.3g}, tolerance {tolerance:g}'}", do=f"Leave {self.name} out, or find the node: xpu bisect --engine-a native --engine-b {self.name}.",
                )  # fmt: skip

    def run_times(self) -> Iterator[_Time]:
        """Yield the time of a whole run."""
        run = self.session.executable.run
        run(self.feeds)
        for _ in _repeats():
            began = time.perf_counter_ns()
            run(self.feeds)
            yield _WHOLE, self.name, max(time.perf_counter_ns() - began, 1) / 1e3

    def close(self) -> None:
        """Free the engine."""
        self.session.close()


_Side: TypeAlias = _Variant | _EngineSide
_S = TypeVar("_S", _Variant, _Side)


class _Contest:
    """The calls of one bucket with their kernels, and the programs that measure them."""

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
        self.program, self.lock = recorded_lock(session.model, bucket.request, bucket.shapes)
        self.entry = self.program.entries[0]
        self.keys = self.lock.stages[self.entry.name]
        self.stages = self.entry.plans[0].calls
        self.default = {_call(k): self.lock.kernels[k] for k in self.lock.kernels}
        self.kernels = {_call(k): words for k, words in self.lock.alternatives.items() if k in self.keys}
        self.variants = max((len(words) for words in self.kernels.values()), default=1)
        self._weights: list[Weights] = []

    def words(self, variant: int) -> dict[str, str]:
        """Return the kernel of each call in a variant."""
        return {k: w[variant % len(w)] for k, w in self.lock.alternatives.items()}

    def fastest(self, journal: Journal) -> dict[str, str]:
        """Return the fastest kernel of each call, as ``compile(times=)`` chooses it: the default if a kernel was not measured."""
        best = {}
        medians = self.medians(journal)
        for key, words in self.lock.alternatives.items():
            times = medians.get(_call(key), {})
            is_complete = all(w in times for w in words) and len(words) > 1
            best[key] = min(words, key=times.__getitem__) if is_complete else self.lock.kernels[key]
        return best

    def open(self, name: str, words: Mapping[str, str]) -> _Variant:
        """Return the model with these kernels, ready to run. The caller closes its executor."""
        bucket = self.bucket
        program, lock = recorded_lock(self.session.model, bucket.request, bucket.shapes, words)
        executor = Executor(
            program, Device(bucket.request.device), threads=bucket.executor.threads, policy=SETTLED
        )
        stored = sized_model(self.session.model, bucket.shapes).weights
        weights = load_weights(stored, program, executor.device, shared=self._weights)
        self._weights.append(weights)
        executor.bind(weights)
        arrays = [np.ascontiguousarray(bucket.feeds[s.name]) for s in executor.entry.inputs]
        return _Variant(name, words, executor, lock.stages[program.entries[0].name], arrays)

    def samples(self, journal: Journal) -> dict[str, dict[str, list[float]]]:
        """Return the times of each call by kernel, one for each finished round."""
        samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for done in journal.done(self.number, "calls"):
            for key, times in done.times_us.items():
                for kernel, us in times.items():
                    samples[key][kernel].append(us)
        return samples

    def medians(self, journal: Journal) -> dict[str, dict[str, float]]:
        """Return the median time of each call by kernel."""
        return {
            key: {kernel: float(np.median(us)) for kernel, us in times.items()}
            for key, times in self.samples(journal).items()
        }

    def predicted(self, journal: Journal, words: Mapping[str, str]) -> float:
        """Return the sum of the times of all nodes with these kernels, in microseconds."""
        medians = self.medians(journal)
        keys = dict.fromkeys(k for k in self.keys if k)
        return sum(medians.get(_call(k), {}).get(words[k], 0.0) for k in keys)

    def nodes(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return op and model nodes of each call."""
        found: dict[str, tuple[str, dict[str, None]]] = {}
        for key, stage in zip(self.keys, self.stages, strict=True):
            if key:
                found.setdefault(_call(key), ("+".join(stage.ops), {}))[1].update(dict.fromkeys(stage.nodes))
        return {key: (op, tuple(names)) for key, (op, names) in found.items()}

    def tuned(self, journal: Journal) -> Iterator[TunedCall]:
        """Yield the calls with more than one kernel that were measured."""
        samples, nodes = self.samples(journal), self.nodes()
        for key, words in self.kernels.items():
            times = samples.get(key, {})
            if len(words) < 2 or any(w not in times for w in words):
                continue
            medians = {w: float(np.median(times[w])) for w in words}
            default, fastest = self.default[key], min(words, key=medians.__getitem__)
            ratio = paired_ratio(times[default], times[fastest])
            yield TunedCall(
                key, *nodes[key], default, fastest, medians, ratio.value, ratio.interval.low, ratio.interval.high
            )  # fmt: skip


@dataclass(slots=True)
class _Tuner:
    """Measures rounds while the budget lasts, and adds each to the journal."""

    journal: Journal
    rounds: int
    budget_s: float
    started: float
    progress: Progress
    finished: bool = True

    def measure(self, contest: _Contest) -> None:
        """Measure the rounds of a bucket that the journal does not have."""
        variants = {str(v): contest.words(v) for v in range(contest.variants)}
        self._stage(contest, "calls", _variants(contest, variants), _Variant.call_times)
        if not self.finished:
            return
        fastest = contest.fastest(self.journal)
        sides = {"tuned": fastest, "default": dict(contest.lock.kernels)}
        self._stage(contest, "runs", _variants(contest, sides), _Variant.run_times)
        if not self.finished or not contest.engines:
            return
        engines: list[Callable[[], _Side]] = [*_variants(contest, {"native": fastest})]
        engines += [functools.partial(_EngineSide, e, contest) for e in contest.engines]
        self._stage(contest, "engines", engines, lambda side: side.run_times())

    def _stage(
        self,
        contest: _Contest,
        stage: str,
        openers: Sequence[Callable[[], _S]],
        measure: Callable[[_S], Iterator[_Time]],
    ) -> None:
        """Measure the missing rounds of a stage. openers: open each of its sides."""
        first = len(self.journal.done(contest.number, stage))
        if first >= self.rounds:
            return
        if self._spent():
            self.finished = False
            return
        with ExitStack() as stack:
            variants = []
            for opener in openers:
                variants.append(opener())
                stack.callback(variants[-1].close)
            for index in range(first, self.rounds):
                if self._spent():
                    self.finished = False
                    return
                began = time.monotonic()
                samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
                for variant in variants if index % 2 == 0 else reversed(variants):
                    for key, kernel, us in measure(variant):
                        samples[key][kernel].append(us)
                times = {k: {n: float(np.median(us)) for n, us in v.items()} for k, v in samples.items()}
                self.journal.add(Round(contest.number, stage, index, time.monotonic() - began, times))
                what = _STAGES[stage]
                sizes = f" for {bucket_text(contest.bucket.shapes)}" if contest.bucket.shapes else ""
                self.progress(f"{what}{sizes}: round {index + 1} of {self.rounds}")

    def _spent(self) -> bool:
        return bool(self.journal.rounds) and time.monotonic() - self.started > self.budget_s


def _variants(contest: _Contest, kernels: Mapping[str, Mapping[str, str]]) -> list[Callable[[], _Variant]]:
    """Return functions that open the model with these kernels, by the variant's name."""
    return [functools.partial(contest.open, name, words) for name, words in kernels.items()]


def _times(
    contests: Sequence[_Contest], journal: Journal, options: SessionOptions, facts: Mapping[str, str]
) -> KernelTimes:
    """Return the content of the file."""
    calls: dict[str, dict[str, float]] = {}
    details: dict[str, CallDetail] = {}
    runs = []
    engines: list[EngineTimes] = []
    for contest in contests:
        samples, nodes = contest.samples(journal), contest.nodes()
        for key, times in samples.items():
            calls[key] = {kernel: float(np.median(us)) for kernel, us in times.items()}
            intervals = {kernel: median_interval(us) for kernel, us in times.items() if len(us) >= 6}
            rounds = min(map(len, times.values()))
            spans = {kernel: (i.low, i.high) for kernel, i in intervals.items()}
            details[key] = CallDetail(*nodes[key], spans, rounds)
        whole = [r.times_us[_WHOLE] for r in journal.done(contest.number, "runs")]
        if whole:
            tuned, default = (float(np.median([w[side] for w in whole])) for side in ("tuned", "default"))
            predicted = contest.predicted(journal, contest.fastest(journal))
            if predicted > 0:
                runs.append(MeasuredRun(contest.bucket.shapes, predicted, tuned, default, len(whole)))
        if rows := [r.times_us[_WHOLE] for r in journal.done(contest.number, "engines")]:
            engines.append(_engine_times(contest, rows))
    first = contests[0]
    target = first.entry.plans[0].target
    return KernelTimes(
        target, first.bucket.executor.threads, calls, facts, details, tuple(runs), tuple(engines)
    )


def _engine_times(contest: _Contest, rows: Sequence[Mapping[str, float]]) -> EngineTimes:
    """Return the medians of whole runs. rows: microseconds by engine, one for each finished round."""
    samples = {name: [row[name] for row in rows] for name in ("native", *contest.engines)}
    intervals = {n: median_interval(us) for n, us in samples.items() if len(us) >= 6}
    return EngineTimes(
        contest.session.executable_model.digest,
        contest.bucket.shapes,
        {n: float(np.median(us)) for n, us in samples.items()},
        {n: lookup(n).version() or "" for n in samples},
        {n: (i.low, i.high) for n, i in intervals.items()},
        len(rows),
    )


def _call(key: str) -> str:
    """Return the ``call_key`` of a lock's key."""
    return key.partition(" ")[0]
