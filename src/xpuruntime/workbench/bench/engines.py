"""A benchmark of engines on one model, which reports only significant differences.

All engines run in one process with the same number of threads and the same precision. Their outputs are checked first, and engines with
wrong outputs are not ranked. Then the engines run in rounds. Each runs once per round, in a new random order, so that drift of the
machine affects all alike. ``profiler.statistics`` computes the intervals.

A *control* is a second session of each engine. Two sessions of one engine are equal, but their times sometimes differ by more than the
interval (memory layout, thread placement). The difference that the controls show is the bias of the measurement. No smaller
difference is reported, and none below ``MIN_DIFFERENCE``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import RunError
from ...frontends.model_file import open_model
from ...inference.self_check.conditioning import sensitivity, widened
from ...inference.self_check.onnx_reference import reference_outputs
from ...numerics import tolerance_for
from ...profiler.statistics import paired_ratio, summarize
from ...protocols import Array, ModelSource
from ...runtime.device import cpu
from ..engine_sessions import EngineSessions, open_engines
from ..inputs import Inputs
from ..output_check import OutputCheck, check_outputs
from ..session_options import SessionOptions
from .report import NO_DIFFERENCE, BenchReport, RankedEngine

__all__ = ["NO_DIFFERENCE", "BenchReport", "RankedEngine", "bench"]

_WARM_UP_SHARE = 0.1  # of the seconds, for all engines together
_WARM_UP_RUNS = 3  # minimum per engine
_MAX_ROUNDS = 20_000
_CONFIDENCE = 0.95
MIN_DIFFERENCE = (
    0.01  # above the usual difference of two sessions of one engine (docs/development/runtime-notes.md)
)

Progress = Callable[[str], None]


def bench(
    model: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    options: SessionOptions | None = None,
    inputs: Inputs | None = None,
    seconds: float = 10.0,
    control: bool = True,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> BenchReport:
    """Check the outputs of engines on one model, then measure them for about ``seconds``.

    Every engine uses ``options.threads`` threads, by default one per usable core, and ``options.precision``, by default the model's.
    named: the user named the engines, so that each must be available (see ``open_engines``).
    Raise the errors of opening and running sessions.
    """
    source, options, inputs = open_model(model), options or SessionOptions(device="cpu"), inputs or Inputs()
    threads = options.threads or cpu().usable_cores
    pinned = options.on("", threads=threads)
    feeds = inputs.samples(source.inputs, 1)[0]
    with open_engines(source, engines, pinned, named=named, progress=progress) as sessions:
        check = _check(source, sessions, feeds, seconds, tolerance, named, progress)
        correct = [e for e in sessions.opened if e.name in check.right]
        facts = {e.name: e.to_json() for e in correct}
        runs = {e.name: _runner(e.session, feeds) for e in correct}
        with contextlib.ExitStack() as controls_open:
            for name in tuple(runs) if control and len(runs) > 1 else ():
                progress(f"{name}: opening the control")
                runs[name + _CONTROL] = _runner(
                    controls_open.enter_context(pinned.on(name).open(source)), feeds
                )
            times = _alternate(runs, seconds, progress) if runs else {}
    control_times = {e.name: times.pop(e.name + _CONTROL) for e in correct if e.name + _CONTROL in times}
    pairs = max(1, len(times) * (len(times) - 1) // 2)
    confidence = 1 - (1 - _CONFIDENCE) / pairs
    controls = {name: paired_ratio(values, times[name], confidence) for name, values in control_times.items()}
    floor = max([MIN_DIFFERENCE, *(c.bias for c in controls.values())])
    return BenchReport(
        model=source.name,
        machine=cpu().model,
        inputs=inputs.describe(source.inputs),
        threads=threads,
        rounds=len(next(iter(times.values()), ())),
        seconds=seconds,
        judged_by=check.by,
        ranked=_rank(facts, times, confidence, floor),
        wrong=check.wrong,
        rejected=tuple(sessions.rejected),
        confidence=confidence,
        controls=controls,
        floor=floor,
    )


_CONTROL = " (control)"


def _runner(session: Any, feeds: dict[str, Array]) -> Callable[[], object]:
    run = session.run
    return lambda: run(feeds)


def _check(
    model: ModelSource,
    sessions: EngineSessions,
    feeds: dict[str, Array],
    seconds: float,
    tolerance: float | None,
    named: bool,
    progress: Progress,
) -> OutputCheck:
    """Run each engine once and check the outputs. If they differ, compare with the ONNX reference evaluator within ``seconds``."""
    outputs: dict[str, list[Array]] = {}
    precisions = []
    for engine in tuple(sessions.opened):
        progress(f"{engine.name}: first run of {model.name}")
        try:
            outputs[engine.name] = engine.outputs(feeds)
            precisions.append(engine.precision)
        except RunError as error:
            sessions.drop(engine, error, named)
    names = [s.name for s in model.outputs]
    limits = dict.fromkeys(names, tolerance or 0.0)
    if tolerance is None and sessions.opened:
        head = sessions.opened[0]
        shifts = sensitivity(head.outputs, names, feeds, outputs[head.name])
        limits = widened(tolerance_for(model.precision, *precisions), shifts)
    check = check_outputs(outputs, names, limits)
    if not check.wrong:
        return check
    differences = "; ".join(f"{name}: {text}" for name, text in check.wrong.items())
    progress(f"onnx.reference: running, since outputs differ ({differences})")
    reference, _ = reference_outputs(model, feeds, max(seconds, 10.0))
    return check if reference is None else check_outputs(outputs, names, limits, reference)


def _alternate(
    runs: Mapping[str, Callable[[], object]], seconds: float, progress: Progress
) -> dict[str, list[float]]:
    """Return the microseconds of every run, by engine. Index k is round k for all of them."""
    _warm_up(runs, seconds * _WARM_UP_SHARE, progress)
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, random = list(runs), np.random.default_rng(0)
    progress(f"measuring for {seconds:g} s")
    gc_enabled = gc.isenabled()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds
        for round_number in range(_MAX_ROUNDS):
            if round_number and time.perf_counter() >= deadline:
                break
            for k in random.permutation(len(order)):
                run = runs[order[k]]
                start = time.perf_counter_ns()
                run()
                times[order[k]].append(max(1, time.perf_counter_ns() - start) / 1e3)
    finally:
        if gc_enabled:
            gc.enable()
    return times


def _warm_up(runs: Mapping[str, Callable[[], object]], seconds: float, progress: Progress) -> None:
    for name, run in runs.items():
        progress(f"{name}: warming up")
        deadline = time.perf_counter() + seconds / len(runs)
        for count in itertools.count(1):
            run()
            if count >= _WARM_UP_RUNS and time.perf_counter() >= deadline:
                break


def _rank(
    facts: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Sequence[float]],
    confidence: float,
    floor: float,
) -> tuple[RankedEngine, ...]:
    """Rank the engines by median and compare each with the fastest."""
    if not times:
        return ()
    summaries = {name: summarize(values) for name, values in times.items()}
    order = sorted(times, key=lambda name: summaries[name].median)
    best = order[0]
    ratios = {n: paired_ratio(times[n], times[best], confidence) for n in order[1:]}
    verdicts = {n: "slower" if r.differs(floor) and r.value > 1 else NO_DIFFERENCE for n, r in ratios.items()}
    all_slower = all(v == "slower" for v in verdicts.values())
    verdicts[best] = "only one" if len(order) == 1 else "fastest" if all_slower else NO_DIFFERENCE
    return tuple(
        RankedEngine(facts[n], summaries[n], ratios.get(n), verdicts[n], tuple(times[n])) for n in order
    )
