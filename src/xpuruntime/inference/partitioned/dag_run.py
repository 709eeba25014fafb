"""One run of a partitioned model. Values that cross region borders are counted and copied once; every region is timed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...compiler.transfers import transfer_error
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
            for value in results:
                if isinstance(value, DeviceBuffer):
                    value.settle()  # a region on a device only queues its work
            self.seconds[index] = (self._clock() - start) / 1e9
            return results

        return timed


class DagRun:
    """One run, with counters of values that cross region borders. on_device: its outputs stay on the device."""

    def __init__(
        self,
        executor: DAGExecutor,
        symbols: dict[str, int],
        watch: Watch | None,
        stopped: Callable[[], bool] | None,
        on_device: bool = False,
    ) -> None:
        self.executor, self.symbols, self.watch, self.stopped = executor, symbols, watch, stopped
        self._on_device = on_device
        self.counts: Counter[str] = Counter()
        self.moved: dict[str, Counter[str]] = {}
        self._made: set[str] = set()
        self._home = {v: p.work.region.id for p in executor._regions for v in p.work.region.outputs}
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
            results = placed.run(inputs, symbols, self._bring(region.id))
        else:
            results = trace.timed(
                f"{region.id}: {placed.region.engine}", placed.run, inputs, symbols, self._bring(region.id)
            )
        self._made.update(region.outputs)
        if self.executor.graph.symbols:
            self._learn(region.outputs, results)
        return results

    def _bring(self, region: str) -> Callable[[Mapping[str, Any], bool], Mapping[str, Any]]:
        """Return a function that moves values to the region's side, copied at most once for all regions there."""

        def bring(values: Mapping[str, Any], to_device: bool) -> Mapping[str, Any]:
            return {n: self._moved(region, n, v, to_device) for n, v in values.items()}

        return bring

    def output(self, name: str, value: Any) -> Any:
        """Return a value that leaves the graph, in host memory or as a buffer of the device."""
        return self._moved("", name, value, self._on_device)

    def state(self, name: str, value: Any) -> Any:
        """Return a value that the next run reads, in host memory."""
        return self._moved("", name, value, False)

    def _moved(self, region: str, name: str, value: Any, to_device: bool) -> Any:
        """Return a value on one side. region: the region that reads it; empty for the caller. Raise PolicyError for a forbidden copy."""
        if isinstance(value, DeviceBuffer) is to_device:
            return value
        key = id(value), to_device
        with self._lock:
            if key not in self._copies:
                if region and name in self._made:
                    self._check(region, name, to_device)
                copied = self._copy(name, value, to_device)
                self._copies[key] = value, copied  # keeps the value alive, so that its id stays unique
                self._count(region, name, _size(value), to_device)
            return self._copies[key][1]

    def _copy(self, name: str, value: Any, to_device: bool) -> Any:
        def copy() -> Any:
            return DeviceBuffer.from_numpy(value, self.executor.backend) if to_device else value.to_numpy()

        if trace.RING is None:
            return copy()
        return trace.timed(
            f"{'copy to the device' if to_device else 'wait and copy to the host'}: {name}", copy
        )

    def _count(self, region: str, name: str, size: int, to_device: bool) -> None:
        self.counts.update(copies=1, bytes=size)
        owner = region or self._home.get(name, next(iter(self._home.values()), ""))
        direction = "h2d" if to_device else "d2h"
        counts = {direction: 1, f"{direction}_bytes": size}
        if region and name in self._made:
            counts[f"inner_{direction}"] = 1
        if not to_device:
            counts["waits"] = 1
        self.moved.setdefault(owner, Counter()).update(counts)

    def _check(self, region: str, name: str, to_device: bool) -> None:
        """Raise PolicyError if the policy forbids a copy inside a run."""
        limits = self.executor._transfers
        fields = ["h2d"] if to_device else ["d2h", "sync"]
        for field in fields:
            if limits.get(field, "any") != "any":
                side = "the device" if to_device else "the host"
                nodes = [n.name for n in self.executor.plan.nodes if n.region == region]
                text = (
                    f"value {name!r} is copied to {side} inside a run, for {', '.join(map(repr, nodes[:3]))}"
                )
                do = "Place these nodes and their neighbors on one device, or allow the copy with any."
                raise transfer_error(self.executor._who, field, limits[field], [text], do)

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
