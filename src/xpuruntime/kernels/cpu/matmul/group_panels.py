"""Panels of weights in groups, and the C++ text that multiplies rows with them: in floats (``decoder.h``) or in integers (``grouped_codes.h``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.cpp.isa import IsaLevel
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType, TensorSpec
from ...spec.channel_codes import INT8, ChannelCodes
from .gemm_tiling import registers

__all__ = ["BLOCK_BYTES", "GroupPanels"]

BLOCK_BYTES = 32 * 1024
"""Bytes of codes of a panel that stay in the L1 cache while the rows pass over them."""

_NUMBERS = {
    "bfloat16": "Bfloat16Pair",
    "float16": "Float16Pair",
    "product": "Float16Product",
    "float32": "Float32Pair",
    "channel": "OfChannel",
}
"""Numbers of a group -> the type of the template that reads them."""

SCALE_BYTES = 12
"""Bytes of ``GroupScale``."""


@dataclass(frozen=True, slots=True)
class GroupPanels:
    """Panels of ``vectors`` vectors of outputs, with ``depth`` inputs: k, rounded up to whole groups.

    rows:    of a tile in registers.
    integer: rows are rounded to 8-bit codes, and products are sums of integers.
    """

    form: GroupForm
    k: int
    vectors: int
    columns: int
    rows: int
    integer: bool

    @classmethod
    def of(cls, form: GroupForm, k: int, isa: IsaLevel, *, integer: bool) -> GroupPanels:
        """Return the panels whose tiles fill the registers."""
        wide = registers(isa) == 32
        vectors = 4 if wide else 2
        # In floats, accumulators of a group fill the registers that one vector of unpacked codes leaves. In integers, half a panel at a time.
        rows = 6 if wide else 3 if integer else 5
        return cls(form, k, vectors, vectors * isa.lanes(4), rows, integer)

    @property
    def groups(self) -> int:
        """Groups of an output."""
        return max(1, math.ceil(self.k / self.form.group))

    @property
    def depth(self) -> int:
        """Inputs, rounded up to whole groups."""
        return self.groups * self.form.group

    @property
    def codes(self) -> ChannelCodes | None:
        """The codes of groups that share the scale of their output; its sums are multiplied by that scale."""
        return INT8 if self.form.numbers == "channel" else None

    @property
    def output_bytes(self) -> int:
        """Bytes of an output."""
        return self.groups * self.form.bytes

    @property
    def bytes(self) -> int:
        """Bytes of a panel."""
        return self.output_bytes * self.columns

    @property
    def part(self) -> str:
        """The part of the prelude with the products."""
        return "grouped_codes" if self.integer else "decoder"

    @property
    def arithmetic(self) -> str:
        """The weights and the arithmetic, as a comment in the code names them."""
        form = self.form
        if self.codes:
            return f"weights in int8 with a scale per output, rows in int8 by groups of {form.group}, sums of a group in int32"
        sums = "rows in int8, sums of a group in int32" if self.integer else "sums in float"
        return f"weights in int{form.bits} by groups of {form.group} with {form.numbers}, {sums}"

    @property
    def dequantized(self) -> str:
        """The C type of panels whose codes become operands."""
        return f"dequantized_groups<{_NUMBERS[self.form.numbers]}, {self.form.bits}, {self.form.group}, {self.columns}>"

    def block_groups(self) -> int:
        """Return the groups that are processed before the next rows."""
        return max(1, BLOCK_BYTES // (self.columns * self.form.code_bytes))

    # ── packing ──

    @property
    def _quantize(self) -> RecipeStep:
        """The step from floats [outputs, depth] to codes, with the numbers of their groups if these have some."""
        return (
            self.codes.quantize
            if self.codes
            else RecipeStep("groups_int4", ("%in",), {"group": self.form.group})
        )

    def packing(
        self, steps: list[RecipeStep], panels: int, *, stored: bool
    ) -> tuple[tuple[RecipeStep, ...], TensorSpec]:
        """Return the packing of outputs, padded to whole panels and groups, and its spec: [panels, bytes of an output, columns].

        In integers, four bytes of an output stay together: a word of a lane. stored: the last step has groups already.
        """
        parts, order, spec = (
            ([self.output_bytes // 4, 4], [0, 2, 1, 3], (panels, self.output_bytes // 4, self.columns, 4))
            if self.integer
            else ([self.output_bytes], [0, 2, 1], (panels, self.output_bytes, self.columns))
        )
        recipe = list(steps)

        def add(op: str, **attrs: Any) -> None:
            recipe.append(RecipeStep(op, (f"%{len(recipe) - 1}" if recipe else "%in",), attrs))

        if not stored:
            step = self._quantize
            add(step.op, **step.attrs)
        add("reshape", shape=[panels, self.columns, *parts])
        add("permute", order=order)
        return tuple(recipe), TensorSpec(spec, DType.INT8)

    # ── text ──

    def config(self, name: str, rows: int, tail: int, block: int) -> list[str]:
        """Return the struct that configures products of ``rows`` rows at a time."""
        space = "codes::" if self.integer else ""
        return [
            f"struct {name} {{",
            "    typedef float T;",
            f"    typedef {space}{_NUMBERS[self.form.numbers]} N;",
            f"    static constexpr int BITS = {self.form.bits}, R = {rows}, NV = {self.vectors}, tail = {tail};",
            *(["    static constexpr int FEW = 2, WIDE = 2;"] if self.integer else []),
            f"    static constexpr int64_t k = {self.depth}, group = {self.form.group}, block = {block};",
            "};",
        ]

    def scratch_bytes(self, rows: int, tiles: int) -> int:
        """Return the bytes that ``scratch`` declares."""
        line = 4 * self.depth
        row_bytes = (self.depth + SCALE_BYTES * self.groups) * rows + line if self.integer else line * rows
        return row_bytes + 4 * rows * tiles * self.columns + 64 * 4 + 64

    def scratch(self, start: str, rows: int, tiles: tuple[str, ...]) -> list[str]:
        """Return lines that declare ``rows`` rows (``a``; in integers also ``row_scales`` and one row of floats, ``line``) and the tiles of sums."""
        arrays = [("a", "float", rows * self.depth, 4)]
        if self.integer:
            arrays = [
                ("line", "float", self.depth, 4),
                ("a", "int8_t", rows * self.depth, 1),
                ("row_scales", "codes::GroupScale", rows * self.groups, SCALE_BYTES),
            ]
        arrays += [(name, "float", rows * self.columns, 4) for name in tiles]
        lines, at = [], start
        for name, kind, count, size in arrays:
            lines.append(f"{kind} *const {name} = ({kind} *)({at});")
            at = f"(char *){name} + {-(-count * size // 64) * 64}"
        return lines

    def row(self, index: str) -> str:
        """Return where row ``index`` is written in floats."""
        return "line" if self.integer else f"a + ({index}) * {self.depth}"

    def finish_row(self, index: str) -> list[str]:
        """Return lines after a row is written: zeros beyond the inputs, and its codes."""
        lines = []
        if self.depth != self.k:
            lines.append(f"for (int64_t j = {self.k}; j < {self.depth}; ++j) ({self.row(index)})[j] = 0;")
        if self.integer:
            lines.append(
                f"codes::code_row<{self.form.bits}>(line, {self.depth}, {self.form.group}, a + ({index}) * {self.depth},"
                f" row_scales + ({index}) * {self.groups});"
            )
        return lines

    def products(self, config: str, first: str, panel: str, rows: str, tile_row: str) -> str:
        """Return the head of the product of ``rows`` rows from ``first`` on with a panel; the body has row ``tile_row`` of the sums."""
        name = "codes::block" if self.integer else "grouped_block"
        offset = "" if first == "0" else f" + ({first}) * {self.depth}"
        skipped = "" if first == "0" else f" + ({first}) * {self.groups}"
        scales = f", row_scales{skipped}" if self.integer else ""
        return f"{name}<{config}>(a{offset}{scales}, {panel}, {rows}, tile, [&](const float *sums, int64_t {tile_row}) {{"
