"""Attention on CUDA for many queries: ``attention/flash_v2``, and ``attention/naive`` as its reference.

flash_v2 is FlashAttention-2 (``templates/cuda/flash_v2.cuh``): a block has a tile of queries of one head and streams tiles of keys and
values, double-buffered in shared memory. Tensor cores multiply; an online softmax keeps the row max and row sum, and rescales the
accumulator. The scores are never stored, so memory grows linearly with the sequence. With a causal mask, tiles above the diagonal are
skipped. It supports 16-bit floats with heads of up to 128 elements and is compute-bound. ``decode.py`` has the kernel for few queries.

Both kernels also compute attention in training, which is the same code and writes the log-sum-exp of each query at the end.
``flash_backward.py`` has its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.cuda.target import CudaTarget
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape, supported
from ..heavy import (
    MAX_BLOCKS_YZ,
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
from ..launch import Argument, ByAlignment, LaunchConfig, cuda_stage

__all__ = [
    "HEAD_SIZES",
    "KERNELS",
    "LOG2E",
    "REFERENCE",
    "FlashV2",
    "Naive",
    "arguments_of",
    "head_offset_text",
    "logit_text",
    "padded_size",
    "query_tiles",
    "splits_keys",
    "supported_halves",
    "wants_hopper",
]

LOG2E = math.log2(math.e)
"""Scores are scaled by this, so that the softmax can use exp2, which is one instruction."""

HOPPER = "flash_hopper"
"""Prelude part with the WGMMA version, for sm_90a. The part ``flash_v2`` runs on sm_80 and later."""

HEAD_SIZES = (32, 64, 128)
"""Head sizes that have tiles. Other heads are padded with zeros to the next one."""


def supported_halves(call: NodeCall) -> Support:
    """Return yes for float16 and bfloat16 heads of up to 128 contiguous elements."""
    answer = supported(call)
    if not answer:
        return answer
    dtype = call.outputs[0].dtype
    if dtype not in TAGS:
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"tensor cores multiply float16 and bfloat16, not {dtype.value}"
        )
    s = AttentionShape.of(call)
    if any(steps[3] != 1 for steps in (s.q, s.k, s.v, s.y)) and s.d > 1:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the elements of a head must be contiguous")
    if max(s.d, s.dv) > HEAD_SIZES[-1]:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED,
            f"heads of at most {HEAD_SIZES[-1]} elements are supported, got {max(s.d, s.dv)}",
        )
    return Support.yes()


def padded_size(size: int) -> int:
    """Return the smallest head size with a tile that a head fits."""
    return next(s for s in HEAD_SIZES if size <= s)


def arguments_of(call: NodeCall) -> list[Argument]:
    """Return the arguments: q, k, v, the mask if present, the result, and in training the log-sum-exp."""
    names = ("q", "k", "v", "mask")
    arguments = [
        argument(call.tensor(i).spec, f"in{i}", n)
        for i, n in enumerate(names)
        if call.optional(i) is not None
    ]
    results = [
        argument(s, f"out{i}", n, written=True)
        for i, (s, n) in enumerate(zip(call.outputs, ("y", "lse"), strict=False))
    ]
    return [*arguments, *results]


def head_offset_text(name: str, steps: tuple[int, ...]) -> str:
    """Return a struct member function that computes the offset of a head."""
    return (
        f"    __device__ __forceinline__ static int64_t {name}_at(int batch, int head)"
        f" {{ return batch * {steps[0]}ll + head * {steps[1]}ll; }}"
    )


def logit_text(s: AttentionShape, score: str, unit: float, mask_unit: float = 1) -> list[str]:
    """Return the body of ``logit``: from ``score`` to a logit times ``unit``; -inf where the mask hides the key.

    mask_unit: an additional factor of the mask alone.
    """
    lines = [f"        float x = {score};"]
    if s.softcap:
        lines.append(f"        x = tanhf(x * {1 / s.softcap!r}f) * {s.softcap!r}f;")
    if unit != 1:
        lines.append(f"        x *= {unit!r}f;")
    if s.mask:
        at = f"mask + (batch * {s.mask[0]}ll + head * {s.mask[1]}ll + query * {s.mask[2]}ll + key * {s.mask[3]}ll)"
        if s.mask_dtype is DType.BOOL:
            lines.append(f"        if (!load<1>({at})) x = MASKED_SCORE;")
        else:
            times = f" * {unit!r}f" if unit != 1 else ""
            factor = f"{mask_unit!r}f * " if mask_unit != 1 else ""
            lines.append(f"        x += {factor}(float)load<1>({at}){times};")
    return [*lines, "        return x;"]


@dataclass(frozen=True, slots=True)
class FlashTileConfig:
    """Tile sizes of a block: queries per block, keys per step, warps."""

    queries: int
    keys: int
    warps: int

    def shared(self, d: int) -> int:
        """Return the bytes of shared memory: the query tile, and two stages of key and value tiles (double buffering)."""
        return (self.queries + 4 * self.keys) * d * 2


TILE_CONFIGS: tuple[FlashTileConfig, ...] = (
    FlashTileConfig(128, 32, 4),
    FlashTileConfig(64, 64, 4),
    FlashTileConfig(64, 32, 4),
)
"""Tile sizes, largest first. A tile of 128 queries by 64 keys spills registers with heads of 128 elements, so it has 32 keys."""


def tile_config_for(s: AttentionShape, d: int, target: CodegenTarget) -> FlashTileConfig:
    """Return the largest tile sizes that still give every SM a block."""
    configs = TILE_CONFIGS if d == HEAD_SIZES[-1] else (FlashTileConfig(128, 64, 4), *TILE_CONFIGS[1:])
    fitting = [b for b in configs if b.shared(d) <= shared_limit(target)]
    heads = s.batch * s.kv_heads * s.group
    occupying = [b for b in fitting if math.ceil(s.queries / b.queries) * heads >= multiprocessors(target)]
    return (occupying or fitting[1:] or fitting)[0]


class FlashV2(Kernel):
    """FlashAttention-2 on tensor cores."""

    name = "attention/flash_v2"
    ops = ("attention", "attention_train")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float16 and bfloat16 with heads of up to 128."""
        answer = supported_halves(call)
        if answer and math.ceil(AttentionShape.of(call).queries / 64) > MAX_BLOCKS_YZ:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"more than {64 * MAX_BLOCKS_YZ} queries exceed the grid of a launch",
            )
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage, with one block per head and query tile."""
        s = AttentionShape.of(call)
        return LoweredCall(()) if s.empty else LoweredCall((flash_stage(call, s, target),))


HOPPER_TILE_CONFIG = FlashTileConfig(128, 128, 8)
"""Tile sizes of the WGMMA version."""
_MAX_KEY_TILES = 4096
"""Maximum key tiles of a scanned mask; shared memory holds the order of at most this many."""


_MIN_SPLIT_KEYS = 512
"""Minimum keys that two blocks share. A merge takes two microseconds."""
_MIN_UNEVEN_KEYS = 1024
"""Minimum keys that two blocks share for the sake of the last query tile of a causal mask, which sees all of them."""
_MIN_SPLIT_BLOCKS = 16
"""Minimum query tiles that were measured to be faster with WGMMA and shared keys than on more SMs without it."""


_MIN_MASKED_QUERIES = 16
"""Queries above which it is the faster version where a mask is scanned: with 32 and 64 it takes at most 0.7 of the other's time (``attention_chunks.py``)."""
_RESERVED_BYTES = 2048
"""Shared memory of a block for alignment and for what the driver reserves."""


def query_tiles(s: AttentionShape) -> int:
    """Return the number of query tiles of the WGMMA version."""
    return math.ceil(s.queries / HOPPER_TILE_CONFIG.queries) * s.batch * s.kv_heads * s.group


def wants_hopper(s: AttentionShape, target: CodegenTarget) -> bool:
    """Return whether the target has WGMMA and the query tiles give at least half of the SMs a block, or two blocks share each tile's keys.

    Where two blocks share the keys and a mask is scanned, any number of tiles suffices: it skips keys that are masked for all queries of a tile.
    """
    if not (isinstance(target, CudaTarget) and target.sm.wgmma):
        return False
    half = multiprocessors(target) / 2
    skips = splits_keys(s, target) and scans_mask(s)
    fewest = 1 if skips else min(half, _MIN_SPLIT_BLOCKS) if splits_keys(s, target) else half
    return (
        s.queries > (_MIN_MASKED_QUERIES if skips else 64)
        and padded_size(max(s.d, s.dv)) >= 64
        and query_tiles(s) >= fewest
    )


def splits_keys(s: AttentionShape, target: CodegenTarget) -> bool:
    """Return whether two blocks of a cluster share the keys of a query tile: where half of the SMs would have no block, or only a short one."""
    d = padded_size(max(s.d, s.dv))
    # The order of visible tiles is static memory of both versions of the kernel, for aligned and for other pointers.
    order = 8 * (math.ceil(s.keys / HOPPER_TILE_CONFIG.keys) + 1) if scans_mask(s) else 0
    needed = HOPPER_TILE_CONFIG.shared(d) + _exchanged_bytes(d) + order + _RESERVED_BYTES
    if target.config.max_cluster_size < 2 or s.keys < _MIN_SPLIT_KEYS or needed > shared_limit(target):
        return False
    blocks, sms = query_tiles(s), multiprocessors(target)
    return 2 * blocks <= sms or (s.causal and s.keys >= _MIN_UNEVEN_KEYS and blocks <= sms)


def scans_mask(s: AttentionShape) -> bool:
    """Return whether the kernel scans the mask first, to skip key tiles that no query of the block attends to.

    That needs a boolean mask whose rows are contiguous in 16-byte chunks, and several key tiles.
    """
    tiles = math.ceil(s.keys / HOPPER_TILE_CONFIG.keys)
    chunked = s.mask and s.mask[3] == 1 and s.mask[2] and not any(size % 16 for size in (*s.mask[:3], s.keys))
    return bool(chunked) and s.mask_dtype is DType.BOOL and not s.causal and 1 < tiles <= _MAX_KEY_TILES


def _mask_scan_text(s: AttentionShape) -> list[str]:
    """Return the members that give the mask of a head, and the logit without the mask."""
    return [
        "    __device__ __forceinline__ const unsigned char *flags(int batch, int head) const {",
        f"        return (const unsigned char *)mask + (batch * {s.mask[0]}ll + head * {s.mask[1]}ll);",
        "    }",
        "    __device__ __forceinline__ float unmasked_logit(float score) const {",
        *logit_text(replace(s, mask=()), f"score * {s.scale!r}f", 1),
        "    }",
    ]


def flash_stage(
    call: NodeCall,
    s: AttentionShape,
    target: CodegenTarget,
    tile_config: FlashTileConfig | None = None,
    hopper: bool | None = None,
    split: bool | None = None,
) -> Stage:
    """Return the stage of ``flash_v2``.

    tile_config: None: ``tile_config_for``.
    hopper:      whether to use the WGMMA version; None: where it is faster.
    split:       whether two of its blocks share the keys of a query tile; None: where that is faster.
    """
    dtype = call.outputs[0].dtype
    d = padded_size(max(s.d, s.dv))
    use_hopper = (wants_hopper(s, target) and tile_config is None) if hopper is None else hopper
    config = (
        HOPPER_TILE_CONFIG
        if use_hopper
        else tile_config_for(s, d, target)
        if tile_config is None
        else tile_config
    )
    splits = 1 + (use_hopper and (splits_keys(s, target) if split is None else split))
    part = HOPPER if use_hopper else "flash_v2"
    function = "flash_hopper::forward" if use_hopper else "flash::forward"
    heads = s.kv_heads * s.group
    plain = not s.mask and not s.softcap and s.scale > 0
    aligned = in_chunks(dtype, s.d, s.dv, *s.q[:3], *s.k[:3], *s.v[:3])
    pairs = s.dv % 2 == 0 and not any(step % 2 for step in s.y[:3])
    arguments = arguments_of(call)
    numbers = {
        "D": d, "d": s.d, "dv": s.dv, "BM": config.queries, "BN": config.keys, "WARPS": config.warps, "queries": s.queries, "keys": s.keys,
        "group": s.group, "heads": heads, "offset": s.offset, "q_row": s.q[2], "k_row": s.k[2], "v_row": s.v[2], "y_row": s.y[2], "SPLITS": splits,
    }  # fmt: skip
    scans = use_hopper and scans_mask(s)
    flags = {
        "CAUSAL": s.causal,
        "PLAIN": plain,
        "ALIGNED": aligned,
        "PAIRS": aligned and pairs,
        "SCANS_MASK": scans,
        "LSE": bool(s.lse),
    }
    if scans:
        numbers |= {"TILES": math.ceil(s.keys / config.keys), "mask_row": s.mask[2]}
    offsets = [("q", s.q), ("k", s.k), ("v", s.v), ("y", s.y)]
    if s.lse:
        numbers |= {"lse_row": s.lse[2]}
        offsets.append(("lse", s.lse))
    members = [a for a in arguments if a.name in ("mask", "lse")]
    struct = [
        "struct KERNEL_flash {",
        *(f"    {a.text};" for a in members),
        f"    typedef {TAGS[dtype]} T;",
        constants("int", numbers),
        constants("bool", {k: c_bool(v) for k, v in flags.items()}),
        *(head_offset_text(n, steps) for n, steps in offsets),
        f"    __device__ __forceinline__ static float scale() {{ return {s.scale * LOG2E if plain else LOG2E!r}f; }}",
        "    __device__ __forceinline__ float logit(float score, int batch, int head, int query, int key) const {",
        *logit_text(s, f"score * {s.scale!r}f", 1),
        "    }",
        *(_mask_scan_text(s) if scans else []),
        "};",
    ]
    fields = f"{{{', '.join(a.name for a in members)}}}"
    pointers = ", ".join(f"(const tensor::u16 *){n}" for n in "qkv") + ", (tensor::u16 *)y"

    def call_text(name: str) -> str:
        return f"{function}<{name}>({pointers}, {name}{fields});"

    body, end = [call_text("KERNEL_flash")], None
    if aligned:
        struct.append(unaligned_text("KERNEL_flash", members))
        body, end = [], ByAlignment(("q", "k", "v", "y"), body[0], call_text("KERNEL_unaligned"))
    tiles = math.ceil(s.queries / config.queries)
    unmasked_share = 0.5 if s.causal and s.queries == s.keys and not s.offset else 1
    return cuda_stage(
        f"attention_{s.batch}x{heads}x{s.queries}x{s.keys}x{s.d}",
        about(call, f"{config.queries} queries a block, {config.keys} keys at a time{', every second by each of two blocks' if splits > 1 else ''}"), arguments, body,
        LaunchConfig(
            (s.batch * heads * splits, tiles, 1), (config.warps * 32, 1, 1), config.shared(d) + (_exchanged_bytes(d) if splits > 1 else 0), cluster=splits,
            min_blocks_per_sm=1 if use_hopper or 2 * config.shared(d) > shared_limit(target) else 2,
        ),
        end=end, before=struct, parts=frozenset({part}), flops=int(s.flops * unmasked_share),
        bytes=bytes_of([*(o.spec for o in call.tensors), *call.outputs]),
    )  # fmt: skip


def _exchanged_bytes(d: int) -> int:
    """Return the bytes that a block receives from the other of its cluster: half of its sums, row maxima and row sums; and the barrier."""
    threads = HOPPER_TILE_CONFIG.warps * 32
    return HOPPER_TILE_CONFIG.queries // 2 * d * 4 + threads * 8 + 16


def unaligned_text(base: str, members: Sequence[Argument]) -> str:
    """Return the struct ``KERNEL_unaligned``: a kernel's struct for pointers that are not multiples of 16 bytes."""
    constructor = ""
    if members:
        names = ", ".join(a.name for a in members)
        constructor = (
            f" __device__ KERNEL_unaligned({', '.join(a.text for a in members)}) : {base}{{{names}}} {{}}"
        )
    return f"struct KERNEL_unaligned : {base} {{{constructor} static constexpr bool ALIGNED = false, PAIRS = false; }};"


class Naive(Kernel):
    """Attention with one block per query: all scores in shared memory, softmax, weighted sum. Sums are double for float64, else float."""

    name = "attention/naive"
    ops = ("attention", "attention_train")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats in any layout, if the scores of a query fit in shared memory."""
        answer = supported(call)
        s = AttentionShape.of(call)
        item = 8 if s.dtype is DType.FLOAT64 else 4
        if answer and s.keys * item + 1024 > shared_limit(target):
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, f"the scores of {s.keys} keys do not fit in shared memory"
            )
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        s = AttentionShape.of(call)
        if s.empty:
            return LoweredCall(())
        heads, t = s.kv_heads * s.group, accumulator(s.dtype)
        item = 8 if t == "double" else 4
        mask = ""
        if s.mask:
            at = f"mask + (batch * {s.mask[0]}ll + head * {s.mask[1]}ll + query * {s.mask[2]}ll + key * {s.mask[3]}ll)"
            mask = (
                f"if (!load<1>({at})) score = (T)MASKED_SCORE;"
                if s.mask_dtype is DType.BOOL
                else f"score += (T)load<1>({at});"
            )
        body = [
            f"typedef {t} T;",
            "DYNAMIC_SMEM(shared);",
            "T *const scores = (T *)shared;",
            f"const int query = blockIdx.x % {s.queries};",
            f"const int head = blockIdx.x / {s.queries} % {heads}, batch = blockIdx.x / {s.queries * heads};",
            f"const auto *qi = q + (batch * {s.q[0]}ll + head * {s.q[1]}ll + query * {s.q[2]}ll);",
            f"const auto *kh = k + (batch * {s.k[0]}ll + head / {s.group} * {s.k[1]}ll);",
            f"const auto *vh = v + (batch * {s.v[0]}ll + head / {s.group} * {s.v[1]}ll);",
            f"for (int key = threadIdx.x; key < {s.keys}; key += 128) {{",
            "    T score = 0;",
            f"    for (int e = 0; e < {s.d}; ++e) score += (T)load<1>(qi + e * {s.q[3]}ll) * (T)load<1>(kh + (key * {s.k[2]}ll + e * {s.k[3]}ll));",
            f"    score *= (T){s.scale!r};",
            *([f"    score = tanh(score / (T){s.softcap!r}) * (T){s.softcap!r};"] if s.softcap else []),
            *([f"    {mask}"] if mask else []),
            *([f"    if (key > query + {s.offset}) score = (T)MASKED_SCORE;"] if s.causal else []),
            "    scores[key] = score;",
            "}",
            "__syncthreads();",
            f"for (int e = threadIdx.x; e < {s.dv}; e += 128) {{",
            "    T row_max = (T)MASKED_SCORE, row_sum = 0, sum = 0;",
            f"    for (int key = 0; key < {s.keys}; ++key) row_max = scores[key] > row_max ? scores[key] : row_max;",
            "    if (row_max == (T)MASKED_SCORE) row_max = 0;",
            f"    for (int key = 0; key < {s.keys}; ++key) {{",
            "        const T weight = exp(scores[key] - row_max);",
            "        row_sum += weight;",
            f"        sum += weight * (T)load<1>(vh + (key * {s.v[2]}ll + e * {s.v[3]}ll));",
            "    }",
            f"    auto *const to = y + (batch * {s.y[0]}ll + head * {s.y[1]}ll + query * {s.y[2]}ll + e * {s.y[3]}ll);",
            f"    store<1>(to, (typename storage_<{C_TYPES[s.dtype]}>::compute)(row_sum == 0 ? (T)0 : sum / row_sum));",
            *(
                [
                    f"    if (e == 0) lse[batch * {s.lse[0]}ll + head * {s.lse[1]}ll + query * {s.lse[2]}ll] = log(row_sum) + row_max;"
                ]
                if s.lse
                else []
            ),
            "}",
        ]
        stage = cuda_stage(
            f"attention_naive_{s.queries}x{s.keys}x{s.d}", about(call, "one block per query"), arguments_of(call), body,
            LaunchConfig.flat(s.batch * heads * s.queries, 128, max(s.keys, 1) * item), parts=frozenset({"tensor", "exp"}), flops=s.flops,
            bytes=bytes_of([*(o.spec for o in call.tensors), *call.outputs]),
        )  # fmt: skip
        return LoweredCall((stage,), accumulates="float64" if item == 8 else "float32")


KERNELS: tuple[Any, ...] = (FlashV2(),)
REFERENCE: tuple[Any, ...] = (Naive(),)
"""The kernel that supports every float, after all others."""
