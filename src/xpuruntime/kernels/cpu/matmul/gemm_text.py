"""The text of a matrix product: the config of ``templates/gemm.h``, the loop over tasks, and the epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.loops.points import decimal
from ....types import DType
from ...kernel import NodeCall, Operand
from ...portable.text import ACTIVATIONS, offset_text
from ...spec.channel_codes import ChannelCodes
from ...spec.product import Product, even_stride
from .gemm_tiling import L2_WHOLE, TILE, GemmTiling

__all__ = ["b_type", "epilogue", "of_tiles", "product_source", "sum_text", "unscaled"]

_CODES: dict[DType, tuple[str, str]] = {
    DType.INT8: ("int8_t", ""),
    DType.FLOAT8_E4M3FN: ("e4m3", " * 256.0f"),
}
"""Type of codes -> its C type, and the factor of sums that its loads leave out (``gemm_panel`` in ``templates/gemm.h``)."""


def b_type(codes: ChannelCodes | None, tiling: GemmTiling, storage: str) -> str:
    """Return the C type of B, which is of ``storage`` if it has no codes."""
    if codes is None:
        return storage
    kind = _CODES[codes.dtype][0]
    return f"dequantized_codes<{kind}, {tiling.panel_columns}>" if tiling.dequantized else kind


def unscaled(codes: ChannelCodes, scale: str) -> str:
    """Return the text of what a vector of sums is multiplied with; ``scale``: the text of the channels' scales."""
    return scale + _CODES[codes.dtype][1]


def product_source(call: NodeCall, p: Product, t: GemmTiling, dtype: DType, packed: bool) -> str:
    """Return the text of the function. Shapes and strides are literals in it."""
    s, acc, lead = C_TYPES[dtype], accumulator(dtype), len(p.batch)
    b = b_type(p.codes, t, s)
    panels, blocks = math.ceil(p.n / t.columns), math.ceil(p.m / t.task_rows)
    a_row = even_stride(p.rows, p.a_strides[lead:-1]) or 0
    constants = {
        "R": t.rows, "NV": t.vectors, "U": t.unroll, "tail": p.m % t.rows,
        "k": p.k, "block": t.block, "a_row": a_row, "a_k": p.a_strides[-1],
        "b_k": p.b_strides[-2], "b_n": p.b_strides[-1],
    }  # fmt: skip
    b_at = _b_offset(p, call.tensor(p.b), t, packed)
    rows = f"{p.m}" if blocks == 1 else f"row + {t.task_rows} < {p.m} ? {t.task_rows} : {p.m} - row"
    first, second = (panels, blocks) if t.across else (blocks, panels)
    inner, outer = f"task % {first}", f"task / {first} % {second}"
    a_at = sum_text(offset_text("batch", p.batch, p.a_strides[:lead]), f"row * {a_row}")
    terms_before, bias = int(t.tiles and _begins_with_bias(p)), "nullptr, " * t.tiles
    if terms_before:  # the sums of tiles begin with it
        bias = f"term0 + {sum_text(offset_text('batch', p.batch, p.terms[0].strides[:lead]), 'col')}, "
    lines = [
        f"// {call.op}: [{p.batches}, {p.m}, {p.k}] x [{p.k}, {p.n}] in {dtype.value}, sums in {acc}"
        f"; {t.rows} x {t.columns} tiles, B {'packed at load' if packed else 'packed by the task'}",
        "struct KERNEL_product {",
        f"    typedef {acc} T;",
        f"    typedef {s} A;",
        f"    typedef {b} B;",
        "    static constexpr int "
        + ", ".join(f"{n} = {constants[n]}" for n in ("R", "NV", "U", "tail"))
        + ";",
        "    static constexpr int64_t "
        + ", ".join(f"{n} = {constants[n]}" for n in ("k", "block", "a_row", "a_k", "b_k", "b_n"))
        + ";",
        f"    static constexpr bool packed = {str(packed).lower()}, pairs = {str(t.pairs).lower()};",
        *of_tiles(t, p.m, p.n, p.k),
        "};",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *a = (const {s} *)args[0];",
        f"    const {b} *b = (const {b} *)args[1];",
    ]
    lines += [f"    const {s} *term{at} = (const {s} *)args[{at + 2}];" for at in range(len(p.terms))]
    if p.codes:
        lines.append(f"    const {acc} *scale = (const {acc} *)args[{len(p.terms) + 2}];")
    lines += [
        f"    {s} *y = ({s} *)args[{len(p.terms) + (3 if p.codes else 2)}];",
        f"    constexpr int L = GEMM_LANES<{acc}>;",
        *(["    Tiles tiles;"] if t.tiles else []),
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t row = {outer if t.across else inner} * {t.task_rows}, panel = {inner if t.across else outer},"
        f" batch = task / {blocks * panels};",
        f"        const int64_t col = panel * {t.columns}, columns = {_min_text(f'{p.n} - col', t.columns, p.n)}, rows = {rows};",
        f"        gemm_block{'_tiles' * t.tiles}<KERNEL_product>({'tiles, ' * t.tiles}a + {a_at}, b + {b_at}, rows, columns, {bias}scratch,",
        f"                                   [&](const {acc} *sums, int64_t r) {{",
        *(f"            {x}" for x in epilogue(p, s, acc, terms_before)),
        "        });",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def _begins_with_bias(p: Product) -> bool:
    """Return whether the first term is one number for each column, which may be added before the sums."""
    if not p.terms or p.codes or p.alpha != 1:
        return False
    strides, lead = p.terms[0].strides, len(p.batch)
    return p.terms[0].factor == 1 and strides[-1] == 1 and not any(strides[lead:-1])


def of_tiles(t: GemmTiling, m: int, n: int, k: int) -> list[str]:
    """Return the config of ``gemm_block_tiles``.

    If B exceeds the L2 cache, the next block of B is prefetched in equal parts while the current one is multiplied.
    """
    if not t.tiles:
        return []
    lines = 2 * TILE * TILE // 64
    prefetches = 2 * n * t.depth(k) > L2_WHOLE and not t.dequantized
    prefetch_lines = math.ceil(lines / math.ceil(min(t.task_rows, m) / TILE)) if prefetches else 0
    return [
        f"    static constexpr int64_t prefetch_lines = {prefetch_lines};",
        f"    static constexpr bool single_block = {str(t.block >= k).lower()};",
        f"    static constexpr int64_t depth = {t.step(k)};",
    ]


def _min_text(text: str, limit: int, total: int) -> str:
    return f"{limit}" if total % limit == 0 else f"{text} < {limit} ? {text} : {limit}"


def sum_text(*offsets: str) -> str:
    """Return the sum of offsets, without those that are 0."""
    terms = [f"({o})" if " " in o and "+" in o else o for o in offsets if o != "0"]
    return " + ".join(terms) or "0"


def _b_offset(p: Product, b: Operand, t: GemmTiling, packed: bool) -> str:
    lead = len(p.batch)
    if not packed:
        return sum_text(offset_text("batch", p.batch, p.b_strides[:lead]), f"col * {p.b_strides[-1]}")
    panel, panels = t.depth(p.k) * t.panel_columns, math.ceil(p.n / t.panel_columns)
    matrix = max(1, p.k * p.n)
    strides = [s // matrix * panels * panel for s in p.b_strides[:lead]]
    return sum_text(offset_text("batch", p.batch, strides), t.panel_text(panel))


def epilogue(p: Product, storage: str, acc: str, first: int) -> list[str]:
    """Return the epilogue of one row of sums: add terms from ``first`` on, apply the activation, store; one vector at a time."""
    lead = len(p.batch)

    def offset(strides: Sequence[int]) -> str:
        return sum_text(
            offset_text("batch", p.batch, strides[:lead]), offset_text("(row + r)", p.rows, strides[lead:-1])
        )

    terms, step = list(enumerate(p.terms))[first:], p.y_strides[-1]
    lines = [f"const {storage} *at{i} = term{i} + {offset(x.strides)};" for i, x in terms]
    lines += [
        f"{storage} *to = y + {sum_text(offset(p.y_strides), 'col' if step == 1 else f'col * {step}')};",
        "for (int64_t j = 0; j < columns; j += L) {",
        "    const int64_t n = columns - j < L ? columns - j : L;",
        "    auto x = load<L>(sums + j);",
    ]
    if p.codes:
        scales = unscaled(p.codes, f"gemm_load<{acc}>(scale + col + j, n)")
        lines.append(f"    x = x * ({scales});")
    if p.alpha != 1:
        lines.append(f"    x = x * {_number(p.alpha, acc)};")
    for i, term in terms:
        apart = term.strides[-1]
        if apart == 0:
            value = f"splat<vec<{acc}, L>>(raw<{acc}>(load<1>(at{i})))"
        elif apart == 1:
            value = f"gemm_load<{acc}>(at{i} + col + j, n)"
        else:
            value = f"raw<{acc}>(gather<L>(at{i} + (col + j) * {apart}, {apart}, n))"
        lines.append(
            f"    x = x + {value}" + (";" if term.factor == 1 else f" * {_number(term.factor, acc)};")
        )
    if p.act != "none":
        lines.append(f"    x = {ACTIVATIONS[p.act][0]};")
    if step == 1:
        lines.append(f"    gemm_store<{acc}>(to + j, x, n);")
    else:
        lines.append(
            f"    scatter<L>(to + j * {step}, {step}, raw<typename storage_<{storage}>::compute>(x), n);"
        )
    lines.append("}")
    return lines


def _number(value: float, acc: str) -> str:
    """Return a literal of the accumulator type; integers are truncated."""
    return f"({acc}){decimal(value)}" if acc in ("float", "double") else f"({acc}){int(value)}ll"
