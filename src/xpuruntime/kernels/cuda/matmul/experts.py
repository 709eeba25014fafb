"""``expert_linear`` on CUDA: products with the matrices of chosen experts.

``matmul/gemv``: each pair of a row and a slot is one product of the GEMV (``templates/cuda/gemv.cuh``), which reads the chosen matrix alone, as
decoding needs it. ``matmul/generated``: for many rows. One block groups the pairs by expert in tiles of rows (``templates/cuda/experts.cuh``);
then the GEMM multiplies each tile with its expert's matrix, on tensor cores for 16-bit floats.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import ACTIVATIONS
from ...spec.experts import ExpertProduct, why_not_experts
from ...spec.movement.elements import STATUS
from ..heavy import MAX_BLOCKS_YZ, TAGS, about, argument, c_bool, constants, in_chunks, shared_limit
from ..launch import Argument, LaunchConfig, cuda_stage
from .gemv import gemv_stage, gemv_tile_config
from .gemv_problem import GemvProblem
from .generated import TILES, Tile
from .text import calls_by_alignment, parts_of

__all__ = ["KERNELS", "ExpertGemm", "ExpertGemv", "expert_operands", "reporting", "row_text"]

_MAX_EXPERTS = 4096
"""Maximum experts of a launch: their tiles are counted in shared memory."""
_SIMT_ROWS = 64
"""Rows of a tile of ``simt::run``."""
_THREADS = 256


def expert_operands(call: NodeCall) -> list[Argument]:
    """Return the arguments: rows, matrices, chosen experts, and the result."""
    names = ("a", "b", "ids")
    return [
        *(argument(call.tensor(i).spec, f"in{i}", name) for i, name in enumerate(names)),
        argument(call.outputs[0], "out0", "y", written=True),
    ]


def row_text(p: ExpertProduct, pair: str) -> str:
    """Return the row of x of a pair."""
    return f"{pair} / {p.slots}" if p.shared_x and p.slots > 1 else pair


class ExpertGemv(Kernel):
    """One GEMV per pair of a row and a slot."""

    name = "matmul/gemv"
    ops: tuple[str, ...] = ("expert_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of few rows."""
        refused = _why_not(call)
        if refused is not None:
            return refused
        p = ExpertProduct.of(call)
        if not p.few:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"few rows are supported, got {p.rows} of {p.slots}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        return _by_pair(call)


class ExpertGemm(Kernel):
    """The GEMM of rows grouped by expert; the GEMV for few rows and before a gate."""

    name = "matmul/generated"
    ops: tuple[str, ...] = ("expert_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats."""
        refused = _why_not(call)
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to two stages, groups of rows and their products, or to the GEMV."""
        p = ExpertProduct.of(call)
        return _by_pair(call) if p.halves == 2 or p.few else _by_group(call, p, target)


def _why_not(call: NodeCall) -> Support | None:
    refused = why_not_experts(call)
    if refused is not None:
        return refused
    p = ExpertProduct.of(call)
    if p.pairs > MAX_BLOCKS_YZ and (p.halves == 2 or p.few):
        return Support.no(
            Reason.SHAPE_UNSUPPORTED,
            f"more than {MAX_BLOCKS_YZ} pairs exceed the grid of a launch, got {p.pairs}",
        )
    if p.pairs * p.n and not (0 < p.experts <= _MAX_EXPERTS and p.k):
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, f"1 to {_MAX_EXPERTS} experts of one input or more are supported"
        )
    return None


def _by_pair(call: NodeCall) -> LoweredCall:
    p = ExpertProduct.of(call)
    if not p.pairs * p.n:
        return LoweredCall(())
    matrix = p.halves * p.n * p.k
    begin = [
        "griddep_wait();  // the experts may be those that the previous launch chose",
        "const int64_t pair = blockIdx.y;",
        f"const auto *const left = a + ({row_text(p, 'pair')}) * {p.k};",
        f"const auto *const right = b + index_in(ids[pair], {p.experts}) * {matrix};",
    ]
    problem = GemvProblem(
        1, p.n, p.k, p.k, p.k, p.dtype, expert_operands(call), (), f"(int64_t)blockIdx.y * {p.n} + column", False, 1.0, p.act,
        p.halves == 2, count=p.pairs, begin=begin,
    )  # fmt: skip
    stage = gemv_stage(call, gemv_tile_config(1, p.n, p.k, p.dtype, p.halves == 2), problem)
    return LoweredCall((reporting(stage, "movement"),), accumulates=_accumulates(p))


def _by_group(call: NodeCall, p: ExpertProduct, target: CodegenTarget) -> LoweredCall:
    if not p.pairs * p.n:
        return LoweredCall(())
    tile = _tile(p, target) if p.dtype in TAGS else None
    rows = _SIMT_ROWS if tile is None else tile.rows
    tiles = p.pairs // rows + min(p.experts, p.pairs)
    a, b, ids, y = expert_operands(call)
    group = cuda_stage(
        f"group_{p.pairs}_by_{p.experts}", about(call, f"tiles of {rows} rows of one expert"),
        [ids, Argument("temp0", "table", "int32_t", written=True)],
        [f"experts::group<{p.pairs}, {p.experts}, {rows}, {tiles}>(ids, table);"],
        LaunchConfig((1, 1, 1), (_THREADS, 1, 1)), parts=frozenset({"experts"}), bytes=8 * p.pairs,
    )  # fmt: skip
    arguments = [a, b, Argument("temp0", "table", "int32_t"), y]
    if tile is None:
        products = _simt(call, p, arguments, tiles)
    else:
        products = _tensor(call, p, arguments, tiles, tile, target)
    stages = (reporting(group), products)
    return LoweredCall(stages, temps=(4 * tiles * (rows + 1),), accumulates=_accumulates(p))


def reporting(stage: Stage, *parts: str) -> Stage:
    """Return a stage that reports an expert that does not exist."""
    return replace(stage, scratch_bytes=STATUS, parts=stage.parts | {*parts})


def _accumulates(p: ExpertProduct) -> str:
    return "float64" if p.dtype is DType.FLOAT64 else "float32"


def _tile(p: ExpertProduct, target: CodegenTarget) -> Tile:
    """Return the largest tile that an expert's expected rows fill; else the one of the fewest rows."""
    candidates = [t for t in TILES if t.shared <= shared_limit(target)]
    expected = p.pairs / p.experts
    return next((t for t in candidates if t.rows <= expected), candidates[-1])


def _finish(p: ExpertProduct, y: Argument, sums: str) -> list[str]:
    head = "    __device__ __forceinline__"
    return [
        f"struct KERNEL_finish {{ {y.text}; const int32_t *table;",
        f"{head} bool skips(int row) const {{ return table[row] < 0; }}",
        f"{head} tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + (int64_t)table[row] * {p.n}; }}",
        f"{head} {sums} value(int, int, {sums} x) const {{ return {ACTIVATIONS[p.act][0]}; }}",
        f"{head} void write(int row, int column, {sums} sum) const {{",
        f"        if (!skips(row)) store<1>(y + ((int64_t)table[row] * {p.n} + column), (typename storage_<{y.ctype}>::compute)value(row, column, sum));",
        "    }",
        "};",
    ]


def _tensor(
    call: NodeCall, p: ExpertProduct, arguments: list[Argument], tiles: int, t: Tile, target: CodegenTarget
) -> Stage:
    """Return the products on tensor cores."""
    columns = math.ceil(p.n / t.columns)
    numbers = {
        "BM": t.rows, "BN": t.columns, "STAGES": t.stages, "WARPS_M": t.warps_m, "WARPS_N": t.warps_n, "m": tiles * t.rows, "n": p.n, "k": p.k,
        "TILES_N": columns,
    }  # fmt: skip
    aligned = in_chunks(p.dtype, p.k)
    flags = {"B_ROWS": "false", "PAIRS": c_bool(aligned and p.n % 2 == 0), "B_ALIGNED": c_bool(aligned)}
    head = "    __device__ __forceinline__"
    before = [
        "struct KERNEL_gemm {", f"    typedef {TAGS[p.dtype]} T;", constants("int", numbers), constants("bool", flags), "};",
        *(["struct KERNEL_unaligned : KERNEL_gemm { static constexpr bool B_ALIGNED = false, PAIRS = false; };"] if aligned else []),
        f"template <bool ALIGNED> struct KERNEL_rows : gemm::Rows<{numbers['m']}, {p.k}, ALIGNED> {{",
        f"    typedef gemm::Rows<{numbers['m']}, {p.k}, ALIGNED> Base;",
        "    const int32_t *table;",
        f"{head} KERNEL_rows(const tensor::u16 *x, const int32_t *table) : Base{{x, {p.k}}}, table(table) {{}}",
        f"{head} typename Base::Row row(int r) const {{",
        "        const int pair = table[r], there = pair < 0 ? 0 : pair;",
        f"        return typename Base::Row{{this->base + (int64_t)({row_text(p, 'there')}) * {p.k}, pair >= 0}};",
        "    }",
        "};",
        *_finish(p, arguments[-1], "float"),
    ]  # fmt: skip

    def run(name: str, is_aligned: bool) -> str:
        return f"gemm::run<{name}>(KERNEL_rows<{c_bool(is_aligned)}>((const tensor::u16 *)a, table), right, {p.k}, finish);"

    body = [
        "int tile, column;",
        f"gemm::tile_of(blockIdx.x, {tiles}, {columns}, tile, column);",
        f"const int64_t expert = table[{tiles * t.rows} + tile];",
        "if (expert < 0) return;",
        f"const tensor::u16 *const right = (const tensor::u16 *)b + expert * {p.n * p.k};",
        "const KERNEL_finish finish = {y, table};",
    ]
    end = calls_by_alignment(run) if aligned else None
    body += [] if aligned else [run("KERNEL_gemm", False)]
    launch = LaunchConfig(
        (tiles * columns, 1, 1),
        (t.threads, 1, 1),
        t.shared,
        min_blocks_per_sm=2 if t.shared * 2 <= shared_limit(target) else 1,
    )
    return cuda_stage(
        f"experts_{p.pairs}x{p.n}x{p.k}", about(call, f"tensor cores, {t.rows}x{t.columns} a block"), arguments, body, launch, end=end, before=before,
        parts=parts_of(p.act, "gemm"), flops=p.flops, bytes=p.read_bytes,
    )  # fmt: skip


def _simt(call: NodeCall, p: ExpertProduct, arguments: list[Argument], tiles: int) -> Stage:
    """Return the products on CUDA cores."""
    sums, columns = accumulator(p.dtype), math.ceil(p.n / 64)
    head, kind = "    __device__ __forceinline__", C_TYPES[p.dtype]
    sizes = {"TM": 4, "TN": 4, "m": tiles * _SIMT_ROWS, "n": p.n, "k": p.k}
    before = [
        "struct KERNEL_simt {", f"    typedef {sums} C;", constants("int", sizes),
        constants("bool", {"A_ALONG_K": "true", "B_ALONG_K": "true"}), "};",
        f"struct KERNEL_a {{ const {kind} *at; const int32_t *table;",
        f"{head} {sums} operator()(int64_t row, int64_t k) const {{",
        "        const int64_t pair = table[row];",
        f"        return pair < 0 ? ({sums})0 : ({sums})load<1>(at + (({row_text(p, 'pair')}) * {p.k} + k));",
        "    }",
        "};",
        f"struct KERNEL_b {{ const {kind} *at;",
        f"{head} {sums} operator()(int64_t k, int64_t column) const {{ return ({sums})load<1>(at + (column * {p.k} + k)); }}",
        "};",
        *_finish(p, arguments[-1], sums),
    ]  # fmt: skip
    body = [
        f"const int64_t expert = table[{tiles * _SIMT_ROWS} + blockIdx.x / {columns}];",
        "if (expert < 0) return;",
        f"simt::run<KERNEL_simt>(KERNEL_a{{a, table}}, KERNEL_b{{b + expert * {p.n * p.k}}}, KERNEL_finish{{y, table}});",
    ]
    return cuda_stage(
        f"experts_{p.pairs}x{p.n}x{p.k}", about(call, "64x64 a block"), arguments, body,
        LaunchConfig((tiles * columns, 1, 1), (256, 1, 1), min_blocks_per_sm=2 if sums == "float" else 0), before=before,
        parts=parts_of(p.act, "simt", "tensor"), flops=p.flops, bytes=p.read_bytes,
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (ExpertGemv(), ExpertGemm())
