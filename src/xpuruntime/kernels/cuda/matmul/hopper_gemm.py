"""Products of many rows on Hopper: 16-bit floats, by wgmma and TMA (``templates/cuda/hopper_gemm.cuh``), with the epilogue in the same launch.

A gated layer multiplies its gate's activation by the other half of its results before they are stored. ``benchmarks/cuda/products_hopper.py`` compares
both with cuBLASLt, which needs a second launch for such an epilogue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....codegen.cuda.target import CudaTarget
from ....codegen.target import CodegenTarget
from ....types import DType
from ...kernel import LoweredCall, NodeCall, Stage
from ...spec.linear import LinearLayer
from ...spec.product import Product
from ..crossovers import crossovers_of
from ..heavy import TAGS, about, bytes_of, c_bool, constants, in_chunks, multiprocessors, shared_limit
from ..launch import Argument, LaunchConfig, TiledMatrix, cuda_stage
from .gemv_problem import problem_of_layer
from .libraries import LIBRARY_ACTS
from .text import Matrices, activation_text, arguments_of, finish_text

__all__ = [
    "HOPPER_TILES",
    "HopperTile",
    "activation_leads",
    "gated_call",
    "gates",
    "gating_repays",
    "hopper_stage",
    "hopper_tile",
    "leads",
    "multiplies",
]

_ROWS, _STEP, _CLUSTER, _THREADS = 128, 64, 2, 384
"""Rows of a tile, values of k of a step, blocks of a cluster, which share columns, and threads of a block."""
_MAX_PADDING, _MAX_ACT_PADDING = 9 / 8, 1.3
"""Maximum of ``_padding`` where a product is chosen; the second for products with an activation that cuBLASLt lacks."""
_BARRIER_BYTES = 16
"""Bytes of the two mbarriers of a stage."""
_STEP_COST, _TILE_COST = 24, 400
"""Costs of a step and of a tile besides those of its columns. The unit is a step of one column, about 4 cycles. Fitted with the next to the products of
``products_hopper.py`` on an H200."""
_EPILOGUE_COST = {"none": 0.0, "gated": 2.0, "act": 4.0, "terms": 4.0}
"""Cost of a column's epilogue in a tile of 128 columns. It grows with the columns, whose unrolled text is not in the instruction cache."""


@dataclass(frozen=True, slots=True)
class HopperTile:
    """The columns of b in a block's tile, and the stages of shared memory."""

    columns: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * ((_ROWS + self.columns) * _STEP * 2 + _BARRIER_BYTES)

    def tiles(self, m: int, n: int, halves: int = 1) -> int:
        """Return the tiles of a cluster's blocks."""
        return math.ceil(m / (_CLUSTER * _ROWS)) * math.ceil(n / (self.columns // halves))

    def waves(self, m: int, n: int, halves: int, num_sms: int) -> int:
        """Return the tiles that a block computes one after the other."""
        return math.ceil(self.tiles(m, n, halves) / max(1, num_sms // _CLUSTER))

    def cost(self, m: int, n: int, k: int, epilogue: str, num_sms: int) -> float:
        """Return the time of a product, in steps of one column. Narrow tiles wait for the copies of their rows."""
        steps, halves = math.ceil(k / _STEP), 2 if epilogue == "gated" else 1
        step = max(self.columns, _ROWS / 2 + self.columns / 4) + _STEP_COST
        rest = _EPILOGUE_COST[epilogue] * self.columns * self.columns / 128 + _TILE_COST
        return self.waves(m, n, halves, num_sms) * (steps * step + rest)


_SPILLING = {"terms": (224,)}
"""Columns of tiles with too few registers for an epilogue."""
HOPPER_TILES: tuple[HopperTile, ...] = (
    HopperTile(256, 4), HopperTile(224, 5), HopperTile(192, 5), HopperTile(160, 6), HopperTile(128, 7), HopperTile(96, 8), HopperTile(64, 9),
)  # fmt: skip
"""Tiles whose columns are those of a wgmma instruction, with as many stages as fit."""


def hopper_tile(m: int, n: int, k: int, target: CodegenTarget, epilogue: str = "none") -> HopperTile | None:
    """Return the tile that takes the least time; None if the target lacks the instructions or the shared memory, or for too many rows.

    epilogue: ``none``, ``act``, ``terms`` of rows, or ``gated``, whose product has two halves of n columns.
    """
    if not isinstance(target, CudaTarget) or not (target.sm.wgmma and target.sm.tma):
        return None
    halves = 2 if epilogue == "gated" else 1
    if target.config.max_cluster_size < _CLUSTER or max(m, n * halves) + _CLUSTER * _ROWS >= 2**31:
        return None
    num_sms = multiprocessors(target)
    fitting = [
        t
        for t in HOPPER_TILES
        if t.shared <= shared_limit(target) and t.columns not in _SPILLING.get(epilogue, ())
    ]
    return min(fitting, key=lambda t: (t.cost(m, n, k, epilogue, num_sms), -t.columns), default=None)


def multiplies(p: Product, sides: Matrices, dtype: DType, target: CodegenTarget) -> bool:
    """Return whether a product of flat operands has the form: k contiguous on both sides, rows that TMA copies, one matrix."""
    aligned = sides.a_aligned and sides.b_aligned and sides.a_row >= p.k and sides.b_line >= p.k
    form = aligned and not sides.b_rows and p.batches == 1 and not p.batch
    return form and dtype in TAGS and p.m * p.n * p.k > 0 and hopper_tile(p.m, p.n, p.k, target) is not None


def gates(call: NodeCall, target: CodegenTarget) -> bool:
    """Return whether a ``norm_linear`` is a gated layer of the form: 16-bit floats, no norm, no terms, rows that TMA copies."""
    layer = LinearLayer.of(call)
    form = (
        layer.halves == 2 and not layer.operands and layer.dtype in TAGS and layer.m * layer.n * layer.k > 0
    )
    return (
        form
        and in_chunks(layer.dtype, layer.k)
        and hopper_tile(layer.m, layer.n, layer.k, target, "gated") is not None
    )


def leads(p: Product, sides: Matrices | None, dtype: DType, target: CodegenTarget) -> bool:
    """Return whether our GEMM has this form for a product; else it has the tiles of ``generated.py``."""
    if sides is None or not multiplies(p, sides, dtype, target):
        return False
    large = min(p.n, p.k) >= _STEP and p.m * p.n * p.k >= crossovers_of(target).hopper_min_work
    return (large and _padding(p.m) <= _MAX_PADDING) or activation_leads(p, target)


def activation_leads(p: Product, target: CodegenTarget) -> bool:
    """Return whether a product of the form is faster than by cuBLASLt with a second launch: activations that cuBLASLt lacks."""
    measured = crossovers_of(target)
    if p.act in LIBRARY_ACTS or _epilogue_of(p) == "terms":
        return False
    enough = all(
        size >= limit for size, limit in zip((p.m, p.n, p.k), measured.hopper_act_min_sizes, strict=True)
    )
    return enough and p.m * p.n * p.k >= measured.hopper_act_min_work and _padding(p.m) <= _MAX_ACT_PADDING


def _epilogue_of(p: Product) -> str:
    if p.alpha != 1 or any(any(t.strides[:-1]) for t in p.terms):
        return "terms"
    return "none" if p.act == "none" else "act"


def gating_repays(m: int, target: CodegenTarget) -> bool:
    """Return whether a gated layer of so many rows is faster than cuBLASLt and a second launch."""
    return m >= crossovers_of(target).gated_min_rows and _padding(m) <= _MAX_PADDING


def _padding(m: int) -> float:
    """Return the rows of the tiles of all clusters, as a multiple of those of a product."""
    return math.ceil(m / (_CLUSTER * _ROWS)) * _CLUSTER * _ROWS / m


def hopper_stage(
    call: NodeCall, p: Product, sides: Matrices, target: CodegenTarget, tile: HopperTile | None = None
) -> Stage:
    """Return the stage of a product."""
    tile = hopper_tile(p.m, p.n, p.k, target, _epilogue_of(p)) if tile is None else tile
    assert tile is not None
    arguments, dtype = arguments_of(call, p), call.outputs[0].dtype
    text, parts = activation_text(p.act, dtype)
    finish = finish_text(p, arguments, "float", text, starts=True)
    return _stage(
        call, dtype, (p.m, p.n, p.k), (sides.a_row, sides.b_line), 1, tile, arguments, finish, target,
        parts=parts | {"hopper_gemm"}, flops=2 * p.m * p.n * p.k,
    )  # fmt: skip


def gated_call(call: NodeCall, target: CodegenTarget, tile: HopperTile | None = None) -> LoweredCall:
    """Return a gated layer."""
    layer, problem = LinearLayer.of(call), problem_of_layer(call)
    tile = hopper_tile(layer.m, layer.n, layer.k, target, "gated") if tile is None else tile
    assert tile is not None
    a, b, y = problem.arguments
    text, parts = activation_text(layer.act, layer.dtype)
    finish = [
        f"struct KERNEL_finish {{ {y.text};",
        f"    __device__ __forceinline__ tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + (long long)row * {layer.n}; }}",
        "    static constexpr bool STARTS = false, ADDS = false;",
        f"    __device__ __forceinline__ float value(int, int, float x, float sum) const {{ return {text} * sum; }}",
        "};",
    ]
    stage = _stage(
        call, layer.dtype, (layer.m, layer.n, layer.k), (layer.k, layer.k), 2, tile, [a, b, y], finish, target,
        parts=parts | {"hopper_gemm"}, flops=4 * layer.m * layer.n * layer.k,
    )  # fmt: skip
    return LoweredCall((stage,))


def _stage(
    call: NodeCall, dtype: DType, size: tuple[int, int, int], rows: tuple[int, int], halves: int, tile: HopperTile, arguments: list[Argument],
    finish: list[str], target: CodegenTarget, *, parts: frozenset[str], flops: int,
) -> Stage:  # fmt: skip
    (m, n, k), (a_row, b_row) = size, rows
    numbers = {
        "BN": tile.columns,
        "STAGES": tile.stages,
        "m": m,
        "n": n,
        "k": k,
        "a_row": a_row,
        "b_row": b_row,
    }
    flags = {"GATED": c_bool(halves == 2), "ALIGNED": c_bool(n % 8 == 0)}
    before = [
        "struct KERNEL_gemm {", f"    typedef {TAGS[dtype]} T;", constants("int", numbers), constants("bool", flags), "};", *finish,
    ]  # fmt: skip
    body = [
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};",
        "typedef const tensor::u16 *In;",
        "hopper_gemm::run<KERNEL_gemm>((In)a, (In)b, (In)y, a_map, b_map, finish);",
    ]
    blocks = min(tile.tiles(m, n, halves), max(1, multiprocessors(target) // _CLUSTER)) * _CLUSTER
    launch = LaunchConfig(
        (blocks, 1, 1), (_THREADS, 1, 1), tile.shared, min_blocks_per_sm=1, cluster=_CLUSTER
    )
    matrices = (
        TiledMatrix("a", m, k, a_row, _ROWS),
        TiledMatrix("b", n * halves, k, b_row, tile.columns // 2),
    )
    return cuda_stage(
        f"matmul_{m}x{n}x{k}" if halves == 1 else f"gated_{m}x{n}x{k}", about(call, f"wgmma, {_ROWS}x{tile.columns} a block"), arguments, body, launch,
        before=before, matrices=matrices, parts=parts, waits_itself=True, flops=flops,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip
