"""Attention on CPUs: ``attention/flash``, and ``attention/naive`` as its reference.

flash streams blocks of keys with an online softmax (``templates/attention.h``): it keeps the row max and row sum and rescales the accumulator, so
scores are never stored as a whole. The queries of all heads that share a key head (GQA) fill the lanes of vectors, so each key is read
once. With few queries over many keys (decoding), tasks split the keys, and a second stage merges their partial results (split-K).
Prefill is compute-bound, decoding bandwidth-bound.

Both kernels also compute attention in training, which is the same code and writes the log-sum-exp of each query at the end.
``flash_backward.py`` has its gradients.
"""

from __future__ import annotations

import math
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape, arguments, moved_bytes, supported
from ..abi import isa_of
from ..matmul.gemm_tiling import TILE, registers
from .blocks import lane_block
from .text import FlashText, mask_argument

__all__ = ["KERNELS", "FlashAttention", "NaiveAttention"]

_MIN_TASKS = 16
"""With fewer tasks than this, the keys are split."""
_MIN_KEYS_PER_SPLIT = 256
"""Minimum keys per split."""
_FEW_QUERIES = 8
"""Maximum queries per key head for which a sum across lanes costs less than idle lanes."""
_AMX_BLOCK_KEYS = 128
"""Keys of a block with AMX: larger blocks rescale less often. The scores of 32 queries are then 16 KiB."""


class FlashAttention(Kernel):
    """Attention over blocks of keys with an online softmax. Memory grows linearly with the sequence."""

    name = "attention/flash"
    ops = ("attention", "attention_train")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats in any layout, and masks of bools or floats."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, or two if the keys are split."""
        s = AttentionShape.of(call)
        if s.empty:
            return LoweredCall(())
        isa: IsaLevel = isa_of(target)
        item = 8 if s.dtype is DType.FLOAT64 else 4
        vector_lanes, regs, rows = isa.lanes(item), registers(isa), s.group * s.queries
        tiling = lane_block(isa, item, rows)
        nv, r, block = tiling.vectors, tiling.rows, tiling.keys
        few_queries = rows <= _FEW_QUERIES and s.k[3] == 1 and s.v[3] == 1
        contiguous = s.q[3] == s.k[3] == s.v[3] == s.y[3] == 1
        tiles = s.dtype is DType.BFLOAT16 and "amx-bf16" in isa.features and contiguous and not few_queries
        if tiles:
            nv = TILE // vector_lanes
            r = max(1, min(16, (regs - 1 - nv) // nv))
        lanes = nv * vector_lanes
        if tiles:
            block = max(TILE, min(_AMX_BLOCK_KEYS, math.ceil(s.keys / TILE) * TILE))
        blocks = math.ceil(rows / lanes)
        tasks = s.batch * s.kv_heads * blocks
        splits = (
            1
            if tasks >= _MIN_TASKS
            else max(1, min(-(-2 * _MIN_TASKS // tasks), s.keys // _MIN_KEYS_PER_SPLIT))
        )
        keys_per_split = math.ceil(s.keys / splits / block) * block if splits > 1 else s.keys
        splits = max(1, math.ceil(s.keys / keys_per_split)) if keys_per_split else 1
        constants: dict[str, dict[str, Any]] = {
            "int": {"NV": nv, "R": r, "key_tail": s.keys % block % r, "dv_tail": s.dv % r},
            "int64_t": {
                "block": block, "d": s.d, "dv": s.dv, "q_d": s.q[3], "k_row": s.k[2], "k_d": s.k[3],
                "v_row": s.v[2], "v_d": s.v[3], "y_d": s.y[3],
            },
            "bool": {
                "masked": str(bool(s.mask)).lower(), "causal": str(s.causal).lower(), "softcap": str(s.softcap != 0).lower(),
            },
        }  # fmt: skip
        if few_queries:  # one task has all queries of a key head
            constants["int"] = {"queries": rows}
        text = FlashText(
            s, constants, lanes, blocks, splits, keys_per_split, few_queries, vector_lanes, tiles
        )
        scratch = (s.d + s.dv + block) * lanes * item + 256
        if C_TYPES[s.dtype] != accumulator(s.dtype):
            scratch += block * (s.d + s.dv) * item
        if tiles:
            transposed = (
                math.ceil(s.d / TILE) * TILE * TILE + (TILE + math.ceil(s.dv / 16) * 16) * block + TILE * TILE
            )
            scratch = (s.dv + block) * TILE * 4 + transposed * 2 + 64
        if few_queries:
            scratch = (rows * (s.d + text.state + vector_lanes) + block + vector_lanes) * item + 256
        stem = f"attention_{s.batch}x{s.kv_heads * s.group}x{s.queries}x{s.keys}x{s.d}"
        flops = s.flops // (tasks * splits)
        grain = max(1, round(2e5 / max(flops, 1)))
        parts = frozenset(
            {"attention_amx" if tiles else "attention", *(["attention_train"] if s.lse else [])}
        )
        outputs = ("out0", "out1") if s.lse else ("out0",)
        if splits == 1:
            stage = Stage(
                stem, text.whole(), (*arguments(call), *outputs), tasks, grain, scratch,
                parts=parts, flops=s.flops, bytes=moved_bytes(call),
            )  # fmt: skip
            return LoweredCall((stage,), accumulates="float64" if item == 8 else "float32")
        partial_bytes = tasks * splits * text.partial_size * item
        first = Stage(
            f"{stem}_part", text.part(), (*arguments(call), "temp0"), tasks * splits, grain, scratch,
            parts=parts, flops=s.flops, bytes=moved_bytes(call),
        )  # fmt: skip
        second = Stage(
            f"{stem}_join", text.join(), ("temp0", *outputs), tasks, 1, s.dv * lanes * item + 256,
            parts=parts, bytes=partial_bytes,
        )  # fmt: skip
        return LoweredCall(
            (first, second), temps=(partial_bytes,), accumulates="float64" if item == 8 else "float32"
        )


class NaiveAttention(Kernel):
    """Attention with one task per query: scores, softmax, weighted sum."""

    name = "attention/naive"
    ops = ("attention", "attention_train")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats in any layout, and masks of bools or floats."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage. A thread's scratch has one row of scores and one of results."""
        s = AttentionShape.of(call)
        if s.empty:
            return LoweredCall(())
        heads, t = s.kv_heads * s.group, accumulator(s.dtype)
        mask = (
            f"score = attention_masked(score, mask + batch * {s.mask[0]} + head * {s.mask[1]} + i * {s.mask[2]} + j * {s.mask[3]});"
            if s.mask
            else ""
        )
        lines = [
            f"// attention, a query at a time: {s.batch} x {heads} heads, {s.queries} queries, {s.keys} keys of {s.d}",
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
            f"    typedef {t} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
            "    const S *q = (const S *)args[0], *k = (const S *)args[1], *v = (const S *)args[2];",
            *([f"    {mask_argument(s)}"] if s.mask else []),
            f"    S *y = (S *)args[{4 if s.mask else 3}];",
            *([f"    T *lse = (T *)args[{5 if s.mask else 4}];"] if s.lse else []),
            f"    T *scores = (T *)scratch, *sums = scores + {s.keys};",
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t i = task % {s.queries}, head = task / {s.queries} % {heads}, batch = task / {s.queries * heads};",
            f"        const S *qi = q + batch * {s.q[0]} + head * {s.q[1]} + i * {s.q[2]};",
            f"        const S *kh = k + batch * {s.k[0]} + head / {s.group} * {s.k[1]}, *vh = v + batch * {s.v[0]} + head / {s.group} * {s.v[1]};",
            "        T row_max = MASKED_SCORE<T>, row_sum = 0;",
            f"        for (int64_t j = 0; j < {s.keys}; ++j) {{",
            "            T score = 0;",
            f"            for (int64_t e = 0; e < {s.d}; ++e) score += (T)load<1>(qi + e * {s.q[3]}) * (T)load<1>(kh + j * {s.k[2]} + e * {s.k[3]});",
            f"            score *= (T){s.scale!r};",
            *([f"            score = tanh(score / (T){s.softcap!r}) * (T){s.softcap!r};"] if s.softcap else []),
            *([f"            {mask}"] if mask else []),
            *([f"            if (j > i + {s.offset}) score = MASKED_SCORE<T>;"] if s.causal else []),
            "            scores[j] = score;",
            "            row_max = score > row_max ? score : row_max;",
            "        }",
            "        if (row_max == MASKED_SCORE<T>) row_max = 0;",
            f"        for (int64_t e = 0; e < {s.dv}; ++e) sums[e] = 0;",
            f"        for (int64_t j = 0; j < {s.keys}; ++j) {{",
            "            const T weight = exp(scores[j] - row_max);",
            "            row_sum += weight;",
            f"            for (int64_t e = 0; e < {s.dv}; ++e) sums[e] += weight * (T)load<1>(vh + j * {s.v[2]} + e * {s.v[3]});",
            "        }",
            f"        S *to = y + batch * {s.y[0]} + head * {s.y[1]} + i * {s.y[2]};",
            f"        for (int64_t e = 0; e < {s.dv}; ++e)",
            f"            store<1>(to + e * {s.y[3]}, (typename storage_<S>::compute)(row_sum == 0 ? 0 : sums[e] / row_sum));",
            *([f"        lse[batch * {s.lse[0]} + head * {s.lse[1]} + i * {s.lse[2]}] = attention_log_sum(row_max, row_sum);"] if s.lse else []),
            "    }",
            "}",
            "",
        ]  # fmt: skip
        item = 8 if t == "double" else 4
        stage = Stage(
            f"attention_naive_{s.queries}x{s.keys}x{s.d}", "\n".join(lines), (*arguments(call), *(("out0", "out1") if s.lse else ("out0",))),
            tasks=s.batch * heads * s.queries, scratch_bytes=(s.keys + s.dv) * item + 64,
            parts=frozenset({"attention_train" if s.lse else "attention"}), flops=s.flops, bytes=moved_bytes(call),
        )  # fmt: skip
        return LoweredCall((stage,), accumulates="float64" if item == 8 else "float32")


KERNELS: tuple[Any, ...] = (FlashAttention(), NaiveAttention())
