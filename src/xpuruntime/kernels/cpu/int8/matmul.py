"""``matmul/int8``: matrix products of 8-bit codes (``templates/int8.h``)."""

from __future__ import annotations

import math

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import offset_text
from ...spec.matmul import matmul_product
from ...spec.product import Product, even_stride, sizes
from ..abi import function, isa_of
from .text import Int8Arguments, codes_only, config, loop, panels, scratch_bytes
from .tiling import Int8Tiling, int8_tiling

__all__ = ["KERNELS", "Int8Matmul"]

_GRAIN_OPS = 1 << 22
"""Minimum operations per thread: some microseconds."""


class Int8Matmul(Kernel):
    """Products of codes with exact sums; scales, bias, activation and quantizing are fused."""

    name = "matmul/int8"
    ops = ("quantized_matmul",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for 8-bit codes with a dense result."""
        if not call.outputs[0].is_dense:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the result must be dense")
        if not call.tensor(1).is_weight and call.optional(6) is not None:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a bias needs a constant right side")
        return codes_only(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, or two if the right side is packed at run time."""
        p = matmul_product(call).flat()
        if not p.m * p.n * p.batches:
            return LoweredCall((), accumulates="int32")
        weight, isa = call.tensor(1), isa_of(target)
        constant = weight.is_weight
        t = int8_tiling(isa, p.m, p.n, p.k, p.batches, by_bytes=constant and weight.spec.dtype is DType.INT8)
        a = Int8Arguments(call, isa, t, "in1" if constant else "temp0")
        stage = _product_stage(call, p, t, a)
        if not constant:
            tiles = math.ceil(p.n / t.columns)
            size = p.batches * tiles * t.words * t.columns * 4
            return LoweredCall((_pack_stage(call, p, t), stage), (size,), accumulates="int32")
        batch = max(1, math.prod(sizes(weight.spec)[:-2]))
        first = (
            RecipeStep("reshape", ("%in",), {"shape": [batch, p.k, p.n]}),
            RecipeStep("permute", ("%0",), {"order": [0, 2, 1]}),
        )
        packed, sums = panels(t, first, batch, p.n, p.k)
        extra = {"extra0": (1, sums)} if t.arithmetic == "Bytes" else {}
        return LoweredCall((stage,), weights={1: packed}, extra_weights=extra, accumulates="int32")


def _product_stage(call: NodeCall, p: Product, t: Int8Tiling, a: Int8Arguments) -> Stage:
    lead = len(p.batch)
    tiles, blocks = math.ceil(p.n / t.columns), math.ceil(p.m / t.block)
    row_stride = even_stride(p.rows, p.a_strides[lead:-1]) or 0
    in_place = t.arithmetic == "Bytes" and (p.a_strides[-1] == 1 or p.k == 1) and p.k == t.words * t.word
    struct, parts = config(call, t)
    one_batch = max(1, p.k * p.n)
    strides = [s // one_batch for s in p.b_strides[:lead]] if call.tensor(1).is_weight else _dense(p.batch)
    b_batch = offset_text("batch", p.batch, strides)
    panel = t.words * t.columns * t.word
    matrices = max(1, math.prod(sizes(call.tensor(1).spec)[:-2])) if call.tensor(1).is_weight else 1
    row = "int16_t" if t.arithmetic == "Pairs" else "uint8_t"
    lines = [
        *a.lines,
        "int32_t *sums = (int32_t *)scratch;",
        *(["Tiles tiles;"] if t.tiles else []),
        *(
            []
            if in_place
            else [
                f"{row} *rows = ({row} *)((char *)scratch + {4 * t.rows * t.columns});",
                "int64_t copied = -1;",
            ]
        ),
        "int8::Columns<KERNEL_product> values;",
        "for (int64_t task = begin; task < end; task++) {",
        f"    const int64_t tile = task % {tiles}, block = task / {tiles} % {blocks}, batch = task / {tiles * blocks};",
        f"    const int64_t row = block * {t.block}, count = {p.m} - row < {t.block} ? {p.m} - row : {t.block};",
        f"    const int64_t column = tile * {t.columns}, columns = {p.n} - column < {t.columns} ? {p.n} - column : {t.columns};",
        f"    const auto *panel = b + (({b_batch}) * {tiles} + tile) * {panel};",
        f"    const auto *from = x + {offset_text('batch', p.batch, p.a_strides[:lead])} + row * {row_stride};",
    ]
    if in_place:
        address, pitch = "(const char *)from", str(row_stride)
    else:
        address, pitch = "(const char *)rows", str(t.pitch)
        size = 2 if t.arithmetic == "Pairs" else 1
        lines += [
            f"    if (copied != task / {tiles}) {{",
            f"        copied = task / {tiles};",
            f"        int8::copy_rows<int8::{t.arithmetic}>(from, {row_stride}, {p.a_strides[-1]}, count, {p.k}, {t.words * t.word}, zero,"
            f" rows, {t.pitch // size});",
            "    }",
        ]
    sums_at = "column" if matrices == 1 else f"({b_batch}) * {p.n} + column"
    y = f"y + (batch * {p.m} + row + r + i) * {p.n} + column"
    lines += [f"    {line}" for line in loop(t, a, address, pitch, y, "1", "column", "columns", sums_at)]
    lines.append("}")
    about = f"// {call.op}: [{p.batches}, {p.m}, {p.k}] x [{p.k}, {p.n}], {call.tensor(0).spec.dtype.value} x {call.tensor(1).spec.dtype.value}\n"
    body = "\n".join(f"  {line}" for line in lines)
    tasks = p.batches * blocks * tiles
    operations = 2 * p.batches * p.m * p.n * p.k
    return Stage(
        stem=f"matmul_int8_{p.m}x{p.n}x{p.k}",
        source=about + "\n".join(struct) + "\n" + function(body),
        args=tuple(a.args),
        tasks=tasks,
        grain=max(1, _GRAIN_OPS * tasks // max(operations, 1)),
        scratch_bytes=scratch_bytes(t, not in_place),
        parts=frozenset({"int8"}) | parts,
        flops=operations,
        bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), call.outputs[0])),
    )


def _dense(batch: tuple[int, ...]) -> list[int]:
    return [math.prod(batch[i + 1 :]) for i in range(len(batch))]


def _pack_stage(call: NodeCall, p: Product, t: Int8Tiling) -> Stage:
    """Return the stage that packs the right side as pairs, less its zero point."""
    lead, weight = len(p.batch), call.tensor(1).spec
    kind = "int8_t" if weight.dtype is DType.INT8 else "uint8_t"
    zero = call.optional(5)
    tiles = math.ceil(p.n / t.columns)
    args = ["in1", *(["in5"] if zero is not None else []), "temp0"]
    zero_text = f"*(const {kind} *)args[1]" if zero is not None else "0"
    body = "\n".join(
        [
            f"  const {kind} *b = (const {kind} *)args[0];",
            f"  int16_t *to = (int16_t *)args[{len(args) - 1}];",
            f"  const int32_t zero = {zero_text};",
            "  for (int64_t task = begin; task < end; task++) {",
            f"    const int64_t tile = task % {tiles}, batch = task / {tiles}, column = tile * {t.columns};",
            f"    const int64_t columns = {p.n} - column < {t.columns} ? {p.n} - column : {t.columns};",
            f"    int8::pack<{kind}, {t.vectors}>(b + {offset_text('batch', p.batch, p.b_strides[:lead])} + column * {p.b_strides[-1]},"
            f" {p.b_strides[-2]}, {p.b_strides[-1]}, {p.k}, columns, zero, to + task * {t.words * t.columns * t.word});",
            "  }",
        ]
    )
    return Stage(
        stem="pack_int8",
        source=function(body, "a right side that is computed, as the product reads it"),
        args=tuple(args),
        tasks=p.batches * tiles,
        parts=frozenset({"int8"}),
        bytes=3 * (weight.size_bytes or 0),
    )


KERNELS: tuple[Kernel, ...] = (Int8Matmul(),)
