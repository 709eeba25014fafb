"""Attention on CUDA cores for many queries: ``attention/flash_simt`` (``templates/cuda/flash_simt.cuh``).

The algorithm is that of ``flash_v2``, with products by FMA in float32. It is the default for float32, and for 16-bit heads that have no
tensor-core tiles. It is compute-bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape, supported
from ..heavy import (
    MAX_BLOCKS_YZ,
    TAGS,
    about,
    bytes_of,
    c_bool,
    constants,
    in_chunks,
    multiprocessors,
    shared_limit,
)
from ..launch import ByAlignment, LaunchConfig, cuda_stage
from .flash import LOG2E, arguments_of, head_offset_text, logit_text

__all__ = ["KERNELS", "FlashSimt", "SimtTileConfig", "simt_tile_config"]

_MAX_HEAD_SIZE = 256
"""Maximum head size: larger ones do not fit in the registers of a thread."""
_NARROW_HEAD_SIZE = 64
"""Maximum head size for tiles of 64 keys and for eight queries per thread."""
_MAX_PADDING = 1.5
"""Maximum computed queries per query for tiles that are larger than the smallest."""


@dataclass(frozen=True, slots=True)
class SimtTileConfig:
    """Tile sizes of a block: queries per thread, keys per step, warps.

    lanes:     threads that compute the same queries, each a part of the keys of a step and of the results.
    min_share: blocks per SM from which on these sizes are the fastest (``benchmarks/cuda/attention_float32.py``).
    """

    per_thread: int
    keys: int
    warps: int
    lanes: int = 8
    min_share: float = 0.0

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.per_thread * self.warps * 32 // self.lanes

    def shared(self, d: int) -> int:
        """Return the bytes of shared memory: the tiles of queries, keys and values, and the weights."""
        return (
            (self.queries + self.keys) * (d + 4) + self.keys * d + self.queries * (self.keys + self.lanes)
        ) * 4


_NARROW = (SimtTileConfig(4, 64, 4, 8, 2.0), SimtTileConfig(4, 64, 4, 16, 0.5), SimtTileConfig(2, 64, 4, 16))
_WIDE = (SimtTileConfig(4, 64, 8, 8, 2.0), SimtTileConfig(4, 32, 4, 8, 1.0), SimtTileConfig(2, 32, 4))
"""Tile sizes for narrow and for wide heads, largest first."""


def padded_head(s: AttentionShape) -> int:
    """Return the head size that a tile has: a multiple of 16."""
    return max(math.ceil(max(s.d, s.dv) / 16), 1) * 16


def simt_tile_config(s: AttentionShape, target: CodegenTarget) -> SimtTileConfig:
    """Return the largest tile sizes that give the SMs enough blocks without much padding, else the smallest."""
    d = padded_head(s)
    configs = _NARROW if d <= _NARROW_HEAD_SIZE else _WIDE
    fitting = [c for c in configs if c.shared(d) <= shared_limit(target)] or [configs[-1]]
    heads = s.batch * s.kv_heads * s.group

    def fills(c: SimtTileConfig) -> bool:
        tiles = math.ceil(s.queries / c.queries)
        return (
            tiles * heads >= c.min_share * multiprocessors(target)
            and tiles * c.queries <= _MAX_PADDING * s.queries
        )

    return next((c for c in fitting if fills(c)), fitting[-1])


class FlashSimt(Kernel):
    """Attention in one pass over the keys on CUDA cores."""

    name = "attention/flash_simt"
    ops = ("attention", "attention_train")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float32, float16 and bfloat16 with heads of up to 256 elements, in any layout."""
        answer = supported(call)
        if not answer:
            return answer
        dtype = call.outputs[0].dtype
        if dtype is not DType.FLOAT32 and dtype not in TAGS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"sums are in float32, which {dtype.value} exceeds")
        s = AttentionShape.of(call)
        if max(s.d, s.dv) > _MAX_HEAD_SIZE:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"heads of at most {_MAX_HEAD_SIZE} elements are supported, got {max(s.d, s.dv)}",
            )
        d, smallest = padded_head(s), (_NARROW if padded_head(s) <= _NARROW_HEAD_SIZE else _WIDE)[-1]
        if smallest.shared(d) > shared_limit(target):
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"tiles of heads of {d} elements need {smallest.shared(d)} bytes of shared memory, the target has {shared_limit(target)}",
            )
        if math.ceil(s.queries / smallest.queries) > MAX_BLOCKS_YZ:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"more than {smallest.queries * MAX_BLOCKS_YZ} queries exceed the grid of a launch",
            )
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage, with one block per head and query tile."""
        s = AttentionShape.of(call)
        return LoweredCall(()) if s.empty else LoweredCall((simt_stage(call, s, target),))


def simt_stage(
    call: NodeCall, s: AttentionShape, target: CodegenTarget, config: SimtTileConfig | None = None
) -> Stage:
    """Return the stage of ``flash_simt``. config: None: ``simt_tile_config``."""
    c = simt_tile_config(s, target) if config is None else config
    d, heads = padded_head(s), s.kv_heads * s.group
    plain = not s.mask and not s.softcap and s.scale > 0
    contiguous = all(steps[3] == 1 for steps in (s.q, s.k, s.v, s.y))
    aligned = (
        s.dtype is DType.FLOAT32
        and contiguous
        and in_chunks(s.dtype, s.d, s.dv, *s.q[:3], *s.k[:3], *s.v[:3], *s.y[:3])
    )
    arguments = arguments_of(call)
    numbers = {
        "D": d, "d": s.d, "dv": s.dv, "TM": c.per_thread, "BN": c.keys, "LANES": c.lanes, "WARPS": c.warps, "queries": s.queries, "keys": s.keys,
        "group": s.group, "heads": heads, "offset": s.offset,
    }  # fmt: skip
    sides = (("q", s.q), ("k", s.k), ("v", s.v), ("y", s.y))
    strides = {f"{n}_row": steps[2] for n, steps in sides} | {f"{n}_step": steps[3] for n, steps in sides}
    offsets = list(sides)
    if s.lse:
        strides |= {"lse_row": s.lse[2]}
        offsets.append(("lse", s.lse))
    members = [a for a in arguments if a.name in ("mask", "lse")]
    flags = {"CAUSAL": s.causal, "PLAIN": plain, "ALIGNED": aligned, "LSE": bool(s.lse)}
    struct = [
        "struct KERNEL_flash {",
        *(f"    {a.text};" for a in members),
        constants("int", numbers),
        constants("long long", strides),
        constants("bool", {k: c_bool(v) for k, v in flags.items()}),
        *(head_offset_text(n, steps) for n, steps in offsets),
        f"    __device__ __forceinline__ static float scale() {{ return {s.scale * LOG2E if plain else LOG2E!r}f; }}",
        "    __device__ __forceinline__ float logit(float score, int batch, int head, int query, int key) const {",
        *logit_text(s, f"score * {s.scale!r}f", 1),
        "    }",
        "};",
    ]
    fields = f"{{{', '.join(a.name for a in members)}}}"
    body, end = [f"flash_simt::forward<KERNEL_flash>(q, k, v, y, KERNEL_flash{fields});"], None
    if aligned:
        struct.append(_unaligned_text(members))
        unaligned = f"flash_simt::forward<KERNEL_unaligned>(q, k, v, y, KERNEL_unaligned{fields});"
        body, end = [], ByAlignment(("q", "k", "v", "y"), body[0], unaligned)
    tiles = math.ceil(s.queries / c.queries)
    unmasked_share = 0.5 if s.causal and s.queries == s.keys and not s.offset else 1
    blocks_per_sm = min(shared_limit(target) // c.shared(d), 512 // (c.warps * 32))
    return cuda_stage(
        f"attention_simt_{s.batch}x{heads}x{s.queries}x{s.keys}x{s.d}", about(call, f"{c.queries} queries a block, {c.keys} keys at a time"),
        arguments, body,
        LaunchConfig((s.batch * heads, tiles, 1), (c.warps * 32, 1, 1), c.shared(d), min_blocks_per_sm=max(blocks_per_sm, 1)),
        end=end, before=struct, parts=frozenset({"flash_simt"}), flops=int(s.flops * unmasked_share),
        bytes=bytes_of([*(o.spec for o in call.tensors), *call.outputs]),
    )  # fmt: skip


def _unaligned_text(members: list[Any]) -> str:
    """Return the struct for pointers that are not multiples of 16 bytes."""
    names, texts = ", ".join(a.name for a in members), ", ".join(a.text for a in members)
    constructor = f" __device__ KERNEL_unaligned({texts}) : KERNEL_flash{{{names}}} {{}}" if members else ""
    return (
        f"struct KERNEL_unaligned : KERNEL_flash {{{constructor} static constexpr bool ALIGNED = false; }};"
    )


KERNELS: tuple[Any, ...] = (FlashSimt(),)
