"""``rope/generated`` on CUDA devices: rotary position embedding (Su et al., "RoFormer", 2021).

A thread rotates one pair, or copies one element beyond the rotated part of a head. ``rope_append`` also writes the KV cache in the same launch.
Both are bandwidth-bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ...codegen.loops.boxes import Box
from ...codegen.loops.points import address, storage, unravel
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable.rope import named_by, row_of, table_lines, table_row
from ..spec.movement.elements import STATUS
from ..spec.product import sizes
from ..spec.rope import PLACES, POSITIONS, RopeAppend, over_rows, why_not
from .heavy import TAGS, in_chunks
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .movement.moves import cuda_moves_stage
from .pointwise import index_type

__all__ = ["KERNELS"]

_WIDE = 8
"""Pairs of a thread of ``rope_append`` in 16-bit floats."""


def _thread_lines(count: int, threads: int, threads_per_row: int) -> list[str]:
    """Return the lines that give a thread its row, ``task``, and its place in the row, ``j``. Divisions have 32 bits where the count fits."""
    index = index_type(count + threads)
    return [
        f"const {index} e = ({index})blockIdx.x * {threads} + threadIdx.x;",
        f"if (e >= {count}) return;",
        f"const {index} task = e / {threads_per_row};",
        f"const int64_t j = e % {threads_per_row};",
    ]


class Rope(Kernel):
    """Rotary position embedding of whole or partial heads."""

    name: str = "rope/generated"
    ops: tuple[str, ...] = ("rope",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats."""
        refused = why_not(call)
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        x, y = call.tensor(0).spec, call.outputs[0]
        (*rows, d), kind = sizes(x), storage(x.dtype)
        size = call.attrs["size"] or d
        half = size // 2
        threads_per_row, threads = half + d - size, target.config.max_threadgroup_1d
        count = math.prod(rows) * threads_per_row
        names = [f"i{i}" for i in range(len(rows))]
        lines = [
            *_thread_lines(count, threads, threads_per_row),
            *unravel(rows),
        ]
        x_step, y_step = x.physical.strides[-1] or 1, y.physical.strides[-1]
        positions = call.optional(3)
        if positions is not None:
            steps = over_rows(sizes(positions.spec), positions.spec.physical.strides, len(rows))
            where = address(Box("in3", tuple(rows), steps), names)
            lines.append(f"const int64_t row = index_in(*({where}), {sizes(call.tensor(1).spec)[0]});")
        lines += [
            f"const {kind} *x = {address(Box('in0', tuple(rows), x.physical.strides[:-1]), names)};",
            f"{kind} *y = {address(Box('out0', tuple(rows), y.physical.strides[:-1]), names)};",
        ]
        if size < d:
            element = f"{half} + j"  # threads from j = half on copy the elements beyond the rotated part
            lines += [
                f"if (j >= {half}) {{",
                f"  y[({element}) * {y_step}] = x[({element}) * {x_step}];",
                "  return;",
                "}",
            ]
        step, other = (2, 1) if call.attrs["interleaved"] else (1, half)
        tables = [call.tensor(i).spec.physical.strides[-1] for i in (1, 2)]
        lines += [
            f"const auto c = load<1>({table_row(call, 1, rows)} + j * {tables[0]}), s = load<1>({table_row(call, 2, rows)} + j * {tables[1]});",
            f"const auto a = load<1>(x + j * {step * x_step}), b = load<1>(x + (j * {step} + {other}) * {x_step});",
            f"store<1>(y + j * {step * y_step}, a * c - b * s);",
            f"store<1>(y + (j * {step} + {other}) * {y_step}, b * c + a * s);",
        ]
        arguments = [
            Argument(f"in{i}", f"in{i}", storage(o.spec.dtype))
            for i in range(4)
            if (o := call.optional(i)) is not None
        ]
        arguments.append(Argument("out0", "out0", kind, True))
        stage = cuda_stage(
            f"rope_{math.prod(rows)}x{d}", f"rope({x}) -> {y}", arguments, lines if count else [],
            LaunchConfig.flat(blocks_for(count, threads), threads), parts=frozenset({"movement"}),
            flops=6 * math.prod(rows) * half, bytes=2 * (y.size_bytes or 0),
        )  # fmt: skip
        return LoweredCall((stage if positions is None else replace(stage, scratch_bytes=STATUS),))


def _scalar_lines(half: int, d: int) -> list[str]:
    """Return the work of a thread that has one pair, or one or two elements of a value."""
    return [
        "if (!query && !key) {",
        "  y[j] = x[j];",
        f"  if (j + {d - half} < {d}) y[j + {d - half}] = x[j + {d - half}];",
        f"}} else if (j < {half}) {{",
        f"  const auto low = load<1>(x + j), high = load<1>(x + {half} + j), c = load<1>(cosines + j), s = load<1>(sines + j);",
        "  store<1>(y + j, low * c - high * s);",
        f"  store<1>(y + {half} + j, high * c + low * s);",
        "} else {",
        f"  y[{half} + j] = x[{half} + j];",
        "}",
    ]


def _wide_lines(tag: str, buffers: Iterable[str], half: int, d: int) -> list[str]:
    """Return the work of a thread that has eight times as much, in 16-byte accesses where all buffers allow it."""
    addresses = " | ".join(f"(uint64_t){b}" for b in buffers if b not in (f"in{PLACES}", f"in{POSITIONS}"))
    return [
        f"const bool wide = ({addresses}) % 16 == 0;",
        f"const int64_t at = j * {_WIDE};",
        "if (!query && !key) {",
        "  rope::copy8(y + at, x + at, wide);",
        f"  if (at + {d - half} < {d}) rope::copy8(y + at + {d - half}, x + at + {d - half}, wide);",
        f"}} else if (at < {half}) {{",
        f"  rope::rotate8<{tag}>(y + at, x + at, {half}, cosines + at, sines + at, wide);",
        "} else {",
        f"  rope::copy8(y + {half} + at, x + {half} + at, wide);",
        "}",
    ]


class RopeAppendCuda(RopeAppend):
    """Rotation of queries and keys and update of both caches in one launch; a thread has a pair of elements, or eight pairs of 16 bits."""

    def __init__(self) -> None:
        super().__init__(cuda_moves_stage)

    def rotate_stage(self, call: NodeCall, target: CodegenTarget) -> Stage:
        """Return the stage that rotates queries and keys, and writes keys and values to the caches."""
        q, k = call.tensor(0).spec, call.tensor(1).spec
        (batch, heads, length, d), kv, kind = sizes(q), sizes(k)[1], storage(q.dtype)
        size = call.attrs["size"] or d
        half = size // 2
        tasks, threads = batch * (heads + 2 * kv) * length, target.config.max_threadgroup_1d
        inputs = [0, 1, 2, 3, 4, PLACES, *([POSITIONS] if call.optional(POSITIONS) else [])]
        specs = {f"in{i}": call.tensor(i).spec for i in inputs} | {
            f"out{i}": s for i, s in enumerate(call.outputs)
        }
        capacity = sizes(call.outputs[1])[2]
        rows = [spec for name, spec in specs.items() if name not in (f"in{PLACES}", f"in{POSITIONS}")]
        wide = q.dtype in TAGS and in_chunks(
            q.dtype, half, d, *(n for spec in rows for n in spec.physical.strides[:-1])
        )
        width = _WIDE if wide else 1
        threads_per_row = (d - half) // width

        def one_of(prefix: str, row: str) -> str:
            query, key, value = (
                row_of(call, f"{prefix}{i}", specs[f"{prefix}{i}"], row if i else "t") for i in range(3)
            )
            return f"query ? {query} : key ? {key} : {value}"

        lines = [
            *_thread_lines(tasks * threads_per_row, threads, threads_per_row),
            f"const int64_t t = task % {length}, head = task / {length} % {heads + 2 * kv}, b = task / {length * (heads + 2 * kv)};",
            "void *const scratch = nullptr;",
            f"const int64_t to = index_in({named_by(call, PLACES)}, {capacity}, scratch);",
            *table_lines(call),
            f"const bool query = head < {heads}, key = !query && head < {heads + kv};",
            f"const int64_t h = query ? head : key ? head - {heads} : head - {heads + kv};",
            f"const {kind} *x = {one_of('in', 't')};",
            f"{kind} *y = {one_of('out', 'to')};",
            *(_wide_lines(TAGS[q.dtype], specs, half, d) if wide else _scalar_lines(half, d)),
        ]
        arguments = [Argument(n, n, storage(s.dtype), n.startswith("out")) for n, s in specs.items()]
        stage = cuda_stage(
            f"rope_append_{batch}x{heads}+{kv}x{length}x{d}",
            f"queries of {heads} heads and keys of {kv} turned by their positions; keys and values into their caches",
            arguments, lines, LaunchConfig.flat(blocks_for(tasks * threads_per_row, threads), threads), parts=frozenset({"movement", "rope"} if wide else {"movement"}),
            flops=3 * d * batch * (heads + kv) * length, bytes=2 * d * tasks * q.dtype.bits // 8,
        )  # fmt: skip
        return replace(stage, scratch_bytes=STATUS)


KERNELS: tuple[Kernel, ...] = (Rope(), RopeAppendCuda())
