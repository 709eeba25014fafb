"""peak_bytes: the memory that a plan's intermediate values need at least."""

from __future__ import annotations

from .program import BufferKind, ExecutionPlan

__all__ = ["peak_bytes"]


def peak_bytes(plan: ExecutionPlan) -> int:
    """Return the peak of the scratch bytes that are live at one time. Fragmentation makes the arena larger."""
    roots = [b for b in plan.buffers if b.kind is BufferKind.SCRATCH and b.root == b.name]
    events = sorted(
        (at, change) for b in roots for at, change in ((b.first, b.size_bytes), (b.last + 1, -b.size_bytes))
    )
    live = peak = 0
    for _, change in events:
        live += change
        peak = max(peak, live)
    return peak
