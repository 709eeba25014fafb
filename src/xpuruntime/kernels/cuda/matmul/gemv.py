"""``matmul/gemv`` on CUDA: few rows times a weight whose k is contiguous (``templates/cuda/gemv.cuh``), as decoding has them.

All of the time is spent on reading the weight once. Warps own columns; lanes stride along k in coalesced 16-byte reads. The first weights of a
launch are prefetched before the previous launch is complete. Blocks have one item of columns each, up to eight blocks per SM: on an H200 that took
17 us less a layer of Qwen2.5-1.5B than two persistent blocks that loop over their items (``benchmarks/cuda/decoder_breakdown.py``).
``norm_linear`` has an RMS norm before the product: the sums of squares of a row are computed while it is staged, and the factor is applied to
finished sums. In a gated layer, a group of warps has rows of both halves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import ACTIVATIONS
from ...spec.linear import LinearLayer, why_not
from ...spec.matmul import OPS, product_of
from ...spec.product import C_TYPES, accumulator
from ..heavy import FULL, about, argument, bytes_of, c_bool, constants, in_chunks
from ..launch import Argument, LaunchConfig, cuda_stage
from .text import arguments_of, matrices_of, parts_of, place_text, supported

__all__ = ["KERNELS", "ROWS", "Gemv", "GemvTileConfig", "NormLinear", "gemv_stage", "gemv_tile_config"]

ROWS = 4
"""Up to so many rows a weight is streamed at memory's speed; beyond, products in plain arithmetic take longer than that."""

MAX_ROWS = 16
"""Up to so many rows ``norm_linear`` takes."""

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
_WARPS = 8
_MAX_BLOCKS = 8 * FULL
"""Blocks of a launch beyond which a group computes several items."""
_SHORT = 16
"""Steps up to which one warp reads a whole row."""
_LOADS = 12
"""16-byte loads of a thread that are under way."""
_LOADS_IN_REGS = 8
"""Loads under way that the 64 registers of a thread hold where a multiprocessor has four blocks; more are spilled."""
_STAGED = 32 * 1024


@dataclass(frozen=True, slots=True)
class GemvTileConfig:
    """Tile sizes of a launch.

    Rows of the weight that a group of warps reads at a time, warps of a group (which share k), groups of a block (1 where a group has several
    warps), steps of reads in flight, items of columns of a group, and blocks of an SM at min_blocks_per_sm, which bounds a thread's registers.
    """

    columns: int
    split: int
    groups: int
    stages: int
    items_per_group: int = 1
    min_blocks_per_sm: int = 4

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.split * self.groups * 32

    def blocks(self, items: int) -> int:
        """Return the number of blocks for so many items."""
        return math.ceil(items / (self.items_per_group * self.groups))


def gemv_tile_config(m: int, n: int, k: int, dtype: DType, gated: bool = False) -> GemvTileConfig:
    """Return the config for n results. The warps of a block share long rows; other rows have one warp each.

    A gated result takes two rows.
    """
    steps = max(1, math.ceil(k * dtype.bits / 8 / 512))
    few = n * (1 + gated) <= 3 * FULL * _WARPS
    enough = n * (1 + gated) >= 8 * FULL * (1 if steps > _SHORT else _WARPS)  # blocks, with four columns each
    columns = (
        (1 if few and not gated and steps <= _SHORT else 4 if enough else 2) if m == 1 else 4 if m <= 8 else 2
    )
    own = min(columns // (1 + gated), 1 << (n.bit_length() - 1))
    columns = own * (1 + gated)
    items = math.ceil(n / own)
    split = 1
    if steps > _SHORT or (items < 4 * FULL and steps > 1):
        choices = range(min(_WARPS, steps), min(3, steps - 1), -1)
        split = min(choices, key=lambda s: (math.ceil(steps / s) * s - steps, -s))
    each, most = math.ceil(steps / split), max(1, _LOADS // columns)
    stages = min(
        range(min(each, math.ceil(most / 2)), min(each, most) + 1),
        key=lambda a: (math.ceil(each / a) * a - each, -a),
    )
    groups = _WARPS if split == 1 else 1
    min_blocks_per_sm = 3 if columns > 2 or columns * stages > _LOADS_IN_REGS else 4
    return GemvTileConfig(
        columns, split, groups, stages, max(1, items // (_MAX_BLOCKS * groups)), min_blocks_per_sm
    )


@dataclass(frozen=True, slots=True)
class _Streamed:
    """A product as the template takes it.

    terms:      values added to a result: the argument, its offset by ``row`` and ``column``, a factor, and whether the other half of a gated
            layer adds it.
    place:      the offset of a result.
    scale, eps: those of a norm.
    """

    m: int
    n: int
    k: int
    x_row: int
    w_row: int
    dtype: DType
    arguments: Sequence[Argument]
    terms: Sequence[tuple[Argument, str, float, bool]]
    place: str
    known: bool
    alpha: float = 1.0
    act: str = "none"
    gated: bool = False
    scale: Argument | None = None
    eps: float = 0.0

    @property
    def sums(self) -> str:
        return accumulator(self.dtype)

    @property
    def aligned(self) -> bool:
        return in_chunks(self.dtype, self.x_row, self.w_row, self.k)

    @property
    def staged(self) -> bool:
        size = 8 if self.sums == "double" else 4
        return self.scale is not None and self.m * self.k > 0 and self.m * (self.k + 8) * size <= _STAGED


class Gemv(Kernel):
    """Few rows times a weight."""

    name = "matmul/gemv"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for up to four rows of floats with k contiguous on both sides, in one product."""
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

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        p = product_of(call).flat()
        return LoweredCall((gemv_stage(call, gemv_tile_config(p.m, p.n, p.k, call.outputs[0].dtype)),))


@dataclass(frozen=True, slots=True)
class NormLinear(Kernel):
    """The GEMV of ``norm_linear``; policies name it by either word."""

    name: str
    ops: tuple[str, ...] = ("norm_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of few rows, and a weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        m = LinearLayer.of(call).m
        if m > MAX_ROWS:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"for up to {MAX_ROWS} rows, and there are {m}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        layer = LinearLayer.of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        config = gemv_tile_config(layer.m, layer.n, layer.k, layer.dtype, layer.halves == 2)
        return LoweredCall(
            (gemv_stage(call, config),), accumulates="float64" if layer.sums == "double" else "float32"
        )


def _of_product(call: NodeCall) -> _Streamed:
    p, dtype = product_of(call).flat(), call.outputs[0].dtype
    sides, arguments = matrices_of(p, dtype), arguments_of(call, p)
    assert sides is not None
    terms = [
        (a, place_text(p, t.strides, batched=False), float(t.factor), False)
        for t, a in zip(p.terms, arguments[2:], strict=False)
    ]
    return _Streamed(
        p.m, p.n, p.k, sides.a_row, sides.b_line, dtype, arguments, terms, place_text(p, p.y_strides, batched=False),
        call.tensor(p.b).is_weight, p.alpha, p.act,
    )  # fmt: skip


def _of_layer(call: NodeCall) -> _Streamed:
    layer = LinearLayer.of(call)
    n, gated = layer.n, layer.halves == 2
    given = {name: argument(call.tensor(at).spec, f"in{at}", name) for name, at in layer.operands}
    at = f"row * {n} + column"
    terms = []
    if "bias" in given:
        terms.append((given["bias"], "column", 1.0, False))
        terms += [(given["bias"], f"{n} + column", 1.0, True)] if gated else []
    if "residual" in given:
        terms.append((given["residual"], at, 1.0, False))
    arguments = [
        argument(call.tensor(0).spec, "in0", "a"), argument(call.tensor(1).spec, "in1", "b"), *given.values(),
        argument(call.outputs[0], "out0", "y", written=True),
    ]  # fmt: skip
    return _Streamed(
        layer.m, n, layer.k, layer.k, layer.k, layer.dtype, arguments, terms, at, call.tensor(1).is_weight, 1.0, layer.act, gated,
        given.get("norm"), layer.eps,
    )  # fmt: skip


def gemv_stage(call: NodeCall, config: GemvTileConfig) -> Stage:
    """Return the stage of a config."""
    s = _of_layer(call) if call.op == "norm_linear" else _of_product(call)
    known = s.known and (s.scale is None or call.tensor(4).is_weight)
    numbers: Mapping[str, object] = {
        "m": s.m, "n": s.n, "k": s.k, "x_row": s.x_row, "w_row": s.w_row, "COLUMNS": config.columns, "SPLIT": config.split,
        "GROUPS": config.groups, "STAGES": config.stages, "ITEMS_PER_GROUP": config.items_per_group,
    }  # fmt: skip
    flags = {
        "GATED": s.gated,
        "NORM": s.scale is not None,
        "STAGED": s.staged,
        "PREFETCH_WEIGHTS": known,
        "ALIGNED": s.aligned,
    }
    before = [
        "struct KERNEL_gemv {", f"    typedef {C_TYPES[s.dtype]} S;", f"    typedef {s.sums} A;", constants("int", numbers),
        constants("bool", {name: c_bool(v) for name, v in flags.items()}),
        f"    static __device__ __forceinline__ {s.sums} eps() {{ return ({s.sums}){s.eps!r}; }}", "};",
        *(["struct KERNEL_anywhere : KERNEL_gemv { static constexpr bool ALIGNED = false; };"] if s.aligned else []),
        *_finish_text(s),
    ]  # fmt: skip
    scale = "(const KERNEL_gemv::S *)nullptr" if s.scale is None else s.scale.name
    held = [a.name for a, *_ in dict.fromkeys(s.terms)] if s.terms else []
    body = [f"const KERNEL_finish finish = {{{', '.join([*dict.fromkeys(held), 'y'])}}};"]
    if s.aligned:
        places = " | ".join(f"(uint64_t){n}" for n in ("a", "b", *([scale] if s.scale else [])))
        body += [
            f"if (({places}) % 16 == 0) gemv::run<KERNEL_gemv>(a, b, {scale}, finish);",
            f"else gemv::run<KERNEL_anywhere>(a, b, {scale}, finish);",
        ]
    else:
        body.append(f"gemv::run<KERNEL_gemv>(a, b, {scale}, finish);")
    own = config.columns // (1 + s.gated)
    rows = s.n * (1 + s.gated)
    launch = LaunchConfig(
        (config.blocks(math.ceil(s.n / own)), 1, 1),
        (config.threads, 1, 1),
        min_blocks_per_sm=config.min_blocks_per_sm if s.m == 1 and s.sums == "float" else 0,
    )
    stem = f"{'norm_' if s.scale else ''}gemv_{s.m}x{rows}x{s.k}"
    return cuda_stage(
        f"{stem}_{s.act}" if s.gated else stem,
        about(call, f"{config.columns} rows of the weight at a time, by {config.split} warp{'s' if config.split > 1 else ''}"), s.arguments,
        body, launch, before=before, parts=parts_of(s.act, "gemv"), early=True, flops=2 * s.m * rows * s.k,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def _finish_text(s: _Streamed) -> list[str]:
    """Return the epilogue ``KERNEL_finish``: terms are read before the sum is complete, then the result is computed and stored."""
    head, kind = "    __device__ __forceinline__", s.sums
    y = s.arguments[-1]
    held = dict.fromkeys(a.text for a, *_ in s.terms)
    lines = ["struct KERNEL_finish {", *(f"    {text};" for text in (*held, y.text))]
    fields = "".join(f" {kind} t{i};" for i in range(len(s.terms)))
    reads = ", ".join(f"({kind})load<1>({a.name} + {place})" for a, place, *_ in s.terms)
    lines += [
        f"    struct Terms {{{fields} }};",
        f"{head} Terms terms(int row, int column) const {{ return {{{reads}}}; }}",
        f"{head} void keep(int row, int column, {kind} sum, {kind} gate, const Terms &terms) const {{",
        f"        {kind} x = sum;",
    ]
    if s.alpha != 1:
        lines.append(f"        x = x * ({kind}){s.alpha!r};")
    for i, (_, _, factor, other) in enumerate(s.terms):
        to = "gate" if other else "x"
        lines.append(f"        {to} = {to} + {'' if factor == 1 else f'({kind}){factor!r} * '}terms.t{i};")
    if s.act != "none":
        lines.append(f"        x = {ACTIVATIONS[s.act][0]};")
    if s.gated:
        lines.append("        x = x * gate;")
    return [
        *lines,
        f"        store<1>(y + ({s.place}), (typename storage_<{y.ctype}>::compute)x);",
        "    }",
        "};",
    ]


KERNELS: tuple[Any, ...] = (Gemv(), NormLinear("matmul/gemv"), NormLinear("matmul/generated"))
