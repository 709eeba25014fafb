"""Matrix products on CUDA: ``matmul/cublasLt`` and ``matmul/cublas`` by libraries, ``matmul/generated`` by our own templates.

Our own has two bodies: tensor cores for 16-bit floats (``templates/cuda/gemm.cuh``) and plain arithmetic for every dtype and any strides
(``templates/cuda/simt.cuh``). What a node multiplies stands in the CPU's ``Product``, which knows no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..gemm import ACTIVATIONS, C_TYPES, Product, accumulator, offset_text
from ..kernel import Kernel, Lowered, NodeCall, Stage, operand_ref
from ..matmul import OPS, product_of
from .heavy import (
    MOST_BLOCKS_YZ,
    TAGS,
    about,
    argument,
    bytes_of,
    c_bool,
    constants,
    in_chunks,
    multiprocessors,
    shared_limit,
)
from .launch import Argument, Launch, cuda_stage

__all__ = ["KERNELS", "Matrices", "arguments_of", "finish_text", "matrices_of"]


@dataclass(frozen=True, slots=True)
class Matrices:
    """Both sides as tensor cores and vector loads can read them: k side by side on the left; k or n on the right.

    a_row: elements between rows; b_line: between lines of the right side, which are columns, or k where ``b_rows``.
    a_aligned, b_aligned: rows are whole chunks of 16 bytes, from wherever the buffer starts.
    """

    a_row: int
    b_line: int
    b_rows: bool
    a_aligned: bool
    b_aligned: bool


def matrices_of(p: Product, dtype: DType) -> Matrices | None:
    """None where a side lies in no such way."""
    lead = len(p.batch)
    if len(p.rows) > 1:
        a_row = _even(p.rows, p.a_strides[lead:-1])
    else:
        a_row = p.a_strides[lead] if p.m > 1 else p.k
    k_step, n_step = p.b_strides[lead:]
    if a_row is None or (p.a_strides[-1] != 1 and p.k > 1):
        return None
    if k_step == 1 or p.k == 1:
        b_line, b_rows = n_step if p.n > 1 else p.k, False
    elif n_step == 1 or p.n == 1:
        b_line, b_rows = k_step, True
    else:
        return None
    a_batch, b_batch = p.a_strides[:lead], p.b_strides[:lead]
    return Matrices(
        a_row, b_line, b_rows,
        in_chunks(dtype, a_row, p.k, *a_batch), in_chunks(dtype, b_line, p.n if b_rows else p.k, *b_batch),
    )  # fmt: skip


def _even(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    step, extent = 0, 1
    for d, s in zip(reversed(shape), reversed(strides), strict=True):
        if d == 1:
            continue
        if extent == 1:
            step = s
        elif s != step * extent:
            return None
        extent *= d
    return step


def arguments_of(call: NodeCall, p: Product) -> list[Argument]:
    """Both sides, then the terms, then the result."""
    a, b = call.tensor(p.a), call.tensor(p.b)
    return [
        argument(a.spec, operand_ref("in", p.a), "a"),
        argument(b.spec, operand_ref("in", p.b), "b"),
        *(argument(t.operand.spec, operand_ref("in", t.position), f"t{t.position}") for t in p.terms),
        argument(call.outputs[0], "out0", "y", written=True),
    ]


def finish_text(p: Product, arguments: list[Argument], sums: str, *, batched: bool = True) -> list[str]:
    """``KERNEL_finish``: what becomes of a sum, and where it goes. Terms and the result lie over (batch, rows, columns)."""
    lead = len(p.batch)
    given = arguments[2:]
    batch = "(int64_t)blockIdx.z" if batched else "0"

    def place(strides: tuple[int, ...]) -> str:
        texts = (
            offset_text(batch, p.batch, strides[:lead]),
            offset_text("(int64_t)row", p.rows, strides[lead:-1]),
            offset_text("column", (p.n,), strides[-1:]),
        )
        return " + ".join(t for t in texts if t != "0") or "0"

    lines = ["struct KERNEL_finish {", *(f"    {a.text};" for a in given)]
    head = "    __device__ __forceinline__"
    row_place = place((*p.y_strides[:-1], 0))
    lines += [
        f"{head} tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + ({row_place}); }}",
        f"{head} {sums} value(int row, int column, {sums} sum) const {{",
        f"        {sums} x = sum;",
    ]
    if p.alpha != 1:
        lines.append(f"        x = x * ({sums}){p.alpha!r};")
    for t, a in zip(p.terms, given, strict=False):
        factor = "" if t.factor == 1 else f"({sums}){t.factor!r} * "
        lines.append(f"        x = x + {factor}({sums})load<1>({a.name} + {place(t.strides)});")
    lines += [
        f"        return {ACTIVATIONS[p.act][0]};",
        "    }",
        f"{head} void keep(int row, int column, {sums} sum) const {{",
        f"        store<1>(y + ({place(p.y_strides)}), (typename storage_<{given[-1].ctype}>::compute)value(row, column, sum));",
        "    }",
        "};",
    ]
    return lines


def parts_of(act: str, *more: str) -> frozenset[str]:
    """Parts of the prelude: those of an activation, and more."""
    return frozenset((*ACTIVATIONS[act][1], *more))


def supported(call: NodeCall) -> Support:
    """A dtype that has products, a dense result, weights that lie dense."""
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"no product in {dtype.value}")
    if not call.outputs[0].is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "writes dense results only")
    if not dtype.is_float and call.attrs.get("act", "none") != "none":
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"activations are computed in floats, not in {dtype.value}"
        )
    if product_of(call).flat().batches > MOST_BLOCKS_YZ:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"more than {MOST_BLOCKS_YZ} products in one launch")
    return Support.yes()


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's part of y, its warps, and how many tiles of k it holds."""

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
        """Threads of a block."""
        return self.warps_m * self.warps_n * 32

    def blocks(self, m: int, n: int) -> int:
        """Blocks of one product."""
        return math.ceil(m / self.rows) * math.ceil(n / self.columns)


TILES: tuple[Tile, ...] = (
    Tile(128, 128, 2, 2, 3),
    Tile(128, 64, 2, 2, 4),
    Tile(64, 128, 2, 2, 4),
    Tile(64, 64, 2, 2, 4),
    Tile(32, 64, 1, 4, 4),
)
"""From the one that reads least to the one that cuts finest."""


def tile_for(m: int, n: int, batches: int, target: CodegenTarget) -> Tile:
    """The largest tile that gives every multiprocessor a block and does not compute twice what is asked; else the finest that fits."""
    limit, want = shared_limit(target), multiprocessors(target)
    fitting = [t for t in TILES if t.shared <= limit]
    for tile in fitting:
        blocks = tile.blocks(m, n)
        waste = blocks * tile.rows * tile.columns / (m * n)
        if blocks * batches >= want and waste <= 1.5:
            return tile
    return min(
        fitting, key=lambda t: (-min(t.blocks(m, n) * batches, want), t.blocks(m, n) * t.rows * t.columns)
    )


class Generated:
    """Our own product."""

    name = "matmul/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every dtype, any strides of the operands."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        p = product_of(call).flat()
        if not p.batches * p.m * p.n:
            return Lowered(())
        dtype = call.outputs[0].dtype
        sides = matrices_of(p, dtype) if dtype in TAGS else None
        stage = simt_stage(call, p) if sides is None else tensor_stage(call, p, sides, target)
        return Lowered((stage,), accumulates="float64" if dtype is DType.FLOAT64 else "float32")


def tensor_stage(
    call: NodeCall, p: Product, sides: Matrices, target: CodegenTarget, tile: Tile | None = None
) -> Stage:
    """The product on tensor cores; operands that do not start at 16 bytes take the same way with slower reads."""
    dtype = call.outputs[0].dtype
    t = tile_for(p.m, p.n, p.batches, target) if tile is None else tile
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
            "struct KERNEL_anywhere : KERNEL_gemm { static constexpr bool B_ALIGNED = false, PAIRS = false; };"
        )
        body += [
            "if (((uint64_t)a | (uint64_t)b | (uint64_t)y) % 16 == 0)",
            f"    {run('KERNEL_gemm', True)}",
            "else",
            f"    {run('KERNEL_anywhere', False)}",
        ]
    else:
        structs[3] = constants("bool", flags | {"B_ALIGNED": "false", "PAIRS": "false"})
        body.append(run("KERNEL_gemm", False))
    launch = Launch(
        (t.blocks(p.m, p.n), 1, p.batches),
        (t.threads, 1, 1),
        t.shared,
        least=2 if t.shared * 2 <= shared_limit(target) else 1,
    )
    return cuda_stage(
        f"matmul_{p.m}x{p.n}x{p.k}", about(call, f"tensor cores, {t.rows}x{t.columns} a block"), arguments, body, launch,
        before=[*structs, *finish_text(p, arguments, "float")], parts=parts_of(p.act, "gemm"),
        flops=2 * p.batches * p.m * p.n * p.k, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def simt_stage(call: NodeCall, p: Product) -> Stage:
    """The product in plain arithmetic, any strides."""
    dtype = call.outputs[0].dtype
    arguments = arguments_of(call, p)
    sums = accumulator(dtype)
    lead = len(p.batch)
    batch = "(int64_t)blockIdx.z"
    wide = sums != "double" and math.ceil(p.m / 128) * math.ceil(p.n / 128) * p.batches >= 132
    each = 8 if wide else 4
    blocks = math.ceil(p.m / (16 * each)) * math.ceil(p.n / (16 * each))
    k_step, n_step = p.b_strides[lead:]
    sizes = {"TM": each, "TN": each, "m": p.m, "n": p.n, "k": p.k}
    along = {"A_ALONG_K": c_bool(p.a_strides[-1] == 1), "B_ALONG_K": c_bool(k_step == 1 and n_step != 1)}

    def side(name: str, first: str, second: str, ctype: str, text: str) -> str:
        return (
            f"struct KERNEL_{name} {{ const {ctype} *at;"
            f" __device__ __forceinline__ {sums} operator()(int64_t {first}, int64_t {second}) const"
            f" {{ return ({sums})load<1>(at + ({text})); }} }};"
        )

    row = offset_text("row", p.rows, p.a_strides[lead:-1])
    before = [
        "struct KERNEL_simt {", f"    typedef {sums} C;", constants("int", sizes), constants("bool", along), "};",
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
        f"matmul_{p.m}x{p.n}x{p.k}", about(call, f"{16 * each}x{16 * each} a block"), arguments, body,
        Launch((blocks, 1, p.batches), (256, 1, 1)), before=before, parts=parts_of(p.act, "simt", "tensor"),
        flops=2 * p.batches * p.m * p.n * p.k, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (Generated(),)
