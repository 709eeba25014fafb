"""Addresses in rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.c_types import C_TYPES
from ...codegen.loops.boxes import Box
from ...codegen.loops.points import address
from ...types import TensorSpec
from ..kernel import NodeCall, operand_ref
from ..spec.product import sizes, strides_in
from ..spec.rope import POSITIONS, over_rows

__all__ = ["named_by", "row_of", "table_lines", "table_row"]


def table_row(call: NodeCall, position: int, rows: Sequence[int]) -> str:
    """Return the address of the row of an angle table: by the sample and position of x's row, or by the entry of ``positions``."""
    table = call.tensor(position).spec
    steps, positions = table.physical.strides, call.optional(3)
    names = [f"i{d}" for d in range(len(rows))]
    if positions is None:
        row_strides = over_rows(sizes(table)[:-1], steps[:-1], len(rows))
        return address(Box(operand_ref("in", position), tuple(rows), row_strides), names)
    return f"{operand_ref('in', position)} + row * {steps[0]}"


def named_by(call: NodeCall, position: int) -> str:
    """Return the entry of a [length] or [batch, length] tensor for this task."""
    q = sizes(call.outputs[0])
    steps = strides_in(call.tensor(position).spec, (q[0], q[2]))
    return f"in{position}[b * {steps[0]} + t * {steps[1]}]"


def row_of(call: NodeCall, name: str, spec: TensorSpec, row: str = "t") -> str:
    """Return the address of the row of this task's batch, head and position."""
    steps = spec.physical.strides
    box = Box(name, sizes(spec)[:3], tuple(steps[:3]))
    return address(box, ["b", "h", row])


def table_lines(call: NodeCall) -> list[str]:
    """Return the lines that compute the address of the table row of this task."""
    kind = C_TYPES[call.outputs[0].dtype]
    rows, steps = sizes(call.tensor(3).spec), [call.tensor(i).spec.physical.strides for i in (3, 4)]
    if call.optional(POSITIONS) is not None:
        first = f"const int64_t row = index_in({named_by(call, POSITIONS)}, {rows[0]}, scratch);"
        at = [f"row * {s[0]}" for s in steps]
        lines = [first]
    else:
        at = [f"t * {s[-2]}" + (f" + b * {s[0]}" if len(s) == 3 and rows[0] != 1 else "") for s in steps]
        lines = []
    return [*lines, f"const {kind} *cosines = in3 + {at[0]}, *sines = in4 + {at[1]};"]
