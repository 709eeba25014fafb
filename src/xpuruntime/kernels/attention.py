"""Attention on CPUs: ``attention/flash`` in blocks of keys, and ``attention/naive``, one row of scores at a time.

``flash`` puts the queries of all heads that share a key head side by side in the lanes of vectors (``templates/attention.h``), so
grouped heads read each key once. Few queries over many keys (decoding) are split along the keys, with a second stage that joins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.isa import IsaLevel
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..types import DType
from .gemm import C_TYPES, TILE, accumulator, registers, sizes, strides_in
from .kernel import Lowered, NodeCall, Stage

__all__ = ["KERNELS", "AttentionShape", "FlashAttention", "NaiveAttention"]

_ENOUGH_TASKS = 16
"""With fewer tasks than this the keys are shared between tasks, as long as each has ``_SHARE`` of them."""
_SHARE = 256
_FEW = 8
"""Up to so many queries of a key head, sums across lanes cost less than lanes that stand empty."""
_BLOCK = 96
"""Keys of a block: scores of 64 queries are 24 KiB then, half of a first-level cache."""
_TILE_BLOCK = 128
"""The same where tiles multiply: the more keys, the less often results are scaled; scores of 32 queries are 16 KiB then."""
_WASTE = {1: 1.3, 2: 1.05, 3: 1.02, 4: 1.0}
"""How much longer a product takes with so many vectors of queries: fewer sums hide less of an FMA's latency."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes and strides of an attention node; strides are of [batch, head, position, element]."""

    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    d: int
    dv: int
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    y: tuple[int, ...]
    mask: tuple[int, ...]
    causal: bool
    offset: int
    scale: float
    softcap: float
    storage: str
    sums: str
    mask_type: str

    @classmethod
    def of(cls, call: NodeCall) -> AttentionShape:
        q, k, v, y = (*(call.tensor(i).spec for i in range(3)), call.outputs[0])
        (batch, heads, queries, d), (_, kv_heads, keys, dv) = sizes(q), sizes(v)
        mask = call.optional(3)
        scale = call.attrs["scale"]
        return cls(
            batch=batch,
            kv_heads=kv_heads,
            group=heads // max(kv_heads, 1),
            queries=queries,
            keys=keys,
            d=d,
            dv=dv,
            q=q.physical.strides,
            k=k.physical.strides,
            v=v.physical.strides,
            y=y.physical.strides,
            mask=strides_in(mask.spec, (batch, heads, queries, keys)) if mask else (),
            causal=call.attrs["causal"],
            offset=int(call.attrs["causal_offset"]),
            scale=1 / math.sqrt(max(d, 1)) if scale is None else float(scale),
            softcap=float(call.attrs["softcap"]),
            storage=C_TYPES[q.dtype],
            sums=accumulator(q.dtype),
            mask_type=""
            if mask is None
            else "bool"
            if mask.spec.dtype is DType.BOOL
            else C_TYPES[mask.spec.dtype],
        )

    @property
    def empty(self) -> bool:
        return not self.batch * self.kv_heads * self.group * self.queries * self.dv

    @property
    def flops(self) -> int:
        """Of both products, without what causality spares."""
        return 2 * self.batch * self.kv_heads * self.group * self.queries * self.keys * (self.d + self.dv)


def _supports(call: NodeCall) -> Support:
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES or not dtype.is_float:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"no attention in {dtype.value}")
    mask = call.optional(3)
    if mask is not None and mask.spec.dtype is not DType.BOOL and not (
        mask.spec.dtype in C_TYPES and mask.spec.dtype.is_float
    ):  # fmt: skip
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"a mask is bool or float, not {mask.spec.dtype.value}")
    return Support.yes()


def _args(call: NodeCall) -> tuple[str, ...]:
    return ("in0", "in1", "in2", *(("in3",) if call.optional(3) else ()))


def _bytes(call: NodeCall) -> int:
    return sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), call.outputs[0]))


def _row(strides: Sequence[int], index: str, queries: int) -> str:
    """The place of query ``index`` of a group: heads outside, positions inside."""
    if strides[1] == strides[2] * queries:
        return f"({index}) * {strides[2]}"
    return f"({index}) / {queries} * {strides[1]} + ({index}) % {queries} * {strides[2]}"


class FlashAttention:
    """Blocks of keys with an online softmax; memory that grows with the sequence."""

    name = "attention/flash"
    ops = ("attention",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats in any layout; masks of bools or floats."""
        return _supports(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage, or two where the keys are split."""
        s = AttentionShape.of(call)
        if s.empty:
            return Lowered(())
        isa: IsaLevel = target.isa  # type: ignore[attr-defined]
        item = 8 if s.sums == "double" else 4
        lanes_of_one, regs, rows = isa.lanes(item), registers(isa), s.group * s.queries
        most = 4 if regs == 32 else 3
        nv = min(range(1, most + 1), key=lambda v: math.ceil(rows / (v * lanes_of_one)) * v * _WASTE[v])
        few = rows <= _FEW and s.k[3] == 1 and s.v[3] == 1
        beside = s.q[3] == s.k[3] == s.v[3] == s.y[3] == 1
        tiles = s.storage == "bf16" and "amx-bf16" in isa.features and beside and not few
        if tiles:
            nv = TILE // lanes_of_one
        lanes = nv * lanes_of_one
        r = max(1, min(16, (regs - 1 - nv) // nv))
        block = max(r, _BLOCK // r * r)
        if tiles:
            block = max(TILE, min(_TILE_BLOCK, math.ceil(s.keys / TILE) * TILE))
        blocks = math.ceil(rows / lanes)
        tasks = s.batch * s.kv_heads * blocks
        splits = (
            1 if tasks >= _ENOUGH_TASKS else max(1, min(-(-2 * _ENOUGH_TASKS // tasks), s.keys // _SHARE))
        )
        share = math.ceil(s.keys / splits / block) * block if splits > 1 else s.keys
        splits = max(1, math.ceil(s.keys / share)) if share else 1
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
        if few:  # one task has all of a group's queries
            constants["int"] = {"queries": rows}
        text = _FlashText(s, constants, lanes, blocks, splits, share, few, lanes_of_one, tiles)
        scratch = (s.d + s.dv + block) * lanes * item + 256
        if s.storage != s.sums:
            scratch += block * (s.d + s.dv) * item
        if tiles:
            turned = (
                math.ceil(s.d / TILE) * TILE * TILE + (TILE + math.ceil(s.dv / 16) * 16) * block + TILE * TILE
            )
            scratch = (s.dv + block) * TILE * 4 + turned * 2 + 64
        if few:
            scratch = (rows * (s.d + text.state + lanes_of_one) + block + lanes_of_one) * item + 256
        stem = f"attention_{s.batch}x{s.kv_heads * s.group}x{s.queries}x{s.keys}x{s.d}"
        flops = s.flops // (tasks * splits)
        grain = max(1, round(2e5 / max(flops, 1)))
        parts = frozenset({"attention_amx" if tiles else "attention"})
        if splits == 1:
            stage = Stage(
                stem, text.whole(), (*_args(call), "out0"), tasks, grain, scratch,
                parts=parts, flops=s.flops, bytes=_bytes(call),
            )  # fmt: skip
            return Lowered((stage,), accumulates="float64" if item == 8 else "float32")
        kept = tasks * splits * text.kept * item
        first = Stage(
            f"{stem}_part", text.part(), (*_args(call), "temp0"), tasks * splits, grain, scratch,
            parts=parts, flops=s.flops, bytes=_bytes(call),
        )  # fmt: skip
        second = Stage(
            f"{stem}_join", text.join(), ("temp0", "out0"), tasks, 1, s.dv * lanes * item + 256,
            parts=parts, bytes=kept,
        )  # fmt: skip
        return Lowered((first, second), temps=(kept,), accumulates="float64" if item == 8 else "float32")


@dataclass(frozen=True, slots=True)
class _FlashText:
    """The functions of flash attention; shapes and strides stand in them as numbers."""

    s: AttentionShape
    constants: dict[str, dict[str, Any]]
    lanes: int
    blocks: int
    splits: int
    share: int
    few: bool
    lanes_of_one: int
    tiles: bool

    @property
    def state(self) -> int:
        """Numbers of one query's state, where queries are few: its result in whole vectors, then maximum and sum."""
        return (math.ceil(self.s.dv / self.lanes_of_one) + 1) * self.lanes_of_one

    @property
    def kept(self) -> int:
        """Numbers that a task of a part keeps for the stage that joins."""
        if self.few:
            return self.s.group * self.s.queries * self.state
        return (self.s.dv + 2) * self.lanes

    def _struct(self) -> list[str]:
        s = self.s
        lines = [
            f"// attention: {s.batch} x {s.kv_heads} key heads of {s.group} query heads, {s.queries} queries, {s.keys} keys of"
            f" {s.d}, values of {s.dv}; {self.lanes} queries side by side"
            + (f", keys in {self.splits} parts" if self.splits > 1 else ""),
            "struct KERNEL_attention {",
            f"    typedef {s.sums} T;",
            f"    typedef {s.storage} S;",
        ]
        for kind, values in self.constants.items():
            lines.append(
                f"    static constexpr {kind} " + ", ".join(f"{n} = {v}" for n, v in values.items()) + ";"
            )
        return [*lines, f"    static constexpr T cap() {{ return (T){s.softcap!r}; }}", "};"]

    def _tasks(self, args: str) -> list[str]:
        """The loop over tasks: which batch, key head, block of queries (and part of the keys) it is."""
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
        whole = rows % self.lanes == 0
        count = f"{self.lanes}" if whole else f"{rows} - row < {self.lanes} ? {rows} - row : {self.lanes}"
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
        first = f"task % {self.splits} * {self.share}" if self.splits > 1 else "0"
        last = (
            f"first + {self.share} < {s.keys} ? first + {self.share} : {s.keys}"
            if self.splits > 1
            else f"{s.keys}"
        )
        if self.few:
            return [f"        {x}" for x in self._few(head, first, last)]
        lines = [
            f"const int64_t first = {first}, last = {last};",
            f"const auto place = [&](int64_t lane) {{ return {_row(s.q, 'row + lane', s.queries)}; }};",
            f"const auto seen = [&](int64_t lane) {{ return (row + lane) % {s.queries} + {s.offset}; }};",
            "const auto hide = [&](P::T *scores, int64_t at, int64_t keys) {",
            *(f"    {x}" for x in self._mask(head[3])),
            "};",
            "AttentionState<P::T, P::NV> state;",
            f"attention_block{'_tiles' * self.tiles}<P>({'tiles, ' * self.tiles}q + {head[0]}, k + {head[1]}, v + {head[2]}, (P::T){s.scale!r}, queries,",
            "                   first, last, state, scratch, place, seen, hide);",
        ]
        return [f"        {x}" for x in lines]

    def _few(self, head: Sequence[str], first: str, last: str) -> list[str]:
        s = self.s
        state = f"parts + task * {self.kept}" if self.splits > 1 else "(P::T *)scratch"
        work = "scratch" if self.splits > 1 else f"(P::T *)scratch + {self.kept}"
        at = f"mask + {head[3]} + {_row(s.mask, 'i', s.queries)} + j * {s.mask[3]}" if s.mask else "0"
        hide = f"attention_masked(score, {at})" if s.mask else "score"
        return [
            f"const int64_t first = {first}, last = {last};",
            f"P::T *state = {state};",
            f"attention_few<P>(q + {head[0]}, k + {head[1]}, v + {head[2]}, (P::T){s.scale!r}, first, last, state, {work},",
            f"                 [&](int64_t i) {{ return {_row(s.q, 'i', s.queries)}; }},",
            f"                 [&](int64_t i) {{ return i % {s.queries} + {s.offset}; }},",
            f"                 [&](P::T score, int64_t i, int64_t j) {{ return {hide}; }});",
        ]

    def _mask(self, head: str) -> list[str]:
        s = self.s
        if not s.mask:
            return []
        step = s.mask[3]
        if not s.mask[2] and (s.group == 1 or not s.mask[1]):
            return [f"attention_mask_keys<P::T, P::NV>(scores, keys, mask + {head} + at * {step}, {step});"]
        row = _row(s.mask, "row + lane", s.queries)
        return [
            f"attention_mask_lanes<P::T, P::NV>(scores, keys, queries, {step},",
            f"    [&](int64_t lane) {{ return mask + {head} + {row} + at * {step}; }});",
        ]

    def _operands(self) -> str:
        s = self.s
        text = (
            "    "
            + f"const {s.storage} *q = (const P::S *)args[0], *k = (const P::S *)args[1], *v = (const P::S *)args[2];"
        )
        return text + (f"\n    const {s.mask_type} *mask = (const {s.mask_type} *)args[3];" if s.mask else "")

    def _finish(self) -> list[str]:
        s = self.s
        if self.few:
            y = f"y + batch * {s.y[0]} + head * {s.y[1] * s.group}"
            return [
                "        for (int64_t i = 0; i < P::queries; ++i)",
                f"            attention_few_finish<P>(state + i * {self.state}, {y} + {_row(s.y, 'i', s.queries)});",
                "    }",
                "}",
                "",
            ]
        return [
            f"        attention_finish{'_tiles' * self.tiles}<P>(state, y + batch * {s.y[0]} + head * {s.y[1] * s.group}, queries,",
            f"                            [&](int64_t lane) {{ return {_row(s.y, 'row + lane', s.queries)}; }});",
            "    }",
            "}",
            "",
        ]

    def whole(self) -> str:
        at = 4 if self.s.mask else 3
        args = f"{self._operands()}\n    P::S *y = (P::S *)args[{at}];"
        return "\n".join(
            [*self._struct(), *self._tasks(args), *self._where(1), *self._compute(), *self._finish()]
        )

    def part(self) -> str:
        """The first of two stages: a part of the keys."""
        at = 4 if self.s.mask else 3
        args = f"{self._operands()}\n    P::T *parts = (P::T *)args[{at}];"
        keep = [] if self.few else [f"        attention_keep(state, P::dv, parts + task * {self.kept});"]
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
        """The second: parts become one result."""
        args = "    P::T *parts = (P::T *)args[0];\n    P::S *y = (P::S *)args[1];"
        if self.few:
            join = [
                f"        P::T *state = parts + task * {self.kept * self.splits};",
                "        for (int64_t i = 0; i < P::queries; ++i)",
                f"            attention_few_join<P>(state + i * {self.state}, {self.splits}, {self.kept});",
            ]
        else:
            join = [
                "        AttentionState<P::T, P::NV> state;",
                f"        attention_join(state, parts + task * {self.kept * self.splits}, {self.splits}, P::dv, (P::T *)scratch);",
            ]
        return "\n".join([*self._struct(), *self._tasks(args), *self._where(1), *join, *self._finish()])


class NaiveAttention:
    """A task is one query: its scores, their softmax, the weighted sum. Plain, and the judge of the fast one."""

    name = "attention/naive"
    ops = ("attention",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats in any layout; masks of bools or floats."""
        return _supports(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage; a thread holds one row of scores and one of results."""
        s = AttentionShape.of(call)
        if s.empty:
            return Lowered(())
        heads, t = s.kv_heads * s.group, s.sums
        mask = (
            f"score = attention_masked(score, mask + batch * {s.mask[0]} + head * {s.mask[1]} + i * {s.mask[2]} + j * {s.mask[3]});"
            if s.mask
            else ""
        )
        lines = [
            f"// attention, a query at a time: {s.batch} x {heads} heads, {s.queries} queries, {s.keys} keys of {s.d}",
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
            f"    typedef {t} T;",
            f"    typedef {s.storage} S;",
            "    const S *q = (const S *)args[0], *k = (const S *)args[1], *v = (const S *)args[2];",
            *([f"    const {s.mask_type} *mask = (const {s.mask_type} *)args[3];"] if s.mask else []),
            f"    S *y = (S *)args[{4 if s.mask else 3}];",
            f"    T *scores = (T *)scratch, *sums = scores + {s.keys};",
            "    for (int64_t task = begin; task < end; ++task) {",
            f"        const int64_t i = task % {s.queries}, head = task / {s.queries} % {heads}, batch = task / {s.queries * heads};",
            f"        const S *qi = q + batch * {s.q[0]} + head * {s.q[1]} + i * {s.q[2]};",
            f"        const S *kh = k + batch * {s.k[0]} + head / {s.group} * {s.k[1]}, *vh = v + batch * {s.v[0]} + head / {s.group} * {s.v[1]};",
            "        T most = ATTENTION_HIDDEN<T>, total = 0;",
            f"        for (int64_t j = 0; j < {s.keys}; ++j) {{",
            "            T score = 0;",
            f"            for (int64_t e = 0; e < {s.d}; ++e) score += (T)load<1>(qi + e * {s.q[3]}) * (T)load<1>(kh + j * {s.k[2]} + e * {s.k[3]});",
            f"            score *= (T){s.scale!r};",
            *([f"            score = tanh(score / (T){s.softcap!r}) * (T){s.softcap!r};"] if s.softcap else []),
            *([f"            {mask}"] if mask else []),
            *([f"            if (j > i + {s.offset}) score = ATTENTION_HIDDEN<T>;"] if s.causal else []),
            "            scores[j] = score;",
            "            most = score > most ? score : most;",
            "        }",
            "        if (most == ATTENTION_HIDDEN<T>) most = 0;",
            f"        for (int64_t e = 0; e < {s.dv}; ++e) sums[e] = 0;",
            f"        for (int64_t j = 0; j < {s.keys}; ++j) {{",
            "            const T weight = exp(scores[j] - most);",
            "            total += weight;",
            f"            for (int64_t e = 0; e < {s.dv}; ++e) sums[e] += weight * (T)load<1>(vh + j * {s.v[2]} + e * {s.v[3]});",
            "        }",
            f"        S *to = y + batch * {s.y[0]} + head * {s.y[1]} + i * {s.y[2]};",
            f"        for (int64_t e = 0; e < {s.dv}; ++e)",
            f"            store<1>(to + e * {s.y[3]}, (typename storage_<S>::compute)(total == 0 ? 0 : sums[e] / total));",
            "    }",
            "}",
            "",
        ]  # fmt: skip
        item = 8 if t == "double" else 4
        stage = Stage(
            f"attention_naive_{s.queries}x{s.keys}x{s.d}", "\n".join(lines), (*_args(call), "out0"),
            tasks=s.batch * heads * s.queries, scratch_bytes=(s.keys + s.dv) * item + 64,
            parts=frozenset({"attention"}), flops=s.flops, bytes=_bytes(call),
        )  # fmt: skip
        return Lowered((stage,), accumulates="float64" if item == 8 else "float32")


KERNELS: tuple[Any, ...] = (FlashAttention(), NaiveAttention())
