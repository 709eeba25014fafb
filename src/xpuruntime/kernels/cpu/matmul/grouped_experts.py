"""``expert_linear`` on CPUs with matrices of codes in groups of inputs, as ``grouped`` has them for linear layers.

A task is one panel of one chosen matrix: of each pair of a row and a slot, or, for many rows, of each expert with the rows that chose it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.experts import ExpertProduct, supports_groups
from ...spec.movement.elements import STATUS
from ..abi import isa_of
from .gemm_tiling import registers
from .grouped import BLOCK_BYTES, NUMBERS
from .layer_text import LayerText

__all__ = ["KERNELS", "GroupedExperts"]

_GATHERED_ROWS = 32
"""Maximum rows that pass over a panel at once."""


@dataclass(frozen=True, slots=True)
class GroupedExperts(Kernel):
    """Products with chosen experts, whose matrices are in groups of one form. Only a policy that names the kernel uses it.

    form: the groups that matrices are quantized to; None: those of the blocks that they are stored in.
    """

    name: str
    form: GroupForm | None
    on_request: bool = True
    ops: tuple[str, ...] = ("expert_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and constant matrices."""
        return supports_groups(call, self.form)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage of panels times pairs, or times experts."""
        p, form = ExpertProduct.of(call), self.form or call.tensor(1).groups
        assert form is not None  # the answer of ``supports``
        if not p.pairs * p.n or not p.experts:
            return LoweredCall(())
        isa = isa_of(target)
        vectors = 4 if registers(isa) == 32 else 2
        t = _Sizes(p, form, vectors, vectors * isa.lanes(4))
        grouped = not p.few
        layer = LayerText(p.pairs, p.n, p.k, p.halves, p.act, 0.0, p.dtype, None, None, None)
        gathered = _GATHERED_ROWS if grouped else 1
        stage = Stage(
            stem=f"experts_int{form.bits}_{p.rows}x{p.slots}x{p.n * p.halves}x{p.k}"
            + ("" if p.act == "none" else f"_{p.act}"),
            source=_source(t, layer, grouped, C_TYPES[call.tensor(2).spec.dtype]),
            args=("in0", "in1", "in2", "out0"),
            tasks=t.panels * (p.experts if grouped else p.pairs),
            grain=layer.grain(t.bytes * p.halves),
            scratch_bytes=STATUS + 4 * (gathered * (t.depth + 2 * t.columns) + 64) + 4 * p.pairs + 512,
            parts=layer.parts | {"decoder", "movement"},
            flops=p.flops,
            bytes=min(p.pairs, p.experts) * p.halves * t.panels * t.bytes,
        )
        return LoweredCall((stage,), weights={1: _packed(t, stored=self.form is None)})


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A product and its panels of ``columns`` outputs, ``vectors`` vectors wide."""

    p: ExpertProduct
    form: GroupForm
    vectors: int
    columns: int

    @property
    def depth(self) -> int:
        """Inputs, rounded up to whole groups."""
        return max(1, math.ceil(self.p.k / self.form.group)) * self.form.group

    @property
    def panels(self) -> int:
        """Panels of a half of a matrix."""
        return math.ceil(self.p.n / self.columns)

    @property
    def bytes(self) -> int:
        """Bytes of a panel."""
        return self.depth // self.form.group * self.form.bytes * self.columns


def _packed(t: _Sizes, *, stored: bool) -> Packed:
    """Return the packing [experts, outputs, inputs] -> [panels, bytes of an output, columns]; each half of a matrix is padded to whole panels.

    stored: the packing of the outputs' groups, [experts, outputs, groups, bytes of a group].
    """
    p, form, halves = t.p, t.form, t.p.experts * t.p.halves
    tail = [t.depth // form.group, form.bytes] if stored else [p.k]
    missing = [0, t.panels * t.columns - p.n, *([0, 0] if stored else [t.depth - p.k])]
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": [halves, p.n, *tail]}),
        RecipeStep("pad", ("%0",), {"begin": [0] * len(missing), "end": missing}),
    ]
    if not stored:
        steps.append(RecipeStep("groups_int4", ("%1",), {"group": form.group}))
    shape = [halves * t.panels, t.columns, t.bytes // t.columns]
    steps.append(RecipeStep("reshape", (f"%{len(steps) - 1}",), {"shape": shape}))
    steps.append(RecipeStep("permute", (f"%{len(steps) - 1}",), {"order": [0, 2, 1]}))
    spec = TensorSpec((shape[0], shape[2], shape[1]), DType.INT8)
    return Packed(tuple(steps), spec, form if stored else None)


def _source(t: _Sizes, layer: LayerText, grouped: bool, ids: str) -> str:
    p, form, s, rows = t.p, t.form, layer.storage, 6 if t.vectors == 4 else 5
    groups = t.depth // form.group
    block = max(1, BLOCK_BYTES // (t.columns * form.code_bytes)) if grouped else groups
    config = [
        "    typedef float T;",
        f"    typedef {NUMBERS[form.numbers]} N;",
        f"    static constexpr int BITS = {form.bits}, NV = {t.vectors}, tail = 0;",
        f"    static constexpr int64_t k = {t.depth}, group = {form.group}, block = {block};",
        "};",
    ]
    lines = [
        f"// {p.rows} rows, {p.slots} of {p.experts} experts each: [{p.k}] x [{p.k}, {p.n * p.halves}] in {p.dtype.value}, weights in int{form.bits}"
        f" by groups of {form.group} with {form.numbers}, sums in float" + ("; rows are grouped by expert" if grouped else ""),
        "struct KERNEL_single {", "    static constexpr int R = 1;", *config,
        *(["struct KERNEL_product {", f"    static constexpr int R = {rows};", *config] if grouped else []),
        "template <class S> static void KERNEL_row(const S *x, float *a) {",
        "    constexpr int L = GEMM_LANES<float>;",
        f"    for (int64_t j = 0; j < {p.k}; j += L) {{",
        f"        const int64_t n = {p.k} - j < L ? {p.k} - j : L;",
        "        gemm_store<float>(a + j, gemm_load<float>(x + j, n), n);",
        "    }",
        f"    for (int64_t j = {p.k}; j < {t.depth}; ++j) a[j] = 0;",
        "}",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        "    const uint8_t *w = (const uint8_t *)args[1];",
        f"    const {ids} *ids = (const {ids} *)args[2];",
        f"    {s} *y = ({s} *)args[3];",
        "    constexpr int L = GEMM_LANES<float>;",
        # The first bytes of scratch are for reports.
        f"    float *const a = (float *)((char *)scratch + {-(-STATUS // 64) * 64});",
        f"    float *const tile = a + {(_GATHERED_ROWS if grouped else 1) * t.depth};",
        f"    float *const gate = tile + {(_GATHERED_ROWS if grouped else 1) * t.columns};",
        *([f"    int32_t *const chosen = (int32_t *)(gate + {_GATHERED_ROWS * t.columns});"] if grouped else ["    (void)gate;"]),
        "    for (int64_t task = begin; task < end; ++task) {",
        *(f"        {line}" for line in (_by_expert(t, layer, rows) if grouped else _by_pair(t, layer))),
        "    }", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row_of(p: ExpertProduct, pair: str) -> str:
    """Return the input of a pair."""
    row = f"({pair}) / {p.slots}" if p.shared_x and p.slots > 1 else pair
    return f"x + (int64_t)({row}) * {p.k}"


def _matrix(t: _Sizes) -> str:
    return f"const uint8_t *const b = w + (expert * {t.p.halves * t.panels} + panel) * {t.bytes};"


def _by_pair(t: _Sizes, layer: LayerText) -> list[str]:
    return [
        f"const int64_t r = task / {t.panels}, panel = task % {t.panels}, expert = index_in(ids[r], {t.p.experts}, scratch);",
        f"KERNEL_row({_row_of(t.p, 'r')}, a);",
        _matrix(t),
        *_products(t, layer, "KERNEL_single", "a", "1", ""),
    ]


def _by_expert(t: _Sizes, layer: LayerText, rows: int) -> list[str]:
    p = t.p
    return [
        f"const int64_t expert = task / {t.panels}, panel = task % {t.panels};",
        "int64_t count = 0;",
        f"for (int64_t i = 0; i < {p.pairs}; ++i) {{",
        "    chosen[count] = (int32_t)i;",
        f"    count += index_in(ids[i], {p.experts}, scratch) == expert;",
        "}",
        _matrix(t),
        f"for (int64_t first = 0; first < count; first += {_GATHERED_ROWS}) {{",
        f"    const int64_t number = count - first < {_GATHERED_ROWS} ? count - first : {_GATHERED_ROWS}, whole = number / {rows} * {rows};",
        "    for (int64_t i = 0; i < number; ++i)",
        f"        KERNEL_row({_row_of(p, 'chosen[first + i]')}, a + i * {t.depth});",
        "    if (whole) {",
        *(f"        {line}" for line in _products(t, layer, "KERNEL_product", "a", "whole", "chosen[first + at]")),
        "    }",
        "    if (number > whole) {",
        *(
            f"        {line}"
            for line in _products(t, layer, "KERNEL_single", f"a + whole * {t.depth}", "number - whole", "chosen[first + whole + at]")
        ),
        "    }",
        "}",
    ]  # fmt: skip


def _products(t: _Sizes, layer: LayerText, config: str, a: str, rows: str, row: str) -> list[str]:
    """Return the products of ``rows`` rows with the panel at ``b``, in a gated layer also with that of the second half. row: the pair of row ``at``."""
    head = f"grouped_block<{config}>({a}, %s, {rows}, tile, [&](const float *sums, int64_t at) {{"
    lines = []
    if layer.halves == 2:
        lines += [head % "b", f"    {layer.keep_gate(t.columns, 'at')}", "});"]
    return [
        *lines,
        head % (f"b + {t.panels * t.bytes}" if layer.halves == 2 else "b"),
        f"    const int64_t r = {row};" if row else "    (void)at;",
        *(f"    {line}" for line in layer.epilogue(t.columns, gate_row="at")),
        "});",
    ]


KERNELS: tuple[Any, ...] = (
    *(
        GroupedExperts("matmul/int4_weights" + suffix, GroupForm(4, group, "bfloat16"))
        for suffix, group in (("", 32), ("_64", 64), ("_128", 128))
    ),
    GroupedExperts("matmul/stored_weights", None),
)
