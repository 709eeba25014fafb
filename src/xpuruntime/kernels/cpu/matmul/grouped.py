"""Linear layers whose weights are codes in groups of inputs that share a scale and a minimum: ``matmul/int4_weights``, ``matmul/stored_weights``.

The kernel unpacks codes in registers, accumulates a group, and scales its sum once (``templates/decoder.h``). Decoding reads a third to a
seventh of the bytes. With many rows a task turns codes into floats or bfloat16 once, for all of its rows (``templates/gemm_dequantized.h``).

int4_weights    codes of 4 bits; the scales with the least error are computed when weights are loaded (``runtime/weights/int4.py``)
stored_weights  the blocks of a GGUF file, repacked without loss (``storage/blocks.py``)

``int4_by_int8`` and ``stored_by_int8`` also round the rows to 8 bits, by group, and multiply codes in integers (``templates/grouped_codes.h``), as does
``int8_by_int8`` with the codes of ``matmul/int8_weights``, which have one scale per output; there the groups are those of the rows alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.linear import not_in_blocks, why_not
from ...spec.product import Product
from ..abi import isa_of
from .gemm_tiling import CODE_ROWS, tiling
from .group_panels import GroupPanels
from .layer_source import layer_scratch_bytes, layer_source
from .layer_text import LayerText

__all__ = ["KERNELS", "KINDS", "GroupedWeights"]

_TASK_ROWS = 48
"""Rows of a task: 48 rows of 9,000 floats fill most of an L2 cache."""

KINDS: tuple[tuple[str, GroupForm | None, bool], ...] = tuple(
    (f"matmul/{word}{size}_by_int8" if integer else f"matmul/{word}_weights{size}", form, integer)
    for integer in (False, True)
    for word, size, form in (
        ("int4", "", GroupForm(4, 32, "bfloat16")),
        ("int4", "_64", GroupForm(4, 64, "bfloat16")),
        ("int4", "_128", GroupForm(4, 128, "bfloat16")),
        ("stored", "", None),
    )
)
"""Kernels by name, the groups that their weights are quantized to (None: those of the blocks that a weight is stored in), and whether they multiply in
integers."""

_CHANNEL_KIND = ("matmul/int8_by_int8", GroupForm(8, 32, "channel"), True)
"""The kernel of codes with one scale per output. Experts have none, as they have no ``matmul/int8_weights``."""


@dataclass(frozen=True, slots=True)
class GroupedWeights(Kernel):
    """Linear layers with weights in groups of one form. Only a policy that names the kernel uses it.

    form:    the groups that weights are quantized to; None: those of the blocks that a weight is stored in.
    integer: rows are rounded to 8-bit codes, so that products are computed in integers.
    """

    name: str
    form: GroupForm | None
    integer: bool
    on_request: bool = True
    ops: tuple[str, ...] = ("linear", "fused_linear", "norm_linear")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and a constant weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        dtype, layer = call.outputs[0].dtype, LayerText.of(call)
        if dtype is DType.FLOAT64:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, "weights of 4 or 8 bits are not supported for float64"
            )
        if self.form is None and call.tensor(1).groups is None:
            return not_in_blocks(call)
        if layer.scale is not None and layer.m > _TASK_ROWS:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"an RMS norm before the product is supported for at most {_TASK_ROWS} rows, got {layer.m}",
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage; a task is a panel of B and a block of rows."""
        layer, form = LayerText.of(call), self.form or call.tensor(1).groups
        assert form is not None  # the answer of ``supports``
        if not layer.m * layer.n:
            return LoweredCall(())
        panels = GroupPanels.of(form, layer.k, isa_of(target), integer=self.integer)
        packed = _packed(layer, panels, stored=self.form is None)
        if layer.m > CODE_ROWS and not self.integer:
            return LoweredCall((_dequantized_stage(layer, panels, target),), weights={1: packed})
        rows = min(layer.m, panels.rows)
        blocks = math.ceil(layer.m / _TASK_ROWS)
        task_rows = math.ceil(layer.m / blocks / rows) * rows
        blocks = math.ceil(layer.m / task_rows)
        stage = Stage(
            stem=_stem(layer, form, "_by_int8" if self.integer else ""),
            source=_source(layer, panels, rows, task_rows),
            args=(
                "in0",
                "in1",
                *(f"in{at}" for _, at in layer.operands),
                *(("extra0",) if panels.codes else ()),
                "out0",
            ),
            tasks=layer.panels(panels.columns) * blocks,
            grain=max(1, layer.grain(panels.bytes) // task_rows),
            scratch_bytes=panels.scratch_bytes(task_rows, layer.halves),
            parts=layer.parts | {panels.part},
            flops=2 * layer.m * layer.n * layer.halves * layer.k,
            bytes=layer.n * layer.halves * panels.output_bytes,
        )
        scales = {"extra0": (1, panels.codes.scales(layer.n * layer.halves))} if panels.codes else {}
        return LoweredCall((stage,), weights={1: packed}, extra_weights=scales)


def _stem(layer: LayerText, form: GroupForm, by: str = "") -> str:
    norm, act = "norm_" if layer.scale else "", "" if layer.act == "none" else f"_{layer.act}"
    return f"{norm}matmul_int{form.bits}{by}_{layer.m}x{layer.n * layer.halves}x{layer.k}{act}"


def _dequantized_stage(layer: LayerText, panels: GroupPanels, target: CodegenTarget) -> Stage:
    """Return the stage of many rows: each task turns the codes of its panel into operands, and multiplies these as any product does."""
    n, k = layer.n * layer.halves, layer.k
    product = Product(0, 1, (), (layer.m,), n, k, (k, 1), (1, k), (n, 1))
    t = tiling(
        product, layer.dtype, True, False, isa_of(target), target.config.matmul_tile, columns=panels.columns
    )
    if layer.scale is not None:  # a task normalizes its rows, which are few
        t = replace(t, task_rows=math.ceil(layer.m / t.rows) * t.rows)
    return Stage(
        stem=_stem(layer, panels.form),
        source=layer_source(layer, t, panels.dequantized, panels.bytes),
        args=("in0", "in1", *(f"in{at}" for _, at in layer.operands), "out0"),
        tasks=layer.panels(t.columns) * math.ceil(layer.m / t.task_rows),
        grain=max(1, layer.grain(panels.bytes) // t.task_rows),
        scratch_bytes=layer_scratch_bytes(
            layer, t, math.ceil(t.block / panels.form.group) * panels.form.group
        ),
        parts=layer.parts | t.parts,
        flops=2 * layer.m * n * k,
        bytes=n * panels.output_bytes,
    )


def _packed(layer: LayerText, panels: GroupPanels, *, stored: bool) -> Packed:
    """Return the packing of [outputs, inputs], with zeros beyond the outputs and inputs.

    stored: the packing of the outputs' groups, [outputs, groups, bytes of a group].
    """
    form = panels.form
    steps = layer.padded(panels.columns, [panels.groups, form.bytes] if stored else [layer.k])
    if not stored:
        source = f"%{len(steps) - 1}" if steps else "%in"
        steps.append(RecipeStep("pad", (source,), {"begin": [0, 0], "end": [0, panels.depth - layer.k]}))
    made, spec = panels.packing(steps, layer.halves * layer.panels(panels.columns), stored=stored)
    return Packed(made, spec, form if stored else None)


def _source(layer: LayerText, panels: GroupPanels, rows: int, task_rows: int) -> str:
    s = layer.storage
    count = layer.panels(panels.columns)
    task_count = (
        f"{layer.m}"
        if layer.m <= task_rows
        else f"{layer.m} - row < {task_rows} ? {layer.m} - row : {task_rows}"
    )
    tiles = ("tile", "gate") if layer.halves == 2 else ("tile",)
    lines = [
        f"// {'rms_norm, then ' if layer.scale else ''}[{layer.m}, {layer.k}] x [{layer.k}, {layer.n * layer.halves}] in {layer.dtype.value},"
        f" {panels.arithmetic}"
        + (f"; the first half of the outputs, by {layer.act}, times the second" if layer.halves == 2 else ""),
        *panels.config("KERNEL_product", rows, layer.m % rows, panels.block_groups() if layer.m > rows else panels.groups),
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        "    const uint8_t *b = (const uint8_t *)args[1];",
        *(f"    {line}" for line in layer.arguments(2)),
        *([f"    const float *scales = (const float *)args[{2 + len(layer.operands)}];"] if panels.codes else []),
        f"    {s} *y = ({s} *)args[{2 + len(layer.operands) + bool(panels.codes)}];",
        "    constexpr int L = GEMM_LANES<float>;",
        *(f"    {line}" for line in panels.scratch("scratch", task_rows, tiles)),
        "    int64_t made = -1;",
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t panel = task % {count}, row = task / {count} * {task_rows}, rows = {task_count};",
        "        if (made != row) {",
        "            for (int64_t i = 0; i < rows; ++i) {",
        *(f"                {line}" for line in (*_row(layer, panels), *panels.finish_row("i"))),
        "            }",
        "            made = row;",
        "        }",
        *(f"        {line}" for line in _product(layer, panels)),
        "    }",
        "}",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _product(layer: LayerText, panels: GroupPanels) -> list[str]:
    """Return the product of a task's panel, after that of the gate in a gated layer. ``r`` counts the rows of the result."""
    columns = panels.columns

    def head(panel: str, row: str) -> str:
        return panels.products("KERNEL_product", "0", f"b + {panel} * {panels.bytes}", "rows", row)

    lines = []
    at = "panel"
    if layer.halves == 2:
        lines += [head(at, "r"), f"    {layer.keep_gate(columns)}", "});"]
        at = f"(panel + {layer.panels(columns)})"
    lines += [
        head(at, "tile_row"),
        "    const int64_t r = row + tile_row;",
        *(f"    {line}" for line in layer.epilogue(columns, panels.codes, gate_row="tile_row")),
        "});",
    ]
    return lines


def _row(layer: LayerText, panels: GroupPanels) -> list[str]:
    """Return the lines that load row ``i`` of a task as float, normalized if the layer has a norm."""
    k, to = layer.k, panels.row("i")
    if layer.scale is not None:
        return [
            f"normed_rows<float, {layer.storage}, float>(x + (row + i) * {k}, {k}, norm, 1, {k}, {layer.eps!r}f, {to});"
        ]
    return [
        f"for (int64_t j = 0; j < {k}; j += L) {{",
        f"    const int64_t n = {k} - j < L ? {k} - j : L;",
        f"    gemm_store<float>({to} + j, gemm_load<float>(x + (row + i) * {k} + j, n), n);",
        "}",
    ]


KERNELS: tuple[Any, ...] = tuple(GroupedWeights(*kind) for kind in (*KINDS, _CHANNEL_KIND))
