"""The text of flash attention on CPUs: all keys, one split of the keys, and the merge of splits (``templates/attention.h``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....codegen.c_types import C_TYPES, STORAGE, accumulator
from ...portable.text import query_offset
from ...spec.attention import AttentionShape

__all__ = ["FlashText", "mask_argument"]


@dataclass(frozen=True, slots=True)
class FlashText:
    """The functions of flash attention as C++ text. Shapes and strides are literals in it.

    lanes:        queries of a task, in the lanes of vectors.
    blocks:       blocks of queries per key head.
    splits:       splits of the keys, of ``keys_per_split`` keys each.
    few_queries:  whether queries are so few that vectors run along the head instead.
    vector_lanes: lanes of one vector.
    tiles:        whether AMX tiles multiply.
    """

    s: AttentionShape
    constants: dict[str, dict[str, Any]]
    lanes: int
    blocks: int
    splits: int
    keys_per_split: int
    few_queries: bool
    vector_lanes: int
    tiles: bool

    @property
    def state(self) -> int:
        """Numbers of a query's softmax state where queries are few: its accumulator in whole vectors, row max, row sum."""
        return (math.ceil(self.s.dv / self.vector_lanes) + 1) * self.vector_lanes

    @property
    def partial_size(self) -> int:
        """Numbers that a task of a split stores for the merge."""
        if self.few_queries:
            return self.s.group * self.s.queries * self.state
        return (self.s.dv + 2) * self.lanes

    def _struct(self) -> list[str]:
        s = self.s
        lines = [
            f"// attention: {s.batch} x {s.kv_heads} key heads of {s.group} query heads, {s.queries} queries, {s.keys} keys of"
            f" {s.d}, values of {s.dv}; {self.lanes} queries per task"
            + (f", keys in {self.splits} splits" if self.splits > 1 else ""),
            "struct KERNEL_attention {",
            f"    typedef {accumulator(s.dtype)} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
        ]
        for kind, values in self.constants.items():
            lines.append(
                f"    static constexpr {kind} " + ", ".join(f"{n} = {v}" for n, v in values.items()) + ";"
            )
        return [*lines, f"    static constexpr T cap() {{ return (T){s.softcap!r}; }}", "};"]

    def _tasks(self, args: str) -> list[str]:
        """Return the start of the function: its arguments and the loop over tasks."""
        return [
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
            "    typedef KERNEL_attention P;",
            *args.splitlines(),
            *(["    Tiles tiles;"] if self.tiles else []),
            "    for (int64_t task = begin; task < end; ++task) {",
        ]

    def _where(self, splits: int) -> list[str]:
        s = self.s
        rows = s.group * s.queries
        exact = rows % self.lanes == 0
        count = f"{self.lanes}" if exact else f"{rows} - row < {self.lanes} ? {rows} - row : {self.lanes}"
        return [
            f"        const int64_t row = task / {splits} % {self.blocks} * {self.lanes}, head = task / {splits * self.blocks}"
            f" % {s.kv_heads}, batch = task / {splits * self.blocks * s.kv_heads};",
            f"        const int64_t queries = {count};",
        ]

    def _compute(self) -> list[str]:
        s = self.s
        head = [
            f"batch * {t[0]} + head * {t[1] * (s.group if n in ('q', 'm') else 1)}"
            for n, t in (("q", s.q), ("k", s.k), ("v", s.v), ("m", s.mask or (0, 0)))
        ]
        first = f"task % {self.splits} * {self.keys_per_split}" if self.splits > 1 else "0"
        last = (
            f"first + {self.keys_per_split} < {s.keys} ? first + {self.keys_per_split} : {s.keys}"
            if self.splits > 1
            else f"{s.keys}"
        )
        if self.few_queries:
            return [f"        {x}" for x in self._few(head, first, last)]
        lines = [
            f"const int64_t first = {first}, last = {last};",
            f"const auto offset_of = [&](int64_t lane) {{ return {query_offset(s.q, 'row + lane', s.queries)}; }};",
            f"const auto last_visible = [&](int64_t lane) {{ return (row + lane) % {s.queries} + {s.offset}; }};",
            "const auto apply_mask = [&](P::T *scores, int64_t at, int64_t keys) {",
            *(f"    {x}" for x in self._mask(head[3])),
            "};",
            "AttentionState<P::T, P::NV> state;",
            f"attention_block{'_tiles' * self.tiles}<P>({'tiles, ' * self.tiles}q + {head[0]}, k + {head[1]}, v + {head[2]}, (P::T){s.scale!r}, queries,",
            "                   first, last, state, scratch, offset_of, last_visible, apply_mask);",
        ]
        return [f"        {x}" for x in lines]

    def _few(self, head: Sequence[str], first: str, last: str) -> list[str]:
        s = self.s
        state = f"parts + task * {self.partial_size}" if self.splits > 1 else "(P::T *)scratch"
        work = "scratch" if self.splits > 1 else f"(P::T *)scratch + {self.partial_size}"
        at = f"mask + {head[3]} + {query_offset(s.mask, 'i', s.queries)} + j * {s.mask[3]}" if s.mask else "0"
        masked = f"attention_masked(score, {at})" if s.mask else "score"
        return [
            f"const int64_t first = {first}, last = {last};",
            f"P::T *state = {state};",
            f"attention_few<P>(q + {head[0]}, k + {head[1]}, v + {head[2]}, (P::T){s.scale!r}, first, last, state, {work},",
            f"                 [&](int64_t i) {{ return {query_offset(s.q, 'i', s.queries)}; }},",
            f"                 [&](int64_t i) {{ return i % {s.queries} + {s.offset}; }},",
            f"                 [&](P::T score, int64_t i, int64_t j) {{ return {masked}; }});",
        ]

    def _mask(self, head: str) -> list[str]:
        s = self.s
        if not s.mask:
            return []
        step = s.mask[3]
        if not s.mask[2] and (s.group == 1 or not s.mask[1]):
            return [f"attention_mask_keys<P::T, P::NV>(scores, keys, mask + {head} + at * {step}, {step});"]
        row = query_offset(s.mask, "row + lane", s.queries)
        return [
            f"attention_mask_lanes<P::T, P::NV>(scores, keys, queries, {step},",
            f"    [&](int64_t lane) {{ return mask + {head} + {row} + at * {step}; }});",
        ]

    def _operands(self) -> str:
        s = self.s
        text = (
            "    "
            + f"const {C_TYPES[s.dtype]} *q = (const P::S *)args[0], *k = (const P::S *)args[1], *v = (const P::S *)args[2];"
        )
        return text + (f"\n    {mask_argument(s)}" if s.mask else "")

    def _finish(self) -> list[str]:
        s = self.s
        if self.few_queries:
            y = f"y + batch * {s.y[0]} + head * {s.y[1] * s.group}"
            return [
                "        for (int64_t i = 0; i < P::queries; ++i)",
                f"            attention_few_finish<P>(state + i * {self.state}, {y} + {query_offset(s.y, 'i', s.queries)});",
                *self._log_sums("i"),
                "    }",
                "}",
                "",
            ]
        return [
            f"        attention_finish{'_tiles' * self.tiles}<P>(state, y + batch * {s.y[0]} + head * {s.y[1] * s.group}, queries,",
            f"                            [&](int64_t lane) {{ return {query_offset(s.y, 'row + lane', s.queries)}; }});",
            *self._log_sums("row + lane"),
            "    }",
            "}",
            "",
        ]

    def _log_sums(self, query: str) -> list[str]:
        """Return the lines that store the log-sum-exp of each query in training."""
        s = self.s
        if not s.lse:
            return []
        lse, index = (
            f"lse + batch * {s.lse[0]} + head * {s.lse[1] * s.group}",
            query_offset(s.lse, query, s.queries),
        )
        if self.few_queries:
            return [
                f"        for (int64_t i = 0; i < P::queries; ++i) ({lse})[{index}] = attention_few_lse<P>(state + i * {self.state});"
            ]
        return [
            f"        attention_store_lse(state, {lse}, queries, [&](int64_t lane) {{ return {index}; }});"
        ]

    def _results(self, at: int) -> str:
        """Return the declarations of the results, which are the arguments from ``at`` on."""
        lse = f"\n    P::T *lse = (P::T *)args[{at + 1}];" if self.s.lse else ""
        return f"    P::S *y = (P::S *)args[{at}];{lse}"

    def whole(self) -> str:
        args = f"{self._operands()}\n{self._results(4 if self.s.mask else 3)}"
        return "\n".join(
            [*self._struct(), *self._tasks(args), *self._where(1), *self._compute(), *self._finish()]
        )

    def part(self) -> str:
        """Return the first of two stages, which computes a split of the keys."""
        at = 4 if self.s.mask else 3
        args = f"{self._operands()}\n    P::T *parts = (P::T *)args[{at}];"
        keep = (
            []
            if self.few_queries
            else [f"        attention_keep(state, P::dv, parts + task * {self.partial_size});"]
        )
        return "\n".join(
            [
                *self._struct(),
                *self._tasks(args),
                *self._where(self.splits),
                *self._compute(),
                *keep,
                "    }",
                "}",
                "",
            ]
        )

    def join(self) -> str:
        """Return the second of two stages, which merges the splits."""
        args = f"    P::T *parts = (P::T *)args[0];\n{self._results(1)}"
        if self.few_queries:
            join = [
                f"        P::T *state = parts + task * {self.partial_size * self.splits};",
                "        for (int64_t i = 0; i < P::queries; ++i)",
                f"            attention_few_join<P>(state + i * {self.state}, {self.splits}, {self.partial_size});",
            ]
        else:
            join = [
                "        AttentionState<P::T, P::NV> state;",
                f"        attention_join(state, parts + task * {self.partial_size * self.splits}, {self.splits}, P::dv, (P::T *)scratch);",
            ]
        return "\n".join([*self._struct(), *self._tasks(args), *self._where(1), *join, *self._finish()])


def mask_argument(s: AttentionShape, at: int = 3) -> str:
    """Return the line that gives the mask, argument ``at``, its type. Only for a node that has a mask."""
    assert s.mask_dtype is not None
    kind = STORAGE[s.mask_dtype]
    return f"const {kind} *mask = (const {kind} *)args[{at}];"
