"""``attention/flash_decode`` for ``rope_attention``: attention fused with the rotation and the KV cache update (``decode_append.cuh``).

The kernel rotates queries as it loads them. The block whose keys include a new position rotates the new key, uses it, and writes it and
the value to the cache. So a layer needs no launches for rope and cache updates. It applies to at most eight new tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Operand
from ...spec.attention import AttentionShape
from ...spec.movement.elements import STATUS
from ...spec.product import sizes, strides_in
from ...spec.rope import PLACES, POSITIONS, cache_copies
from ..heavy import argument, c_bool, in_chunks, shared_limit
from ..movement.moves import cuda_moves_stage
from .decode import (
    CLUSTER,
    DecodeTileConfig,
    FusedWork,
    clustered,
    decode_tile_config,
    few_queries,
    lower_decode,
)

__all__ = ["KERNELS", "MAX_NEW_TOKENS", "append_tile_config"]

MAX_NEW_TOKENS = 8
"""Maximum new tokens of a fused launch; for more of them, separate launches are faster."""
_MIN_KEYS_PER_SPLIT = 128
"""Minimum keys per split. They are prefetched, so fewer splits to merge are worth more than shorter ones."""
_MAX_KEYS_PER_BLOCK = 256
"""Maximum keys per block of a cluster."""
_MASK = 9
"""Operand position of the mask."""


class RopeAttention(Kernel):
    """Rotation, both cache updates, and attention over the caches, in one launch."""

    name = "attention/flash_decode"
    ops = ("rope_attention",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for attention of few queries, at most eight new tokens, and rows of contiguous elements."""
        answer = few_queries(_attention_of(call), target)
        if not answer:
            return answer
        new = sizes(call.tensor(1).spec)[2]
        if new > MAX_NEW_TOKENS:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, f"at most {MAX_NEW_TOKENS} new tokens are supported, got {new}"
            )
        specs = [call.tensor(i).spec for i in range(7)]
        if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the last dim must be contiguous")
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage; two copies precede it where the caches are not updated in place."""
        attention = _attention_of(call)
        s = AttentionShape.of(attention)
        copies, in_place = cache_copies(call, target, cuda_moves_stage), {1: 5, 2: 6}
        if s.empty:
            return LoweredCall(tuple(copies), in_place=in_place)
        config = append_tile_config(s, target)
        decode = lower_decode(attention, s, config, _added(call, s, config.shared, config.d))
        (stage,) = decode.stages
        new_specs = [call.tensor(i).spec for i in (0, 1, 2)] + [call.outputs[i] for i in (0, 1, 2)]
        prologue_reads = [
            f"in{i}"
            for i in (3, 4, PLACES, POSITIONS, _MASK)
            if call.optional(i) and not call.tensor(i).is_weight
        ]
        stage = replace(
            stage,
            options={**stage.options, "pdl": False, "prologue_reads": [*prologue_reads, "out1", "out2"]},
            stem=f"rope_{stage.stem}",
            scratch_bytes=STATUS,
            bytes=sum(spec.size_bytes or 0 for spec in new_specs),
        )
        return replace(decode, stages=(*copies, stage), in_place=in_place)


def append_tile_config(s: AttentionShape, target: CodegenTarget) -> DecodeTileConfig:
    """Return the tile config: a cluster where its blocks can load all keys of a key head at once."""
    config = decode_tile_config(s, target, _MIN_KEYS_PER_SPLIT)
    blocks = min(CLUSTER, target.config.max_cluster_size)
    if blocks < 2 or s.keys > blocks * _MAX_KEYS_PER_BLOCK:
        return config
    config_of_cluster = clustered(config, s.keys, min(blocks, config.splits))
    return (
        config_of_cluster
        if config_of_cluster.shared + _added_bytes(s, config_of_cluster.d) <= shared_limit(target)
        else config
    )


def _added_bytes(s: AttentionShape, d: int) -> int:
    """Return the shared memory for the new tokens in bytes: key and value of each, and half-size cosines and sines."""
    return 3 * s.queries * d * 2


def _attention_of(call: NodeCall) -> NodeCall:
    """Return the attention node within the call, over the caches as they are after the update."""
    inputs = [
        call.inputs[0],
        *(Operand(v.name, s) for v, s in zip(call.node.outputs[1:], call.outputs[1:], strict=True)),
    ]
    inputs += [m] if (m := call.optional(_MASK)) else []
    return NodeCall(call.node, tuple(inputs), call.outputs[:1])


def _added(call: NodeCall, s: AttentionShape, tiles: int, d: int) -> FusedWork:
    """Return the fused work: operands of the rotation and the update, and the struct members that address them."""
    names = {
        1: "new_k",
        2: "new_v",
        3: "cosines",
        4: "sines",
        PLACES: "places",
        POSITIONS: "positions",
        _MASK: "mask",
    }
    operands = {n: call.tensor(i).spec for i, n in names.items() if call.optional(i) is not None}
    table = operands["cosines"]
    indexed, half = "positions" in operands, (call.attrs["size"] or s.d) // 2
    strides = {n: spec.physical.strides for n, spec in operands.items()}
    rows = [step for n in ("new_k", "new_v", "cosines", "sines") for step in strides[n][:-1]]
    head = "    __device__ __forceinline__"

    def listed(name: str) -> str:
        b, t = strides_in(operands[name], (s.batch, s.queries))
        return f"(int64_t)ld_cg({name} + (batch * {b}ll + t * {t}ll))"

    def row_of(name: str) -> str:
        b, h, t, _ = strides[name]
        return f"(const tensor::u16 *){name} + (batch * {b}ll + head * {h}ll + t * {t}ll)"

    def angles(name: str) -> str:
        steps = strides[name]
        batch_offset = f" + batch * {steps[0]}ll" if len(steps) == 3 and sizes(table)[0] != 1 else ""
        return f"(const tensor::u16 *){name} + ({f'row * {steps[0]}ll' if indexed else f't * {steps[-2]}ll{batch_offset}'})"

    members = [
        f"{head} int64_t cache_position(int batch, int t) const {{ return {listed('places')}; }}",
        f"{head} int64_t table_row(int batch, int t) const {{ return {listed('positions') if indexed else 't'}; }}",
        f"{head} int checked_position(int64_t position) const {{ return (int)index_in(position, keys); }}",
        f"{head} int checked_row(int64_t row) const {{ return (int)index_in(row, TABLE); }}",
        *(
            f"{head} const tensor::u16 *{n}_at(int batch, int t, int row) const {{ return {angles(n)}; }}"
            for n in ("cosines", "sines")
        ),
        f"{head} const tensor::u16 *key_of(int batch, int head, int t) const {{ return {row_of('new_k')}; }}",
        f"{head} const tensor::u16 *value_of(int batch, int head, int t) const {{ return {row_of('new_v')}; }}",
        f"{head} tensor::u16 *keys_of(int batch, int head) const {{ return (tensor::u16 *)k + key_at(batch, head); }}",
        f"{head} tensor::u16 *values_of(int batch, int head) const {{ return (tensor::u16 *)v + value_at(batch, head); }}",
        f"{head} bool writes() const {{ return first == 0; }}",
    ]
    dtype = call.outputs[0].dtype
    return FusedWork(
        operands=[argument(spec, f"in{i}", n) for i, n in names.items() if (spec := operands.get(n)) is not None],
        results=[argument(call.outputs[i], f"out{i}", n, written=True) for i, n in ((1, "k"), (2, "v"))],
        numbers={"NEW_TOKENS": s.queries, "HALF": half, "TABLE": sizes(table)[0] if indexed else 0, "TILES": tiles},
        flags={"WIDE": c_bool(in_chunks(dtype, half, *rows))},
        members=members,
        rows=("new_k", "new_v", "cosines", "sines"),
        shared=_added_bytes(s, d),
        parts=frozenset({"movement"}),
    )  # fmt: skip


KERNELS: tuple[Any, ...] = (RopeAttention(),)
