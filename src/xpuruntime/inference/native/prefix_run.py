"""Runs of a prefix of a program, which make intermediate values readable.

Nothing is compiled for such a run: it executes the first calls of the plan itself. Buffers that are read get memory of their own, so
that later calls cannot reuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...program.program import BufferAllocation, BufferKind
from ...protocols import Array
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...types import DType, TensorSpec

__all__ = ["is_readable", "values_after"]


def is_readable(buffer: BufferAllocation, root: BufferAllocation) -> bool:
    """Return True if ``values_after`` can return the buffer: whole bytes, in the arena or in an output."""
    return buffer.spec.dtype.bits >= 8 and root.kind in (BufferKind.SCRATCH, BufferKind.OUTPUT)


def values_after(
    executor: Executor, arrays: Sequence[Array], at: int, names: Sequence[str]
) -> dict[str, Array]:
    """Run calls 0 to ``at`` once on the program's inputs, with new states, and return the contents of buffers by name.

    Each buffer must be readable, and hold its value after call ``at``. Raises RunError, BuildError.
    """
    entry, plan = executor.entry, executor.plan
    by_name = {b.name: b for b in plan.buffers}
    roots = dict.fromkeys(by_name[n].root for n in names)
    moved = {r for r in roots if by_name[r].kind is BufferKind.SCRATCH}
    outputs, borders = entry.outputs, entry.output_buffers
    for root in roots:
        if root not in borders:
            outputs = (*outputs, TensorSpec((by_name[root].size_bytes,), DType.UINT8, root))
            borders = (*borders, root)
    buffers = tuple([_moved(b, by_name[b.root]) if b.root in moved else b for b in plan.buffers])
    cut = replace(plan, calls=plan.calls[: at + 1], buffers=buffers)
    point = replace(entry, outputs=outputs, output_buffers=borders, plans=(cut,))
    bodies = tuple(e for e in executor.program.entries if e.is_body)
    program = replace(executor.program, entries=(point, *bodies))
    with Executor(
        program, executor.backend, threads=executor.threads, contexts=1, policy=SETTLED, store=executor.store
    ) as prefix:
        prefix.bind(executor.weights)
        memory = prefix.run_arrays(arrays)
    values = {}
    for name in names:
        buffer = by_name[name]
        start = buffer.offset - (by_name[buffer.root].offset if buffer.root in moved else 0)
        values[name] = _logical(memory[borders.index(buffer.root)], start, buffer.spec)
    return values


def _moved(buffer: BufferAllocation, root: BufferAllocation) -> BufferAllocation:
    """Return a buffer after its root has left the arena."""
    kind = BufferKind.OUTPUT if buffer.name == root.name else buffer.kind
    return replace(buffer, kind=kind, offset=buffer.offset - root.offset)


def _logical(memory: Array, start: int, spec: TensorSpec) -> Array:
    """Return the value in a block of bytes according to its layout, as a view."""
    elements = memory.reshape(-1).view(np.uint8)[start : start + spec.extent_bytes].view(spec.dtype.numpy)
    size = elements.itemsize
    strides = tuple(s * size for s in spec.physical.strides)
    shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
    return np.lib.stride_tricks.as_strided(elements, shape, strides)
