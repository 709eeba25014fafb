"""Gradients of attention on CUDA: ``attention/flash_v2`` of the op ``attention_backward``.

FlashAttention-2's backward (``templates/cuda/flash_backward.cuh``) in three stages: statistics of each query, gradients of keys and values, gradients
of queries. The weights are computed again from the log-sum-exp of each query, so the scores are never stored. Nothing is added atomically: a
block of keys sums over all queries of the heads that share it, so equal inputs give equal bits. It is compute-bound: seven products of the
scores' size, where atomics would need five.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionGradients, AttentionShape
from ..heavy import MAX_BLOCKS_YZ, TAGS, about, argument, bytes_of, c_bool, constants, in_chunks, shared_limit
from ..launch import Argument, ByAlignment, LaunchConfig, blocks_for, cuda_stage
from .flash import (
    HEAD_SIZES,
    LOG2E,
    head_offset_text,
    logit_text,
    padded_size,
    supported_halves,
    unaligned_text,
)

__all__ = ["KERNELS", "FlashV2Backward"]

_NAMES = ("grad", "q", "k", "v", "y", "lse", "mask")
"""Operands, by position."""
_STATS_QUERIES = 16
"""Queries of a block of the first stage."""


@dataclass(frozen=True, slots=True)
class BackwardTileConfig:
    """Tile sizes of a block: rows whose gradients it computes, columns per step, warps."""

    rows: int
    columns: int
    warps: int

    def shared(self, d: int) -> int:
        """Return the bytes of shared memory: two tiles of rows, two stages of two tiles of columns, two stages of two numbers per column."""
        return (2 * self.rows + 4 * self.columns) * d * 2 + 4 * self.columns * 4


_WIDE = BackwardTileConfig(64, 32, 4)
_NARROW = BackwardTileConfig(128, 32, 4)


def tile_config_for(d: int) -> BackwardTileConfig:
    """Return the tile sizes for a padded head size: the accumulators of two results must fit in registers."""
    return _WIDE if d == HEAD_SIZES[-1] else _NARROW


class FlashV2Backward(Kernel):
    """Gradients by FlashAttention-2 on tensor cores, without atomics."""

    name = "attention/flash_v2"
    ops = ("attention_backward",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float16 and bfloat16 with heads of up to 128 contiguous elements."""
        answer = supported_halves(call)
        if not answer:
            return answer
        s, g = AttentionShape.of(call), AttentionGradients.of(call)
        if any(steps[3] != 1 for steps in (g.y, g.q, g.k, g.v)):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the elements of a head must be contiguous")
        d = padded_size(max(s.d, s.dv))
        config = tile_config_for(d)
        if max(s.queries, s.keys) > config.rows * MAX_BLOCKS_YZ:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"more than {config.rows * MAX_BLOCKS_YZ} queries or keys exceed the grid of a launch",
            )
        if config.shared(d) > shared_limit(target):
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"tiles of {config.shared(d)} bytes do not fit in shared memory, which has {shared_limit(target)}",
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to three stages; those without a result are left out."""
        s, g = AttentionShape.of(call), AttentionGradients.of(call)
        config = tile_config_for(padded_size(max(s.d, s.dv)))
        heads, rows = s.kv_heads * s.group, s.batch * s.kv_heads * s.group * s.queries
        stages = []
        if rows:
            stages.append(_stats_stage(call, s, g, rows))
        if s.batch * s.kv_heads * s.keys:
            stages.append(_gradient_stage(call, s, g, config, target, keys=True))
        if s.batch * heads * s.queries:
            stages.append(_gradient_stage(call, s, g, config, target, keys=False))
        return LoweredCall(tuple(stages), temps=(max(rows, 1) * 8,))


def _arguments(call: NodeCall, *names: str) -> list[Argument]:
    """Return the operands of these names that the call has."""
    return [
        argument(call.tensor(i).spec, f"in{i}", n)
        for i, n in enumerate(_NAMES)
        if n in names and call.optional(i) is not None
    ]


def _result(call: NodeCall, at: int) -> Argument:
    return argument(call.outputs[at], f"out{at}", f"grad_{'qkv'[at]}", written=True)


def _stats_stage(call: NodeCall, s: AttentionShape, g: AttentionGradients, rows: int) -> Stage:
    """Return the stage that computes the log-sum-exp to base 2, and the sum of grad * y, of each query."""
    dtype, heads = call.outputs[0].dtype, s.kv_heads * s.group
    aligned = in_chunks(dtype, s.dv, *g.y[:3], *s.y[:3])
    numbers = {
        "dv": s.dv, "queries": s.queries, "heads": heads, "grad_row": g.y[2], "y_row": s.y[2], "lse_row": s.lse[2],
    }  # fmt: skip
    struct = [
        "struct KERNEL_stats {",
        f"    typedef {TAGS[dtype]} T;",
        constants("int", numbers),
        constants("long long", {"rows": rows}),
        constants("bool", {"ALIGNED": c_bool(aligned), "PAIRS": "false"}),
        *(head_offset_text(n, steps) for n, steps in (("grad", g.y), ("y", s.y), ("lse", s.lse))),
        "};",
    ]
    pointers = "(const tensor::u16 *)grad, (const tensor::u16 *)y, lse, stats"
    body, end = [f"flash_backward::row_stats<KERNEL_stats>({pointers});"], None
    if aligned:
        struct.append(unaligned_text("KERNEL_stats", ()))
        unaligned = f"flash_backward::row_stats<KERNEL_unaligned>({pointers});"
        body, end = [], ByAlignment(("grad", "y"), body[0], unaligned)
    arguments = [*_arguments(call, "grad", "y", "lse"), Argument("temp0", "stats", "float", written=True)]
    return cuda_stage(
        f"attention_stats_{rows}x{s.dv}", about(call, f"statistics of {_STATS_QUERIES} queries a block"), arguments, body,
        LaunchConfig.flat(blocks_for(rows, _STATS_QUERIES), 128), end=end, before=struct, parts=frozenset({"flash_backward"}), flops=2 * rows * s.dv,
        bytes=bytes_of([call.tensor(0).spec, call.tensor(4).spec, call.tensor(5).spec]) + rows * 8,
    )  # fmt: skip


def _gradient_stage(
    call: NodeCall, s: AttentionShape, g: AttentionGradients, config: BackwardTileConfig, target: CodegenTarget, *, keys: bool
) -> Stage:  # fmt: skip
    """Return the stage that computes the gradients of keys and values, or of queries."""
    dtype, d, heads = call.outputs[0].dtype, padded_size(max(s.d, s.dv)), s.kv_heads * s.group
    plain = not s.mask and s.scale > 0
    aligned = in_chunks(dtype, s.d, s.dv, *s.q[:3], *s.k[:3], *s.v[:3], *g.y[:3])
    written = (g.k, g.v) if keys else (g.q,)
    pairs = aligned and not any(step % 2 for steps in written for step in steps[:3])
    numbers = {
        "D": d, "d": s.d, "dv": s.dv, "BM": config.rows, "BN": config.columns, "WARPS": config.warps, "queries": s.queries, "keys": s.keys,
        "group": s.group, "heads": heads, "offset": s.offset, "q_row": s.q[2], "k_row": s.k[2], "v_row": s.v[2], "grad_row": g.y[2],
        "grad_q_row": g.q[2], "grad_k_row": g.k[2], "grad_v_row": g.v[2],
    }  # fmt: skip
    flags = {"KEYS": keys, "CAUSAL": s.causal, "PLAIN": plain, "ALIGNED": aligned, "PAIRS": pairs}
    offsets = (
        ("q", s.q),
        ("k", s.k),
        ("v", s.v),
        ("grad", g.y),
        ("grad_q", g.q),
        ("grad_k", g.k),
        ("grad_v", g.v),
    )
    mask = _arguments(call, "mask")
    struct = [
        "struct KERNEL_gradients {",
        *(f"    {a.text};" for a in mask),
        f"    typedef {TAGS[dtype]} T;",
        constants("int", numbers),
        constants("long long", {"rows": s.batch * heads * s.queries}),
        constants("bool", {k: c_bool(v) for k, v in flags.items()}),
        *(head_offset_text(n, steps) for n, steps in offsets),
        f"    __device__ __forceinline__ static float scale() {{ return {s.scale * LOG2E if plain else LOG2E!r}f; }}",
        f"    __device__ __forceinline__ static float factor() {{ return {s.scale!r}f; }}",
        "    __device__ __forceinline__ float logit(float score, int batch, int head, int query, int key) const {",
        *logit_text(s, f"score * {s.scale!r}f", 1),
        "    }",
        "};",
    ]
    results = [_result(call, 1), _result(call, 2)] if keys else [_result(call, 0)]
    inputs = [f"(const tensor::u16 *){n}" for n in ("q", "k", "v", "grad")]
    outputs = [f"(tensor::u16 *){a.name}" for a in results]
    pointers = ", ".join([*inputs, "stats", *outputs, *([] if keys else ["nullptr"])])
    fields = f"{{{', '.join(a.name for a in mask)}}}"

    def call_text(name: str) -> str:
        return f"flash_backward::gradients<{name}>({pointers}, {name}{fields});"

    body, end = [call_text("KERNEL_gradients")], None
    if aligned:
        struct.append(unaligned_text("KERNEL_gradients", mask))
        names = ("q", "k", "v", "grad", *(a.name for a in results))
        body, end = [], ByAlignment(names, body[0], call_text("KERNEL_unaligned"))
    arguments = [
        *_arguments(call, "grad", "q", "k", "v", "mask"),
        Argument("temp0", "stats", "float"),
        *results,
    ]
    what, length, blocks = (
        ("keys", s.keys, s.batch * s.kv_heads) if keys else ("queries", s.queries, s.batch * heads)
    )
    seen_share = 0.5 if s.causal and s.queries == s.keys and not s.offset else 1
    products = s.flops / (s.d + s.dv) * (2 * (s.d + s.dv) if keys else 2 * s.d + s.dv)
    return cuda_stage(
        f"attention_grad_{what}_{s.batch}x{heads}x{s.queries}x{s.keys}x{s.d}",
        about(call, f"gradients of {config.rows} {what} a block, {config.columns} columns at a time"), arguments, body,
        LaunchConfig((blocks, math.ceil(length / config.rows), 1), (config.warps * 32, 1, 1), config.shared(d),
                     min_blocks_per_sm=2 if 2 * config.shared(d) <= shared_limit(target) else 1),
        end=end, before=struct, parts=frozenset({"flash_backward"}), flops=int(products * seen_share),
        bytes=bytes_of([*(call.tensor(i).spec for i in range(4)), *(call.outputs[i] for i in ((1, 2) if keys else (0,)))]),
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (FlashV2Backward(),)
