"""Moves as loops that copy boxes of elements, for CPUs.

A ``Box`` describes a box in one argument of a kernel by a stride per dim, like a NumPy view. A ``Move`` copies one box (or a
constant) to another; a ``Lookup`` adds positions that an index tensor names. Permutes, slices, concatenation, padding, gathers and scatters
are lists of moves, so one emitter serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .boxes import Box, Lookup, Move, bits_type, element_bytes, int_type

__all__ = ["Box", "Lookup", "Move", "bits_type", "carried", "element_bytes", "emit", "int_type"]


_VECTOR_STEPS = (-1, 0, 1, 2)
"""Strides of a source that vectors are read with (``templates/movement.h``)."""


_SCATTERED = 16
"""Minimum adjacent elements of a task of a scatter: a cache line of numbers of 32 bits."""


@dataclass(frozen=True, slots=True)
class _Dim:
    """A loop: its length, and its stride in the target, in the source, and in every lookup."""

    length: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of a move and their split into tasks: ``chunks[d]`` iterations of loop d per task."""

    dims: tuple[_Dim, ...]
    chunks: tuple[int, ...]
    transposed: bool

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(-(-d.length // c) for d, c in zip(self.dims, self.chunks, strict=True))

    @property
    def tasks(self) -> int:
        return math.prod(self.parts)


def _nest(move: Move, min_elements: int, tile: int) -> _Nest:
    """Return loops in the memory order of the target, merged if possible, and split so that a task moves at least ``least`` elements."""
    writes = any(x.writes for x in move.lookups)
    source = move.source.strides if move.source else (0,) * len(move.target.shape)
    tracks = [move.target.strides, source, *(x.strides for x in move.lookups)]
    dims = [_Dim(n, tuple(t[i] for t in tracks)) for i, n in enumerate(move.target.shape) if n != 1]
    if not writes:  # scatters keep row-major order, because the last of several values for one position wins
        dims.sort(key=lambda d: (-abs(d.steps[0]), -abs(d.steps[1])))
    dims = _joined(dims)
    last = len(dims) - 1
    unit = next((i for i, d in enumerate(dims) if abs(d.steps[1]) == 1), last)
    transposed = (
        not move.lookups and move.source is not None and last > 0 and dims[last].steps[0] == 1
        and dims[last].steps[1] != 1 and unit != last and dims[unit].steps[1] == 1
        and dims[last].steps[1] != 0 and dims[last].length >= 4 and dims[unit].length >= 4
    )  # fmt: skip
    if transposed:
        dims = [*(d for i, d in enumerate(dims) if i not in (unit, last)), dims[unit], dims[last]]
    chunks = [d.length for d in dims]
    per = math.prod(chunks)
    for i, d in enumerate(dims):
        if per <= min_elements:
            break
        if writes and d.steps[0] == 0:  # tasks never share a position
            continue
        inner = per // d.length
        chunk = min(d.length, max(1, -(-min_elements // inner)))
        if transposed and i == last - 1:
            chunk = min(d.length, -(-chunk // tile) * tile)
        elif i == last:  # whole vectors; scatters read every index in each task
            run = _SCATTERED if writes else 64
            chunk = min(d.length, -(-chunk // run) * run)
        chunks[i] = chunk
        per = inner * chunk
    return _Nest(tuple(dims), tuple(chunks), transposed)


def _joined(dims: list[_Dim]) -> list[_Dim]:
    """Merge adjacent loops that form one loop for target, source and lookups alike."""
    merged: list[_Dim] = []
    for d in dims:
        if merged and all(a == b * d.length for a, b in zip(merged[-1].steps, d.steps, strict=True)):
            merged[-1] = _Dim(merged[-1].length * d.length, d.steps)
        else:
            merged.append(d)
    return merged


def carried(moves: Sequence[Move]) -> int:
    """Return the number of elements that moves write."""
    return sum(math.prod(m.target.shape) for m in moves)


def emit(
    moves: Sequence[Move], args: Sequence[str], ctype: str, min_elements: int, tile: int
) -> tuple[str, int]:
    """Return the body of a kernel that performs all moves, and its number of tasks. Moves must be independent.

    args:  the kernel's arguments in order.
    ctype: the element type.
    min_elements: of a task.
    tile:  the edge of a transpose tile.
    """
    lines, tasks = _arguments(moves, args, ctype), 0
    lines.append("for (int64_t task = begin; task < end; ++task) {")
    for move in (m for m in moves if not m.empty):
        nest = _nest(move, min_elements, tile)
        first, tasks = tasks, tasks + nest.tasks
        body = _loops(move, nest, ctype, first, tile)
        if move.about:
            body.insert(0, f"// {move.about}")
        many = tasks != nest.tasks or move is not moves[-1]
        if many:
            body = [f"if (task >= {first} && task < {tasks}) {{", *_indent(body), "}"]
        lines += _indent(body)
    lines.append("}")
    return "\n".join(lines), tasks


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _arguments(moves: Sequence[Move], args: Sequence[str], ctype: str) -> list[str]:
    written = {m.target.arg for m in moves}
    index = {x.arg: x.dtype for m in moves for x in m.lookups}
    used = written | index.keys() | {m.source.arg for m in moves if m.source}
    lines = []
    for i, arg in enumerate(args):
        if arg not in used:
            continue
        kind = int_type(index[arg]) if arg in index else ctype
        const = "" if arg in written else "const "
        lines.append(f"{const}{kind} *const {arg} = ({const}{kind} *)args[{i}];")
    return lines


def _sum(start: str | int, terms: Sequence[tuple[str, int]]) -> str:
    """Return ``a + i0 * 12 + i1``, without zero terms."""
    words = [str(start)] if start not in (0, "0") else []
    for name, step in terms:
        if step and name != "0":
            words.append(name if step == 1 else f"{name} * {step}")
    return " + ".join(words) or "0"


def _loops(move: Move, nest: _Nest, ctype: str, first: int, tile: int) -> list[str]:
    lines = []
    low, high = [], []
    remaining, parts = f"(task - {first})" if first else "task", nest.parts
    lower = math.prod(parts)
    for d, (dim, chunk, count) in enumerate(zip(nest.dims, nest.chunks, parts, strict=True)):
        if count == 1:
            low.append("0")
            high.append(str(dim.length))
            continue
        lower //= count
        quotient = f"{remaining} / {lower}" if lower > 1 else remaining
        quotient = f"{quotient} % {count}" if lower * count < math.prod(parts) else quotient
        start = f"{quotient}" if chunk == 1 else f"({quotient}) * {chunk}"
        lines.append(f"const int64_t l{d} = {start};")
        low.append(f"l{d}")
        if chunk == 1:
            high.append(f"l{d} + 1")
        elif dim.length % chunk:
            lines.append(
                f"const int64_t h{d} = l{d} + {chunk} < {dim.length} ? l{d} + {chunk} : {dim.length};"
            )
            high.append(f"h{d}")
        else:
            high.append(f"l{d} + {chunk}")
    return lines + _nested(move, nest, ctype, low, high, 0, [], tile, set())


def _nested(
    move: Move, nest: _Nest, ctype: str, low: list[str], high: list[str], depth: int,
    names: list[str], tile: int, known: set[int],
) -> list[str]:  # fmt: skip
    """Return the loops from ``depth`` inwards; ``names[d]`` is the index of loop d."""
    lines = []
    for k, lookup in enumerate(move.lookups):  # hoisted as far out as possible
        if k in known or any(d.steps[2 + k] for d in nest.dims[depth:]):
            continue
        where = _sum(lookup.offset, [(n, d.steps[2 + k]) for n, d in zip(names, nest.dims, strict=False)])
        position = "index_in" if lookup.wraps else "index_within"
        lines.append(f"const int64_t at{k} = {position}({lookup.arg}[{where}], {lookup.size}, scratch);")
        known = known | {k}
    dims = nest.dims
    depth_left = len(dims) - depth
    if depth_left == 2 and nest.transposed:
        q, p = dims[depth], dims[depth + 1]
        indices = [*names, low[depth]]
        a, b = (_address(move, nest, indices, side) for side in ("source", "target"))
        a, b = (f"{x} + {low[depth + 1]} * {s}" if low[depth + 1] != "0" else x
                for x, s in ((a, p.steps[1]), (b, p.steps[0])))  # fmt: skip
        rows, columns = (_length(low[i], high[i]) for i in (depth, depth + 1))
        lines.append(f"transpose<{tile}>({b}, {q.steps[0]}, {a}, {p.steps[1]}, {rows}, {columns});")
        return lines
    if depth_left == 1 and dims[depth].steps[0] == 1:
        run = _run(move, nest, ctype, low[depth], high[depth], names)
        if run:
            return [*lines, run]
    if depth_left == 0:
        return [*lines, _one(move, nest, names)]
    name = f"i{depth}"
    if nest.chunks[depth] == 1:
        return lines + _nested(move, nest, ctype, low, high, depth + 1, [*names, low[depth]], tile, known)
    inner = _nested(move, nest, ctype, low, high, depth + 1, [*names, name], tile, known)
    head = f"for (int64_t {name} = {low[depth]}; {name} < {high[depth]}; ++{name})"
    if len(inner) == 1:
        return [*lines, head, f"  {inner[0]}"]
    return [*lines, f"{head} {{", *_indent(inner), "}"]


def _length(low: str, high: str) -> str:
    if low == "0":
        return high
    return high[len(low) + 3 :] if high.startswith(f"{low} + ") else f"{high} - {low}"


def _address(move: Move, nest: _Nest, names: Sequence[str], side: str) -> str:
    box = move.target if side == "target" else move.source
    assert box is not None
    track = 0 if side == "target" else 1
    terms = [(n, d.steps[track]) for n, d in zip(names, nest.dims, strict=False)]
    terms += [(f"at{k}", x.step) for k, x in enumerate(move.lookups) if x.writes == (side == "target")]
    where = _sum(box.offset, terms)
    return box.arg if where == "0" else f"{box.arg} + {where}"


def _one(move: Move, nest: _Nest, names: Sequence[str]) -> str:
    target = f"*({_address(move, nest, names, 'target')})"
    give = f"*({_address(move, nest, names, 'source')})" if move.source else move.fill
    if move.combine:
        return f"{{ const auto have = {target}; const auto give = {give}; {target} = {move.combine}; }}"
    return f"{target} = {give};"


def _run(move: Move, nest: _Nest, ctype: str, low: str, high: str, names: Sequence[str]) -> str:
    """Return the innermost loop if its elements are written as vectors; otherwise an empty string."""
    depth = len(nest.dims) - 1
    dim = nest.dims[depth]
    if any(dim.steps[2 + k] for k in range(len(move.lookups))):
        return ""
    indices = [*names, low]
    target, length = _address(move, nest, indices, "target"), _length(low, high)
    if move.combine:
        if move.source is None or dim.steps[1] != 1:
            return ""
        joined = f"[](auto have, auto give) {{ return (decltype(have))({move.combine}); }}"
        return f"combine_run({target}, {_address(move, nest, indices, 'source')}, {length}, {joined});"
    if move.source is None:
        return f"fill_run({target}, ({ctype})({move.fill}), {length});"
    if dim.steps[1] not in _VECTOR_STEPS:
        return ""
    source = _address(move, nest, indices, "source")
    if dim.steps[1] == 0:
        return f"fill_run({target}, ({ctype})*({source}), {length});"
    if dim.steps[1] == 1:
        return f"copy_run({target}, {source}, {length});"
    return f"copy_steps<1, {dim.steps[1]}>({target}, {source}, {length});"
