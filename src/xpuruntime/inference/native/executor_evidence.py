"""Evidence of one executor: every call that its recorded plan dispatches, times by its clock, and the driver's record of one run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from ... import __version__
from ...program.program import ExecutionPlan
from ...protocols import Array, Evidence
from ...runtime.device_record import DeviceRecord
from ...runtime.execution.executor import Executor
from .evidence_rows import binaries_of, rows_of

__all__ = ["PROFILED_RUNS", "Observations", "evidence_of", "timed_calls"]

PROFILED_RUNS = 5
_NOTHING = DeviceRecord()


class Observations:
    """The kernels that the driver reports for a run of each executor, observed once per executor."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Executor, DeviceRecord] = weakref.WeakKeyDictionary()

    def of(self, executor: Executor, arrays: Sequence[Array] | None) -> DeviceRecord:
        """Return the record of a run on these arrays. The executor's states do not change."""
        if arrays is None or executor.backend.core_is_host:
            return _NOTHING
        observed = self._seen.get(executor)
        if observed is None:
            with executor.twin() if executor.states else nullcontext(executor) as looked_at:
                looked_at.run_arrays(arrays)  # warm up, so that the graph is observed
                observed = self._seen[executor] = looked_at.observe(arrays)
        return observed


def evidence_of(
    executor: Executor,
    arrays: Sequence[Array] | None,
    observations: Observations,
    *,
    source: str,
    notes: Sequence[str] = (),
    fallbacks: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    explained: Mapping[str, str] | None = None,
    counters: Mapping[str, int] | None = None,
    memory: Mapping[str, int] | None = None,
) -> Evidence:
    """Return the evidence of an executor.

    arrays:    inputs to measure times on; None for none.
    source:    whose run is timed, such as ``this session``.
    notes, fallbacks, options, explained: what the caller adds.
    counters:  those of all executors that the evidence is about; default: of this one.
    memory:    of the executable, if it knows.
    """
    times, spreads = (None, None) if arrays is None else timed_calls(executor, arrays)
    observed = observations.of(executor, arrays)
    plan = executor.plan
    seen = rows_of(executor, str(executor.device), times, spreads)
    rows = tuple(replace(row, seen=observed.calls.get(i, ())) for i, row in enumerate(seen))
    counters = executor.counters if counters is None else counters
    copied = {"h2d_bytes": counters["sent"], "d2h_bytes": counters["fetched"]}
    return Evidence(
        "native",
        __version__,
        rows,
        "session",
        "" if times is None else f"timed run of {source}, median of {PROFILED_RUNS}",
        fallbacks=(*fallbacks, *_others(plan, observed)),
        options={"target": plan.target, **(options or {})},
        notes=(*notes, *executor.notes, *((observed.note(),) if observed != _NOTHING else ())),
        timed_runs=0 if times is None else PROFILED_RUNS,
        explained=explained or {},
        binaries=binaries_of(executor),
        transfers={} if executor.backend.core_is_host else copied,
        memory=memory or {},
    )


def _others(plan: ExecutionPlan, observed: DeviceRecord) -> tuple[str, ...]:
    """Return the calls for which the driver ran another function than the plan's. A library may choose its kernels freely."""
    differing = []
    for i, call in enumerate(plan.calls):
        seen = [s.name for s in observed.calls.get(i, ())]
        if seen and not call.library and call.symbol not in seen:
            differing.append(f"for {call.kernel} the driver ran {', '.join(seen)} instead of {call.symbol}")
    return tuple(differing)


def timed_calls(executor: Executor, arrays: Sequence[Array]) -> tuple[list[float], list[float]]:
    """Return microseconds of each kernel call: the median of ``PROFILED_RUNS`` timed runs, and the largest minus the smallest.

    The executor's states do not change.
    """
    runs = []
    with executor.twin() if executor.states else nullcontext(executor) as timed:
        for _ in range(PROFILED_RUNS):
            times = np.zeros(len(timed.plan.calls), np.int64)
            timed.run_arrays(arrays, times=times)
            runs.append(times / 1e3)
    return [float(t) for t in np.median(runs, axis=0)], [float(t) for t in np.ptp(runs, axis=0)]
