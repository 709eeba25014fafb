"""Loop nests over strided values: dims in memory order, merged if every value allows it, and split into tasks.

A nest is independent of the computation. ``rows`` counts the iterations of all dims but the last; the last is the inner loop of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Nest", "TaskSplit", "cut", "indented", "nest", "offset_text", "task_loops"]


@dataclass(frozen=True, slots=True)
class Nest:
    """Extents from outermost to innermost, and per value the stride of each dim in elements."""

    extents: tuple[int, ...]
    strides: Mapping[str, tuple[int, ...]]

    @property
    def rows(self) -> int:
        """The iterations of all dims but the last."""
        return math.prod(self.extents[:-1])

    @property
    def inner(self) -> int:
        """The iterations of the last dim."""
        return self.extents[-1]

    @property
    def elements(self) -> int:
        """The iterations of all dims."""
        return math.prod(self.extents)


def nest(extents: Sequence[int], strides: Mapping[str, Sequence[int]], order: Sequence[int]) -> Nest:
    """Return the dims in ``order``, without those of extent 1, merged where they are contiguous in every value. At least one dim remains."""
    dims = [d for d in order if extents[d] != 1]
    merged: list[tuple[int, list[int]]] = []  # extent, stride of each value
    names = list(strides)
    for d in dims:
        steps = [strides[name][d] for name in names]
        if merged and all(o == s * extents[d] for o, s in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * extents[d], steps)
        else:
            merged.append((extents[d], steps))
    merged = merged or [(1, [0] * len(names))]
    columns = {name: tuple(m[1][i] for m in merged) for i, name in enumerate(names)}
    return Nest(tuple(m[0] for m in merged), columns)


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """The split of a nest into tasks: ``rows`` rows per task, or (if ``chunk`` is below the inner extent) ``chunk`` elements of one row."""

    count: int
    rows: int
    chunk: int


def cut(space: Nest, min_elements: int, lanes: int) -> TaskSplit:
    """Split a nest into tasks of about ``min_elements`` elements, with at least one vector per task and at least one task."""
    min_elements = max(min_elements, lanes)
    if not space.elements:
        return TaskSplit(1, 1, space.inner)
    if space.inner >= 2 * min_elements:
        pieces = space.inner // min_elements
        chunk = math.ceil(math.ceil(space.inner / pieces) / lanes) * lanes
        return TaskSplit(space.rows * math.ceil(space.inner / chunk), 1, chunk)
    pieces = max(1, space.elements // min_elements)
    rows = math.ceil(space.rows / pieces)
    return TaskSplit(math.ceil(space.rows / rows), rows, space.inner)


def offset_text(extents: Sequence[int], strides: Sequence[int], index: str = "row") -> str:
    """Return the offset of ``row`` in a value: ``row / 56 * 3136 + row % 56 * 64``; contiguous dims are one term."""
    terms: list[tuple[int, int, int]] = []  # extent, stride, rows per step
    below = total = math.prod(extents)
    if not total:
        return "0"
    for extent, stride in zip(extents, strides, strict=True):
        below //= extent
        if terms and terms[-1][1] == stride * extent:
            terms[-1] = (terms[-1][0] * extent, stride, below)
        else:
            terms.append((extent, stride, below))
    texts = []
    for extent, stride, step in terms:
        if not stride or extent == 1:
            continue
        text = index if step == 1 else f"{index} / {step}"
        if extent * step < total:
            text = f"({text}) % {extent}" if step > 1 else f"{text} % {extent}"
        texts.append(text if stride == 1 else f"{text} * {stride}")
    return " + ".join(texts) or "0"


def indented(lines: Sequence[str], by: int = 1) -> list[str]:
    """Return lines indented by two spaces times ``by``."""
    return [f"{'  ' * by}{line}" if line else line for line in lines]


def task_loops(space: Nest, tasks: TaskSplit, body: Sequence[str], what: str = "") -> list[str]:
    """Return the loop over tasks around a body that reads ``row``, and ``first`` and ``last`` if a task is part of a row."""
    inner, rows = space.inner, space.rows
    what = what or f"rows of {inner}"
    if tasks.chunk < inner:
        pieces = math.ceil(inner / tasks.chunk)
        lines = [
            f"const int64_t row = task / {pieces}, first = task % {pieces} * {tasks.chunk};",
            f"const int64_t last = first + {tasks.chunk} < {inner} ? first + {tasks.chunk} : {inner};",
            *body,
        ]
    elif rows == 1:
        lines = ["const int64_t row = 0;", *body]
    elif tasks.rows == 1:
        lines = [f"const int64_t row = task;  // of {rows} {what}", *body]
    else:
        stop = f"task * {tasks.rows} + {tasks.rows}"
        limit = stop if rows % tasks.rows == 0 else f"({stop} < {rows} ? {stop} : {rows})"
        lines = [
            f"for (int64_t row = task * {tasks.rows}; row < {limit}; ++row) {{  // of {rows} {what}",
            *indented(body),
            "}",
        ]
    return ["for (int64_t task = begin; task < end; ++task) {", *indented(lines), "}"]
