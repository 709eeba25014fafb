"""``expert_linear`` on CPUs: products with the matrices of chosen experts.

Few rows (decoding): a task is one panel of one chosen matrix and one row, so that only chosen matrices are read from memory. Many rows
(prefill): a task is one panel of one expert; it collects the rows that chose the expert and multiplies them together, so that each matrix is
read once. Panels have the packing of the plain products (``gemm``), at load if the matrices are
constant, else by each task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.experts import ExpertProduct, why_not_experts
from ...spec.movement.elements import STATUS
from ...spec.product import Product
from ..abi import isa_of
from .gemm import packing
from .gemm_tiling import GemmTiling, tiling
from .layer_text import LayerText

__all__ = ["KERNELS", "CpuExperts"]

_GATHERED_ROWS = 32
"""Maximum rows that pass over a panel at once."""


@dataclass(frozen=True, slots=True)
class CpuExperts(Kernel):
    """Products with chosen experts. ``grouped``: rows are grouped by expert."""

    name: str
    grouped: bool
    ops: tuple[str, ...] = ("expert_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats."""
        refused = why_not_experts(call)
        if refused is not None:
            return refused
        p = ExpertProduct.of(call)
        if not self.grouped and not p.few:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"few rows are supported, got {p.rows} of {p.slots}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage of panels times pairs, or times experts."""
        p = ExpertProduct.of(call)
        if not p.pairs * p.n or not p.experts:
            return LoweredCall(())
        layer = LayerText(p.pairs, p.n, p.k, p.halves, p.act, 0.0, p.dtype, None, None, None)
        isa = isa_of(target)
        isa = replace(isa, features=frozenset(f for f in isa.features if not f.startswith("amx")))
        # The expected rows of an expert bound the register tile: more would be padding.
        rows = min(_GATHERED_ROWS, max(1, p.pairs // p.experts)) if self.grouped else 1
        product = Product(0, 1, (), (rows,), p.n, p.k, (p.k, 1), (1, p.k), (p.n, 1))
        packed = call.tensor(1).is_weight
        t = tiling(product, p.dtype, packed, not self.grouped, isa, target.config.matmul_tile)
        panels, item, sums = layer.panels(t.columns), p.dtype.bits // 8, 8 if layer.sums == "double" else 4
        gathered = _GATHERED_ROWS if self.grouped else 1
        scratch = STATUS + gathered * (3 * t.columns + t.block + 64) * sums + 256
        scratch += 0 if packed else (t.block + 2) * t.columns * item
        scratch += (p.pairs * 4 + gathered * p.k * item + 128) if self.grouped else 0
        stage = Stage(
            stem=f"experts_{p.rows}x{p.slots}x{p.n * p.halves}x{p.k}"
            + ("" if p.act == "none" else f"_{p.act}"),
            source=_source(p, layer, t, self.grouped, packed, C_TYPES[call.tensor(2).spec.dtype]),
            args=("in0", "in1", "in2", "out0"),
            tasks=panels * (p.experts if self.grouped else p.pairs),
            grain=layer.grain(t.columns * p.k * item * p.halves),
            scratch_bytes=scratch,
            parts=layer.parts | {"gemm", "movement"},
            flops=p.flops,
            bytes=p.read_bytes,
        )
        return LoweredCall(
            (stage,),
            weights={1: _matrices(p, t)} if packed else {},
            accumulates="float64" if sums == 8 else "float32",
        )


def _matrices(p: ExpertProduct, t: GemmTiling) -> Packed:
    """Return the packing: each half of each expert's matrix is padded to whole panels."""
    return packing(p.experts * p.halves, p.n, p.k, True, t, p.dtype)


def _source(p: ExpertProduct, layer: LayerText, t: GemmTiling, grouped: bool, packed: bool, ids: str) -> str:
    s, panels = layer.storage, layer.panels(t.columns)
    # Elements between panels, and between the halves of a matrix.
    panel = t.depth(p.k) * t.columns if packed else p.k * t.columns
    half = panels * panel if packed else p.n * p.k
    config = [
        f"    typedef {layer.sums} T;",
        f"    typedef {s} A;",
        f"    typedef {s} B;",
        f"    static constexpr int NV = {t.vectors}, U = {t.unroll}, tail = 0;",
        f"    static constexpr int64_t k = {p.k}, block = {t.block}, a_row = {p.k}, a_k = 1, b_k = 1, b_n = {p.k};",
        f"    static constexpr bool packed = {str(packed).lower()}, pairs = {str(t.pairs).lower()};",
    ]
    lines = [
        f"// {p.rows} rows, {p.slots} of {p.experts} experts each: [{p.k}] x [{p.k}, {p.n * p.halves}] in {p.dtype.value}, sums in {layer.sums}"
        + ("; rows are grouped by expert" if grouped else ""),
        "struct KERNEL_single {",
        "    static constexpr int R = 1;",
        *config,
        "};",
        *(
            ["struct KERNEL_product {", f"    static constexpr int R = {t.rows};", *config, "};"]
            if grouped
            else []
        ),
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        f"    const {s} *w = (const {s} *)args[1];",
        f"    const {ids} *ids = (const {ids} *)args[2];",
        f"    {s} *y = ({s} *)args[3];",
        f"    constexpr int L = GEMM_LANES<{layer.sums}>;",
    ]
    return "\n".join(
        [*lines, *(_grouped if grouped else _by_pair)(p, layer, t, panels, panel, half), "}", ""]
    )


def _row_of(p: ExpertProduct, pair: str) -> str:
    """Return the input of a pair."""
    row = f"{pair} / {p.slots}" if p.shared_x and p.slots > 1 else pair
    return f"x + (int64_t)({row}) * {p.k}"


def _by_pair(
    p: ExpertProduct, layer: LayerText, t: GemmTiling, panels: int, panel: int, half: int
) -> list[str]:
    lines = [
        f"    {layer.sums} *gate = ({layer.sums} *)scratch;",
        f"    void *const inner = gate + {t.columns};",
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t r = task / {panels}, panel = task % {panels}, expert = index_in(ids[r], {p.experts}, scratch);",
        f"        const {layer.storage} *const a = {_row_of(p, 'r')};",
        f"        const {layer.storage} *const b = w + expert * {p.halves * half} + panel * {panel};",
    ]
    return [*lines, *_products(layer, t, half, "KERNEL_single", "a", "1", "r"), "    }"]


def _grouped(
    p: ExpertProduct, layer: LayerText, t: GemmTiling, panels: int, panel: int, half: int
) -> list[str]:
    item, gathered = p.dtype.bits // 8, _GATHERED_ROWS
    rows_bytes = -(-gathered * p.k * item // 64) * 64
    lines = [
        "    int32_t *const chosen = (int32_t *)scratch;",
        f"    {layer.storage} *const rows = ({layer.storage} *)((char *)scratch + {-(-p.pairs * 4 // 64) * 64});",
        f"    {layer.sums} *gate = ({layer.sums} *)((char *)rows + {rows_bytes});",
        f"    void *const inner = gate + {gathered * t.columns};",
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t expert = task / {panels}, panel = task % {panels};",
        "        int64_t count = 0;",
        f"        for (int64_t i = 0; i < {p.pairs}; ++i) {{",
        "            chosen[count] = (int32_t)i;",
        f"            count += index_in(ids[i], {p.experts}, scratch) == expert;",
        "        }",
        f"        const {layer.storage} *const b = w + expert * {p.halves * half} + panel * {panel};",
        f"        for (int64_t first = 0; first < count; first += {gathered}) {{",
        f"            const int64_t number = count - first < {gathered} ? count - first : {gathered}, whole = number / {t.rows} * {t.rows};",
        "            for (int64_t i = 0; i < number; ++i)",
        f"                copy_run(rows + i * {p.k}, {_row_of(p, 'chosen[first + i]')}, {p.k});",
    ]
    blocks = [
        "            if (whole) {",
        *_products(layer, t, half, "KERNEL_product", "rows", "whole", "chosen[first + at]"),
        "            }",
        "            if (number > whole) {",
        *_products(layer, t, half, "KERNEL_single", f"rows + whole * {p.k}", "number - whole", "chosen[first + whole + at]"),
        "            }",
    ]  # fmt: skip
    return [*lines, *blocks, "        }", "    }"]


def _products(
    layer: LayerText, t: GemmTiling, up: int, config: str, a: str, rows: str, row: str
) -> list[str]:
    """Return the products of ``rows`` rows with the panel at ``b``, in a gated layer also with that ``up`` elements further on.

    row: the pair of row ``at``.
    """
    columns = f"{layer.n} - panel * {t.columns} < {t.columns} ? {layer.n} - panel * {t.columns} : {t.columns}"
    head = f"gemm_block<{config}>({a}, %s, {rows}, {columns}, inner, [&](const {layer.sums} *sums, int64_t at) {{"
    keep = [head % "b", f"    {layer.keep_gate(t.columns, 'at')}", "});"]
    lines = [
        *(keep if layer.halves == 2 else []),
        head % (f"b + {up}" if layer.halves == 2 else "b"),
        f"    const int64_t r = {row};" if row != "r" else "    (void)at;",
        *(f"    {line}" for line in layer.epilogue(t.columns, gate_row="at")),
        "});",
    ]
    return [f"            {line}" for line in lines]


KERNELS: tuple[Any, ...] = (
    CpuExperts("matmul/gemv", grouped=False),
    CpuExperts("matmul/generated", grouped=True),
)
