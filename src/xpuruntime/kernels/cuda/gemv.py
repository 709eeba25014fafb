"""``matmul/gemv`` on CUDA: up to four rows times a weight whose k lies side by side (``templates/cuda/gemv.cuh``), as decoding has them.

All of the time is that of reading the weight once: warps own columns, lanes stride along k in 16-byte reads of which many are under way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..gemm import Product
from ..kernel import Lowered, NodeCall, Stage
from ..matmul import OPS, product_of
from .heavy import about, bytes_of, c_bool, constants
from .launch import Launch, cuda_stage
from .product_text import arguments_of, finish_text, matrices_of, parts_of, supported

__all__ = ["KERNELS", "ROWS", "Gemv"]

ROWS = 4
"""Up to so many rows a weight is streamed at memory's speed; beyond, products in plain arithmetic take longer than that."""

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
_WARPS = 8


@dataclass(frozen=True, slots=True)
class Cut:
    """Columns of a warp, warps that share a column's k, groups of such warps in a block, steps of reads under way."""

    columns: int
    split: int
    groups: int
    ahead: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.split * self.groups * 32

    def blocks(self, n: int) -> int:
        """Blocks that cover n columns."""
        return math.ceil(n / (self.columns * self.groups))


def cut_for(p: Product, dtype: DType) -> Cut:
    """Two columns a warp and eight warps that share them, or as many as k has steps for: measured best or within 2% of it for every
    shape of a language model's decoding (``benchmarks/results/cuda_kernels.json``), large and small.
    """
    chunk = 32 * 128 // dtype.bits  # elements of a warp's step
    steps = max(1, math.ceil(p.k / chunk))
    split = min(_WARPS, 1 << (steps - 1).bit_length())
    return Cut(2, split, _WARPS // split, max(1, min(4, steps // split)))


class Gemv:
    """Few rows times a weight."""

    name = "matmul/gemv"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Up to four rows of floats; both sides with k side by side; one product."""
        found = supported(call)
        if not found:
            return found
        dtype = call.outputs[0].dtype
        if dtype not in _DTYPES:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"streams floats of 16 and 32 bits, not {dtype.value}"
            )
        p = product_of(call).flat()
        if p.batches != 1 or p.batch:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "streams one weight, and there is one for each of a batch"
            )
        if not 1 <= p.m <= ROWS or not p.n * p.k:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"for one to {ROWS} rows, and there are {p.m}")
        sides = matrices_of(p, dtype)
        if sides is None or sides.b_rows or (sides.a_row == 0 and p.m > 1):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the weight's inner dim does not lie side by side")
        return found

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        p = product_of(call).flat()
        return Lowered((gemv_stage(call, p, cut_for(p, call.outputs[0].dtype)),))


def gemv_stage(call: NodeCall, p: Product, cut: Cut) -> Stage:
    """The stage of a cut."""
    dtype = call.outputs[0].dtype
    sides = matrices_of(p, dtype)
    assert sides is not None
    arguments = arguments_of(call, p)
    aligned = sides.a_aligned and sides.b_aligned
    numbers = {
        "m": p.m, "n": p.n, "k": p.k, "x_row": sides.a_row, "w_row": sides.b_line, "COLUMNS": cut.columns, "SPLIT": cut.split,
        "GROUPS": cut.groups, "AHEAD": cut.ahead,
    }  # fmt: skip
    before = [
        "struct KERNEL_gemv {", f"    typedef {arguments[0].ctype} S;", constants("int", numbers),
        constants("bool", {"ALIGNED": c_bool(aligned)}), "};",
        *(["struct KERNEL_anywhere : KERNEL_gemv { static constexpr bool ALIGNED = false; };"] if aligned else []),
        *finish_text(p, arguments, "float", batched=False),
    ]  # fmt: skip
    body = [f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};"]
    if aligned:
        body += [
            "if (((uint64_t)a | (uint64_t)b) % 16 == 0) gemv::run<KERNEL_gemv>(a, b, finish);",
            "else gemv::run<KERNEL_anywhere>(a, b, finish);",
        ]
    else:
        body.append("gemv::run<KERNEL_gemv>(a, b, finish);")
    return cuda_stage(
        f"gemv_{p.m}x{p.n}x{p.k}", about(call, f"{cut.columns} columns a warp, {cut.split} warps share one"), arguments, body,
        Launch.flat(cut.blocks(p.n), cut.threads), before=before, parts=parts_of(p.act, "gemv"), flops=2 * p.m * p.n * p.k,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (Gemv(),)
