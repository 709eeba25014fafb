"""Packed GEMM for CPUs: ``spec.product`` describes it, ``gemm_tiling`` chooses its tiles, ``gemm_text`` writes it.

B is packed in panels of ``columns`` columns: at load if it is a weight, otherwise by each task. A task is one panel by a block of rows of
A, so tasks are many and equal. The depth is blocked so that a block of a panel stays in cache while the rows pass. The micro-kernels with
register blocking are in ``templates/gemm.h``, those for AMX in ``templates/gemm_amx.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ....codegen.c_types import accumulator
from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import LoweredCall, NodeCall, Operand, Packed, Stage, operand_ref
from ...portable.text import ACTIVATIONS
from ...spec.product import Product, sizes
from ..abi import isa_of
from .dots import in_place, in_place_stage, oriented
from .gemm_text import product_source
from .gemm_tiling import TILE, GemmTiling, tiling

__all__ = ["after", "lower_product", "packing"]


def _packed(p: Product, weight: Operand, t: GemmTiling) -> Packed:
    """Return the packing of a product's weight."""
    by_rows = p.b_strides[-1] != 1 and math.prod(sizes(weight.spec)) == p.n * p.k  # a linear's weight: [n, k]
    batch = 1 if by_rows else max(1, math.prod(sizes(weight.spec)) // max(1, p.n * p.k))
    return packing(batch, p.n, p.k, by_rows, t, weight.spec.dtype)


def packing(batch: int, n: int, k: int, by_rows: bool, t: GemmTiling, dtype: DType) -> Packed:
    """Return the packing [batch, k, n] -> [batch, panels, k, columns], padded with zeros; for bf16 pairs [batch, panels, k / 2, columns, 2].

    by_rows: the weight is stored as [batch, n, k].
    """
    columns, depth = t.panel_columns, t.depth(k)
    panels = math.ceil(n / columns)
    shape, order = ((batch, n, k), (0, 2, 1)) if by_rows else ((batch, k, n), (0, 1, 2))
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": list(shape)}),
        RecipeStep("permute", ("%0",), {"order": list(order)}),
        RecipeStep("pad", ("%1",), {"begin": [0, 0, 0], "end": [0, depth - k, panels * columns - n]}),
    ]
    panelled = [batch, depth // 2, 2, panels, columns] if t.word > 1 else [batch, depth, panels, columns]
    order_ = [0, 3, 1, 4, 2] if t.word > 1 else [0, 2, 1, 3]
    steps.append(RecipeStep("reshape", ("%2",), {"shape": panelled}))
    steps.append(RecipeStep("permute", ("%3",), {"order": order_}))
    return Packed(tuple(steps), TensorSpec(tuple(panelled[i] for i in order_), dtype))


def lower_product(
    call: NodeCall, product: Product, target: CodegenTarget, *, streamed: bool = False, stem: str = ""
) -> LoweredCall:
    """Return the stage of a product. ``streamed``: rows are few, and B is read from memory once."""
    p = oriented(call, product.flat(), target)
    if not p.m * p.n * p.batches:
        return LoweredCall(())
    y = call.outputs[0]
    stem = stem or f"matmul_{p.m}x{p.n}x{p.k}" + ("" if p.act == "none" else f"_{p.act}")
    accumulates = _ACCUMULATES[accumulator(y.dtype)]
    if in_place(call, p):
        return LoweredCall((in_place_stage(call, p, target, stem),), accumulates=accumulates)
    b = call.tensor(p.b)
    isa: IsaLevel = isa_of(target)
    t = tiling(p, y.dtype, b.is_weight, streamed, isa, target.config.matmul_tile)
    source = product_source(call, p, t, y.dtype, b.is_weight)
    panels, blocks = math.ceil(p.n / t.columns), math.ceil(p.m / t.task_rows)
    item, acc = y.dtype.bits // 8, 8 if accumulator(y.dtype) in ("double", "uint64_t") else 4
    task_flops = 2 * t.task_rows * t.columns * p.k
    task_bytes = t.columns * p.k * (1 if p.codes else item)
    # A thread gets at least two microseconds of work: at 100 GFLOP/s, or 20 GB/s of B.
    microseconds = max(task_flops / 1e5, task_bytes / 2e4, 0.02)
    args = [operand_ref("in", p.a), operand_ref("in", p.b)]
    args += [operand_ref("in", x.position) for x in p.terms]
    scratch = t.task_rows * t.columns * acc + 128
    if not t.pairs and (item != acc or not y.dtype.is_float):
        scratch += t.task_rows * t.block * acc + 64
    if t.tiles:
        scratch = (TILE if t.block >= p.k else t.task_rows) * TILE * 4 + TILE * TILE * 2 + 64
    if t.dequantized or not b.is_weight:
        scratch += (t.block + 2) * t.columns * (item if t.pairs or not t.dequantized else acc)
    stage = Stage(
        stem=stem,
        source=source,
        args=(*args, "out0"),
        tasks=p.batches * panels * blocks,
        grain=max(1, round(2 / microseconds)),
        scratch_bytes=scratch,
        parts=t.parts.union(ACTIVATIONS[p.act][1]),
        flops=2 * p.batches * p.m * p.n * p.k,
        bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), y)),
    )
    if p.codes:
        stage = replace(stage, args=(*args, "extra0", "out0"))
        return LoweredCall(
            (stage,),
            weights={p.b: p.codes.packed(_packed(p, b, t))},
            extra_weights={"extra0": (p.b, p.codes.scales(p.n))},
            accumulates=accumulates,
        )
    weights = {p.b: _packed(p, b, t)} if b.is_weight else {}
    return LoweredCall((stage,), weights=weights, accumulates=accumulates)


_ACCUMULATES = {"float": "float32", "double": "float64", "uint32_t": "int32", "uint64_t": "int64"}


def after(first: Sequence[RecipeStep], packed: Packed) -> Packed:
    """Return the packing applied to the result of the steps ``first``."""
    if not first:
        return packed
    steps = [
        RecipeStep(s.op, tuple(f"%{i - 1}" if i and n == "%in" else n for n in s.inputs), s.attrs)
        for i, s in enumerate(first)
    ]
    base = len(steps)
    renumbered = [
        RecipeStep(
            s.op, tuple(f"%{base - 1}" if n == "%in" else f"%{int(n[1:]) + base}" for n in s.inputs), s.attrs
        )
        for s in packed.steps
    ]
    return Packed((*steps, *renumbered), packed.spec)
