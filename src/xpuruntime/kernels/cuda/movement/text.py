"""The text of one move on CUDA devices, divided as ``move_share`` says: packs of elements, or tiles of shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.loops.nest import indented
from .share import MoveShare

__all__ = ["move_lines"]


def move_lines(share: MoveShare, kind: str, first: int) -> list[str]:
    """Return the body of a move's blocks, the first of which is block ``first`` of the launch. ``kind``: C type of the elements."""
    block = f"(blockIdx.x - {first})" if first else "blockIdx.x"
    return _turned(share, block) if share.unit is not None else _Text(share, kind).lines(block)


def _split(number: str, lengths: Sequence[int], kind: str, prefix: str, width: int = 1) -> list[str]:
    """Return lines that split a row-major index into dims; ``width``: elements of an item of the innermost dim."""
    lines, below = list[str](), 1
    for i in reversed(range(len(lengths))):
        text = number if below == 1 else f"{number} / {below}"
        if i:
            text += f" % {lengths[i]}"
        if width > 1 and below == 1:
            text = f"{text if text == number else f'({text})'} * {width}"
        lines.insert(0, f"const {kind} {prefix}{i} = {text};")
        below *= lengths[i]
    return lines


class _Text:
    """The text of a move by packs: one item of ``lengths`` per thread."""

    def __init__(self, share: MoveShare, kind: str) -> None:
        self.share, self.move, self.kind = share, share.move, kind

    def lines(self, block: str) -> list[str]:
        """Return the lines from the thread's index to its copies."""
        share = self.share
        kind, lengths, shared = share.index, share.lengths, share.shared
        count = math.prod(lengths)
        wide = f"({kind}){block}" if kind == "int64_t" else block
        lines = [f"const {kind} t = {wide} * {share.threads} + threadIdx.x;"]
        body = _split("t", lengths, kind, "i", share.width)
        names = [f"i{d}" for d in range(len(shared))]
        if not share.rising:
            body += self._loops(names)
        else:
            lookup = next(x for x in self.move.lookups if x.writes)
            step = shared[0].steps[2]
            first = f"{lookup.arg} + {lookup.offset}" if lookup.offset else lookup.arg
            lines.append(f"const bool rises = rising({first}, {shared[0].length}, {step});")
            one = self._one(names)
            every = [
                f"for ({kind} j = 0; j < {shared[0].length}; ++j) {{",
                *indented(self._one(["j", *names[1:]])),
                "}",
            ]
            body += ["if (rises) {", *indented(one), "} else if (i0 == 0) {", *indented(every), "}"]
        if count % share.threads:
            body = [f"if (t < {count}) {{", *indented(body), "}"]
        return [*lines, *body]

    def _loops(self, names: list[str]) -> list[str]:
        """Return the loops of one thread around a pack."""
        serial = self.share.serial
        inner = [*names, *(f"s{d}" for d in range(len(serial)))]
        body = self._one(inner)
        for d in reversed(range(len(serial))):
            head = f"for (int64_t s{d} = 0; s{d} < {serial[d].length}; ++s{d}) {{"
            body = [head, *indented(body), "}"]
        return body

    def _sum(self, start: int, names: Sequence[str], track: int) -> list[str]:
        dims = [*self.share.shared, *self.share.serial]
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
        """Return the lines for one position of all loops."""
        move, share, lines = self.move, self.share, list[str]()
        for k, x in enumerate(move.lookups):
            where = " + ".join(self._sum(x.offset, names, 2 + k)) or "0"
            lines.append(f"const int64_t at{k} = index_in({x.arg}[{where}], {x.size});")
        to = self._address(names, "target")
        source = self._address(names, "source") if move.source else ""
        if share.width > 1:
            return [*lines, self._packed(names, to, source)]
        give = f"*({source})" if move.source else move.fill
        if move.combine:
            return [
                *lines,
                f"{self.kind} *const place = {to};",
                f"const {self.kind} have = *place, give = {give};",
                f"*place = {move.combine};",
            ]
        return [*lines, f"*({to}) = {give};"]

    def _packed(self, names: Sequence[str], to: str, source: str) -> str:
        """Return the call that moves a thread's packs."""
        move, share = self.move, self.share
        last = share.last.length
        end = f"{last} - {names[len(share.shared) - 1]}" if last % share.width else ""
        tail = f", {end} < {share.width} ? (int)({end}) : {share.width}" if end else ""
        if move.source is None:
            return f"spread<{share.width}>({to}, ({self.kind})({move.fill}){tail});"
        if share.last.steps[1] == 0:
            return f"spread<{share.width}>({to}, *({source}){tail});"
        if share.packs > 1:
            apart = last // share.packs
            return f"carry_apart<{share.width}, {share.packs}>({to}, {source}, {apart});"
        return f"carry<{share.width}>({to}, {source}{tail});"


def _turned(share: MoveShare, block: str) -> list[str]:
    """Return the lines of a tiled transpose: rows of the source become columns of the target."""
    assert share.unit is not None
    others, down, beside = share.tiles
    unit, last, kind, tile = share.shared[share.unit], share.last, share.index, share.tile
    lengths = [*(d.length for d in others), down, beside]
    lines = _split(block, lengths, kind, "b")
    names = [f"b{i}" for i in range(len(others))]
    q, p = f"b{len(others)} * {tile}", f"b{len(others) + 1} * {tile}"
    to, source = share.move.target, share.move.source
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
    given = (
        f"({bases[0]}, {unit.steps[0]}, {bases[1]}, {last.steps[1]}, {q}, {unit.length}, {p}, {last.length});"
    )
    wide, one = (f"transposed<{tile}, {share.width}, {v}, {share.threads}>" for v in (share.width, 1))
    if share.width == 1:
        return [*lines, one + given]
    asked = f"fits<{share.width}>({to.arg}) && fits<{share.width}>({source.arg})"
    return [*lines, f"if ({asked}) {wide}{given}", f"else {one}{given}"]
