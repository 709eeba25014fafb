"""Matrix products on CUDA: ``matmul/generated``, our own GEMM. ``libraries`` has cuBLAS and cuBLASLt.

Large products of 16-bit floats on Hopper are those of ``hopper_gemm.py``, but for a policy that demands ``batch_invariant``: their bits would
depend on the number of rows. Other 16-bit floats run on tensor cores (``templates/cuda/gemm.cuh``): a block computes one output tile, its warps one part of that each. Tiles
of 64 k pass through several stages of shared memory, filled by asynchronous copies. float32 with contiguous k runs on CUDA cores in the same
way (``fma.py``). Other dtypes and strides have register blocking alone (``templates/cuda/simt.cuh``): each thread has 4x4 or 8x8 results.
Bias, residual and activation are the epilogue.
Large products are compute-bound; those of few rows run better on ``gemv``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.c_types import accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import offset_text
from ...spec.matmul import OPS, product_of
from ...spec.product import Product
from ..crossovers import crossovers_of
from ..heavy import REFERENCE_SMS, TAGS, about, bytes_of, c_bool, constants, multiprocessors, shared_limit
from ..launch import ByAlignment, LaunchConfig, cuda_stage
from .fma import FmaConfig, fma_config, fma_launch, fma_lowered, fma_numbers, split_arguments
from .hopper_gemm import activation_leads, hopper_stage, leads, multiplies
from .libraries import LIBRARY_ACTS, Cublas, CublasLt
from .text import Matrices, arguments_of, calls_by_alignment, finish_text, matrices_of, parts_of, supported

__all__ = ["KERNELS", "TILES", "Generated", "Tile", "simt_stage", "tensor_stage"]


@dataclass(frozen=True, slots=True)
class Tile:
    """The output tile of a block, how its warps divide it, and the stages of k tiles in shared memory."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of 64 k, two bytes an element."""
        return (self.rows + self.columns) * 64 * 2 * self.stages

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.warps_m * self.warps_n * 32

    def blocks(self, m: int, n: int) -> int:
        """Return the blocks of one product."""
        return math.ceil(m / self.rows) * math.ceil(n / self.columns)


TILES: tuple[Tile, ...] = (
    Tile(128, 128, 2, 2, 3),
    Tile(128, 64, 2, 2, 4),
    Tile(64, 128, 2, 2, 4),
    Tile(64, 64, 2, 2, 4),
    Tile(32, 64, 1, 4, 4),
)
"""Output tiles, from the most reuse of operands to the most blocks."""


def tile_for(m: int, n: int, batches: int, target: CodegenTarget) -> Tile:
    """Return the largest tile that gives every SM a block and computes at most 1.5 times the results.

    Otherwise return the tile with the most blocks, up to one per SM, and the least padding.
    """
    limit, num_sms = shared_limit(target), multiprocessors(target)
    candidates = [t for t in TILES if t.shared <= limit]
    for tile in candidates:
        blocks = tile.blocks(m, n)
        waste = blocks * tile.rows * tile.columns / (m * n)
        if blocks * batches >= num_sms and waste <= 1.5:
            return tile
    return min(
        candidates,
        key=lambda t: (-min(t.blocks(m, n) * batches, num_sms), t.blocks(m, n) * t.rows * t.columns),
    )


_SMALL_TILES = TILES[-2:]
"""Tiles that are faster than all others for a short k."""


def product_tile(p: Product, target: CodegenTarget) -> Tile:
    """Return the tile of a product: with a short k a small one, which is 64 x 64 if that gives every SM two blocks.

    On an H100 a small tile was the fastest for each of 19 layers (benchmarks/cuda/products_16bit.py).
    """
    small = [t for t in _SMALL_TILES if t.shared <= shared_limit(target)]
    if p.k > crossovers_of(target).product_short_k or not small:
        return tile_for(p.m, p.n, p.batches, target)
    enough = 2 * multiprocessors(target)
    return next((t for t in small if t.blocks(p.m, p.n) * p.batches >= enough), small[-1])


class Generated(Kernel):
    """Our own GEMM.

    by_hopper: whether large products run by wgmma and TMA.
    """

    name = "matmul/generated"
    ops: tuple[str, ...] = OPS

    def __init__(self, *, by_hopper: bool = True) -> None:
        self.by_hopper = by_hopper

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for every dtype and any strides of the operands."""
        return supported(call)

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether it is faster than cuBLASLt with a second stage: products with an activation and few k, or on Hopper."""
        p, dtype = product_of(call).flat(), call.outputs[0].dtype
        measured = crossovers_of(target)
        sides = matrices_of(p, dtype)
        if (
            self.by_hopper
            and sides is not None
            and multiplies(p, sides, dtype, target)
            and activation_leads(p, target)
        ):
            return True
        if (
            not 0 < p.k <= measured.product_max_k.get(dtype, 0)
            or p.m * p.n < measured.product_min_results[dtype]
        ):
            return False
        if p.act == "none" or sides is None or sides.b_rows:
            return False
        return dtype is DType.FLOAT32 or (sides.a_aligned and sides.b_aligned and p.act not in LIBRARY_ACTS)

    def batch_invariant_form(self) -> Kernel:
        """Return the kernel with one order of sums for any number of rows."""
        return Generated(by_hopper=False)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        p = product_of(call).flat()
        if not p.batches * p.m * p.n:
            return LoweredCall(())
        dtype = call.outputs[0].dtype
        sides = matrices_of(p, dtype) if dtype in TAGS or dtype is DType.FLOAT32 else None
        if sides is not None and dtype is DType.FLOAT32 and not sides.b_rows and p.k:
            return fma_call(call, p, sides, target)
        tensor_cores = sides is not None and dtype in TAGS
        if self.by_hopper and sides is not None and leads(p, sides, dtype, target):
            stage = hopper_stage(call, p, sides, target)
        else:
            stage = tensor_stage(call, p, sides, target) if tensor_cores and sides else simt_stage(call, p)
        return LoweredCall((stage,), accumulates="float64" if dtype is DType.FLOAT64 else "float32")


def tensor_stage(
    call: NodeCall, p: Product, sides: Matrices, target: CodegenTarget, tile: Tile | None = None
) -> Stage:
    """Return the stage on tensor cores. Operands that are not 16-byte aligned use narrower loads."""
    dtype = call.outputs[0].dtype
    t = product_tile(p, target) if tile is None else tile
    arguments = arguments_of(call, p)
    lead = len(p.batch)
    batch = "(int64_t)blockIdx.z"
    numbers = {
        "BM": t.rows, "BN": t.columns, "STAGES": t.stages, "WARPS_M": t.warps_m, "WARPS_N": t.warps_n, "m": p.m, "n": p.n, "k": p.k,
        "TILES_N": math.ceil(p.n / t.columns),
    }  # fmt: skip
    flags = {"B_ROWS": c_bool(sides.b_rows), "PAIRS": c_bool(p.n % 2 == 0)}
    fast = sides.a_aligned and sides.b_aligned

    def run(name: str, a_aligned: bool) -> str:
        rows = f"gemm::Rows<{p.m}, {p.k}, {c_bool(a_aligned)}>"
        return f"gemm::run<{name}>({rows}{{left, {sides.a_row}}}, right, {sides.b_line}, finish);"

    structs = [
        "struct KERNEL_gemm {", f"    typedef {TAGS[dtype]} T;", constants("int", numbers),
        constants("bool", flags | {"B_ALIGNED": c_bool(sides.b_aligned)}), "};",
    ]  # fmt: skip
    body = [
        f"const tensor::u16 *left = (const tensor::u16 *)a + {offset_text(batch, p.batch, p.a_strides[:lead])};",
        f"const tensor::u16 *right = (const tensor::u16 *)b + {offset_text(batch, p.batch, p.b_strides[:lead])};",
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};",
    ]
    if fast:
        structs.append(
            "struct KERNEL_unaligned : KERNEL_gemm { static constexpr bool B_ALIGNED = false, PAIRS = false; };"
        )
    else:
        structs[3] = constants("bool", flags | {"B_ALIGNED": "false", "PAIRS": "false"})
    end = calls_by_alignment(run) if fast else None
    body += [] if fast else [run("KERNEL_gemm", False)]
    launch = LaunchConfig(
        (t.blocks(p.m, p.n), 1, p.batches),
        (t.threads, 1, 1),
        t.shared,
        min_blocks_per_sm=2 if t.shared * 2 <= shared_limit(target) else 1,
    )
    return cuda_stage(
        f"matmul_{p.m}x{p.n}x{p.k}", about(call, f"tensor cores, {t.rows}x{t.columns} a block"), arguments, body, launch, end=end,
        before=[*structs, *finish_text(p, arguments, "float")], parts=parts_of(p.act, "gemm"),
        flops=2 * p.batches * p.m * p.n * p.k, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def fma_call(
    call: NodeCall, p: Product, sides: Matrices, target: CodegenTarget, config: FmaConfig | None = None
) -> LoweredCall:
    """Return a product of float32 whose operands have contiguous k. Operands that are not 16-byte aligned use narrower copies."""
    c = fma_config(p.m, p.n, p.k, p.batches, target) if config is None else config
    arguments, split = arguments_of(call, p), split_arguments(c)
    lead = len(p.batch)
    batch = "(int64_t)blockIdx.z"

    def run(fast: bool) -> str:
        sides_text = ", ".join(
            f"fma_gemm::Lines<{limit}, {p.k}, {c_bool(fast)}>{{{side}, {line}}}"
            for limit, side, line in ((p.m, "left", sides.a_row), (p.n, "right", sides.b_line))
        )
        memory = "parts, counters" if split else "nullptr, nullptr"
        return f"fma_gemm::run<KERNEL_sizes>({sides_text}, {memory}, finish);"

    fast = sides.a_aligned and sides.b_aligned
    body = [
        f"const float *left = a + {offset_text(batch, p.batch, p.a_strides[:lead])};",
        f"const float *right = b + {offset_text(batch, p.batch, p.b_strides[:lead])};",
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};",
        *([] if fast else [run(False)]),
    ]
    end = ByAlignment(("a", "b"), run(True), run(False)) if fast else None
    before = [
        "struct KERNEL_sizes {", constants("int", fma_numbers(c, p.m, p.n, p.k)), "};", *finish_text(p, arguments, "float"),
    ]  # fmt: skip
    t = c.tile
    launch = fma_launch(c, p.m, p.n, p.batches, target)
    stage = cuda_stage(
        f"matmul_{p.m}x{p.n}x{p.k}", about(call, f"FMA, {t.rows}x{t.columns} a block, {c.splits} splits"), [*arguments, *split], body, launch,
        end=end, before=before, parts=parts_of(p.act, "fma_gemm"), flops=2 * p.batches * p.m * p.n * p.k,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip
    return fma_lowered(c, stage, p.m, p.n, p.batches)


def simt_stage(call: NodeCall, p: Product) -> Stage:
    """Return the stage on CUDA cores, for every dtype and any strides, with register blocking."""
    dtype = call.outputs[0].dtype
    arguments = arguments_of(call, p)
    sums = accumulator(dtype)
    lead = len(p.batch)
    batch = "(int64_t)blockIdx.z"
    large = sums != "double" and math.ceil(p.m / 128) * math.ceil(p.n / 128) * p.batches >= REFERENCE_SMS
    results = 8 if large else 4
    blocks = math.ceil(p.m / (16 * results)) * math.ceil(p.n / (16 * results))
    k_step, n_step = p.b_strides[lead:]
    sizes = {"TM": results, "TN": results, "m": p.m, "n": p.n, "k": p.k}
    contiguity = {"A_ALONG_K": c_bool(p.a_strides[-1] == 1), "B_ALONG_K": c_bool(k_step == 1 and n_step != 1)}

    def side(name: str, first: str, second: str, ctype: str, text: str) -> str:
        return (
            f"struct KERNEL_{name} {{ const {ctype} *at;"
            f" __device__ __forceinline__ {sums} operator()(int64_t {first}, int64_t {second}) const"
            f" {{ return ({sums})load<1>(at + ({text})); }} }};"
        )

    row = offset_text("row", p.rows, p.a_strides[lead:-1])
    before = [
        "struct KERNEL_simt {", f"    typedef {sums} C;", constants("int", sizes), constants("bool", contiguity), "};",
        side("a", "row", "k", arguments[0].ctype, f"{row} + {offset_text('k', (p.k,), p.a_strides[-1:])}"),
        side("b", "k", "column", arguments[1].ctype,
             f"{offset_text('k', (p.k,), (k_step,))} + {offset_text('column', (p.n,), (n_step,))}"),
        *finish_text(p, arguments, sums),
    ]  # fmt: skip
    body = [
        f"const KERNEL_a left = {{a + {offset_text(batch, p.batch, p.a_strides[:lead])}}};",
        f"const KERNEL_b right = {{b + {offset_text(batch, p.batch, p.b_strides[:lead])}}};",
        f"simt::run<KERNEL_simt>(left, right, KERNEL_finish{{{', '.join(a.name for a in arguments[2:])}}});",
    ]
    return cuda_stage(
        f"matmul_{p.m}x{p.n}x{p.k}", about(call, f"{16 * results}x{16 * results} a block"), arguments, body,
        LaunchConfig((blocks, 1, p.batches), (256, 1, 1), min_blocks_per_sm=2 if sums == "float" else 0), before=before, parts=parts_of(p.act, "simt", "tensor"),
        flops=2 * p.batches * p.m * p.n * p.k, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (CublasLt(), Generated(), Cublas())
