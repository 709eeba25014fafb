"""The kernels that compete for the calls of one program, and the programs that measure them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...compiler.locked import KernelLock
from ...errors import KernelRefused, XpuError
from ...policies.fields.pins import parted
from ...program.program import CompiledProgram
from ...protocols import Array
from ...runtime.device import Device
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.weights.load import Weights, load_weights
from ...storage.store import Store
from ...targets import DeviceId
from ..execution.contexts import DEADLINES
from ..execution.seeded_inputs import sample_feeds
from .timing import Sample, repeats, whole_runs

__all__ = ["CompileWith", "KernelVariant", "TunableProgram", "call_of", "measured_words"]

_SHORT_RUN = 0.05  # a run that takes less of its limit is repeated
CompileWith = Callable[[Mapping[str, str] | None], tuple[CompiledProgram, KernelLock]]
"""Compiles the program with the given kernel of each call, or chooses kernels and records them."""


def call_of(key: str) -> str:
    """Return the ``call_key`` of a lock's key."""
    return key.partition(" ")[0]


def measured_words(words: Sequence[str], times: Mapping[str, Any]) -> list[str]:
    """Return the kernels of a call that have times; none if a kernel lacks them. A variant lacks them if its library does not offer it."""
    if any(w not in times for w in words if not parted(w)[1]):
        return []
    return [w for w in words if w in times]


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A program of the model that is measured.

    name: the name under which the times of whole runs are stored. words: the kernel of each call. keys: the key of each stage, empty for a
    stage of no node. arrays: the inputs in the program's order.
    """

    name: str
    words: Mapping[str, str]
    executor: Executor
    keys: tuple[str, ...]
    arrays: list[NDArray[Any]]

    def call_times(self) -> Iterator[Sample]:
        """Yield the time of each node's call: the sum of its stages in a run. The clock has a resolution of one nanosecond."""
        for _ in self._repeated():
            clock = np.zeros(len(self.executor.plan.calls), np.int64)
            self.executor.run_arrays(self.arrays, times=clock)
            sums: dict[str, int] = defaultdict(int)
            for key, ns in zip(self.keys, clock.tolist(), strict=True):
                if key:
                    sums[key] += ns
            for key, ns in sums.items():
                yield call_of(key), self.words[key], max(ns, 1) / 1e3

    def probe_times(self, seconds: float) -> dict[str, float]:
        """Return the microseconds of each call in one run, which is stopped after ``seconds``; a short run is repeated, because the first is cold.
        Calls that were not finished are left out.
        """
        times: dict[str, float] = {}
        began = time.monotonic()
        for _ in range(2):
            times = self._probe(max(seconds - (time.monotonic() - began), 1e-3)) or times
            if time.monotonic() - began > _SHORT_RUN * seconds:
                break
        return times

    def _probe(self, seconds: float) -> dict[str, float]:
        stop, clock = _core.Stop(), np.zeros(len(self.executor.plan.calls), np.int64)
        with DEADLINES.after(seconds, stop.set) as deadline:
            try:
                self.executor.run_arrays(self.arrays, times=clock, stop=stop)
            except XpuError:
                if not deadline.over:
                    raise
        reached = np.flatnonzero(clock)
        end = len(clock) if not deadline.over else int(reached[-1]) if reached.size else 0
        unfinished = set(self.keys[end:])
        sums: dict[str, int] = defaultdict(int)
        for key, ns in zip(self.keys[:end], clock[:end].tolist(), strict=True):
            if key and key not in unfinished:
                sums[key] += ns
        by_call: dict[str, list[float]] = defaultdict(list)
        for key, ns in sums.items():
            by_call[call_of(key)].append(max(ns, 1) / 1e3)
        return {call: float(np.median(us)) for call, us in by_call.items()}

    def run_times(self) -> Iterator[Sample]:
        """Yield the time of a whole run without the executor's clock."""
        yield from whole_runs(self.name, lambda: self.executor.run_arrays(self.arrays))

    def _repeated(self) -> Iterator[int]:
        """Warm up, then yield once for each timed run of a round."""
        self.executor.run_arrays(self.arrays)
        yield from repeats()

    def close(self) -> None:
        """Free the program."""
        self.executor.close()


class TunableProgram:
    """The calls of a program with the kernels that a measurement may choose. ``open`` returns the program with other kernels.

    source: the model's arrays by name. feeds: inputs by name; seeded ones by default. store: as for ``Executor``.
    """

    def __init__(
        self,
        compile_with: CompileWith,
        source: Mapping[str, Array],
        device: DeviceId,
        threads: int | None,
        feeds: Mapping[str, Array] | None = None,
        store: Store | None = None,
    ) -> None:
        self._compile_with, self._source, self._device, self._threads = compile_with, source, device, threads
        self._store = store
        self.program, self.lock = compile_with(None)
        self.entry = self.program.entries[0]
        self.keys = self.lock.stages[self.entry.name]
        self.stages = self.entry.plans[0].calls
        self.default = {call_of(k): word for k, word in self.lock.kernels.items()}
        self.kernels: dict[str, Sequence[str]] = {}
        for key, words in self.lock.alternatives.items():
            if key in self.keys:  # nodes with one call may differ in the kernels that a rule permits
                self.kernels[call_of(key)] = max(self.kernels.get(call_of(key), ()), words, key=len)
        self.feeds = sample_feeds(self.entry.inputs) if feeds is None else dict(feeds)
        # By call: variants that a library does not offer, and why.
        self.refused: dict[str, dict[str, str]] = {}
        self._weights: list[Weights] = []

    @property
    def variants(self) -> int:
        """Return the number of programs that measure all kernels of each call."""
        return max((len(words) for words in self.kernels.values()), default=1)

    def words(self, variant: int, kernels: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
        """Return the kernel of each call in a variant. kernels: those that take turns, by call; other calls have the default one."""
        words = {}
        for key, able in self.lock.alternatives.items():
            turns = able if kernels is None else [w for w in kernels.get(call_of(key), ()) if w in able]
            words[key] = turns[variant % len(turns)] if turns else able[0]
        return words

    def open(self, name: str, words: Mapping[str, str]) -> KernelVariant:
        """Return the program with these kernels, ready to run. The caller closes it.

        A variant that its library does not offer is replaced by the default kernel, and noted in ``refused``. Raises KernelRefused for others.
        """
        program, lock = self.program, self.lock
        words = {k: w if w in self._offered(k) else lock.kernels[k] for k, w in words.items()}
        if words != lock.kernels:
            program, lock = self._compile_with(words)
        try:
            executor = Executor(
                program, Device(self._device), threads=self._threads, policy=SETTLED, store=self._store
            )
        except KernelRefused as refused:
            if not self._note_refused(refused, words, program, lock):
                raise
            return self.open(name, words)
        weights = load_weights(self._source, program, executor.device, shared=self._weights)
        self._weights.append(weights)
        executor.bind(weights)
        arrays = [np.ascontiguousarray(self.feeds[s.name]) for s in executor.entry.inputs]
        return KernelVariant(name, words, executor, lock.stages[program.entries[0].name], arrays)

    def _offered(self, key: str) -> list[str]:
        """Return the kernels of a call that no library has refused."""
        words = (*self.lock.alternatives[key], self.lock.kernels[key])
        return [w for w in words if w not in self.refused.get(call_of(key), {})]

    def _note_refused(
        self, refused: KernelRefused, words: Mapping[str, str], program: CompiledProgram, lock: KernelLock
    ) -> bool:
        """Note the variants that libraries refuse. Return False if they refuse anything else."""
        entry = program.entries[0]
        reasons = {(kernel, nodes): why for kernel, nodes, why in refused.calls}
        found: dict[str, str] = {}
        for key, call in zip(lock.stages[entry.name], entry.plans[0].calls, strict=True):
            if (call.kernel, call.nodes) in reasons:
                if not key or not parted(words[key])[1] or words[key] == self.lock.kernels[key]:
                    return False
                found[key] = reasons[call.kernel, call.nodes]
        for key, why in found.items():
            self.refused.setdefault(call_of(key), {})[words[key]] = why
        return bool(found)

    def nodes(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return op and model nodes of each call."""
        nodes: dict[str, tuple[str, dict[str, None]]] = {}
        for key, stage in zip(self.keys, self.stages, strict=True):
            if key:
                nodes.setdefault(call_of(key), ("+".join(stage.ops), {}))[1].update(
                    dict.fromkeys(stage.nodes)
                )
        return {key: (op, tuple(names)) for key, (op, names) in nodes.items()}
