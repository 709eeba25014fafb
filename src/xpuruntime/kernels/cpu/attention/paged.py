"""``paged_attention`` on CPUs: ``attention/paged`` (``templates/attention_paged.h``).

A task is one query of the heads that share a key head, over one split of its text's keys. If a table has several splits, a second stage merges
them. It is bandwidth-bound: keys and values of a task are read once per query.
"""

from __future__ import annotations

import math
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.paged_attention import PagedShape, supported
from ..abi import function, isa_of

__all__ = ["KERNELS", "PagedAttention"]

_BLOCK = 64
"""Maximum keys of a chunk."""
_ARGS = tuple(f"in{i}" for i in range(5))


class PagedAttention(Kernel):
    """Attention of few queries per text over a cache in blocks."""

    name = "attention/paged"
    ops = ("paged_attention",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats whose rows have contiguous elements."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, or two if the keys are split."""
        s = PagedShape.of(call)
        if s.empty:
            return LoweredCall(())
        item = 8 if s.dtype is DType.FLOAT64 else 4
        lanes = isa_of(target).lanes(item)
        state = (
            math.ceil(s.dv / lanes) + 1
        ) * lanes  # of a query: its accumulator in whole vectors, row max, row sum
        chunk = min(s.block_size, _BLOCK)
        text = _PagedText(call, s, chunk, s.group * state)
        queries = s.batch * s.kv_heads * s.length
        scratch = (s.group * (math.ceil(s.d / lanes) * lanes + state) + chunk + lanes) * item + 256
        stem = f"paged_attention_{s.batch}x{s.kv_heads * s.group}x{s.length}x{s.keys}x{s.d}"
        grain = max(1, round(2e5 / max(s.flops // (queries * s.splits), 1)))
        cache = 2 * s.batch * s.keys * s.kv_heads * (s.d + s.dv)
        parts = frozenset({"attention_paged"})
        accumulates = "float64" if item == 8 else "float32"
        operands = (*_ARGS, "in5") if s.places else _ARGS
        if s.splits == 1:
            stage = Stage(
                stem, text.whole(), (*operands, "out0"), queries, grain, scratch, parts=parts, flops=s.flops, bytes=cache
            )  # fmt: skip
            return LoweredCall((stage,), accumulates=accumulates)
        partial_bytes = queries * s.splits * s.group * state * item
        first = Stage(
            f"{stem}_part", text.part(), (*operands, "temp0"), queries * s.splits, grain, scratch, parts=parts, flops=s.flops, bytes=cache
        )  # fmt: skip
        second = Stage(
            f"{stem}_join", text.join(), ("temp0", "in4", "out0"), queries, 1, 256, parts=parts, bytes=partial_bytes
        )  # fmt: skip
        return LoweredCall((first, second), temps=(partial_bytes,), accumulates=accumulates)


class _PagedText:
    """The functions as C++ text. ``size``: numbers of a task's state."""

    def __init__(self, call: NodeCall, s: PagedShape, chunk: int, size: int) -> None:
        self.call, self.s, self.chunk, self.size = call, s, chunk, size

    def _struct(self) -> list[str]:
        s = self.s
        numbers = {
            "d": s.d, "dv": s.dv, "k_row": s.k[0], "v_row": s.v[0], "q_d": s.q[3], "y_d": s.y[3], "q_head": s.q[1],
            "block": self.chunk, "block_size": s.block_size, "blocks": s.blocks, "table_step": s.tables[1],
        }  # fmt: skip
        return [
            f"// attention over blocks of {s.block_size} rows: {s.batch} x {s.kv_heads} key heads of {s.group} query heads, {s.length} queries,"
            f" up to {s.keys} keys of {s.d}, values of {s.dv}, in {s.splits} splits",
            "struct KERNEL_attention {",
            f"    typedef {accumulator(s.dtype)} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
            f"    static constexpr int queries = {s.group};",
            f"    static constexpr int64_t {', '.join(f'{n} = {v}' for n, v in numbers.items())};",
            f"    static constexpr bool masked = {str(s.places > 0).lower()}, causal = false, softcap = {str(s.softcap != 0).lower()};",
            f"    static constexpr T cap() {{ return (T){s.softcap!r}; }}",
            "};",
        ]

    def _tasks(self, args: list[str], splits: int, body: list[str]) -> str:
        s = self.s
        lines = [
            "typedef KERNEL_attention P;",
            *args,
            "for (int64_t task = begin; task < end; ++task) {",
            f"  const int64_t query = task / {splits}, t = query % {s.length}, head = query / {s.length} % {s.kv_heads}, batch = query / {s.length * s.kv_heads};",
            f"  int64_t last = (int64_t)positions[batch * {s.positions[0]} + t * {s.positions[1]}] + 1;",
            "  last = last < 0 ? 0 : last;",
            f"  const int64_t seen = {f'last > {s.window} ? last - {s.window} : 0' if s.window else '0'};",
            *(f"  {x}" for x in body),
            "}",
        ]
        return "\n".join([*self._struct(), function("\n".join(f"  {x}" for x in lines))])

    def _arguments(self) -> list[str]:
        tables, positions = (C_TYPES[self.call.tensor(i).spec.dtype] for i in (3, 4))
        return [
            "const P::S *q = (const P::S *)args[0], *k = (const P::S *)args[1], *v = (const P::S *)args[2];",
            f"const {tables} *tables = (const {tables} *)args[3];",
            f"const {positions} *positions = (const {positions} *)args[4];",
            *(["const float *biases = (const float *)args[5];"] if self.s.places else []),
        ]

    def _checked(self) -> list[str]:
        s = self.s
        return [
            f"if (last > {s.keys}) {{",
            f"  fail(scratch, INDEX_OUTSIDE, last - 1, {s.keys});",
            "  last = 0;",
            "}",
        ]

    def _compute(self, first: str, last: str, state: str, work: str) -> list[str]:
        s = self.s
        return [
            f"attention_paged<P>(q + batch * {s.q[0]} + head * {s.q[1] * s.group} + t * {s.q[2]}, k + head * {s.k[1]}, v + head * {s.v[1]},",
            f"                   tables + batch * {s.tables[0]}, (P::T){s.scale!r}, {first}, {last}, {state}, {work}, scratch, {self._mask()});",
        ]

    def _mask(self) -> str:
        """Return the function that adds the bias to a score."""
        s = self.s
        if not s.places:
            return "[](P::T score, int64_t, int64_t) { return score; }"
        bias = s.bias(f"head * {s.group} + i", "at_query", "key")
        return f"[&](P::T score, int64_t i, int64_t key) {{ const int64_t at_query = last - 1; return score + (P::T){bias}; }}"

    def _finish(self, state: str) -> list[str]:
        s, each = self.s, self.size // self.s.group
        y = f"y + batch * {s.y[0]} + (head * {s.group} + i) * {s.y[1]} + t * {s.y[2]}"
        return [
            f"for (int64_t i = 0; i < P::queries; ++i) attention_few_finish<P>({state} + i * {each}, {y});"
        ]

    def whole(self) -> str:
        """Return the stage over all keys."""
        args = [*self._arguments(), f"P::S *y = (P::S *)args[{6 if self.s.places else 5}];"]
        work = f"(P::T *)scratch + {self.size}"
        body = [
            *self._checked(),
            *self._compute("seen", "last", "(P::T *)scratch", work),
            *self._finish("(const P::T *)scratch"),
        ]
        return self._tasks(args, 1, body)

    def part(self) -> str:
        """Return the stage that computes one split of the keys. It leaves splits alone that no query sees."""
        s = self.s
        args = [*self._arguments(), f"P::T *parts = (P::T *)args[{6 if s.places else 5}];"]
        body = [
            *self._checked(),
            f"const int64_t from = task % {s.splits} * {s.keys_per_split}, to = from + {s.keys_per_split};",
            "if (from >= last || to <= seen) continue;",
            *self._compute(
                "(from > seen ? from : seen)",
                "(to < last ? to : last)",
                f"parts + task * {self.size}",
                "(P::T *)scratch",
            ),
        ]
        return self._tasks(args, s.splits, body)

    def join(self) -> str:
        """Return the stage that merges the splits of a query."""
        s, each = self.s, self.size // self.s.group
        positions = C_TYPES[self.call.tensor(4).spec.dtype]
        args = [
            "P::T *parts = (P::T *)args[0];",
            f"const {positions} *positions = (const {positions} *)args[1];",
            "P::S *y = (P::S *)args[2];",
        ]
        body = [
            f"if (last <= 0 || last > {s.keys}) {{",
            f"  for (int64_t i = 0; i < P::queries; ++i) for (int64_t e = 0; e < P::dv; ++e) y[batch * {s.y[0]} + (head * {s.group} + i) * {s.y[1]} + t * {s.y[2]} + e * P::y_d] = P::S{{}};",
            "  continue;",
            "}",
            f"const int64_t from = seen / {s.keys_per_split}, count = (last - 1) / {s.keys_per_split} + 1 - from;",
            f"P::T *state = parts + (task * {s.splits} + from) * {self.size};",
            f"for (int64_t i = 0; i < P::queries; ++i) attention_few_join<P>(state + i * {each}, count, {self.size});",
            *self._finish("state"),
        ]
        return self._tasks(args, 1, body)


KERNELS: tuple[Any, ...] = (PagedAttention(),)
