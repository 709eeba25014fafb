"""The C++ text of a decoder's linear layer on ``gemm_block``. A task is one panel of B and a block of rows, of which there is one if a norm precedes."""

from __future__ import annotations

import math

from ...spec.channel_codes import ChannelCodes
from .gemm_text import of_tiles
from .gemm_tiling import TILE, GemmTiling
from .layer_text import LayerText

__all__ = ["layer_scratch_bytes", "layer_source"]


def layer_source(
    layer: LayerText, tiling: GemmTiling, b: str, panel: int, codes: ChannelCodes | None = None
) -> str:
    """Return the text of the function.

    b:     the C type of B.
    panel: its elements in a panel.
    codes: the codes that B is stored in, if its outputs have scales. These are an argument after the operands.
    """
    t, s, columns = layer.sums, layer.storage, tiling.columns
    a_type = layer.storage if tiling.pairs or layer.scale is None else layer.sums
    blocks, count = math.ceil(layer.m / tiling.task_rows), layer.panels(columns)
    tile = {"R": tiling.rows, "NV": tiling.vectors, "U": tiling.unroll, "tail": layer.m % tiling.rows}
    next_arg = 2 + len(layer.operands)
    lines = [
        f"// {'rms_norm, then ' if layer.scale else ''}[{layer.m}, {layer.k}] x [{layer.k}, {layer.n * layer.halves}] in {layer.dtype.value}"
        f"{f', weights in {codes.dtype.value}' if codes else ''}, sums in {t}"
        + (f"; the first half of the outputs, by {layer.act}, times the second" if layer.halves == 2 else ""),
        "struct KERNEL_product {",
        f"    typedef {t} T;",
        f"    typedef {a_type} A;",
        f"    typedef {b} B;",
        "    static constexpr int " + ", ".join(f"{n} = {v}" for n, v in tile.items()) + ";",
        f"    static constexpr int64_t k = {layer.k}, block = {tiling.block}, a_row = {layer.k}, a_k = 1, b_k = 0, b_n = 0;",
        f"    static constexpr bool packed = true, pairs = {str(tiling.pairs).lower()};",
        *of_tiles(tiling, layer.m, layer.n, layer.k),
        "};",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        "    const KERNEL_product::B *b = (const KERNEL_product::B *)args[1];",
        *(f"    {line}" for line in layer.arguments(2)),
    ]
    if codes:
        lines.append(f"    const float *scales = (const float *)args[{next_arg}];")
        next_arg += 1
    lines += [f"    {s} *y = ({s} *)args[{next_arg}];", f"    constexpr int L = GEMM_LANES<{t}>;"]
    if layer.halves == 2:
        lines += [
            f"    {t} *gate = ({t} *)scratch;",
            f"    scratch = gate + {min(layer.m, tiling.task_rows) * columns};",
        ]
    if layer.scale is None:
        lines.append(f"    const {s} *a = x;")
    else:
        assert blocks == 1
        lines += [
            f"    {a_type} *a = ({a_type} *)scratch;",
            f"    scratch = (char *)scratch + {_normed_bytes(layer)};",
            f"    {layer.normed(a_type, 'a')}",
        ]
    if tiling.tiles:
        lines.append("    Tiles tiles;")
    if blocks == 1:
        lines.append("    for (int64_t panel = begin; panel < end; ++panel) {")
        a, rows, row, to_global = "a", f"{layer.m}", "r", []
    else:
        lines += [
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t panel = task % {count}, row = task / {count} * {tiling.task_rows};",
            f"        const int64_t rows = {layer.m} - row < {tiling.task_rows} ? {layer.m} - row : {tiling.task_rows};",
        ]
        a, rows, row, to_global = (
            f"a + row * {layer.k}",
            "rows",
            "tile_row",
            ["const int64_t r = row + tile_row;"],
        )
    product = (
        f"gemm_block_tiles<KERNEL_product>(tiles, {a}, b + %s, {rows}, {columns}, nullptr, scratch, "
        if tiling.tiles
        else f"gemm_block<KERNEL_product>({a}, b + %s, {rows}, {columns}, scratch, "
    )
    block = f"        {product}[&](const {t} *sums, int64_t {row}) {{"
    at = tiling.panel_text(panel)
    if layer.halves == 2:
        lines += [block % at, f"            {layer.keep_gate(columns, row)}", "        });"]
        at = f"{at} + {layer.panels(tiling.panel_columns) * panel}"
    lines += [
        block % at,
        *(f"            {line}" for line in (*to_global, *layer.epilogue(columns, codes, row))),
        "        });",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def _normed_bytes(layer: LayerText) -> int:
    """Return the bytes of the normalized rows: whole cache lines."""
    return -(-layer.m * layer.k * (8 if layer.sums == "double" else 4) // 64) * 64


def layer_scratch_bytes(layer: LayerText, tiling: GemmTiling, steps: int = 0) -> int:
    """Return the bytes of the function's scratch. ``steps``: those of k whose codes become operands at once."""
    item = 8 if layer.sums == "double" else 4
    rows = min(layer.m, tiling.task_rows)
    gate = rows * tiling.columns if layer.halves == 2 else 0
    widened = 0 if tiling.pairs or layer.storage == layer.sums else rows * tiling.block + 16
    sums = max(rows, TILE) * tiling.columns + (TILE * TILE if tiling.tiles else 0)
    operands = (steps + 2) * tiling.columns
    return (_normed_bytes(layer) if layer.scale else 0) + (gate + widened + sums + operands) * item + 64
