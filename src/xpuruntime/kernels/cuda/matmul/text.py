"""Text that CUDA matrix products share: the layouts of their operands, their arguments, and the epilogue.

``spec.product.Product`` describes the operands independent of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.c_types import C_TYPES, STORAGE
from ....codegen.loops.points import decimal
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import NodeCall, operand_ref
from ...portable.text import ACTIVATIONS, offset_text
from ...spec.matmul import product_of
from ...spec.product import Product, Term, even_stride
from ..heavy import MAX_BLOCKS_YZ, argument, c_bool, in_chunks
from ..launch import Argument, ByAlignment
from ..pointwise import NARROW

__all__ = [
    "Matrices",
    "activation_text",
    "arguments_of",
    "calls_by_alignment",
    "element_offset_text",
    "finish_text",
    "matrices_of",
    "parts_of",
    "supported",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrices:
    """Leading dims of both sides, for vector loads: k is contiguous on the left; k or n is contiguous on the right.

    a_row:                elements from row to row of the left side.
    b_rows:               whether n is the contiguous dim of the right side; else k is.
    b_line:               elements from line to line of the right side: from one k to the next where ``b_rows``, else from column to column.
    a_aligned, b_aligned: whether every line starts at a multiple of 16 bytes from the start of the buffer.
    """

    a_row: int
    b_line: int
    b_rows: bool
    a_aligned: bool
    b_aligned: bool


def calls_by_alignment(run: Callable[[str, bool], str]) -> ByAlignment:
    """Return the calls of a tensor-core product: with vector loads where all buffers are aligned, else without. ``run(struct, aligned)`` is a call."""
    return ByAlignment(("a", "b", "y"), run("KERNEL_gemm", True), run("KERNEL_unaligned", False))


def matrices_of(p: Product, dtype: DType) -> Matrices | None:
    """Return the leading dims of both sides; None if a side has no contiguous dim."""
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
    """Return the arguments: both sides, the terms, the result."""
    a, b = call.tensor(p.a), call.tensor(p.b)
    return [
        argument(a.spec, operand_ref("in", p.a), "a"),
        argument(b.spec, operand_ref("in", p.b), "b"),
        *(argument(t.operand.spec, operand_ref("in", t.position), f"t{t.position}") for t in p.terms),
        argument(call.outputs[0], "out0", "y", written=True),
    ]


def activation_text(act: str, dtype: DType) -> tuple[str, frozenset[str]]:
    """Return the expression of an activation of ``x`` for results of a dtype, and its prelude parts. For 16 bits it is a short approximation."""
    if dtype.bits == 16 and any(act in functions for functions in NARROW.values()):
        return f"{act}_narrow<{STORAGE[dtype]}>(x)", frozenset(["narrow"])
    text, parts = ACTIVATIONS[act]
    return text, frozenset(parts)


def finish_text(
    p: Product, arguments: list[Argument], sums: str, act: str = "", *, starts: bool = False
) -> list[str]:
    """Return the epilogue ``KERNEL_finish``: scale the sum, add the terms, apply the activation (``act``, else that of the product), store.

    Terms and the result have strides over (batch, rows, columns). With ``starts``, terms that depend on columns alone are where sums start from, if the
    sum is not scaled.
    """
    operands = arguments[2:]
    terms = list(zip(p.terms, operands, strict=False))
    first = [t for t in terms if starts and p.alpha == 1 and not any(t[0].strides[:-1])]

    def offset(strides: tuple[int, ...]) -> str:
        return element_offset_text(p, strides)

    lines = ["struct KERNEL_finish {", *(f"    {a.text};" for a in operands)]
    head = "    __device__ __forceinline__"

    def added(term: Term, argument: Argument) -> str:
        factor = "" if term.factor == 1 else f"({sums}){decimal(term.factor)} * "
        return f"        x = x + {factor}({sums})load<1>({argument.name} + {offset(term.strides)});"

    if starts:
        lines += [
            f"    static constexpr bool STARTS = {c_bool(bool(first))}, ADDS = {c_bool(len(first) < len(terms))};",
            f"{head} {sums} start(int column) const {{",
            f"        {sums} x = 0;",
            *(added(*t) for t in first),
            "        return x;",
            "    }",
        ]
    row_offset = offset((*p.y_strides[:-1], 0))
    lines += [
        f"{head} tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + ({row_offset}); }}",
        f"{head} {sums} value(int row, int column, {sums} sum) const {{",
        f"        {sums} x = sum;",
    ]
    if p.alpha != 1:
        lines.append(f"        x = x * ({sums}){decimal(p.alpha)};")
    lines += [
        *(added(*t) for t in terms if t not in first),
        f"        return {act or ACTIVATIONS[p.act][0]};",
        "    }",
        f"{head} void write(int row, int column, {sums} sum) const {{",
        f"        store<1>(y + ({offset(p.y_strides)}), (typename storage_<{operands[-1].ctype}>::compute)value(row, column, sum));",
        "    }",
        "};",
    ]
    return lines


def element_offset_text(p: Product, strides: tuple[int, ...], *, batched: bool = True) -> str:
    """Return the offset of ``row`` and ``column`` in a tensor with strides over (batch, rows, columns)."""
    lead = len(p.batch)
    texts = (
        offset_text("(int64_t)blockIdx.z" if batched else "0", p.batch, strides[:lead]),
        offset_text("(int64_t)row", p.rows, strides[lead:-1]),
        offset_text("column", (p.n,), strides[-1:]),
    )
    return " + ".join(t for t in texts if t != "0") or "0"


def parts_of(act: str, *more: str) -> frozenset[str]:
    """Return the prelude parts of an activation, and ``more``."""
    return frozenset((*ACTIVATIONS[act][1], *more))


def supported(call: NodeCall) -> Support:
    """Return yes for C dtypes and a dense result."""
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"{dtype.value} is not supported")
    if not call.outputs[0].is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the result must be dense")
    if not dtype.is_float and call.attrs.get("act", "none") != "none":
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"activations need a float dtype, got {dtype.value}")
    if product_of(call).flat().batches > MAX_BLOCKS_YZ:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, f"more than {MAX_BLOCKS_YZ} batches exceed the grid of a launch"
        )
    return Support.yes()
