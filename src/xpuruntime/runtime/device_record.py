"""The device driver's record of one run: kernels with their launch sizes, joined to the calls of the plan.

On CUDA the record is CUPTI's. It is kept for the one run alone: other runs pay nothing for it.
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
    """calls: what ran for each call of the plan, by its position, in the order in which it began.

    source:    who saw it (``CUPTI 13.0``); ``graph``: the calls were one graph; ``joined``: how work was joined to calls: by ``graph nodes``,
               ``correlation`` (ids that launches carried) or ``order``.
    absent:    why there is no record, and ``advice`` what to do; both empty where there is one.
    dropped:   records that were lost; ``unmatched``: pieces of work of the run that belong to no known call.
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
        count = sum(len(seen) for seen in self.calls.values())
        lost = f"; {self.dropped} records were dropped" if self.dropped else ""
        stray = f"; {self.unmatched} more belong to no known call" if self.unmatched else ""
        how = "one graph" if self.graph else "single launches"
        return f"{self.source} saw {count} pieces of work of {len(self.calls)} calls in {how}, joined by {self.joined}{lost}{stray}"


def read(observation: _core.Observation) -> DeviceRecord:
    """Convert the core's record to data."""
    calls: dict[int, list[SeenKernel]] = {}
    first = min((s.start_ns for s in observation.activities), default=0)
    for seen in observation.activities:
        if seen.call >= 0:
            kernel = SeenKernel(
                seen.name,
                tuple(seen.grid),
                tuple(seen.block),
                registers=seen.registers,
                shared_bytes=seen.shared_bytes,
                bytes=seen.bytes,
                time_us=seen.duration_ns / 1e3,
                start_us=(seen.start_ns - first) / 1e3,
            )
            calls.setdefault(seen.call, []).append(kernel)
    return DeviceRecord(
        {call: tuple(seen) for call, seen in calls.items()},
        observation.source,
        observation.graph,
        observation.joined,
        observation.absent,
        observation.advice,
        observation.dropped,
        observation.unmatched,
    )
