"""``expert_linear`` on CPUs with matrices of codes in groups of inputs, as ``grouped`` has them for linear layers.

A task is one panel of one chosen matrix: of each pair of a row and a slot, or, for many rows, of each expert with the rows that chose it. In floats,
an expert that many rows chose turns the codes of a panel into operands once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.experts import ExpertProduct, supports_groups
from ...spec.movement.elements import STATUS
from ...spec.product import Product
from ..abi import isa_of
from .gemm_tiling import CODE_ROWS, GemmTiling, tiling
from .group_panels import GroupPanels
from .grouped import KINDS
from .layer_text import LayerText

__all__ = ["KERNELS", "GroupedExperts"]

_GATHERED_ROWS = 32
"""Maximum rows that pass over a panel at once."""

_DEQUANTIZED_GATHERED = 96
"""Maximum rows that pass at once over a panel whose codes became operands."""


@dataclass(frozen=True, slots=True)
class GroupedExperts(Kernel):
    """Products with chosen experts, whose matrices are in groups of one form. Only a policy that names the kernel uses it.

    form:          the groups that matrices are quantized to; None: those of the blocks that they are stored in.
    integer:       rows are rounded to 8-bit codes, so that products are computed in integers.
    converts_rows: maximum rows of an expert whose tiles convert codes by themselves. In floats their sums have another order.
    """

    name: str
    form: GroupForm | None
    integer: bool
    on_request: bool = True
    ops: tuple[str, ...] = ("expert_linear",)
    converts_rows: int = CODE_ROWS

    def batch_invariant_form(self) -> GroupedExperts:
        """Return the kernel whose arithmetic does not depend on how many rows chose an expert."""
        return replace(self, converts_rows=0)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and constant matrices."""
        return supports_groups(call, self.form)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage of panels times pairs, or times experts."""
        p, form = ExpertProduct.of(call), self.form or call.tensor(1).groups
        assert form is not None  # the answer of ``supports``
        if not p.pairs * p.n or not p.experts:
            return LoweredCall(())
        panels = GroupPanels.of(form, p.k, isa_of(target), integer=self.integer)
        t = _Sizes(p, panels)
        grouped = not p.few
        layer = LayerText(p.pairs, p.n, p.k, p.halves, p.act, 0.0, p.dtype, None, None, None)
        gathered = _GATHERED_ROWS if grouped else 1
        dequantized = None if self.integer or not grouped else _dequantized_tiling(p, panels, target)
        stage = Stage(
            stem=f"experts_int{form.bits}{'_by_int8' if self.integer else ''}_{p.rows}x{p.slots}x{p.n * p.halves}x{p.k}"
            + ("" if p.act == "none" else f"_{p.act}"),
            source=_source(
                t, layer, grouped, dequantized, self.converts_rows, C_TYPES[call.tensor(2).spec.dtype]
            ),
            args=("in0", "in1", "in2", "out0"),
            tasks=t.count * (p.experts if grouped else p.pairs),
            grain=layer.grain(panels.bytes * p.halves),
            scratch_bytes=STATUS
            + panels.scratch_bytes(gathered, 2)
            + 4 * p.pairs
            + 128
            + (_dequantized_bytes(t, dequantized) if dequantized else 0),
            parts=layer.parts
            | {panels.part, "movement"}
            | (dequantized.parts if dequantized else frozenset()),
            flops=p.flops,
            bytes=min(p.pairs, p.experts) * p.halves * t.count * panels.bytes,
        )
        return LoweredCall(
            (stage,),
            weights={1: _packed(t, stored=self.form is None)},
            batch_invariant=dequantized is None or self.converts_rows == 0,
        )


def _dequantized_tiling(p: ExpertProduct, panels: GroupPanels, target: CodegenTarget) -> GemmTiling:
    """Return the tiling of the rows of an expert, without AMX, whose tiles gathered rows seldom fill."""
    isa = isa_of(target)
    isa = replace(isa, features=frozenset(f for f in isa.features if not f.startswith("amx")))
    product = Product(0, 1, (), (_DEQUANTIZED_GATHERED,), p.n, p.k, (p.k, 1), (1, p.k), (p.n, 1))
    return tiling(product, p.dtype, True, False, isa, target.config.matmul_tile, columns=panels.columns)


def _dequantized_rows(t: GemmTiling) -> int:
    """Return the gathered rows, rounded up to whole register tiles."""
    return math.ceil(_DEQUANTIZED_GATHERED / t.rows) * t.rows


def _dequantized_bytes(t: _Sizes, dequantized: GemmTiling) -> int:
    """Return the bytes of gathered rows, of their gates and sums, and of operands."""
    columns, steps = (
        dequantized.columns,
        math.ceil(dequantized.block / t.panels.form.group) * t.panels.form.group,
    )
    return 4 * (_dequantized_rows(dequantized) * (t.p.k + 2 * columns) + (steps + 2) * columns) + 256


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A product and the panels of its matrices."""

    p: ExpertProduct
    panels: GroupPanels

    @property
    def count(self) -> int:
        """Panels of a half of a matrix."""
        return math.ceil(self.p.n / self.panels.columns)


def _packed(t: _Sizes, *, stored: bool) -> Packed:
    """Return the packing of [experts, outputs, inputs]; each half of a matrix is padded to whole panels.

    stored: the packing of the outputs' groups, [experts, outputs, groups, bytes of a group].
    """
    p, panels, halves = t.p, t.panels, t.p.experts * t.p.halves
    form = panels.form
    tail = [panels.groups, form.bytes] if stored else [p.k]
    missing = [0, t.count * panels.columns - p.n, *([0, 0] if stored else [panels.depth - p.k])]
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": [halves, p.n, *tail]}),
        RecipeStep("pad", ("%0",), {"begin": [0] * len(missing), "end": missing}),
    ]
    made, spec = panels.packing(steps, halves * t.count, stored=stored)
    return Packed(made, spec, form if stored else None)


def _source(
    t: _Sizes, layer: LayerText, grouped: bool, dequantized: GemmTiling | None, converts_rows: int, ids: str
) -> str:
    p, panels, s = t.p, t.panels, layer.storage
    task_rows = _GATHERED_ROWS if grouped else 1
    block = panels.block_groups() if grouped else panels.groups
    lines = [
        f"// {p.rows} rows, {p.slots} of {p.experts} experts each: [{p.k}] x [{p.k}, {p.n * p.halves}] in {p.dtype.value}, {panels.arithmetic}"
        + ("; rows are grouped by expert" if grouped else ""),
        *panels.config("KERNEL_single", 1, 0, block),
        *(panels.config("KERNEL_product", panels.rows, 0, block) if grouped else []),
        *(_dequantized_config(t, layer, dequantized) if dequantized else []),
        "template <class S, class A> static void KERNEL_row(const S *x, A *to) {",
        "    constexpr int L = GEMM_LANES<float>;",
        f"    for (int64_t j = 0; j < {p.k}; j += L) {{",
        f"        const int64_t n = {p.k} - j < L ? {p.k} - j : L;",
        "        gemm_store<float>(to + j, gemm_load<float>(x + j, n), n);",
        "    }",
        "}",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        "    const uint8_t *w = (const uint8_t *)args[1];",
        f"    const {ids} *ids = (const {ids} *)args[2];",
        f"    {s} *y = ({s} *)args[3];",
        "    constexpr int L = GEMM_LANES<float>;",
        # The first bytes of scratch are for reports.
        *(f"    {line}" for line in panels.scratch(f"(char *)scratch + {-(-STATUS // 64) * 64}", task_rows, ("tile", "gate"))),
        *([f"    int32_t *const chosen = (int32_t *)(gate + {task_rows * panels.columns});"] if grouped else ["    (void)gate;"]),
        *([f"    KERNEL_dequantized::A *const rows = (KERNEL_dequantized::A *)((char *)chosen + {-(-4 * p.pairs // 64) * 64});"] if dequantized else []),
        f"    int64_t loaded = -1{', count = 0' if grouped else ''};  // whose rows are in scratch",
        "    for (int64_t task = begin; task < end; ++task) {",
        *(f"        {line}" for line in (_by_expert(t, layer, dequantized, converts_rows) if grouped else _by_pair(t, layer))),
        "    }", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row_of(p: ExpertProduct, pair: str) -> str:
    """Return the input of a pair."""
    row = f"({pair}) / {p.slots}" if p.shared_x and p.slots > 1 else pair
    return f"x + (int64_t)({row}) * {p.k}"


def _matrix(t: _Sizes) -> str:
    return f"const uint8_t *const b = w + (expert * {t.p.halves * t.count} + panel) * {t.panels.bytes};"


def _row(t: _Sizes, pair: str, index: str) -> list[str]:
    """Return the lines that load row ``index`` of a task: that of a pair."""
    return [f"KERNEL_row({_row_of(t.p, pair)}, {t.panels.row(index)});", *t.panels.finish_row(index)]


def _by_pair(t: _Sizes, layer: LayerText) -> list[str]:
    return [
        f"const int64_t r = task / {t.count}, panel = task % {t.count}, expert = index_in(ids[r], {t.p.experts}, scratch);",
        "if (loaded != r) {",
        *(f"    {line}" for line in _row(t, "r", "0")),
        "}",
        "loaded = r;",
        _matrix(t),
        *_products(t, layer, "KERNEL_single", "0", "1", ""),
    ]


def _dequantized_config(t: _Sizes, layer: LayerText, dequantized: GemmTiling) -> list[str]:
    """Return the struct that configures products of gathered rows."""
    return [
        "struct KERNEL_dequantized {",
        "    typedef float T;",
        f"    typedef {layer.storage if dequantized.pairs else 'float'} A;",
        f"    typedef {t.panels.dequantized} B;",
        f"    static constexpr int R = {dequantized.rows}, NV = {dequantized.vectors}, U = 1, tail = 0;",
        f"    static constexpr int64_t k = {t.p.k}, block = {dequantized.block}, a_row = {t.p.k}, a_k = 1, b_k = 0, b_n = 0;",
        f"    static constexpr bool packed = true, pairs = {str(dequantized.pairs).lower()};",
        "};",
    ]


def _by_dequantized(t: _Sizes, layer: LayerText, dequantized: GemmTiling, converts_rows: int) -> list[str]:
    """Return the lines for an expert that more than ``converts_rows`` rows chose; tiles also multiply what is behind the rows, and leave it out."""
    p, columns, gathered = t.p, dequantized.columns, _DEQUANTIZED_GATHERED

    def head(panel: str) -> str:
        return f"gemm_block<KERNEL_dequantized>(rows, (const KERNEL_dequantized::B *)({panel}), whole, {columns}, inner, [&](const float *sums, int64_t at) {{"

    gate = [head("b"), f"    {layer.keep_gate(columns, 'at')}", "});"] if layer.halves == 2 else []
    return [
        f"if (count > {converts_rows}) {{",
        f"    float *const gate = (float *)((char *)rows + {-(-_dequantized_rows(dequantized) * p.k * 4 // 64) * 64}), *const inner = gate + {_dequantized_rows(dequantized) * columns};",
        f"    for (int64_t first = 0; first < count; first += {gathered}) {{",
        f"        const int64_t number = count - first < {gathered} ? count - first : {gathered}, whole = (number + {dequantized.rows - 1}) / {dequantized.rows} * {dequantized.rows};",
        f"        if (loaded != expert || count > {gathered})",
        "            for (int64_t i = 0; i < number; ++i)",
        f"                KERNEL_row({_row_of(p, 'chosen[first + i]')}, rows + i * {p.k});",
        *(f"        {line}" for line in gate),
        f"        {head(f'b + {t.count * t.panels.bytes}' if layer.halves == 2 else 'b')}",
        "            if (at >= number) return;",
        "            const int64_t r = chosen[first + at];",
        *(f"            {line}" for line in layer.epilogue(columns, gate_row="at")),
        "        });",
        "    }",
        "    loaded = expert;",
        "    continue;",
        "}",
    ]


def _by_expert(t: _Sizes, layer: LayerText, dequantized: GemmTiling | None, converts_rows: int) -> list[str]:
    p, rows = t.p, t.panels.rows
    return [
        f"const int64_t expert = task / {t.count}, panel = task % {t.count};",
        "if (loaded != expert) {",
        "    count = 0;",
        f"    for (int64_t i = 0; i < {p.pairs}; ++i) {{",
        "        chosen[count] = (int32_t)i;",
        f"        count += index_in(ids[i], {p.experts}, scratch) == expert;",
        "    }",
        "}",
        _matrix(t),
        *(_by_dequantized(t, layer, dequantized, converts_rows) if dequantized else []),
        f"for (int64_t first = 0; first < count; first += {_GATHERED_ROWS}) {{",
        f"    const int64_t number = count - first < {_GATHERED_ROWS} ? count - first : {_GATHERED_ROWS}, whole = number / {rows} * {rows};",
        f"    if (loaded != expert || count > {_GATHERED_ROWS})",
        "        for (int64_t i = 0; i < number; ++i) {",
        *(f"            {line}" for line in _row(t, "chosen[first + i]", "i")),
        "        }",
        "    if (whole) {",
        *(f"        {line}" for line in _products(t, layer, "KERNEL_product", "0", "whole", "chosen[first + at]")),
        "    }",
        "    if (number > whole) {",
        *(f"        {line}" for line in _products(t, layer, "KERNEL_single", "whole", "number - whole", "chosen[first + whole + at]")),
        "    }",
        "}",
        "loaded = expert;",
    ]  # fmt: skip


def _products(t: _Sizes, layer: LayerText, config: str, first: str, rows: str, row: str) -> list[str]:
    """Return the products of ``rows`` rows with the panel at ``b``, in a gated layer also with that of the second half. row: the pair of row ``at``."""

    def head(panel: str) -> str:
        return t.panels.products(config, first, panel, rows, "at")

    lines = []
    if layer.halves == 2:
        lines += [head("b"), f"    {layer.keep_gate(t.panels.columns, 'at')}", "});"]
    return [
        *lines,
        head(f"b + {t.count * t.panels.bytes}" if layer.halves == 2 else "b"),
        f"    const int64_t r = {row};" if row else "    (void)at;",
        *(f"    {line}" for line in layer.epilogue(t.panels.columns, gate_row="at")),
        "});",
    ]


KERNELS: tuple[Any, ...] = tuple(GroupedExperts(*kind) for kind in KINDS)
