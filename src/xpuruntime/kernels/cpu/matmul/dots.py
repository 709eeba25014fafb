"""Products that read both sides in place: dot products of few columns, and batches of tiny matrices (``templates/gemm_dots.h``).

A product with few columns is computed with its sides exchanged: its rows, which are contiguous along k, become the columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....types import DType
from ...kernel import NodeCall, Stage, operand_ref
from ...portable.text import ACTIVATIONS, offset_text
from ...spec.product import Product, even_stride
from ..abi import isa_of
from .gemm_text import epilogue, sum_text
from .gemm_tiling import STREAMED_ROWS

__all__ = ["in_place", "in_place_stage", "oriented"]

_TINY = 64
"""Maximum multiplications of a product whose loops are unrolled."""

_COPIED = 4096
"""Elements of a row of A that are copied at once where they are strided."""

_TASK_COLUMNS = 512
"""Maximum columns of a task, whose sums stay in the L1 cache."""

_TILE_COLUMNS = {1: 8, 2: 4, 3: 2, 4: 2}
"""Columns of a register tile by its rows: enough sums to hide the latency of FMAs."""

_LANE_COLUMNS = {1: 32, 2: 16, 3: 8, 4: 8}
"""The same where lanes are columns."""

assert max(_TILE_COLUMNS) == max(_LANE_COLUMNS) == STREAMED_ROWS


def oriented(call: NodeCall, p: Product, target: CodegenTarget) -> Product:
    """Return the product, with its sides exchanged if it has few columns and the other side can be read in place along rows or along k.

    The answer is the same for any number of rows, which share a weight, and for weights that are inputs, as in training: the order of the sums
    depends on it. With AMX, bfloat16 is faster if B is packed.
    """
    amx = call.outputs[0].dtype is DType.BFLOAT16 and "amx-bf16" in isa_of(target).features
    exchanged = p.exchanged() if p.n <= STREAMED_ROWS and p.codes is None and not amx else None
    if exchanged is None:
        return p
    along_k, along_n = exchanged.b_strides[-2:]
    streams = p.n == 1 and along_n == 1 and not call.tensor(p.a).is_weight
    tiny = not call.tensor(p.b).is_weight and _is_tiny(exchanged)
    return exchanged if along_k == 1 or streams or tiny else p


def in_place(call: NodeCall, p: Product) -> bool:
    """Return whether a product has few rows, and columns that are contiguous along k and no weight, or is one of a batch of tiny ones."""
    if p.codes is not None or p.m > STREAMED_ROWS or (call.tensor(p.b).is_weight and p.a < p.b):
        return False
    along_k = p.b_strides[-2] == 1 and (p.a > p.b or _by_columns(p, call.outputs[0].dtype))
    return along_k or _is_tiny(p)


def _by_columns(p: Product, dtype: DType) -> bool:
    """Return whether lanes are columns: sums are in the order of products whose right side is packed, which have any number of rows.

    Exchanged products are always computed by dot products, whose lanes run along k.
    """
    return p.a < p.b and dtype.bits == 32 and not _is_tiny(p)


def _is_tiny(p: Product) -> bool:
    return p.batches > 1 and p.m == 1 and 0 < p.n * p.k <= _TINY


def in_place_stage(call: NodeCall, p: Product, target: CodegenTarget, stem: str) -> Stage:
    """Return the stage of tasks that are some columns of one product."""
    isa: IsaLevel = isa_of(target)
    y = call.outputs[0]
    t = _InPlaceTiling.of(p, y.dtype, isa)
    task_microseconds = max(2 * p.m * t.width * p.k / 1e5, 0.01)
    return Stage(
        stem=stem,
        source=_source(call, p, t, y.dtype),
        args=(*(operand_ref("in", at) for at in (p.a, p.b, *(x.position for x in p.terms))), "out0"),
        tasks=p.batches * t.panels,
        grain=max(1, round(2 / task_microseconds)),
        scratch_bytes=p.m * (t.width + t.block) * t.sum_bytes + 64,
        parts=frozenset({"gemm_dots", *ACTIVATIONS[p.act][1]}),
        flops=2 * p.batches * p.m * p.n * p.k,
        bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), y)),
    )


@dataclass(frozen=True, slots=True)
class _InPlaceTiling:
    """The template arguments of ``gemm_dots`` and ``gemm_tiny``.

    width:  columns of a task.
    panels: tasks of a product.
    block:  elements of a row that are copied at once.
    """

    tiny: bool
    by_columns: bool
    width: int
    panels: int
    block: int
    sum_bytes: int

    @classmethod
    def of(cls, p: Product, dtype: DType, isa: IsaLevel) -> _InPlaceTiling:
        sum_bytes = 8 if accumulator(dtype) in ("double", "uint64_t") else 4
        tiny, by_columns, lanes = _is_tiny(p), _by_columns(p, dtype), isa.lanes(sum_bytes)
        least = _LANE_COLUMNS[p.m] if by_columns else 16
        wanted = p.n if tiny else min(_TASK_COLUMNS, max(least, math.ceil(p.n * p.batches / 64)), p.n)
        width = math.ceil(wanted / lanes) * lanes
        block = p.k if p.a_strides[-1] == 1 else min(p.k, _COPIED)
        return cls(tiny, by_columns, width, math.ceil(p.n / width), max(block, 1), sum_bytes)


def _source(call: NodeCall, p: Product, t: _InPlaceTiling, dtype: DType) -> str:
    """Return the text of the function. Shapes and strides are literals in it."""
    s, acc, lead = C_TYPES[dtype], accumulator(dtype), len(p.batch)
    a_row = even_stride(p.rows, p.a_strides[lead:-1]) or 0
    tile_columns = _LANE_COLUMNS if t.by_columns else _TILE_COLUMNS
    constants = {
        "k": p.k, "block": t.block, "a_row": a_row, "a_k": p.a_strides[-1],
        "b_k": p.b_strides[-2], "b_n": p.b_strides[-1],
    }  # fmt: skip
    a_at = offset_text("batch", p.batch, p.a_strides[:lead])
    b_at = sum_text(offset_text("batch", p.batch, p.b_strides[:lead]), f"col * {p.b_strides[-1]}")
    terms = [f"    const {s} *term{at} = (const {s} *)args[{at + 2}];" for at in range(len(p.terms))]
    columns = f"{p.n} - col < {t.width} ? {p.n} - col : {t.width}" if t.panels > 1 else f"{p.n}"
    lines = [
        f"// {call.op}: [{p.batches}, {p.m}, {p.k}] x [{p.k}, {p.n}] in {dtype.value}, sums in {acc}, both sides read in place",
        "struct KERNEL_product {",
        f"    typedef {acc} T;",
        f"    typedef {s} A, B;",
        f"    static constexpr int rows = {p.m}, C = {tile_columns[p.m]}, width = {t.width}, columns = {min(p.n, t.width)};",
        f"    static constexpr bool by_columns = {str(t.by_columns).lower()};",
        "    static constexpr int64_t " + ", ".join(f"{n} = {value}" for n, value in constants.items()) + ";",
        "};",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *a = (const {s} *)args[0], *b = (const {s} *)args[1];",
        *terms,
        f"    {s} *y = ({s} *)args[{len(p.terms) + 2}];",
        f"    constexpr int L = GEMM_LANES<{acc}>;",
        "    constexpr int64_t row = 0;",
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t col = task % {t.panels} * {t.width}, batch = task / {t.panels}, columns = {columns};",
        f"        gemm_{'tiny' if t.tiny else 'dots'}<KERNEL_product>(a + {a_at}, b + {b_at}, columns, scratch, [&](const {acc} *sums, int64_t r) {{",
        *(f"            {x}" for x in epilogue(p, s, acc, 0)),
        "        });",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)
