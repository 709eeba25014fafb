"""Linear layers whose weights are codes in groups of inputs that share a scale and a minimum: ``matmul/int4_weights``, ``matmul/stored_weights``.

The kernel unpacks codes in registers, accumulates a group, and scales its sum once (``templates/decoder.h``). Decoding reads a third to a
seventh of the bytes, and it is bandwidth-bound.

int4_weights    codes of 4 bits; the scales with the least error are computed when weights are loaded (``runtime/weights/int4.py``)
stored_weights  the blocks of a GGUF file, repacked without loss (``storage/blocks.py``)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.linear import not_in_blocks, why_not
from ..abi import isa_of
from .gemm_tiling import registers
from .layer_text import LayerText

__all__ = ["BLOCK_BYTES", "KERNELS", "NUMBERS", "GroupedWeights"]

_TASK_ROWS = 48
"""Rows of a task: 48 rows of 9,000 floats fill most of an L2 cache."""
BLOCK_BYTES = 32 * 1024
"""Bytes of codes of a panel that stay in the L1 cache while the rows pass over them."""


NUMBERS = {
    "bfloat16": "Bfloat16Pair",
    "float16": "Float16Pair",
    "product": "Float16Product",
    "float32": "Float32Pair",
}
"""Numbers of a group -> the type of the template that reads them."""


@dataclass(frozen=True, slots=True)
class GroupedWeights(Kernel):
    """Linear layers with weights in groups of one form. Only a policy that names the kernel uses it.

    form: the groups that weights are quantized to; None: those of the blocks that a weight is stored in.
    """

    name: str
    form: GroupForm | None
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
        isa: IsaLevel = isa_of(target)
        vectors, lanes = (4 if registers(isa) == 32 else 2), isa.lanes(4)
        columns = vectors * lanes
        depth = max(1, math.ceil(layer.k / form.group)) * form.group
        # Accumulators of a group fill the registers that one vector of unpacked codes leaves.
        rows = min(layer.m, 6 if vectors == 4 else 5)
        blocks = math.ceil(layer.m / _TASK_ROWS)
        task_rows = math.ceil(layer.m / blocks / rows) * rows
        blocks = math.ceil(layer.m / task_rows)
        stage = Stage(
            stem=f"{'norm_' if layer.scale else ''}matmul_int{form.bits}_{layer.m}x{layer.n * layer.halves}x{layer.k}"
            + ("" if layer.act == "none" else f"_{layer.act}"),
            source=_source(layer, form, vectors, columns, depth, rows, task_rows),
            args=("in0", "in1", *(f"in{at}" for _, at in layer.operands), "out0"),
            tasks=layer.panels(columns) * blocks,
            grain=max(1, layer.grain(columns * _bytes(form, depth)) // task_rows),
            scratch_bytes=4 * (task_rows * (depth + 2 * columns) + 64) + 256,
            parts=layer.parts,
            flops=2 * layer.m * layer.n * layer.halves * layer.k,
            bytes=layer.n * layer.halves * _bytes(form, depth),
        )
        packed = _packed(layer, form, columns, depth, stored=self.form is None)
        return LoweredCall((stage,), weights={1: packed})


def _bytes(form: GroupForm, depth: int) -> int:
    """Return the bytes of an output."""
    return depth // form.group * form.bytes


def _packed(layer: LayerText, form: GroupForm, columns: int, depth: int, *, stored: bool) -> Packed:
    """Return the packing [outputs, inputs] -> [panels, bytes of an output, columns], with zeros beyond the outputs and inputs.

    stored: the packing of the outputs' groups, [outputs, groups, bytes of a group].
    """
    panels = layer.halves * layer.panels(columns)
    steps = layer.padded(columns, [depth // form.group, form.bytes] if stored else [layer.k])

    def add(op: str, **attrs: Any) -> None:
        steps.append(RecipeStep(op, (f"%{len(steps) - 1}" if steps else "%in",), attrs))

    if not stored:
        add("pad", begin=[0, 0], end=[0, depth - layer.k])
        add("groups_int4", group=form.group)
    add("reshape", shape=[panels, columns, _bytes(form, depth)])
    add("permute", order=[0, 2, 1])
    spec = TensorSpec((panels, _bytes(form, depth), columns), DType.INT8)
    return Packed(tuple(steps), spec, form if stored else None)


def _source(
    layer: LayerText, form: GroupForm, vectors: int, columns: int, depth: int, rows: int, task_rows: int
) -> str:
    s = layer.storage
    block = max(1, BLOCK_BYTES // (columns * form.code_bytes)) if layer.m > rows else depth // form.group
    task_count = (
        f"{layer.m}"
        if layer.m <= task_rows
        else f"{layer.m} - row < {task_rows} ? {layer.m} - row : {task_rows}"
    )
    lines = [
        f"// {'rms_norm, then ' if layer.scale else ''}[{layer.m}, {layer.k}] x [{layer.k}, {layer.n * layer.halves}] in {layer.dtype.value},"
        f" weights in int{form.bits} by groups of {form.group} with {form.numbers}, sums in float"
        + (f"; the first half of the outputs, by {layer.act}, times the second" if layer.halves == 2 else ""),
        "struct KERNEL_product {",
        "    typedef float T;",
        f"    typedef {NUMBERS[form.numbers]} N;",
        f"    static constexpr int BITS = {form.bits}, R = {rows}, NV = {vectors}, tail = {layer.m % rows};",
        f"    static constexpr int64_t k = {depth}, group = {form.group}, block = {block};",
        "};",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *x = (const {s} *)args[0];",
        "    const uint8_t *b = (const uint8_t *)args[1];",
        *(f"    {line}" for line in layer.arguments(2)),
        f"    {s} *y = ({s} *)args[{2 + len(layer.operands)}];",
        "    constexpr int L = GEMM_LANES<float>;",
        "    float *a = (float *)scratch;",
        f"    float *tile = a + {-(-task_rows * depth // 16) * 16};",
        *([f"    float *gate = tile + {task_rows * columns};"] if layer.halves == 2 else []),
        "    int64_t made = -1;",
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t panel = task % {layer.panels(columns)}, row = task / {layer.panels(columns)} * {task_rows}, rows = {task_count};",
        "        if (made != row) {",
        *(f"            {line}" for line in _rows(layer, depth)),
        "            made = row;",
        "        }",
        *(f"        {line}" for line in _product(layer, form, columns, depth)),
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def _product(layer: LayerText, form: GroupForm, columns: int, depth: int) -> list[str]:
    """Return the product of a task's panel, after that of the gate in a gated layer. ``r`` counts the rows of the result."""
    panels = layer.panels(columns)
    block = f"grouped_block<KERNEL_product>(a, b + %s * {columns * _bytes(form, depth)}, rows, tile, [&](const float *sums, int64_t %s) {{"
    lines = []
    at = "panel"
    if layer.halves == 2:
        lines += [block % (at, "r"), f"    {layer.keep_gate(columns)}", "});"]
        at = f"(panel + {panels})"
    lines += [
        block % (at, "tile_row"),
        "    const int64_t r = row + tile_row;",
        *(f"    {line}" for line in layer.epilogue(columns, gate_row="tile_row")),
        "});",
    ]
    return lines


def _rows(layer: LayerText, depth: int) -> list[str]:
    """Return the lines that load a task's rows as float, normalized if the layer has a norm, with zeros beyond the inputs."""
    k = layer.k
    lines = []
    if layer.scale is not None:
        lines.append(
            f"for (int64_t i = 0; i < rows; ++i) normed_rows<float, {layer.storage}, float>"
            f"(x + (row + i) * {k}, {k}, norm, 1, {k}, {layer.eps!r}f, a + i * {depth});"
        )
    else:
        lines += [
            "for (int64_t i = 0; i < rows; ++i)",
            f"    for (int64_t j = 0; j < {k}; j += L) {{",
            f"        const int64_t n = {k} - j < L ? {k} - j : L;",
            f"        gemm_store<float>(a + i * {depth} + j, gemm_load<float>(x + (row + i) * {k} + j, n), n);",
            "    }",
        ]
    if depth != k:
        lines.append(
            f"for (int64_t i = 0; i < rows; ++i) for (int64_t j = {k}; j < {depth}; ++j) a[i * {depth} + j] = 0;"
        )
    return lines


KERNELS: tuple[Any, ...] = (
    *(
        GroupedWeights("matmul/int4_weights" + suffix, GroupForm(4, group, "bfloat16"))
        for suffix, group in (("", 32), ("_64", 64), ("_128", 128))
    ),
    GroupedWeights("matmul/stored_weights", None),
)
