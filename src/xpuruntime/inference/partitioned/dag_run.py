"""One run of a model that is partitioned into regions: each region's call, and the copies of values between memories, which are counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...compiler.transfers import transfer_error
from ...errors import RunError
from ...ir import bind
from ...profiler import trace
from ...runtime.backends.base import RuntimeBackend
from ...runtime.backends.cuda import CudaBackend
from ...runtime.memory.buffer import DeviceBuffer
from ...types import TensorSpec

if TYPE_CHECKING:
    from .dag_executor import DAGExecutor

__all__ = ["DagRun", "Timer", "Watch"]

Watch: TypeAlias = dict[str, tuple[Mapping[str, Any], Mapping[str, int]]]
"""Region id -> the inputs of the region in one run, and the sizes of symbolic dims that were known then."""

RegionCall: TypeAlias = Callable[[int, Mapping[str, Any]], Sequence[Any]]
"""A function that runs the region of an index with values by name, and returns the region's outputs in order."""


class Timer:
    """Measurement of the seconds of every region of one run, by index."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.seconds: dict[int, float] = {}

    def around(self, work: RegionCall) -> RegionCall:
        """Return a region call that also records its time, until the results are computed."""

        def timed(index: int, values: Mapping[str, Any]) -> Sequence[Any]:
            start = self._clock()
            results = work(index, values)
            for value in results:
                if isinstance(value, DeviceBuffer):
                    value.settle()  # wait: a region on a device only queues its work
            self.seconds[index] = (self._clock() - start) / 1e9
            return results

        return timed


class DagRun:
    """One run of a DAGExecutor, with its counters.

    on_device: the outputs stay in the memory of the executor's device.
    counts:    regions that ran, values that crossed from one region to another, copies and their bytes.
    moved:     region -> copies by direction (``h2d``, ``d2h``, ``p2p``), their bytes, those between regions (``inner_h2d`` ...), and
               waits for a device.

    A value is copied to a memory at most once, whichever regions read it there. Regions of several threads may call ``work`` at a time.
    """

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
        self._copies: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def work(self, index: int, values: Mapping[str, Any]) -> Sequence[Any]:
        """Run a region. Raises RunError if the run was stopped."""
        if self.stopped is not None and self.stopped():
            raise RunError(self.executor._who, "the run was stopped", do="Run again.")
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

    def _bring(self, region: str) -> Callable[[Mapping[str, Any], RuntimeBackend | None], Mapping[str, Any]]:
        """Return a function that copies a region's inputs to its memory, if they are not there. destination: None: host memory."""

        def bring(values: Mapping[str, Any], destination: RuntimeBackend | None) -> Mapping[str, Any]:
            return {n: self._moved(region, n, v, destination) for n, v in values.items()}

        return bring

    def output(self, name: str, value: Any) -> Any:
        """Return a value that leaves the graph, in host memory or as a buffer of the device."""
        return self._moved("", name, value, self.executor.backend if self._on_device else None)

    def state(self, name: str, value: Any) -> Any:
        """Return a value that the next run reads, in host memory."""
        return self._moved("", name, value, None)

    def _moved(self, region: str, name: str, value: Any, destination: RuntimeBackend | None) -> Any:
        """Return a value in the memory of a destination, copied there if it is elsewhere.

        region:      the region that reads the value; empty for the caller.
        destination: None: host memory.
        Raise PolicyError for a copy between regions that the policy forbids.
        """
        home = value.backend if isinstance(value, DeviceBuffer) else None
        if home is destination or (
            home is not None and destination is not None and destination.shares_memory(home)
        ):
            return value
        key = id(value), "" if destination is None else str(destination.device)
        with self._lock:
            if key not in self._copies:
                inner = (
                    bool(region) and name in self._made
                )  # from a region to a region, where the policy's limits apply
                if home is None or destination is None:
                    directions: tuple[str, ...] = ("h2d",) if home is None else ("d2h",)
                    if inner:
                        self._check(region, name, directions)
                    copied = self._copied(name, value, destination)
                else:
                    copied, directions = self._crossed(region if inner else "", name, value, destination)
                self._copies[key] = value, copied  # keeps the value alive, so that its id stays unique
                self._count(region, name, _size(value), directions)
            return self._copies[key][1]

    def _copied(self, name: str, value: Any, destination: RuntimeBackend | None) -> Any:
        """Return a copy of a host array on a device, or of a device's buffer on the host."""

        def copy() -> Any:
            return value.to_numpy() if destination is None else DeviceBuffer.from_numpy(value, destination)

        if trace.RING is None:
            return copy()
        return trace.timed(
            f"{'wait and copy to the host' if destination is None else 'copy to the device'}: {name}", copy
        )

    def _crossed(
        self, region: str, name: str, value: DeviceBuffer, destination: RuntimeBackend
    ) -> tuple[DeviceBuffer, tuple[str, ...]]:
        """Return a copy on another device, and its directions: ``p2p``, or ``d2h`` and ``h2d`` through the host where peer access is absent.

        region: the region that reads the value, if the policy's limits apply; otherwise empty.
        """
        if region and not _reaches(destination, value.backend):
            self._check(region, name, ("d2h", "h2d"))

        def copy() -> tuple[DeviceBuffer, bool]:
            return destination.take(value)

        text = f"copy from {value.backend.device} to {destination.device}: {name}"
        copied, direct = copy() if trace.RING is None else trace.timed(text, copy)
        return copied, ("p2p",) if direct else ("d2h", "h2d")

    def _count(self, region: str, name: str, size: int, directions: tuple[str, ...]) -> None:
        """Count a copy for the region that reads it; for the caller's, for the region that computed it (if none did, for any).

        Without regions, count it only in the total.
        """
        self.counts.update(copies=len(directions), bytes=size * len(directions))
        owner = region or self._home.get(name, next(iter(self._home.values()), ""))
        if not owner:
            return
        counts: Counter[str] = Counter()
        for direction in directions:
            counts.update({direction: 1, f"{direction}_bytes": size})
            if region and name in self._made:
                counts[f"inner_{direction}"] += 1
        if "d2h" in directions:
            counts["waits"] += 1
        self.moved.setdefault(owner, Counter()).update(counts)

    def _check(self, region: str, name: str, directions: tuple[str, ...]) -> None:
        """Raise PolicyError if the policy's limits of transfers forbid a copy between regions. A copy to the host also waits (``sync``)."""
        limits = self.executor._transfers
        fields = [f for d in directions for f in ((d, "sync") if d == "d2h" else (d,))]
        for field in fields:
            if limits.get(field, "any") != "any":
                side = "the device" if field == "h2d" else "the host"
                nodes = [n.name for n in self.executor.plan.nodes if n.region == region]
                text = (
                    f"value {name!r} is copied to {side} inside a run, for {', '.join(map(repr, nodes[:3]))}"
                )
                do = f"Place these nodes and their neighbors on one device, or allow the copy with {field}: any."
                raise transfer_error(self.executor._who, field, limits[field], [text], do)

    def _learn(self, names: Sequence[str], results: Sequence[Any]) -> None:
        """Bind symbolic sizes that are known only from a region's results, such as the number of nonzero elements."""
        graph = self.executor.graph
        for name, result in zip(names, results, strict=True):
            spec = graph.values[name].spec
            if spec is not None and spec.symbols - self.symbols.keys():
                known = spec.substitute(self.symbols)
                self.symbols |= bind([TensorSpec(known.shape, known.dtype, name)], {name: result.shape})


def _size(value: Any) -> int:
    return int(value.size_bytes if isinstance(value, DeviceBuffer) else value.nbytes)


def _reaches(destination: RuntimeBackend, other: RuntimeBackend) -> bool:
    """Return True if a copy between two devices needs no host memory."""
    return (
        isinstance(destination, CudaBackend)
        and isinstance(other, CudaBackend)
        and destination.reaches_peer(other)
    )
