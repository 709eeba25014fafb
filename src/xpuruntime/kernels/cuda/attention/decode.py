"""``attention/flash_decode`` on CUDA: few queries over many keys (flash decoding, ``templates/cuda/flash_decode.cuh``).

Decoding is bound by the bandwidth of reading the KV cache once. The query heads that share a key head (GQA) are rows of one block, so each
key is read once. The keys are split over blocks to occupy every SM (split-K). Each split computes a partial sum, row max and row sum;
the last block of a task to finish rescales and merges them, or a thread-block cluster does so in shared memory. A task is one key head of
one sample with a block of up to 16 query rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape
from ..heavy import TAGS, about, bytes_of, c_bool, constants, in_chunks, multiprocessors, shared_limit
from ..launch import Argument, ByAlignment, LaunchConfig, cuda_stage
from .flash import (
    LOG2E,
    arguments_of,
    head_offset_text,
    logit_text,
    padded_size,
    supported_halves,
    wants_hopper,
)

__all__ = [
    "CLUSTER",
    "KERNELS",
    "ROWS",
    "WARPS",
    "DecodeTileConfig",
    "FlashDecode",
    "FusedWork",
    "clustered",
    "decode_tile_config",
    "few_queries",
    "lower_decode",
]  # fmt: skip

ROWS = 16
"""Query rows of a block: the m dim of one tensor-core instruction. A row is a query of one of the heads that share a key head."""

_MAX_ROWS = 64
"""Maximum query rows of a key head; ``flash_v2`` computes more."""
_MAX_ROWS_OF_CHUNK, _MAX_CHUNK, _MIN_CHUNK_KEYS = 128, 32, 512
"""Their maximum for at most so many queries per head over at least so many keys, where ``flash_v2`` would have a block per SM at most: most of its rows
are padding then, and its blocks do not share the keys."""
WARPS = 4
"""Warps of a block without a cluster."""
CLUSTER = 8
"""Maximum blocks of a cluster: the portable limit of CUDA."""
_MIN_KEYS_PER_SPLIT = 64
"""Minimum keys per split (16 per warp)."""
_MAX_COMBINED = 24
"""Maximum splits that one block merges; above that, the merge has two levels, because a single block would read them too slowly."""


@dataclass(frozen=True, slots=True)
class DecodeTileConfig:
    """Tile sizes and split of a decoding launch.

    d:              head size of the tile.
    rows:           query rows of a block.
    row_blocks:     blocks that the query rows of a key head are divided over.
    splits:         splits of the keys, of ``keys_per_split`` keys each.
    stages:         key and value tiles of a warp in shared memory (multistage prefetch).
    warps:          warps of a block.
    cluster:        whether the splits of a task are one cluster, which merges them in shared memory.
    narrow:         whether query rows are the n dim of the tensor-core instruction (at most 8 of them) instead of the m dim.
    tiles_per_step: tiles of 16 keys that a warp processes at once.
    """

    d: int
    rows: int
    row_blocks: int
    splits: int
    keys_per_split: int
    stages: int
    warps: int = WARPS
    cluster: bool = False
    narrow: bool = False
    tiles_per_step: int = 1

    @property
    def merge_group(self) -> int:
        """Splits that one block merges: all of them, or about the square root of their number where that is too many."""
        return self.splits if self.splits <= _MAX_COMBINED else math.ceil(math.sqrt(self.splits))

    @property
    def counters(self) -> int:
        """Atomic counters of a task: one for the final merge, and one per group if the merge has two levels."""
        groups = math.ceil(self.splits / self.merge_group)
        return 1 + groups if groups > 1 else 1

    def part_bytes(self, dv: int) -> int:
        """Return the bytes of a task's partial results: the sums as float4, then row max and row sum of each row; a multiple of 16."""
        return math.ceil(self.splits * self.rows * (math.ceil(dv / 4) + 0.5)) * 16

    @property
    def tile_bytes(self) -> int:
        """Bytes of shared memory for the query tile and each warp's tiles of keys and values."""
        return 16 * self.d * 2 * (1 + 2 * self.warps * self.slots * self.tiles_per_step)

    @property
    def states(self) -> int:
        """Offset of the warps' softmax states. They reuse the tiles' memory, except in a cluster, where separate memory saves a barrier."""
        return self.tile_bytes if self.cluster else 0

    @property
    def cluster_smem(self) -> int:
        """Offset of the memory through which the blocks of a cluster exchange partial results."""
        return max(self.tile_bytes, self.states + self.warps * self.rows * (self.d + 4) * 4)

    @property
    def bounds(self) -> int:
        """Offset of each warp's first and last key that the mask leaves visible."""
        float4_per_block = math.ceil(
            self.rows * self.d / 4 / self.splits
        )  # sums that a block of a cluster merges
        return self.cluster_smem + (
            math.ceil((self.splits * float4_per_block * 24 + 8) / 16) * 16 if self.cluster else 0
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory, a multiple of 16."""
        return self.bounds + math.ceil(self.warps / 2) * 16

    @property
    def slots(self) -> int:
        """Key tiles of a warp that are in shared memory at once: the stages, or all of them if they are fewer."""
        return min(self.stages, math.ceil(self.keys_per_split / (16 * self.warps * self.tiles_per_step)))


def decode_tile_config(
    s: AttentionShape, target: CodegenTarget, min_keys: int = _MIN_KEYS_PER_SPLIT
) -> DecodeTileConfig:
    """Return a config with enough splits for two blocks per SM. A split has at least ``min_keys`` keys."""
    d = padded_size(max(s.d, s.dv))
    all_rows = s.group * s.queries
    row_blocks = math.ceil(all_rows / ROWS)
    rows = math.ceil(all_rows / row_blocks)
    tasks = s.batch * s.kv_heads * row_blocks
    step = WARPS * 16
    max_splits = max(1, 2 * multiprocessors(target) // tasks)
    splits = max(1, min(max_splits, math.ceil(s.keys / min_keys)))
    keys_per_split = max(step, math.ceil(s.keys / splits / step) * step)
    splits = max(1, math.ceil(s.keys / keys_per_split))
    stages = (
        3
        if 2 * DecodeTileConfig(d, rows, row_blocks, splits, keys_per_split, 3).shared <= shared_limit(target)
        else 2
    )
    return DecodeTileConfig(d, rows, row_blocks, splits, keys_per_split, stages)


def clustered(
    config: DecodeTileConfig, keys: int, splits: int = CLUSTER, max_warps: int = 8
) -> DecodeTileConfig:
    """Return a config whose tasks are clusters of up to ``splits`` blocks of up to ``max_warps`` warps.

    With at most eight query rows, a warp processes two key tiles at once.
    """
    keys_per_split = math.ceil(keys / splits / 16) * 16
    splits, tiles = math.ceil(keys / keys_per_split), keys_per_split // 16
    narrow = config.rows <= 8
    tiles_per_step = 2 if narrow and tiles > max_warps else 1
    warps = math.ceil(tiles / tiles_per_step / math.ceil(tiles / tiles_per_step / max_warps))
    return replace(
        config,
        splits=splits,
        keys_per_split=keys_per_split,
        warps=warps,
        cluster=splits > 1,
        stages=3,
        narrow=narrow,
        tiles_per_step=tiles_per_step,
    )


class FlashDecode(Kernel):
    """Flash decoding: reads keys and values once, split over as many blocks as occupy the device."""

    name = "attention/flash_decode"
    ops = ("attention",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float16 and bfloat16 with few queries per key head."""
        return few_queries(call, target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        s = AttentionShape.of(call)
        if s.empty:
            return LoweredCall(())
        return lower_decode(call, s, decode_tile_config(s, target))


@dataclass(frozen=True, slots=True)
class FusedWork:
    """Work that is fused into an attention launch (``decode_append.py``): operands, results, struct members, shared memory in bytes.

    rows: operands that are read in 16-byte loads if their addresses allow it.
    """

    operands: Sequence[Argument] = ()
    results: Sequence[Argument] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    members: Sequence[str] = ()
    rows: Sequence[str] = ()
    shared: int = 0
    parts: frozenset[str] = frozenset()


def few_queries(call: NodeCall, target: CodegenTarget) -> Support:
    """Return yes for attention in float16 or bfloat16 with few queries per key head."""
    answer = supported_halves(call)
    if not answer:
        return answer
    s = AttentionShape.of(call)
    limit = _MAX_ROWS_OF_CHUNK if _is_chunk(s, target) else _MAX_ROWS
    if not 0 < s.group * s.queries <= limit:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED,
            f"at most {limit} queries per key head are supported for {s.queries} queries of a head and {s.keys} keys, got {s.group * s.queries}",
        )
    return answer


def _is_chunk(s: AttentionShape, target: CodegenTarget) -> bool:
    """Return whether the queries are a short chunk over many keys, and ``flash_v2`` would use few SMs for them."""
    blocks = s.batch * s.kv_heads * s.group
    fills = blocks > multiprocessors(target) or wants_hopper(s, target)
    return s.queries <= _MAX_CHUNK and s.keys >= _MIN_CHUNK_KEYS and not fills


def lower_decode(
    call: NodeCall, s: AttentionShape, config: DecodeTileConfig, added: FusedWork | None = None
) -> LoweredCall:
    """Return the stage of a config, with the workspace through which its splits are merged."""
    tasks = s.batch * s.kv_heads * config.row_blocks
    stage = _stage(call, s, config, tasks, added or FusedWork())
    if config.splits == 1 or config.cluster:
        return LoweredCall((stage,))
    return LoweredCall(
        (stage,), temps=(tasks * config.part_bytes(s.dv),), counters=tasks * config.counters * 4
    )


def _row_text(steps: tuple[int, ...], queries: int, row: str) -> str:
    return (
        f"{row} / {queries} * {steps[1]}ll + {row} % {queries} * {steps[2]}ll"
        if queries > 1
        else f"{row} * {steps[1]}ll"
    )


def _stage(
    call: NodeCall, s: AttentionShape, config: DecodeTileConfig, tasks: int, added: FusedWork
) -> Stage:
    dtype = call.outputs[0].dtype
    q, *operands, y = arguments_of(call)
    if added.results:  # k and v are the caches, which are results
        operands = list(added.operands)
    fields = [*operands, y, *added.results] if added.results else [*operands[2:], y]
    aligned = in_chunks(dtype, s.d, s.dv, *s.q[:3], *s.k[:3], *s.v[:3])
    all_rows = s.group * s.queries
    shared_mask = s.mask and not s.mask[1] and not s.mask[2] and not s.causal
    numbers = {
        "D": config.d, "d": s.d, "dv": s.dv, "rows": config.rows, "keys": s.keys, "SPLITS": config.splits, "KEYS_PER_SPLIT": config.keys_per_split, "GROUP": config.merge_group,
        "WARPS": config.warps, "STAGES": config.stages, "SMEM_TILES": config.slots, "TILES_PER_STEP": config.tiles_per_step, "STATES_OFFSET": config.states, "CLUSTER_SMEM": config.cluster_smem, "BOUNDS_OFFSET": config.bounds, "k_row": s.k[2], "v_row": s.v[2], "MASK_ROWS": 1 if shared_mask else config.rows, "NEW_TOKENS": 0, **added.numbers,
    }  # fmt: skip
    custom_logit = bool(s.mask) or bool(s.softcap)
    scale = s.scale if s.softcap else s.scale * LOG2E
    # Padding rows of the last block repeat the node's last row.
    row = f"(first + r < {all_rows} ? first + r : {all_rows - 1})"
    struct = [
        "struct KERNEL_decode {",
        *(f"    {a.text};" for a in fields),
        "    int first;",
        f"    typedef {TAGS[dtype]} T;",
        constants("int", numbers),
        constants(
            "bool",
            {
                "MASKED": c_bool(custom_logit),
                "ALIGNED": c_bool(aligned),
                "CLUSTER": c_bool(config.cluster),
                "NARROW": c_bool(config.narrow),
                "ADDITIVE_MASK": c_bool(not s.softcap),
                **added.flags,
            },
        ),
        *(head_offset_text(n, steps) for n, steps in (("key", s.k), ("value", s.v))),
        f"    __device__ __forceinline__ static float scale() {{ return {scale!r}f; }}",
        f"    __device__ __forceinline__ int64_t q_at(int r) const {{ return {_row_text(s.q, s.queries, row)}; }}",
        f"    __device__ __forceinline__ int token(int r) const {{ return {row} % {s.queries}; }}",
        f"    __device__ __forceinline__ bool visible(int r, int key) const {{ return {f'key <= token(r) + {s.offset}' if s.causal else 'true'}; }}",
        "    __device__ __forceinline__ float logit(float score, int batch, int kv_head, int r, int key) const {",
        f"        const int head = kv_head * {s.group} + {row} / {s.queries}, query = token(r);",
        # Without a softcap, scores are already scaled by log2(e), so the mask must be, too.
        *(logit_text(s, "score", LOG2E) if s.softcap else logit_text(s, "score", 1, LOG2E)),
        "    }",
        "    __device__ __forceinline__ void write(int batch, int kv_head, int r, int at, float value) const {",
        f"        if (first + r >= {all_rows}) return;",
        f"        store<1>(y + (batch * {s.y[0]}ll + kv_head * {s.y[1] * s.group}ll + {_row_text(s.y, s.queries, '(first + r)')} + at * {s.y[3]}ll), value);",
        "    }",
        *added.members,
        "};",
    ]
    merges_in_memory = config.splits > 1 and not config.cluster
    body = [
        f"const int task = blockIdx.x / {config.splits}, block = task % {config.row_blocks};",
        f"const int head = task / {config.row_blocks} % {s.kv_heads}, batch = task / {config.row_blocks * s.kv_heads};",
        f"const auto *q0 = (const tensor::u16 *)q + (batch * {s.q[0]}ll + head * {s.q[1] * s.group}ll);",
        "const auto *k0 = (const tensor::u16 *)k + KERNEL_decode::key_at(batch, head);",
        "const auto *v0 = (const tensor::u16 *)v + KERNEL_decode::value_at(batch, head);",
        f"flash_decode::Float4 *const to = {f'(flash_decode::Float4 *)parts + task * {config.part_bytes(s.dv) // 16}ll' if merges_in_memory else 'nullptr'};",
        f"uint32_t *const arrivals = {f'counters + task * {config.counters}' if merges_in_memory else 'nullptr'};",
    ]
    values, end = f"{{{', '.join(a.name for a in fields)}, block * {config.rows}}}", None
    if aligned:
        constructor = ", ".join([*(a.text for a in fields), "int first"])
        inner = ", ".join([*(a.name for a in fields), "first"])
        struct.append(
            f"struct KERNEL_unaligned : KERNEL_decode {{ __device__ KERNEL_unaligned({constructor}) : KERNEL_decode{{{inner}}} {{}}"
            " static constexpr bool ALIGNED = false; };"
        )
        end = ByAlignment(
            ("q", "k", "v", *added.rows),
            f"flash_decode::split_kernel(q0, k0, v0, batch, head, {{to}}, arrivals, KERNEL_decode{values});",
            f"flash_decode::split_kernel(q0, k0, v0, batch, head, {{to}}, arrivals, KERNEL_unaligned{values});",
        )
    else:
        body.append(
            f"flash_decode::split_kernel(q0, k0, v0, batch, head, {{to}}, arrivals, KERNEL_decode{values});"
        )
    shared = list(added.results)
    if merges_in_memory:
        shared += [
            Argument("temp0", "parts", "float", True),
            Argument("counters", "counters", "uint32_t", True),
        ]
    return cuda_stage(
        f"decode_{s.batch}x{s.kv_heads * s.group}x{s.queries}x{s.keys}x{s.d}",
        about(call, f"{config.rows} rows a block, keys in {config.splits} splits of {config.keys_per_split}"), [q, *operands, y, *shared], body,
        LaunchConfig((tasks * config.splits, 1, 1), (config.warps * 32, 1, 1), config.shared + added.shared, cluster=config.splits if config.cluster else 1), end=end, before=struct, parts=added.parts | {"flash_decode"}, waits_itself=True, flops=s.flops,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (FlashDecode(),)
