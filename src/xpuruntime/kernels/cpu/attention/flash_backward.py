"""Gradients of attention on CPUs: ``attention/flash`` of the op ``attention_backward``.

Three stages (``templates/attention_train.h``): the sum of grad * y of each query, gradients of queries in blocks of queries, gradients of keys and
values in blocks of keys. The weights of a block are computed again from the log-sum-exp of each query, so the scores are never stored as a
whole. A task sums its own gradients alone, over all query heads that share a key head. It is compute-bound: eight products of the scores' size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...portable.text import query_offset
from ...spec.attention import AttentionGradients, AttentionShape, mask_of, supported
from ..abi import isa_of
from .blocks import LaneBlock, lane_block
from .text import mask_argument

__all__ = ["KERNELS", "FlashAttentionBackward"]

_OPERANDS = ("grad", "q", "k", "v", "y", "lse", "mask")
"""Operands, by position."""


class FlashAttentionBackward(Kernel):
    """Gradients of attention over blocks of keys and of queries. Memory grows linearly with the sequence."""

    name = "attention/flash"
    ops = ("attention_backward",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats in any layout, and masks of bools or floats."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return three stages; those without a result are left out."""
        s, g = AttentionShape.of(call), AttentionGradients.of(call)
        item = 8 if s.dtype is DType.FLOAT64 else 4
        rows = s.batch * s.kv_heads * s.group * s.queries
        text = BackwardText(s, g, mask_of(call) is not None)
        stages = []
        if rows:
            stages.append(_delta_stage(call, text, rows))
        isa = isa_of(target)
        if rows:
            stages.append(
                _grad_stage(call, text, lane_block(isa, item, s.group * s.queries), item, keys=False)
            )
        if s.batch * s.kv_heads * s.keys:
            stages.append(_grad_stage(call, text, lane_block(isa, item, s.keys), item, keys=True))
        # Of each query: the sum of grad * y, which the second stage corrects, and the factor of its weights.
        temps = (max(rows, 1) * item,) * 2
        return LoweredCall(tuple(stages), temps=temps, accumulates="float64" if item == 8 else "float32")


def _bytes(*specs: TensorSpec) -> int:
    return sum(s.size_bytes or 0 for s in specs)


def _delta_stage(call: NodeCall, text: BackwardText, rows: int) -> Stage:
    s = text.s
    return Stage(
        f"attention_delta_{rows}x{s.dv}", text.delta(), ("in0", "in4", "temp0"), rows, max(1, round(2e5 / (2 * s.dv))),
        parts=frozenset({"attention_train"}), flops=2 * rows * s.dv, bytes=_bytes(call.tensor(0).spec, call.tensor(4).spec),
    )  # fmt: skip


def _grad_stage(call: NodeCall, text: BackwardText, block: LaneBlock, item: int, *, keys: bool) -> Stage:
    s = text.s
    lengths = s.keys if keys else s.group * s.queries
    tasks = s.batch * s.kv_heads * math.ceil(lengths / block.lanes)
    results = (1, 2) if keys else (0,)
    names = ("grad", "q", "k", "v", "lse", "mask")
    args = [f"in{i}" for i, n in enumerate(_OPERANDS) if n in names and call.optional(i) is not None]
    # Per lane: operands, results, scores and their gradients, and three numbers of the query. Then the rows of a block, as wide floats.
    scratch = (
        (3 * s.d + 2 * s.dv + 2 * block.keys + 3) * block.lanes + block.keys * (s.d + s.dv)
    ) * item + 256
    flops_per_score = 2 * (s.d + s.dv) if keys else 3 * s.d + s.dv
    flops = s.flops // (s.d + s.dv) * flops_per_score
    what = "keys" if keys else "queries"
    return Stage(
        f"attention_grad_{what}_{s.batch}x{s.kv_heads * s.group}x{s.queries}x{s.keys}x{s.d}",
        text.keys(block) if keys else text.queries(block),
        (*args, "temp0", "temp1", *(f"out{i}" for i in results)), tasks, max(1, round(2e5 / max(flops // tasks, 1))), scratch,
        parts=frozenset({"attention_train"}), flops=flops,
        bytes=_bytes(*(call.tensor(i).spec for i in range(4)), *(call.outputs[i] for i in results)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackwardText:
    """The functions of the stages as C++ text. Shapes and strides are literals in it."""

    s: AttentionShape
    g: AttentionGradients
    masked: bool

    def _struct(self, block: LaneBlock, rows: int) -> list[str]:
        """Return the parameters of the templates. rows: the length that blocks divide."""
        s = self.s
        numbers = {
            "block": block.keys, "d": s.d, "dv": s.dv, "q_row": s.q[2], "q_d": s.q[3], "k_row": s.k[2], "k_d": s.k[3],
            "v_row": s.v[2], "v_d": s.v[3], "g_row": self.g.y[2], "g_d": self.g.y[3],
        }  # fmt: skip
        tiles = {
            "NV": block.vectors, "R": block.rows, "row_tail": rows % block.keys % block.rows, "d_tail": s.d % block.rows,
            "dv_tail": s.dv % block.rows,
        }  # fmt: skip
        flags = {"masked": self.masked, "causal": s.causal}
        return [
            f"// gradients of attention: {s.batch} x {s.kv_heads} key heads of {s.group} query heads, {s.queries} queries, {s.keys} keys of"
            f" {s.d}, values of {s.dv}; {block.lanes} per task",
            "struct KERNEL_gradients {",
            f"    typedef {accumulator(s.dtype)} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
            f"    static constexpr int {', '.join(f'{n} = {v}' for n, v in tiles.items())};",
            f"    static constexpr int64_t {', '.join(f'{n} = {v}' for n, v in numbers.items())};",
            f"    static constexpr bool {', '.join(f'{n} = {str(v).lower()}' for n, v in flags.items())};",
            "};",
        ]

    def _head(self, results: str) -> list[str]:
        """Return the start of a function: its arguments."""
        after = 6 if self.masked else 5
        return [
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
            "    typedef KERNEL_gradients P;",
            "    const P::S *grad = (const P::S *)args[0], *q = (const P::S *)args[1], *k = (const P::S *)args[2], *v = (const P::S *)args[3];",
            "    const P::T *lse = (const P::T *)args[4];",
            *([f"    {mask_argument(self.s, 5)}"] if self.masked else []),
            f"    P::T *delta = (P::T *)args[{after}];",
            f"    P::T *norm = (P::T *)args[{after + 1}];",
            *(f"    P::S *{n} = (P::S *)args[{after + 2 + i}];" for i, n in enumerate(results.split())),
        ]

    def delta(self) -> str:
        """Return the stage that sums grad * y of each query, a query per task."""
        s, g, heads = self.s, self.g.y, self.s.kv_heads * self.s.group
        lines = [
            f"// sums of grad * y: {s.batch} x {heads} heads, {s.queries} queries of {s.dv}",
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *) {',
            f"    typedef {accumulator(s.dtype)} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t i = task % {s.queries}, head = task / {s.queries} % {heads}, batch = task / {s.queries * heads};",
            f"        const S *grad = (const S *)args[0] + batch * {g[0]} + head * {g[1]} + i * {g[2]};",
            f"        const S *y = (const S *)args[1] + batch * {s.y[0]} + head * {s.y[1]} + i * {s.y[2]};",
            f"        ((T *)args[2])[task] = attention_delta<T>(grad, {g[3]}, y, {s.y[3]}, {s.dv});",
            "    }",
            "}",
            "",
        ]
        return "\n".join(lines)

    def queries(self, block: LaneBlock) -> str:
        """Return the stage of the gradients of queries; a task has queries of all heads that share a key head."""
        s, g, rows = self.s, self.g, self.s.group * self.s.queries
        blocks = math.ceil(rows / block.lanes)

        def head(name: str, steps: tuple[int, ...], of_key: bool = False) -> str:
            return f"{name} + batch * {steps[0]} + head * {steps[1] if of_key else steps[1] * s.group}"

        lines = [
            *self._struct(block, s.keys),
            *self._head("grad_q"),
            f"    P::T *base = (P::T *)scratch, *deltas = base + {block.lanes}, *norms = deltas + {block.lanes};",
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t row = task % {blocks} * {block.lanes}, head = task / {blocks} % {s.kv_heads}, batch = task / {blocks * s.kv_heads};",
            f"        const int64_t queries = {rows} - row < {block.lanes} ? {rows} - row : {block.lanes};",
            f"        for (int64_t lane = 0; lane < {block.lanes}; ++lane) {{",
            "            const int64_t i = row + (lane < queries ? lane : 0);",
            f"            base[lane] = attention_base(({head('lse', s.lse)})[{query_offset(s.lse, 'i', s.queries)}]);",
            f"            deltas[lane] = delta[(batch * {s.kv_heads} + head) * {rows} + i];",
            "        }",
            f"        const P::T *result = attention_grad_queries<P>({head('q', s.q)}, {head('k', s.k, True)}, {head('v', s.v, True)}, {head('grad', g.y)},",
            f"            (P::T){s.scale!r}, queries, {s.keys}, base, deltas, norms, norms + {block.lanes},",
            f"            [&](int64_t lane) {{ return {query_offset(s.q, 'row + lane', s.queries)}; }},",
            f"            [&](int64_t lane) {{ return {query_offset(g.y, 'row + lane', s.queries)}; }},",
            f"            [&](int64_t lane) {{ return (row + lane) % {s.queries} + {s.offset}; }},",
            "            [&](P::T *scores, int64_t at, int64_t keys) {",
            *(f"                {x}" for x in self._mask_of_queries(head)),
            "            });",
            "        for (int64_t lane = 0; lane < queries; ++lane) {",
            f"            norm[(batch * {s.kv_heads} + head) * {rows} + row + lane] = norms[lane];",
            f"            delta[(batch * {s.kv_heads} + head) * {rows} + row + lane] = deltas[lane];",
            "        }",
            f"        attention_from_lanes(result, {s.d}, queries, {block.lanes}, [&](int64_t lane) {{ return norms[lane] * (P::T){s.scale!r}; }},",
            f"            {head('grad_q', g.q)}, {g.q[3]},",
            f"            [&](int64_t lane) {{ return {query_offset(g.q, 'row + lane', s.queries)}; }});",
            "    }",
            "}",
            "",
        ]
        return "\n".join(lines)

    def _mask_of_queries(self, head: Any) -> list[str]:
        s = self.s
        if not self.masked:
            return []
        row = query_offset(s.mask, "row + lane", s.queries)
        return [
            f"attention_mask_lanes<P::T, P::NV>(scores, keys, queries, {s.mask[3]},",
            f"    [&](int64_t lane) {{ return {head('mask', s.mask)} + {row} + at * {s.mask[3]}; }});",
        ]

    def keys(self, block: LaneBlock) -> str:
        """Return the stage of the gradients of keys and values; a task has keys of one head."""
        s, g = self.s, self.g
        blocks, lanes = math.ceil(s.keys / block.lanes), block.lanes

        def of_keys(steps: tuple[int, ...]) -> str:
            return f"batch * {steps[0]} + head * {steps[1]} + first * {steps[2]}"

        def of_queries(steps: tuple[int, ...]) -> str:
            return f"batch * {steps[0]} + (head * {s.group} + member) * {steps[1]}"

        mask = []
        if self.masked:
            mask = [
                f"attention_mask_rows<P::T, P::NV>(scores, rows, keys, {s.mask[3]},",
                f"    [&](int64_t row) {{ return mask + {of_queries(s.mask)} + (at + row) * {s.mask[2]} + first * {s.mask[3]}; }});",
            ]
        lines = [
            *self._struct(block, s.queries),
            *self._head("grad_k grad_v"),
            f"    P::T *sums_k = (P::T *)scratch, *sums_v = sums_k + {s.d * lanes}, *work = sums_v + {s.dv * lanes};",
            "    const auto one = [](int64_t) { return (P::T)1; };",
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t first = task % {blocks} * {lanes}, head = task / {blocks} % {s.kv_heads}, batch = task / {blocks * s.kv_heads};",
            f"        const int64_t keys = {s.keys} - first < {lanes} ? {s.keys} - first : {lanes};",
            f"        for (int64_t i = 0; i < {(s.d + s.dv) * lanes}; ++i) sums_k[i] = 0;",
            f"        attention_to_lanes<P::T>(k + {of_keys(s.k)}, P::k_d, P::d, keys, {lanes}, (P::T)1, work,",
            f"            [&](int64_t lane) {{ return lane * {s.k[2]}; }});",
            f"        attention_to_lanes<P::T>(v + {of_keys(s.v)}, P::v_d, P::dv, keys, {lanes}, (P::T)1, work + {s.d * lanes},",
            f"            [&](int64_t lane) {{ return lane * {s.v[2]}; }});",
            f"        for (int64_t member = 0; member < {s.group}; ++member)",
            f"            attention_grad_keys<P>(q + {of_queries(s.q)}, grad + {of_queries(g.y)}, (P::T){s.scale!r}, first, keys, {s.queries}, sums_k, sums_v, work,",
            f"                [&](int64_t i) {{ return attention_base(lse[{of_queries(s.lse)} + i * {s.lse[2]}]); }},",
            *(f"                [&](int64_t i) {{ return {n}[((batch * {s.kv_heads} + head) * {s.group} + member) * {s.queries} + i]; }}," for n in ("norm", "delta")),
            f"                [&](int64_t i) {{ return i + {s.offset}; }},",
            "                [&](P::T *scores, int64_t at, int64_t rows) {",
            *(f"                    {x}" for x in mask),
            "                });",
            f"        attention_from_lanes(sums_k, {s.d}, keys, {lanes}, one, grad_k + {of_keys(g.k)}, {g.k[3]},",
            f"            [&](int64_t lane) {{ return lane * {g.k[2]}; }});",
            f"        attention_from_lanes(sums_v, {s.dv}, keys, {lanes}, one, grad_v + {of_keys(g.v)}, {g.v[3]},",
            f"            [&](int64_t lane) {{ return lane * {g.v[2]}; }});",
            "    }",
            "}",
            "",
        ]  # fmt: skip
        return "\n".join(lines)


KERNELS: tuple[Any, ...] = (FlashAttentionBackward(),)
