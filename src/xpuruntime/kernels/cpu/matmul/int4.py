"""Linear layers with 4-bit weights (``matmul/int4_weights``): groups of inputs share a scale and a zero point in bfloat16.

A weight is a code from 0 to 15. The kernel unpacks codes in registers, accumulates a group, and scales its sum once (``templates/decoder.h``).
Decoding reads a third to a seventh of the bytes, and it is bandwidth-bound. The scales with the least error are computed when weights are
loaded (``runtime/weights/int4.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.linear import why_not
from ..abi import isa_of
from .gemm import after
from .gemm_tiling import registers
from .layer_text import LayerText

__all__ = ["KERNELS", "Int4Weights"]

_TASK_ROWS = 48
"""Rows of a task: 48 rows of 9,000 floats fill most of an L2 cache."""
_BLOCK_BYTES = 32 * 1024
"""Bytes of codes of a panel that stay in the L1 cache while the rows pass over them."""


@dataclass(frozen=True, slots=True)
class Int4Weights(Kernel):
    """Linear layers with 4-bit weights in groups of ``group`` inputs. Results change, so only a policy that names the kernel uses it."""

    name: str
    group: int
    on_request: bool = True
    ops: tuple[str, ...] = ("linear", "fused_linear", "norm_linear")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and a constant weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        dtype, layer = call.outputs[0].dtype, LayerText.of(call)
        if dtype is DType.FLOAT64:
            return Support.no(Reason.DTYPE_UNSUPPORTED, "int4 weights are not supported for float64")
        if layer.scale is not None and layer.m > _TASK_ROWS:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"an RMS norm before the product is supported for at most {_TASK_ROWS} rows, got {layer.m}",
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage; a task is a panel of B and a block of rows."""
        layer = LayerText.of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        isa: IsaLevel = isa_of(target)
        vectors, lanes = (4 if registers(isa) == 32 else 2), isa.lanes(4)
        columns = vectors * lanes
        depth = max(1, math.ceil(layer.k / self.group)) * self.group
        # Accumulators of a group fill the registers that one vector of unpacked codes leaves.
        rows = min(layer.m, 6 if vectors == 4 else 5)
        blocks = math.ceil(layer.m / _TASK_ROWS)
        task_rows = math.ceil(layer.m / blocks / rows) * rows
        blocks = math.ceil(layer.m / task_rows)
        stage = Stage(
            stem=f"{'norm_' if layer.scale else ''}matmul_int4_{layer.m}x{layer.n * layer.halves}x{layer.k}"
            + ("" if layer.act == "none" else f"_{layer.act}"),
            source=self._source(layer, vectors, columns, depth, rows, task_rows),
            args=("in0", "in1", *(f"in{at}" for _, at in layer.operands), "out0"),
            tasks=layer.panels(columns) * blocks,
            grain=max(1, layer.grain(columns * self._bytes(depth)) // task_rows),
            scratch_bytes=4 * (task_rows * (depth + 2 * columns) + 64) + 256,
            parts=layer.parts,
            flops=2 * layer.m * layer.n * layer.halves * layer.k,
            bytes=layer.n * layer.halves * self._bytes(depth),
        )
        return LoweredCall((stage,), weights={1: self._packed(layer, columns, depth)})

    def _bytes(self, depth: int) -> int:
        """Return the bytes of an output: codes, and a scale and the value of code 0 in bfloat16 per group."""
        return depth // self.group * (self.group // 2 + 4)

    def _packed(self, layer: LayerText, columns: int, depth: int) -> Packed:
        """Return the packing [outputs, inputs] -> [panels, bytes of an output, columns], with zeros beyond the outputs and inputs."""
        even, outputs = layer.even(columns)
        panels = math.ceil(outputs / columns)
        missing = [panels * columns - outputs, depth - layer.k]
        steps = (
            RecipeStep("pad", ("%in",), {"begin": [0, 0], "end": missing}),
            RecipeStep("groups_int4", ("%0",), {"group": self.group}),
            RecipeStep("reshape", ("%1",), {"shape": [panels, columns, self._bytes(depth)]}),
            RecipeStep("permute", ("%2",), {"order": [0, 2, 1]}),
        )
        return after(even, Packed(steps, TensorSpec((panels, self._bytes(depth), columns), DType.INT8)))

    def _source(
        self, layer: LayerText, vectors: int, columns: int, depth: int, rows: int, task_rows: int
    ) -> str:
        s = layer.storage
        block = max(1, _BLOCK_BYTES * 2 // (columns * self.group)) if layer.m > rows else depth // self.group
        task_count = (
            f"{layer.m}"
            if layer.m <= task_rows
            else f"{layer.m} - row < {task_rows} ? {layer.m} - row : {task_rows}"
        )
        lines = [
            f"// {'rms_norm, then ' if layer.scale else ''}[{layer.m}, {layer.k}] x [{layer.k}, {layer.n * layer.halves}] in {layer.dtype.value},"
            f" weights in int4 by groups of {self.group}, sums in float"
            + (
                f"; the first half of the outputs, by {layer.act}, times the second"
                if layer.halves == 2
                else ""
            ),
            "struct KERNEL_product {",
            "    typedef float T;",
            f"    static constexpr int R = {rows}, NV = {vectors}, tail = {layer.m % rows};",
            f"    static constexpr int64_t k = {depth}, group = {self.group}, block = {block};",
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
            *(f"            {line}" for line in self._rows(layer, depth)),
            "            made = row;",
            "        }",
            *(f"        {line}" for line in self._product(layer, columns, depth)),
            "    }",
            "}",
            "",
        ]
        return "\n".join(lines)

    def _product(self, layer: LayerText, columns: int, depth: int) -> list[str]:
        """Return the product of a task's panel, after that of the gate in a gated layer. ``r`` counts the rows of the result."""
        panels = layer.panels(columns)
        block = f"int4_block<KERNEL_product>(a, b + %s * {columns * self._bytes(depth)}, rows, tile, [&](const float *sums, int64_t %s) {{"
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

    def _rows(self, layer: LayerText, depth: int) -> list[str]:
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


KERNELS: tuple[Any, ...] = tuple(
    Int4Weights("matmul/int4_weights" + suffix, group)
    for suffix, group in (("", 32), ("_64", 64), ("_128", 128))
)
