"""Checks of overlaps in a plan: of two values in one buffer, and of scratch buffers that live at the same time."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping

from .program import BufferAllocation, BufferKind, EntryPoint, ExecutionPlan

__all__ = ["lives", "share"]


def share(a: BufferAllocation, b: BufferAllocation, root: BufferAllocation) -> bool:
    """Return True if two values in one root share an element. Parts with the strides of one larger value are compared as boxes in it,
    other values as byte ranges.
    """
    if not a.size_bytes or not b.size_bytes:
        return False
    if a.offset + a.spec.extent_bytes <= b.offset or b.offset + b.spec.extent_bytes <= a.offset:
        return False
    layout, width = a.spec.physical, a.spec.dtype.bits // 8
    if b.spec.physical != layout or b.spec.dtype is not a.spec.dtype or not width:
        return True
    begin = root.offset if root.kind is BufferKind.SCRATCH else 0
    boxes = []
    for value in (a, b):
        remainder, box = (value.offset - begin) // width, {}
        for d in layout.order:
            at, remainder = divmod(remainder, layout.strides[d])
            extent = value.spec.shape[d]
            if not isinstance(extent, int) or at + extent > layout.alloc[d]:
                return True  # not a box: it wraps into the next row
            box[d] = at, at + extent
        boxes.append(box)
    return all(boxes[0][d][0] < boxes[1][d][1] and boxes[1][d][0] < boxes[0][d][1] for d in layout.order)


def lives(entry: EntryPoint, plan: ExecutionPlan, buffers: Mapping[str, BufferAllocation]) -> Iterator[str]:
    """Check that scratch is written before it is read, that its lifetime covers its calls, and that live buffers do not overlap."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    written = {
        b.name for b in plan.buffers if b.kind in (BufferKind.INPUT, BufferKind.WEIGHT, BufferKind.STATE)
    }
    for i, call in enumerate(plan.calls):
        for name in call.inputs:
            root = buffers[name].root
            if root not in written and buffers[name].size_bytes:
                yield f"call {i} ({call.kernel}) reads {name!r} before any call writes it"
        for name in (*call.inputs, *call.outputs):
            root = buffers[name].root
            first.setdefault(root, i)
            last[root] = i
        written |= {buffers[n].root for n in call.outputs}
    for name in entry.output_buffers:
        if buffers[name].root not in written and buffers[name].size_bytes:
            yield f"no call writes the output buffer {name!r}"
    scratch = [b for b in plan.buffers if b.kind is BufferKind.SCRATCH and b.root == b.name]
    for b in scratch:
        if b.name in first and not (b.first <= first[b.name] and last[b.name] <= b.last):
            yield f"buffer {b.name!r} lives from call {b.first} to {b.last}, but calls {first[b.name]} to {last[b.name]} touch it"
    yield from _overlaps([b for b in scratch if b.size_bytes])


def _overlaps(scratch: list[BufferAllocation]) -> Iterator[str]:
    """Find overlapping buffers that live at the same time, in one sweep over the calls."""
    by_last = sorted(scratch, key=lambda b: b.last)
    alive: list[tuple[int, int, str]] = []  # (offset, end, name) of live buffers, which do not overlap
    num_expired = 0
    for b in sorted(scratch, key=lambda b: b.first):
        while num_expired < len(by_last) and by_last[num_expired].last < b.first:
            expired = by_last[num_expired]
            del alive[
                bisect.bisect_left(alive, (expired.offset, expired.offset + expired.size_bytes, expired.name))
            ]
            num_expired += 1
        at = bisect.bisect_left(alive, (b.offset, 0, ""))
        for begin, end, name in alive[max(at - 1, 0) : at + 1]:
            if begin < b.offset + b.size_bytes and b.offset < end:
                yield f"buffers {name!r} and {b.name!r} overlap in the arena while both live"
                return
        alive.insert(at, (b.offset, b.offset + b.size_bytes, b.name))
