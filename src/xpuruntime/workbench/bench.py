"""How fast are engines on a model, and which differences are real.

All contenders stand in one process with the same pinned threads and precision. Their outputs are judged first: who is wrong is not
ranked. Then they run in rounds, each once per round in an order drawn anew, so that drift and neighbours' effects fall on
all alike. ``workbench.statistics`` says how the intervals are made.

A *control* runs along: a second session of every contender. Two sessions of one engine are equal, and still differ now and then by
more than their interval allows (memory layout, thread placement); so what the controls show is taken as the harness's bias,
and no smaller difference is called one, nor any below ``LEAST_DIFFERENCE``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import RunError
from ..frontends.model_file import open_model
from ..inference.self_check.conditioning import sensitivity, widened
from ..inference.self_check.onnx_reference import reference_outputs
from ..numerics import tolerance_for
from ..protocols import Array, ModelSource
from ..runtime.device import cpu
from .contenders import Field, field_of
from .inputs import Inputs
from .judge import Verdict, judge
from .setup import Setup
from .standings import NO_DIFFERENCE, BenchReport, Standing
from .statistics import paired_ratio, summarise

__all__ = ["NO_DIFFERENCE", "BenchReport", "Standing", "bench"]

_WARM_UP_SHARE = 0.1  # of the seconds, over all contenders
_WARM_UP_RUNS = 3  # at least
_MAX_ROUNDS = 20_000
_CONFIDENCE = 0.95
LEAST_DIFFERENCE = (
    0.01  # two sessions of one engine differed by 0.3 to 0.9% in 33 of 40 trials on a model of 3 to 20 us
)

Progress = Callable[[str], None]


def bench(
    model: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    setup: Setup | None = None,
    inputs: Inputs | None = None,
    seconds: float = 10.0,
    control: bool = True,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> BenchReport:
    """Judge, then measure engines on one model for about ``seconds`` (after opening and judging).

    Threads are pinned to ``setup.threads``, else to every core this process may use; precision to ``setup.precision``, else the
    model's own. named: whether each engine must be had (see ``contenders.field_of``). Raises what opening and running raise.
    """
    source, setup, inputs = open_model(model), setup or Setup(device="cpu"), inputs or Inputs()
    threads = setup.threads or cpu().usable_cores
    pinned = setup.on("", threads=threads)
    feeds = inputs.samples(source.inputs, 1)[0]
    with field_of(source, engines, pinned, named=named, progress=progress) as entrants:
        verdict = _judge(source, entrants, feeds, seconds, tolerance, named, progress)
        right = [c for c in entrants.contenders if c.name in verdict.right]
        facts = {c.name: c.to_json() for c in right}
        runs = {c.name: _runner(c.session, feeds) for c in right}
        with contextlib.ExitStack() as twins:
            for name in tuple(runs) if control and len(runs) > 1 else ():
                progress(f"{name}: opening the control")
                runs[name + _TWIN] = _runner(twins.enter_context(pinned.on(name).open(source)), feeds)
            times = _alternate(runs, seconds, progress) if runs else {}
    echoes = {c.name: times.pop(c.name + _TWIN) for c in right if c.name + _TWIN in times}
    pairs = max(1, len(times) * (len(times) - 1) // 2)
    confidence = 1 - (1 - _CONFIDENCE) / pairs
    controls = {name: paired_ratio(echo, times[name], confidence) for name, echo in echoes.items()}
    floor = max([LEAST_DIFFERENCE, *(c.bias for c in controls.values())])
    return BenchReport(
        model=source.name,
        machine=cpu().model,
        inputs=inputs.describe(source.inputs),
        threads=threads,
        rounds=len(next(iter(times.values()), ())),
        seconds=seconds,
        judged_by=verdict.by,
        ranked=_rank(facts, times, confidence, floor),
        wrong=verdict.wrong,
        rejected=tuple(entrants.rejected),
        confidence=confidence,
        controls=controls,
        floor=floor,
    )


_TWIN = " (control)"


def _runner(session: Any, feeds: dict[str, Array]) -> Callable[[], object]:
    run = session.run
    return lambda: run(feeds)


def _judge(
    model: ModelSource,
    entrants: Field,
    feeds: dict[str, Array],
    seconds: float,
    tolerance: float | None,
    named: bool,
    progress: Progress,
) -> Verdict:
    """Engines that agree are right; where they do not, the ONNX reference evaluator is asked, within the seconds."""
    outputs: dict[str, list[Array]] = {}
    precisions = []
    for contender in tuple(entrants.contenders):
        progress(f"{contender.name}: first run of {model.name}")
        try:
            outputs[contender.name] = contender.outputs(feeds)
            precisions.append(contender.precision)
        except RunError as error:
            entrants.drop(contender, error, named)
    names = [s.name for s in model.outputs]
    limits = dict.fromkeys(names, tolerance or 0.0)
    if tolerance is None and entrants.contenders:
        head = entrants.contenders[0]
        shifts = sensitivity(head.outputs, names, feeds, outputs[head.name])
        limits = widened(tolerance_for(model.precision, *precisions), shifts)
    verdict = judge(outputs, names, limits)
    if not verdict.wrong:
        return verdict
    off = "; ".join(f"{name}: {text}" for name, text in verdict.wrong.items())
    progress(f"onnx.reference: judging, since outputs differ ({off})")
    reference, _ = reference_outputs(model, feeds, max(seconds, 10.0))
    return verdict if reference is None else judge(outputs, names, limits, reference)


def _alternate(
    runs: Mapping[str, Callable[[], object]], seconds: float, progress: Progress
) -> dict[str, list[float]]:
    """Microseconds of every run, by contender; round k of one pairs with round k of the others."""
    _warm_up(runs, seconds * _WARM_UP_SHARE, progress)
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, random = list(runs), np.random.default_rng(0)
    progress(f"measuring for {seconds:g} s")
    collecting = gc.isenabled()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds
        for turn in range(_MAX_ROUNDS):
            if turn and time.perf_counter() >= deadline:
                break
            for k in random.permutation(len(order)):
                run = runs[order[k]]
                start = time.perf_counter_ns()
                run()
                times[order[k]].append(max(1, time.perf_counter_ns() - start) / 1e3)
    finally:
        if collecting:
            gc.enable()
    return times


def _warm_up(runs: Mapping[str, Callable[[], object]], seconds: float, progress: Progress) -> None:
    for name, run in runs.items():
        progress(f"{name}: warming up")
        deadline = time.perf_counter() + seconds / len(runs)
        for turn in itertools.count(1):
            run()
            if turn >= _WARM_UP_RUNS and time.perf_counter() >= deadline:
                break


def _rank(
    facts: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Sequence[float]],
    confidence: float,
    floor: float,
) -> tuple[Standing, ...]:
    """Order by median; hold each against the best, pair by pair."""
    if not times:
        return ()
    summaries = {name: summarise(values) for name, values in times.items()}
    order = sorted(times, key=lambda name: summaries[name].median)
    best = order[0]
    ratios = {n: paired_ratio(times[n], times[best], confidence) for n in order[1:]}
    verdicts = {n: "slower" if r.differs(floor) and r.value > 1 else NO_DIFFERENCE for n, r in ratios.items()}
    alone = len(order) == 1
    all_told = all(v == "slower" for v in verdicts.values())
    verdicts[best] = "only one" if alone else "fastest" if all_told else NO_DIFFERENCE
    return tuple(Standing(facts[n], summaries[n], ratios.get(n), verdicts[n], tuple(times[n])) for n in order)
