"""One run of a partitioned model. Values that cross region borders are counted and copied once; every region is timed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import RunError
from ...ir import bind
from ...profiler import trace
from ...runtime.memory.buffer import DeviceBuffer
from ...types import TensorSpec

if TYPE_CHECKING:
    from .dag_executor import DAGExecutor

__all__ = ["DagRun", "Timer", "Watch"]

Watch: TypeAlias = dict[str, tuple[Mapping[str, Any], Mapping[str, int]]]
"""The inputs of each region in one run, and the sizes of that run, by region."""

RegionCall: TypeAlias = Callable[[int, Mapping[str, Any]], Sequence[Any]]
"""A function that runs a region by its index."""


class Timer:
    """Seconds of every region of one run, by index."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.seconds: dict[int, float] = {}

    def around(self, work: RegionCall) -> RegionCall:
        """Wrap a region call with timing."""

        def timed(index: int, values: Mapping[str, Any]) -> Sequence[Any]:
            start = self._clock()
            results = work(index, values)
            self.seconds[index] = (self._clock() - start) / 1e9
            return results

        return timed


class DagRun:
    """One run, with counters of values that cross region borders."""

    def __init__(
        self,
        executor: DAGExecutor,
        symbols: dict[str, int],
        watch: Watch | None,
        stopped: Callable[[], bool] | None,
    ) -> None:
        self.executor, self.symbols, self.watch, self.stopped = executor, symbols, watch, stopped
        self.counts: Counter[str] = Counter()
        self._made: set[str] = set()
        self._copies: dict[tuple[int, bool], Any] = {}
        self._lock = threading.Lock()

    def work(self, index: int, values: Mapping[str, Any]) -> Sequence[Any]:
        """Run a region. Raises RunError if the run was stopped."""
        if self.stopped is not None and self.stopped():
            raise RunError(self.executor._who, "the run was ended", do="Start another.")
        placed = self.executor._regions[index]
        region = placed.work.region
        crossing = sum(v in self._made for v in region.inputs)
        with self._lock:
            self.counts.update(regions=1, crossings=crossing)
        inputs = {v: values[v] for v in region.inputs}
        if self.watch is not None:
            self.watch[region.id] = inputs, dict(self.symbols)
        symbols = dict(self.symbols)
        if trace.RING is None:
            results = placed.run(inputs, symbols, self.bring)
        else:
            results = trace.timed(
                f"{region.id}: {placed.region.engine}", placed.run, inputs, symbols, self.bring
            )
        self._made.update(region.outputs)
        if self.executor.graph.symbols:
            self._learn(region.outputs, results)
        return results

    def bring(self, values: Mapping[str, Any], to_device: bool) -> Mapping[str, Any]:
        """Return the values on the region's side, copied at most once for all regions there."""
        return {n: self.device(v) if to_device else self.host(v) for n, v in values.items()}

    def host(self, value: Any) -> Any:
        """Return a value in host memory."""
        if not isinstance(value, DeviceBuffer):
            return value
        return self._copied(value, False, lambda: value.to_numpy())

    def device(self, value: Any) -> Any:
        """Return a value in device memory."""
        if isinstance(value, DeviceBuffer):
            return value
        return self._copied(value, True, lambda: DeviceBuffer.from_numpy(value, self.executor.backend))

    def _copied(self, value: Any, to_device: bool, copy: Callable[[], Any]) -> Any:
        key = id(value), to_device
        with self._lock:
            if key not in self._copies:
                copied = copy()
                self._copies[key] = value, copied  # keeps the value alive, so that its id stays unique
                self.counts.update(copies=1, bytes=_size(value))
            return self._copies[key][1]

    def _learn(self, names: Sequence[str], results: Sequence[Any]) -> None:
        """Bind sizes that a region's results determine."""
        graph = self.executor.graph
        for name, result in zip(names, results, strict=True):
            spec = graph.values[name].spec
            if spec is not None and spec.symbols - self.symbols.keys():
                known = spec.substitute(self.symbols)
                self.symbols |= bind([TensorSpec(known.shape, known.dtype, name)], {name: result.shape})


def _size(value: Any) -> int:
    return int(value.size_bytes if isinstance(value, DeviceBuffer) else value.nbytes)
