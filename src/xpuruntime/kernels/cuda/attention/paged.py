"""``paged_attention`` on CUDA: ``attention/paged`` (``templates/cuda/paged_attention.cuh``).

A block is one query of up to eight heads that share a key head, over one split of its text's keys. If a table has several splits, a second launch
merges them. The splits depend on the table's size alone. It is bandwidth-bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Support
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.movement.elements import STATUS
from ...spec.paged_attention import PagedShape, supported
from ..heavy import about, argument, bytes_of, c_bool, constants
from ..launch import Argument, LaunchConfig, cuda_stage

__all__ = ["KERNELS", "CudaPagedAttention"]

_THREADS = 128
_MAX_GROUP, _MAX_GROUP_OF_LONG_HEADS, _LONG_HEAD = 8, 4, 256
"""Heads of a block: their queries are in shared memory, and their sums in registers."""
_MIN_KEYS_PER_SPLIT, _MAX_SPLITS = 128, 64


class CudaPagedAttention(Kernel):
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
        text = _PagedLaunch(call, s)
        accumulates = "float64" if text.kind == "double" else "float32"
        if text.splits == 1:
            return LoweredCall((text.split(),), accumulates=accumulates)
        size = 8 if text.kind == "double" else 4
        return LoweredCall(
            (text.split(), text.join()), temps=(text.rows * text.splits * (s.dv + 2) * size,), accumulates=accumulates
        )  # fmt: skip


class _PagedLaunch:
    """The launches of a node. ``rows``: queries of all heads."""

    def __init__(self, call: NodeCall, s: PagedShape) -> None:
        self.call, self.s = call, s
        self.kind = accumulator(s.dtype)
        self.rows = s.batch * s.kv_heads * s.group * s.length
        least = max(_MIN_KEYS_PER_SPLIT, math.ceil(s.keys / _MAX_SPLITS))
        self.keys_per_split = math.ceil(least / _THREADS) * _THREADS
        self.splits = math.ceil(s.keys / self.keys_per_split)
        most = _MAX_GROUP if max(s.d, s.dv) <= _LONG_HEAD else _MAX_GROUP_OF_LONG_HEADS
        self.chunks = math.ceil(s.group / most)
        while s.group % self.chunks:
            self.chunks += 1

    def _struct(self) -> list[str]:
        s = self.s
        width = min(_THREADS, 1 << max(0, s.dv - 1).bit_length())
        numbers = {
            "GROUP": s.group // self.chunks, "d": s.d, "dv": s.dv, "THREADS": _THREADS, "WIDTH": width,
            "block_size": s.block_size, "blocks": s.blocks,
        }  # fmt: skip
        strides = {
            "k_row": s.k[0],
            "v_row": s.v[0],
            "q_head": s.q[1],
            "q_d": s.q[3],
            "table_step": s.tables[1],
        }
        return [
            "struct KERNEL_paged {",
            f"    typedef {self.kind} T;",
            f"    typedef {C_TYPES[s.dtype]} S;",
            constants("int", numbers),
            constants("int64_t", strides),
            constants("bool", {"capped": c_bool(s.softcap), "biased": c_bool(s.places)}),
            f"    __device__ __forceinline__ static T scale() {{ return (T){s.scale!r}; }}",
            f"    __device__ __forceinline__ static T cap() {{ return (T){s.softcap!r}; }}",
            "};",
        ]

    def _seen(self) -> list[str]:
        """Return the lines that compute the first key that the query sees, and the end of the keys."""
        s = self.s
        return [
            f"int64_t end = (int64_t)positions[batch * {s.positions[0]}ll + t * {s.positions[1]}ll] + 1;",
            "end = end < 0 ? 0 : end;",
            f"const int64_t seen = {f'end > {s.window} ? end - {s.window} : 0' if s.window else '0'};",
        ]

    def _stage(
        self, what: str, arguments: Sequence[Argument], body: Sequence[str], blocks: int, stem: str
    ) -> Stage:
        s = self.s
        stage = cuda_stage(
            f"paged_attention_{stem}{s.batch}x{s.kv_heads * s.group}x{s.length}x{s.keys}x{s.d}", about(self.call, what), list(arguments), body,
            LaunchConfig.flat(blocks, _THREADS), before=self._struct(), parts=frozenset({"paged_attention"}),
            flops=s.flops, bytes=bytes_of([*(t.spec for t in self.call.tensors), *self.call.outputs]),
        )  # fmt: skip
        return replace(stage, scratch_bytes=STATUS)

    def _row(self, head: str) -> str:
        """Return the index of a query among the queries of all heads."""
        s = self.s
        return f"((batch * {s.kv_heads * s.group} + {head}) * {s.length} + t)"

    def split(self) -> Stage:
        """Return the launch over all keys, or over one split of them per block."""
        s, call = self.s, self.call
        group, blocks = s.group // self.chunks, s.batch * s.kv_heads * self.chunks * s.length * self.splits
        whole = self.splits == 1
        y = f"y + batch * {s.y[0]}ll + (head + g) * {s.y[1]}ll + t * {s.y[2]}ll + e * {s.y[3]}ll"
        part = f"parts + ({self._row('head + g')} * {self.splits} + split) * {s.dv + 2}ll"
        store = (
            f"store<1>({y}, (typename storage_<P::S>::compute)(all == 0 ? (P::T)0 : sum / all));"
            if whole
            else f"({part})[e] = sum;"
        )
        added = f"(P::T){s.bias('head + g', 'end - 1', 'key')}" if s.places else "(P::T)0"
        bias = f"[&](int g, int64_t key) {{ return {added}; }}"
        last = "" if whole else f"({part})[{s.dv}] = top; ({part})[{s.dv + 1}] = all;"
        body = [
            "typedef KERNEL_paged P;",
            f"int64_t task = blockIdx.x; const int64_t split = task % {self.splits}; task /= {self.splits};",
            f"const int64_t t = task % {s.length}; task /= {s.length};",
            f"const int64_t chunk = task % {self.chunks}; task /= {self.chunks};",
            f"const int64_t kv = task % {s.kv_heads}, batch = task / {s.kv_heads}, head = kv * {s.group} + chunk * {group};",
            *self._seen(),
            f"if (end > {s.keys}) {{",
            f"    if (threadIdx.x == 0) fail(nullptr, INDEX_OUTSIDE, end - 1, {s.keys});",
            "    end = 0;",
            "}",
            f"int64_t first = split * {self.keys_per_split}ll, stop = first + {self.keys_per_split}ll;",
            *([] if whole else ["if (first >= end || stop <= seen) return;"]),
            "first = first > seen ? first : seen;",
            "stop = stop < end ? stop : end;",
            f"paged::split_kernel<P>(q + batch * {s.q[0]}ll + head * {s.q[1]}ll + t * {s.q[2]}ll, k + kv * {s.k[1]}ll, v + kv * {s.v[1]}ll,",
            f"    tables + batch * {s.tables[0]}ll, first, stop, {bias},",
            f"    [&](int g, int e, P::T sum, P::T all) {{ {store} }}, [&](int g, P::T top, P::T all) {{ {last} }});",
        ]
        names = ("q", "k", "v", "tables", "positions", *(["biases"] if s.places else []))
        arguments = [argument(call.tensor(i).spec, f"in{i}", n) for i, n in enumerate(names)]
        result = (
            argument(call.outputs[0], "out0", "y", written=True)
            if whole
            else Argument("temp0", "parts", self.kind, True)
        )
        what = f"{self.splits} splits of {self.keys_per_split} keys, {group} heads of a block"
        return self._stage(what, [*arguments, result], body, blocks, "" if whole else "part_")

    def join(self) -> Stage:
        """Return the launch that merges the splits of each query."""
        s, call = self.s, self.call
        y = f"y + batch * {s.y[0]}ll + head * {s.y[1]}ll + t * {s.y[2]}ll + e * {s.y[3]}ll"
        body = [
            "typedef KERNEL_paged P;",
            f"const int64_t t = blockIdx.x % {s.length}, head = blockIdx.x / {s.length} % {s.kv_heads * s.group}, batch = blockIdx.x / {s.length * s.kv_heads * s.group};",
            *self._seen(),
            f"if (end > {s.keys}) end = 0;",
            f"const int64_t from = seen / {self.keys_per_split}, count = end > 0 ? (end - 1) / {self.keys_per_split} + 1 - from : 0;",
            f"paged::join_kernel<P>(parts + ({self._row('head')} * {self.splits} + from) * {s.dv + 2}ll, count, {s.dv + 2}ll,",
            f"    [&](int e, P::T x) {{ store<1>({y}, (typename storage_<P::S>::compute)x); }});",
        ]
        arguments = [
            Argument("temp0", "parts", self.kind),
            argument(call.tensor(4).spec, "in4", "positions"),
            argument(call.outputs[0], "out0", "y", written=True),
        ]
        return self._stage(f"merge of {self.splits} splits", arguments, body, self.rows, "join_")


KERNELS: tuple[Any, ...] = (CudaPagedAttention(),)
