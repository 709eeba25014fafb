"""Moves (codegen/moves) on CUDA devices: a thread carries a pack of elements that lie side by side; what turns rows into columns goes
through tiles of shared memory, so that both sides are touched in runs.

Where tensors name the places that are written, of several values for one place the last in row-major order wins. Places that rise can
not meet, so their values go in parallel; else one thread writes all that could.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.boxes import Move, bits_type, element_bytes, int_type
from ...codegen.moves import carried
from ...codegen.nest import indented
from ...codegen.target import CodegenTarget
from ...types import DType
from ..kernel import Stage
from .launch import Argument, Launch, blocks_for, cuda_stage

__all__ = ["cuda_moves_stage"]

_PACK_BYTES = 16
_TURNED_BYTES = 4
_BUSY = 1 << 15
_TOGETHER = 4
"""Packs of a thread where it must look up first where they lie: one wait for the place, then all of them are under way."""
_LEAST_TILE = 8
_LONGEST_CHECK = 1 << 16
"""Places that a block looks through to see whether they rise."""
STATUS = 64


@dataclass(frozen=True, slots=True)
class _Dim:
    """A loop: its length, and how far target, source and every lookup go per step."""

    length: int
    steps: tuple[int, ...]


def cuda_moves_stage(
    stem: str,
    moves: Sequence[Move],
    args: tuple[str, ...],
    dtype: DType,
    target: CodegenTarget,
    copies: bool = False,
    ctype: str = "",
) -> Stage:
    """One stage that makes all moves, which do not depend on each other. As ``movement.moves_stage`` for CPUs."""
    threads, tile = target.config.max_threadgroup_1d, target.config.max_threadgroup_2d
    kind = ctype or bits_type(dtype)
    blocks, lines = 0, list[str]()
    kept = [m for m in moves if not m.empty]
    for move in kept:
        text = _Text(move, kind, element_bytes(dtype), threads, tile)
        body = [f"// {move.about}"] if move.about else []
        body += text.lines(blocks)
        first, blocks = blocks, blocks + text.blocks
        if len(kept) > 1:
            body = [f"if (blockIdx.x >= {first} && blockIdx.x < {blocks}) {{", *indented(body), "}"]
        lines += body
    total = carried(kept) * element_bytes(dtype)
    stage = cuda_stage(
        stem, f"{stem}: {carried(kept)} elements of {dtype.value}", _arguments(kept, args, kind), lines,
        Launch.flat(blocks, threads), parts=frozenset({"movement"}), copies=copies, bytes=2 * total,
    )  # fmt: skip
    return stage if not any(m.lookups for m in kept) else _reporting(stage)


def _reporting(stage: Stage) -> Stage:
    """A stage that may meet a place outside."""
    from dataclasses import replace

    return replace(stage, scratch_bytes=STATUS)


def _arguments(moves: Sequence[Move], args: Sequence[str], kind: str) -> list[Argument]:
    index = {x.arg: int_type(x.dtype) for m in moves for x in m.lookups}
    return [Argument(a, a, index.get(a, kind), a.startswith("out")) for a in args]


def _joined(dims: Sequence[_Dim]) -> list[_Dim]:
    """Neighbours that every track crosses evenly become one."""
    kept: list[_Dim] = []
    for d in dims:
        if kept and all(a == b * d.length for a, b in zip(kept[-1].steps, d.steps, strict=True)):
            kept[-1] = _Dim(kept[-1].length * d.length, d.steps)
        else:
            kept.append(d)
    return kept


class _Text:
    """The text of one move. ``shared``: dims over threads, the last side by side; ``serial``: dims that one thread goes through."""

    def __init__(self, move: Move, kind: str, item: int, threads: int, tile: int) -> None:
        self.move, self.kind, self.threads, self.tile = move, kind, threads, tile
        box = move.target
        source = move.source.strides if move.source else (0,) * len(box.shape)
        tracks = [box.strides, source, *(x.strides for x in move.lookups)]
        dims = [_Dim(n, tuple(t[i] for t in tracks)) for i, n in enumerate(box.shape) if n != 1]
        writes = any(x.writes for x in move.lookups)
        serial = [d for d in dims if writes and d.steps[0] == 0]
        shared = [d for d in dims if not (writes and d.steps[0] == 0)]
        shared.sort(key=lambda d: (-abs(d.steps[0]), -abs(d.steps[1])))
        self.serial, self.shared = _joined(serial), _joined(shared) or [_Dim(1, (0,) * len(tracks))]
        self.rising = self._may_rise()
        if self.rising:
            self.shared, self.serial = [*self.serial, *self.shared], []
        self.unit = self._unit()
        self.width = self._turned_width(item) if self.unit is not None else self._width(item)
        self.packs = self._packs()
        if self.unit is not None:
            self.tile *= self.width

    @property
    def last(self) -> _Dim:
        return self.shared[-1]

    def _may_rise(self) -> bool:
        """Whether the places written are those of one vector, which a block can look through."""
        moving = [x for x in self.move.lookups if x.writes]
        return (
            len(moving) == 1
            and not self.move.combine
            and len(self.serial) == 1
            and not any(d.steps[2] for d in self.shared)
            and 1 < self.serial[0].length <= _LONGEST_CHECK
        )

    def _unit(self) -> int | None:
        """The dim along which the source lies side by side where the target does along the last one."""
        last = self.last
        if self.move.lookups or self.move.source is None or last.steps[0] != 1 or last.steps[1] in (0, 1):
            return None
        for i, d in enumerate(self.shared[:-1]):
            if d.steps[1] == 1 and min(d.length, last.length) >= _LEAST_TILE:
                return i
        return None

    def _turned_width(self, item: int) -> int:
        """Elements of a tile that go together: four bytes, where lengths and steps on both sides are multiples of them."""
        assert self.unit is not None
        width = max(1, _TURNED_BYTES // item)
        unit, source = self.shared[self.unit], self.move.source
        assert source is not None
        steps = [s for d in self.shared for s in d.steps[:2] if s != 1]
        sizes = [unit.length, self.last.length, self.move.target.offset, source.offset, *steps]
        return 1 if any(s % width for s in sizes) else width

    def _width(self, item: int) -> int:
        last = self.last
        still = any(last.steps[2:])
        if last.steps[0] != 1 or last.steps[1] not in (0, 1) or still or self.move.combine:
            return 1
        count = math.prod(d.length for d in self.shared)
        width = _PACK_BYTES // item
        while width > 1 and (width > last.length or count // width < _BUSY):
            width //= 2
        return width

    def _packs(self) -> int:
        """Packs of a thread, evenly apart along the last dim: several where lookups say where the source lies."""
        beside, rest = divmod(self.last.length, self.width)
        reads = bool(self.move.lookups) and not any(x.writes for x in self.move.lookups)
        if self.unit is not None or self.width == 1 or rest or not reads or self.last.steps[1] != 1:
            return 1
        count, packs = math.prod(d.length for d in self.shared) // self.width, _TOGETHER
        while packs > 1 and (beside % packs or count // packs < _BUSY):
            packs //= 2
        return packs

    # ── how it is launched ──

    @property
    def _lengths(self) -> list[int]:
        """Items of threads per dim: the last one in packs, or so many of them."""
        each = self.width * self.packs
        return [*(d.length for d in self.shared[:-1]), math.ceil(self.last.length / each)]

    @property
    def _tiles(self) -> tuple[list[_Dim], int, int]:
        assert self.unit is not None
        others = [d for i, d in enumerate(self.shared[:-1]) if i != self.unit]
        down = math.ceil(self.shared[self.unit].length / self.tile)
        return others, down, math.ceil(self.last.length / self.tile)

    @property
    def blocks(self) -> int:
        if self.unit is not None:
            others, down, beside = self._tiles
            return math.prod(d.length for d in others) * down * beside
        return blocks_for(math.prod(self._lengths), self.threads)

    # ── the text ──

    def lines(self, first: int) -> list[str]:
        """The body of its blocks, of which the first is block ``first`` of the launch."""
        block = f"(blockIdx.x - {first})" if first else "blockIdx.x"
        return self._turned(block) if self.unit is not None else self._plain(block)

    def _index(self) -> str:
        reach = [
            sum(abs(d.steps[t]) * d.length for d in (*self.shared, *self.serial))
            for t in range(len(self.last.steps))
        ]
        return "uint32_t" if max(*reach, math.prod(self._lengths), 1) < 2**31 else "int64_t"

    def _split(self, number: str, lengths: Sequence[int], kind: str, prefix: str) -> list[str]:
        """Lines that take a row-major number apart; dims of one place get none."""
        lines, below = list[str](), 1
        for i in reversed(range(len(lengths))):
            text = number if below == 1 else f"{number} / {below}"
            if i:
                text += f" % {lengths[i]}"
            lines.insert(0, f"const {kind} {prefix}{i} = {text};")
            below *= lengths[i]
        return lines

    def _plain(self, block: str) -> list[str]:
        kind, lengths = self._index(), self._lengths
        count = math.prod(lengths)
        wide = f"({kind}){block}" if kind == "int64_t" else block
        lines = [f"const {kind} t = {wide} * {self.threads} + threadIdx.x;"]
        body = self._split("t", lengths, kind, "i")
        if self.width > 1:
            name, _, value = body[-1].removesuffix(";").partition(" = ")
            body[-1] = f"{name} = {value if value == 't' else f'({value})'} * {self.width};"
        names = [f"i{d}" for d in range(len(self.shared))]
        if not self.rising:
            body += self._loops(names)
        else:
            lookup = next(x for x in self.move.lookups if x.writes)
            step = self.shared[0].steps[2]
            first = f"{lookup.arg} + {lookup.offset}" if lookup.offset else lookup.arg
            lines.append(f"const bool rises = rising({first}, {self.shared[0].length}, {step});")
            one = self._one(names)
            every = [
                f"for ({kind} j = 0; j < {self.shared[0].length}; ++j) {{",
                *indented(self._one(["j", *names[1:]])),
                "}",
            ]
            body += ["if (rises) {", *indented(one), "} else if (i0 == 0) {", *indented(every), "}"]
        if count % self.threads:
            body = [f"if (t < {count}) {{", *indented(body), "}"]
        return [*lines, *body]

    def _loops(self, names: list[str]) -> list[str]:
        """The loops of one thread around a pack."""
        inner = [*names, *(f"s{d}" for d in range(len(self.serial)))]
        body = self._one(inner)
        for d in reversed(range(len(self.serial))):
            head = f"for (int64_t s{d} = 0; s{d} < {self.serial[d].length}; ++s{d}) {{"
            body = [head, *indented(body), "}"]
        return body

    def _sum(self, start: int, names: Sequence[str], track: int) -> list[str]:
        dims = [*self.shared, *self.serial]
        words = [str(start)] if start else []
        for name, d in zip(names, dims, strict=True):
            step = d.steps[track]
            if step:
                words.append(
                    name if step == 1 else f"{name} * {step}" if step > 0 else f"(int64_t){name} * {step}"
                )
        return words

    def _address(self, names: Sequence[str], side: str) -> str:
        box = self.move.target if side == "target" else self.move.source
        assert box is not None
        words = self._sum(box.offset, names, 0 if side == "target" else 1)
        words += [
            f"at{k} * {x.step}"
            for k, x in enumerate(self.move.lookups)
            if x.writes == (side == "target") and x.step
        ]
        return " + ".join([box.arg, *words])

    def _one(self, names: Sequence[str]) -> list[str]:
        """What is done at one place of all loops."""
        move, lines = self.move, list[str]()
        for k, x in enumerate(move.lookups):
            where = " + ".join(self._sum(x.offset, names, 2 + k)) or "0"
            lines.append(f"const int64_t at{k} = index_in({x.arg}[{where}], {x.size});")
        to = self._address(names, "target")
        source = self._address(names, "source") if move.source else ""
        if self.width > 1:
            last = self.last.length
            end = f"{last} - {names[len(self.shared) - 1]}" if last % self.width else ""
            tail = f", {end} < {self.width} ? (int)({end}) : {self.width}" if end else ""
            if move.source is None:
                return [*lines, f"spread<{self.width}>({to}, ({self.kind})({move.fill}){tail});"]
            if self.last.steps[1] == 0:
                return [*lines, f"spread<{self.width}>({to}, *({source}){tail});"]
            if self.packs > 1:
                apart = self.last.length // self.packs
                return [*lines, f"carry_apart<{self.width}, {self.packs}>({to}, {source}, {apart});"]
            return [*lines, f"carry<{self.width}>({to}, {source}{tail});"]
        give = f"*({source})" if move.source else move.fill
        if move.combine:
            return [
                *lines,
                f"{self.kind} *const place = {to};",
                f"const {self.kind} have = *place, give = {give};",
                f"*place = {move.combine};",
            ]
        return [*lines, f"*({to}) = {give};"]

    def _turned(self, block: str) -> list[str]:
        """Tiles: rows of the source become columns of the target."""
        assert self.unit is not None
        others, down, beside = self._tiles
        unit, last, kind = self.shared[self.unit], self.last, self._index()
        lengths = [*(d.length for d in others), down, beside]
        lines = self._split(block, lengths, kind, "b")
        names = [f"b{i}" for i in range(len(others))]
        q, p = f"b{len(others)} * {self.tile}", f"b{len(others) + 1} * {self.tile}"
        to, source = self.move.target, self.move.source
        assert source is not None

        def base(box_offset: int, arg: str, track: int) -> str:
            words = [arg, *([str(box_offset)] if box_offset else [])]
            words += [
                f"(int64_t){n} * {d.steps[track]}" if d.steps[track] < 0 else f"{n} * {d.steps[track]}"
                for n, d in zip(names, others, strict=True)
                if d.steps[track]
            ]
            return " + ".join(words)

        bases = base(to.offset, to.arg, 0), base(source.offset, source.arg, 1)
        given = f"({bases[0]}, {unit.steps[0]}, {bases[1]}, {last.steps[1]}, {q}, {unit.length}, {p}, {last.length});"
        wide, one = (f"transposed<{self.tile}, {self.width}, {v}, {self.threads}>" for v in (self.width, 1))
        if self.width == 1:
            return [*lines, one + given]
        asked = f"fits<{self.width}>({to.arg}) && fits<{self.width}>({source.arg})"
        return [*lines, f"if ({asked}) {wide}{given}", f"else {one}{given}"]
