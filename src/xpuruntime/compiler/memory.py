"""Memory planning: views share memory, results reuse operands that are no longer read, and scratch buffers share one arena.

Offsets in the arena are assigned by size, largest first, each at the lowest free offset among buffers that live at the same time (greedy by
size; Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).

Only a device knows the workspace that a library's call needs. Where there are such calls, what is free during a call is kept at the end of the
arena as far as possible: a workspace begins there and may exceed the arena.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..program.program import BufferAllocation, BufferKind
from ..types import TensorSpec

__all__ = ["ALIGNMENT", "Memory", "MemoryUse", "place", "place_low"]

ALIGNMENT = 64
"""Bytes to which offsets are rounded: a cache line, and the widest vector."""
_BLOCK = 256
"""The same where libraries have workspaces: the alignment of a GPU's allocations."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory accesses of one call: buffers read and written, and the results that may overwrite an operand."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Value:
    kind: BufferKind
    spec: TensorSpec
    size: int
    root: str
    offset: int = 0


class Memory:
    """Values in order of declaration. ``done`` returns their allocations and the size of the arena. ``workspaces``: whether libraries need them."""

    def __init__(self, workspaces: bool = False) -> None:
        self._workspaces = workspaces
        self._values: dict[str, _Value] = {}
        self._updates: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def declare(self, name: str, kind: BufferKind, spec: TensorSpec, size: int | None = None) -> None:
        """Declare a value with its own memory. ``size``: its bytes if the spec does not determine them."""
        self._values[name] = _Value(kind, spec, (spec.size_bytes or 0) if size is None else size, name)

    def alias(self, name: str, spec: TensorSpec, of: str, offset: int = 0) -> None:
        """Declare a value inside another one, ``offset`` bytes from its start."""
        base = self._values[of]
        self._values[name] = _Value(base.kind, spec, spec.size_bytes or 0, base.root, base.offset + offset)

    def own(self, view: str, kind: BufferKind) -> bool:
        """Give a view that covers a whole scratch buffer the memory of that buffer, with another kind. Return False if it covers less."""
        value = self._values[view]
        base = self._values[value.root]
        if base.kind is not BufferKind.SCRATCH or value.offset or value.size != base.size:
            return False
        old = value.root
        for name, v in list(self._values.items()):
            if v.root == old:
                v.root, v.kind = view, kind
                if name != view:  # an owner is declared before its views
                    self._values[name] = self._values.pop(name)
        return True

    def update(self, state: str, value: str) -> None:
        """Mark ``value`` as the state's next content, which may be written to the state's memory."""
        self._updates[value] = state

    def root(self, name: str) -> str:
        """Return the value that owns a value's memory."""
        return self._values[name].root

    def place(self, name: str) -> tuple[str, int]:
        """Return the value that owns a value's memory, and the offset in it."""
        return self._values[name].root, self._values[name].offset

    def kind(self, name: str) -> BufferKind:
        """Return the kind of the value's buffer."""
        return self._values[name].kind

    def done(self, uses: Sequence[MemoryUse]) -> tuple[tuple[BufferAllocation, ...], int]:
        """Return allocations in order of declaration, and the arena's size in bytes. Call ``reuse`` first."""
        lives = self._lives(uses)
        scratch = {
            name: (v.size, *lives[name])
            for name, v in self._values.items()
            if v.kind is BufferKind.SCRATCH and v.root == name and name in lives
        }
        offsets, peak = place_low(scratch) if self._workspaces else place(scratch)
        allocations = []
        for name, v in self._values.items():
            first, last = lives.get(v.root, (-1, -1))
            offset = v.offset + offsets.get(v.root, 0)
            allocations.append(BufferAllocation(name, v.kind, v.spec, v.size, v.root, offset, first, last))
        return tuple(allocations), peak

    def _lives(self, uses: Sequence[MemoryUse]) -> dict[str, tuple[int, int]]:
        lives: dict[str, tuple[int, int]] = {}
        for at, use in enumerate(uses):
            for name in (*use.reads, *use.writes):
                root = self._values[name].root
                lives[root] = (lives[root][0] if root in lives else at, at)
        return lives

    def reuse(self, uses: Sequence[MemoryUse]) -> None:
        """Let results overwrite operands that no later call reads."""
        last = {root: span[1] for root, span in self._lives(uses).items()}
        for value in self._updates:
            if value in self._values:  # read after every call, to be copied into its state
                last[self._values[value].root] = len(uses)
        for at, use in enumerate(uses):
            for out, operand in use.in_place.items():
                result, source = self._values[out], self._values[operand]
                base = self._values[source.root]
                fits = source.offset == 0 and result.size <= base.size and source.size == result.size
                # An operand that is dead afterwards may be computed in the caller's memory of the result.
                owns = (
                    result.kind is BufferKind.OUTPUT
                    and base.kind is BufferKind.SCRATCH
                    and base.size == result.size
                )
                if result.root != out or not (result.kind is BufferKind.SCRATCH or owns):
                    continue
                updates = base.kind is BufferKind.STATE and self._updates.get(out) == source.root
                if base.kind is not BufferKind.SCRATCH and not updates:
                    continue
                if not fits or last.get(source.root) != at or not _same_layout(result.spec, source.spec):
                    continue
                others = [n for n in (*use.reads, *use.writes) if n not in (out, operand)]
                if any(self._values[n].root == source.root for n in others):
                    continue  # the call also reads it through another view
                old, end = result.root, last.get(result.root, at)
                for v in self._values.values():
                    if v.root == old:
                        v.root, v.kind = source.root, base.kind
                last[source.root] = max(end, at)
                if owns:
                    last[out] = last.pop(source.root)
                    self.own(out, BufferKind.OUTPUT)


def _same_layout(a: TensorSpec, b: TensorSpec) -> bool:
    return a.dtype.bits == b.dtype.bits and a.shape == b.shape and a.physical.strides == b.physical.strides


def place(
    lives: Mapping[str, tuple[int, int, int]], alignment: int = ALIGNMENT
) -> tuple[dict[str, int], int]:
    """Return an offset by name, and the peak. Buffers with overlapping lifetimes never overlap in memory.

    lives: (bytes, first call, last call) by name.
    """
    occupied: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[str, int] = {}
    peak = 0
    for name, (size, first, last) in sorted(
        lives.items(), key=lambda item: (-item[1][0], item[1][1], item[0])
    ):
        rounded = -(-size // alignment) * alignment
        at = _lowest(((o, e) for o, e, begin, end in occupied if begin <= last and first <= end), rounded)
        offsets[name] = at
        occupied.append((at, at + rounded, first, last))
        peak = max(peak, at + rounded)
    return offsets, peak


def place_low(lives: Mapping[str, tuple[int, int, int]]) -> tuple[dict[str, int], int]:
    """Return the same with a free end during as many calls as possible: the largest buffers are last, and smaller ones take what these leave."""
    offsets, peak = place(lives, _BLOCK)
    names = sorted(lives, key=lambda name: (-offsets[name], name))
    first, last = (np.array([lives[name][i] for name in names], np.int64) for i in (1, 2))
    sizes = np.array([-(-lives[name][0] // _BLOCK) * _BLOCK for name in names], np.int64)
    begins = peak - np.array([offsets[name] for name in names], np.int64) - sizes
    for at in np.argsort(begins, kind="stable"):  # each to the lowest place among the others
        others = (first <= last[at]) & (first[at] <= last)
        others[at] = False
        taken = zip(begins[others].tolist(), (begins + sizes)[others].tolist(), strict=True)
        begins[at] = _lowest(taken, int(sizes[at]))
    return dict(zip(names, begins.tolist(), strict=True)), int((begins + sizes).max(initial=0))


def _lowest(taken: Iterable[tuple[int, int]], size: int) -> int:
    at = 0
    for begin, end in sorted(taken):
        if begin - at >= size:
            break
        at = max(at, end)
    return at
