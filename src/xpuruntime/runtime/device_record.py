"""The device driver's record of one run: kernels with their launch sizes, matched to the calls of the plan.

On CUDA the record is CUPTI's. It covers one run; other runs have no overhead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .. import _core
from ..protocols import SeenKernel

__all__ = ["DeviceRecord", "read"]


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device's activities of one run.

    calls:     for each call of the plan, by its index: its activities in the order of their start.
    source:    the recorder, such as ``CUPTI 13.0``.
    graph:     True if the calls ran as one CUDA graph.
    joined:    how activities were matched to calls: by ``graph nodes``, ``correlation`` (ids of the launches) or ``order``.
    absent:    the reason if there is no record, with ``advice``; both are empty otherwise.
    dropped:   number of lost records.
    unmatched: number of activities that match no call.
    """

    calls: Mapping[int, tuple[SeenKernel, ...]] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    graph: bool = False
    joined: str = ""
    absent: str = ""
    advice: str = ""
    dropped: int = 0
    unmatched: int = 0

    def note(self) -> str:
        """Return the record as one sentence for receipts."""
        if self.absent:
            return f"no record of what the driver ran: {self.absent}" + (
                f" {self.advice}" if self.advice else ""
            )
        count = sum(map(len, self.calls.values()))
        lost = f"; {self.dropped} records were dropped" if self.dropped else ""
        stray = f"; {self.unmatched} more match no call" if self.unmatched else ""
        how = "one graph" if self.graph else "single launches"
        return f"{self.source} recorded {count} activities of {len(self.calls)} calls in {how}, matched by {self.joined}{lost}{stray}"


def read(observation: _core.Observation) -> DeviceRecord:
    """Convert the core's record to a DeviceRecord."""
    calls: dict[int, list[SeenKernel]] = {}
    first_ns = min((a.start_ns for a in observation.activities), default=0)
    for activity in observation.activities:
        if activity.call >= 0:
            kernel = SeenKernel(
                activity.name,
                tuple(activity.grid),
                tuple(activity.block),
                registers=activity.registers,
                shared_bytes=activity.shared_bytes,
                bytes=activity.bytes,
                time_us=activity.duration_ns / 1e3,
                start_us=(activity.start_ns - first_ns) / 1e3,
            )
            calls.setdefault(activity.call, []).append(kernel)
    return DeviceRecord(
        {call: tuple(kernels) for call, kernels in calls.items()},
        observation.source,
        observation.graph,
        observation.joined,
        observation.absent,
        observation.advice,
        observation.dropped,
        observation.unmatched,
    )
