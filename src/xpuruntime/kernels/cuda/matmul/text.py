"""Text that kernels of matrix products share: layouts of the operands, the arguments of a call, and the epilogue.

``spec.product.Product`` describes the operands, independent of the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....decisions import Reason, Support
from ....types import DType
from ...kernel import NodeCall, operand_ref
from ...portable.text import ACTIVATIONS, offset_text
from ...spec.matmul import product_of
from ...spec.product import C_TYPES, Product, even_stride
from ..heavy import MOST_BLOCKS_YZ, argument, in_chunks
from ..launch import Argument

__all__ = [
    "Matrices", "arguments_of", "finish_text", "matrices_of", "parts_of",
    "place_text", "supported",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrices:
    """Both sides as tensor cores and vector loads read them: k contiguous on the left; k or n contiguous on the right.

    a_row:              elements between rows.
    b_line:             elements between lines of the right side, which are columns, or k where ``b_rows``.
    a_aligned, b_aligned: rows are whole chunks of 16 bytes, relative to the start of the buffer.
    """

    a_row: int
    b_line: int
    b_rows: bool
    a_aligned: bool
    b_aligned: bool


def matrices_of(p: Product, dtype: DType) -> Matrices | None:
    """Return the layout of both sides; None if a side has no such layout."""
    lead = len(p.batch)
    if len(p.rows) > 1:
        a_row = even_stride(p.rows, p.a_strides[lead:-1])
    else:
        a_row = p.a_strides[lead] if p.m > 1 else p.k
    k_step, n_step = p.b_strides[lead:]
    if a_row is None or (p.a_strides[-1] != 1 and p.k > 1):
        return None
    if k_step == 1 or p.k == 1:
        b_line, b_rows = n_step if p.n > 1 else p.k, False
    elif n_step == 1 or p.n == 1:
        b_line, b_rows = k_step, True
    else:
        return None
    a_batch, b_batch = p.a_strides[:lead], p.b_strides[:lead]
    return Matrices(
        a_row, b_line, b_rows,
        in_chunks(dtype, a_row, p.k, *a_batch), in_chunks(dtype, b_line, p.n if b_rows else p.k, *b_batch),
    )  # fmt: skip


def arguments_of(call: NodeCall, p: Product) -> list[Argument]:
    """Return the arguments: both sides, then the terms, then the result."""
    a, b = call.tensor(p.a), call.tensor(p.b)
    return [
        argument(a.spec, operand_ref("in", p.a), "a"),
        argument(b.spec, operand_ref("in", p.b), "b"),
        *(argument(t.operand.spec, operand_ref("in", t.position), f"t{t.position}") for t in p.terms),
        argument(call.outputs[0], "out0", "y", written=True),
    ]


def finish_text(p: Product, arguments: list[Argument], sums: str) -> list[str]:
    """Return the epilogue ``KERNEL_finish``, which turns a sum into a result and stores it.

    Terms and the result have strides over (batch, rows, columns).
    """
    given = arguments[2:]

    def place(strides: tuple[int, ...]) -> str:
        return place_text(p, strides)

    lines = ["struct KERNEL_finish {", *(f"    {a.text};" for a in given)]
    head = "    __device__ __forceinline__"
    row_place = place((*p.y_strides[:-1], 0))
    lines += [
        f"{head} tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + ({row_place}); }}",
        f"{head} {sums} value(int row, int column, {sums} sum) const {{",
        f"        {sums} x = sum;",
    ]
    if p.alpha != 1:
        lines.append(f"        x = x * ({sums}){p.alpha!r};")
    for t, a in zip(p.terms, given, strict=False):
        factor = "" if t.factor == 1 else f"({sums}){t.factor!r} * "
        lines.append(f"        x = x + {factor}({sums})load<1>({a.name} + {place(t.strides)});")
    lines += [
        f"        return {ACTIVATIONS[p.act][0]};",
        "    }",
        f"{head} void keep(int row, int column, {sums} sum) const {{",
        f"        store<1>(y + ({place(p.y_strides)}), (typename storage_<{given[-1].ctype}>::compute)value(row, column, sum));",
        "    }",
        "};",
    ]
    return lines


def place_text(p: Product, strides: tuple[int, ...], *, batched: bool = True) -> str:
    """Return the offset of ``row`` and ``column`` of a result with these strides over (batch, rows, columns)."""
    lead = len(p.batch)
    texts = (
        offset_text("(int64_t)blockIdx.z" if batched else "0", p.batch, strides[:lead]),
        offset_text("(int64_t)row", p.rows, strides[lead:-1]),
        offset_text("column", (p.n,), strides[-1:]),
    )
    return " + ".join(t for t in texts if t != "0") or "0"


def parts_of(act: str, *more: str) -> frozenset[str]:
    """Return the parts of the prelude: those of an activation, and ``more``."""
    return frozenset((*ACTIVATIONS[act][1], *more))


def supported(call: NodeCall) -> Support:
    """Return yes for a dtype that has products, a dense result, and dense weights."""
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"no product in {dtype.value}")
    if not call.outputs[0].is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "writes dense results only")
    if not dtype.is_float and call.attrs.get("act", "none") != "none":
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"activations are computed in floats, not in {dtype.value}"
        )
    if product_of(call).flat().batches > MOST_BLOCKS_YZ:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"more than {MOST_BLOCKS_YZ} products in one launch")
    return Support.yes()
