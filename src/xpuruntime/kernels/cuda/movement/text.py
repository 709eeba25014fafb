"""The text of one move on CUDA devices: packs of elements, or a transpose through tiles of shared memory (see ``tiling``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.loops.nest import indented
from .tiling import ROWS_PER_BLOCK, MoveTiling

__all__ = ["move_lines"]


def move_lines(tiling: MoveTiling, kind: str, first: int) -> list[str]:
    """Return the body of a move's blocks. ``first``: its first block in the launch; ``kind``: the C type of its elements."""
    block = f"(blockIdx.x - {first})" if first else "blockIdx.x"
    if tiling.adds_rows:
        return _Text(tiling, kind).adding_rows(block)
    return _transposed(tiling, block) if tiling.source_dim is not None else _Text(tiling, kind).lines(block)


def _split(number: str, lengths: Sequence[int], kind: str, prefix: str, width: int = 1) -> list[str]:
    """Return lines that split a row-major index into one index per dim. ``width``: elements per item of the innermost dim."""
    lines, below = list[str](), 1
    for i in reversed(range(len(lengths))):
        text = number if below == 1 else f"{number} / {below}"
        if i:
            text += f" % {lengths[i]}"
        if width > 1 and i == len(lengths) - 1:
            text = f"{text if text == number else f'({text})'} * {width}"
        lines.insert(0, f"const {kind} {prefix}{i} = {text};")
        below *= lengths[i]
    return lines


class _Text:
    """The text of a copy by packs: a thread per item of ``lengths``."""

    def __init__(self, tiling: MoveTiling, kind: str) -> None:
        self.tiling, self.move, self.kind = tiling, tiling.move, kind

    def lines(self, block: str) -> list[str]:
        """Return the lines from the thread's index to its copies."""
        tiling = self.tiling
        kind, lengths, dims = tiling.index, tiling.lengths, tiling.parallel
        count = math.prod(lengths)
        block_index = f"({kind}){block}" if kind == "int64_t" else block
        lines = [f"const {kind} t = {block_index} * {tiling.threads} + threadIdx.x;"]
        body = _split("t", lengths, kind, "i", tiling.width)
        names = [f"i{d}" for d in range(len(dims))]
        if not tiling.checks_order:
            body += self._loops(names)
        else:
            lookup = next(x for x in self.move.lookups if x.writes)
            step = dims[0].steps[2]
            first = f"{lookup.arg} + {lookup.offset}" if lookup.offset else lookup.arg
            lines.append(f"const bool rises = rising({first}, {dims[0].length}, {step});")
            parallel = self._one(names)
            serial = [
                f"for ({kind} j = 0; j < {dims[0].length}; ++j) {{",
                *indented(self._one(["j", *names[1:]])),
                "}",
            ]
            body += ["if (rises) {", *indented(parallel), "} else if (i0 == 0) {", *indented(serial), "}"]
        if count % tiling.threads:
            body = [f"if (t < {count}) {{", *indented(body), "}"]
        return [*lines, *body]

    def adding_rows(self, block: str) -> list[str]:
        """Return the lines of a block that adds a few rows, and the later ones of their positions, with threads over the other dims."""
        tiling, move = self.tiling, self.move
        kind, columns = tiling.index, math.prod(d.length for d in tiling.parallel)
        inside = [f"i{d}" for d in range(len(tiling.parallel))]
        outside = [f"s{d}" for d in range(len(tiling.serial))]
        row = _split("k", [d.length for d in tiling.serial], "int", "s")
        lookups = [(k, x) for k, x in enumerate(move.lookups) if x.writes]
        position = " + ".join(f"at{k} * {x.step}" for k, x in lookups)
        return [
            "const auto position = [&](int k) -> int64_t {",
            *indented([*row, *self._positions([*("0" for _ in inside), *outside]), f"return {position};"]),
            "};",
            "const auto add = [&](int k) {",
            *indented(row),
            *indented([f"for ({kind} c = threadIdx.x; c < {columns}; c += {tiling.threads}) {{"]),
            *indented(indented([*_split("c", [d.length for d in tiling.parallel], kind, "i"), *self._one([*inside, *outside])])),
            *indented(["}"]),
            "};",
            f"add_rows_in_order<{ROWS_PER_BLOCK}>({block}, {tiling.blocks}, {tiling.rows}, position, add);",
        ]  # fmt: skip

    def _positions(self, names: Sequence[str]) -> list[str]:
        """Return the lines that look positions up."""
        lines = list[str]()
        for k, x in enumerate(self.move.lookups):
            where = " + ".join(self._sum(x.offset, names, 2 + k)) or "0"
            position = "index_in" if x.wraps else "index_within"
            lines.append(f"const int64_t at{k} = {position}({x.arg}[{where}], {x.size});")
        return lines

    def _loops(self, names: list[str]) -> list[str]:
        """Return the loops of one thread around a pack."""
        dims = self.tiling.serial
        inner = [*names, *(f"s{d}" for d in range(len(dims)))]
        body = self._one(inner)
        for d in reversed(range(len(dims))):
            head = f"for (int64_t s{d} = 0; s{d} < {dims[d].length}; ++s{d}) {{"
            body = [head, *indented(body), "}"]
        return body

    def _sum(self, start: int, names: Sequence[str], track: int) -> list[str]:
        dims = [*self.tiling.parallel, *self.tiling.serial]
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
        """Return the lines that move one pack: looked-up positions, then the load and the store."""
        move, tiling, lines = self.move, self.tiling, self._positions(names)
        target = self._address(names, "target")
        source = self._address(names, "source") if move.source else ""
        if tiling.width > 1:
            return [*lines, self._packed(names, target, source)]
        value = f"*({source})" if move.source else move.fill
        if move.combine:
            return [
                *lines,
                f"{self.kind} *const element = {target};",
                f"const {self.kind} have = *element, give = {value};",
                f"*element = {move.combine};",
            ]
        return [*lines, f"*({target}) = {value};"]

    def _packed(self, names: Sequence[str], target: str, source: str) -> str:
        """Return the call that copies a thread's packs; at the end of a row the pack is cut short."""
        move, tiling = self.move, self.tiling
        last = tiling.last.length
        remaining = f"{last} - {names[len(tiling.parallel) - 1]}" if last % tiling.width else ""
        tail = f", {remaining} < {tiling.width} ? (int)({remaining}) : {tiling.width}" if remaining else ""
        if move.source is None:
            return f"fill_pack<{tiling.width}>({target}, ({self.kind})({move.fill}){tail});"
        if tiling.last.steps[1] == 0:
            return f"fill_pack<{tiling.width}>({target}, *({source}){tail});"
        if tiling.packs > 1:
            distance = last // tiling.packs
            return f"copy_packs<{tiling.width}, {tiling.packs}>({target}, {source}, {distance});"
        return f"copy_pack<{tiling.width}>({target}, {source}{tail});"


def _transposed(tiling: MoveTiling, block: str) -> list[str]:
    """Return the lines of a transpose by tiles in shared memory: rows of the source become columns of the target."""
    assert tiling.source_dim is not None
    others, tile_rows, tile_columns = tiling.tiles
    source_dim, last, kind, tile = tiling.parallel[tiling.source_dim], tiling.last, tiling.index, tiling.tile
    lengths = [*(d.length for d in others), tile_rows, tile_columns]
    lines = _split(block, lengths, kind, "b")
    names = [f"b{i}" for i in range(len(others))]
    row0, column0 = f"b{len(others)} * {tile}", f"b{len(others) + 1} * {tile}"
    target, source = tiling.move.target, tiling.move.source
    assert source is not None

    def base(box_offset: int, arg: str, track: int) -> str:
        words = [arg, *([str(box_offset)] if box_offset else [])]
        words += [
            f"(int64_t){n} * {d.steps[track]}" if d.steps[track] < 0 else f"{n} * {d.steps[track]}"
            for n, d in zip(names, others, strict=True)
            if d.steps[track]
        ]
        return " + ".join(words)

    bases = base(target.offset, target.arg, 0), base(source.offset, source.arg, 1)
    arguments = f"({bases[0]}, {source_dim.steps[0]}, {bases[1]}, {last.steps[1]}, {row0}, {source_dim.length}, {column0}, {last.length});"
    vector, scalar = (f"transposed<{tile}, {tiling.width}, {v}, {tiling.threads}>" for v in (tiling.width, 1))
    if tiling.width == 1:
        return [*lines, scalar + arguments]
    aligned = f"fits<{tiling.width}>({target.arg}) && fits<{tiling.width}>({source.arg})"
    return [*lines, f"if ({aligned}) {vector}{arguments}", f"else {scalar}{arguments}"]
