"""``rope_append`` on CPUs: rotation of queries and keys, and update of the KV cache, in one call.

A task is one head at one position: of the queries, of the keys, or of the values, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.c_types import C_TYPES, accumulator
from ...codegen.loops.points import for_tasks
from ...codegen.target import CodegenTarget
from ...types import TensorSpec
from ..kernel import NodeCall, Stage
from ..portable.rope import named_by, row_of, table_lines
from ..spec.movement.elements import STATUS
from ..spec.product import sizes
from ..spec.rope import PLACES, POSITIONS, RopeAppend
from .abi import function
from .moves import moves_stage

__all__ = ["KERNELS", "CpuRopeAppend"]

_ROWS = ("q", "k", "v")


class CpuRopeAppend(RopeAppend):
    """The rotation in vectors, and the update of both caches."""

    def __init__(self) -> None:
        super().__init__(moves_stage)

    def rotate_stage(self, call: NodeCall, target: CodegenTarget) -> Stage:
        """Return the stage that rotates queries and keys, and writes keys and values to the caches."""
        q, k = call.tensor(0).spec, call.tensor(1).spec
        (batch, heads, length, d), kv = sizes(q), sizes(k)[1]
        inputs = [0, 1, 2, 3, 4, PLACES, *([POSITIONS] if call.optional(POSITIONS) else [])]
        args = (*(f"in{i}" for i in inputs), "out0", "out1", "out2")
        tasks = batch * (heads + 2 * kv) * length
        traffic = 2 * d * tasks * q.dtype.bits // 8
        return Stage(
            stem=f"rope_append_{batch}x{heads}+{kv}x{length}x{d}",
            source=function(self._text(call, args)),
            args=args,
            tasks=tasks,
            grain=max(1, target.config.max_threadgroup_1d // max(d, 1)),
            scratch_bytes=STATUS,
            parts=frozenset({"movement", "arith"}),
            flops=3 * d * batch * (heads + kv) * length,
            bytes=traffic,
        )

    def _text(self, call: NodeCall, args: Sequence[str]) -> str:
        q, k = call.tensor(0).spec, call.tensor(1).spec
        (_, heads, length, d), kv = sizes(q), sizes(k)[1]
        size = call.attrs["size"] or d
        kind, half = C_TYPES[q.dtype], size // 2
        specs: dict[str, TensorSpec] = {
            f"in{i}": call.tensor(i).spec for i in range(len(call.inputs)) if call.optional(i)
        }
        specs |= {f"out{i}": s for i, s in enumerate(call.outputs)}
        lines = [
            f"// queries of {heads} heads and keys of {kv} turned by their positions; keys and values into their caches",
            f"constexpr int L = VECTOR_BYTES / sizeof({accumulator(q.dtype)});",
        ]
        for at, name in enumerate(args):
            const = "" if name.startswith("out") else "const "
            lines.append(
                f"{const}{C_TYPES[specs[name].dtype]} *const {name} = ({const}{C_TYPES[specs[name].dtype]} *)args[{at}];"
            )
        capacity = sizes(call.outputs[1])[2]
        body = [
            f"const int64_t t = task % {length}, head = task / {length} % {heads + 2 * kv}, b = task / {length * (heads + 2 * kv)};",
            f"const int64_t to = index_in({named_by(call, PLACES)}, {capacity}, scratch);",
            *table_lines(call),
            f"const bool query = head < {heads}, key = !query && head < {heads + kv};",
            f"const int64_t h = query ? head : key ? head - {heads} : head - {heads + kv};",
            f"const {kind} *x = query ? {row_of(call, 'in0', specs['in0'])} : key ? {row_of(call, 'in1', specs['in1'])} : {row_of(call, 'in2', specs['in2'])};",
            f"{kind} *y = query ? {row_of(call, 'out0', specs['out0'])} : key ? {row_of(call, 'out1', specs['out1'], 'to')} : {row_of(call, 'out2', specs['out2'], 'to')};",
            "if (!query && !key) {",
            f"  copy_run(y, x, {d});",
            "  continue;",
            "}",
            f"for (int64_t j = 0; j < {half}; j += L) {{",
            f"  const int64_t n = {half} - j < L ? {half} - j : L;",
            f"  const auto low = {_load('x + j')}, high = {_load(f'x + {half} + j')}, c = {_load('cosines + j')}, s = {_load('sines + j')};",
            f"  {_store('y + j', 'low * c - high * s')}",
            f"  {_store(f'y + {half} + j', 'high * c + low * s')}",
            "}",
        ]
        if size < d:
            body.append(f"copy_run(y + {size}, x + {size}, {d - size});")
        lines.append(for_tasks(body))
        return "\n".join(f"  {line}" for part in lines for line in part.splitlines())


def _load(at: str) -> str:
    return f"(n == L ? load<L>({at}) : load<L>({at}, n))"


def _store(at: str, value: str) -> str:
    return f"if (n == L) store<L>({at}, {value}); else store<L>({at}, {value}, n);"


KERNELS = (CpuRopeAppend(),)
