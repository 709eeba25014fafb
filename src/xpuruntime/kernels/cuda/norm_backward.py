"""``norm/generated`` for ``layer_norm_backward`` on CUDA devices: one pass over the rows for all three gradients.

A block has several rows, one after another. All loads of a row are in flight at once, and the row stays in registers as it was read. The block writes
each row's gradient, and keeps the sums of the weight's and bias's gradients over its rows in registers, too. At the end it stores these as partial sums; a second, small kernel adds the blocks' partial sums in a fixed order. So the
operands are read once, and equal inputs give equal bits. Bandwidth-bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...codegen.expr.terms import STORAGE
from ...codegen.loops.nest import indented
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..spec.product import sizes
from ..spec.support import FLOATS, refuse
from .heavy import about, bytes_of, multiprocessors
from .launch import WARP, Argument, LaunchConfig, blocks_for, cuda_stage

__all__ = ["LayerNormBackward"]

ADDS = "layer_norm_backward_add"
"""The op that also adds a residual to the operand's gradient, and converts the sum."""

_Loop: TypeAlias = "Callable[[list[str]], list[str]]"
"""Wraps statements in a loop."""

_WARP_ELEMENTS = 1024
"""Elements of a row up to which a warp has a row of its own. The rows of longer ones are a block's."""
_WARPS = 4
"""Warps of a block, each with its own rows. Shared memory has a row of sums per warp."""
_THREAD_ELEMENTS = 16
"""Elements of a row per thread where a block has the row, up to the largest block."""
_MAX_THREADS = 1024
_BLOCKS_PER_SM = 3
"""Blocks per SM: as many as fit with up to 168 registers per thread, so that none waits, none spills, and partial sums are few."""
_PACK_BYTES = 16
_ADDED = 32
"""Columns of a block of the second kernel, and threads that share the partial sums of a column."""


@dataclass(frozen=True, slots=True)
class _Tiling:
    """rows, size: of the operand. threads: of a row. lines: rows of a block at a time. width: elements of a load. packs: loads of a thread per row."""

    rows: int
    size: int
    threads: int
    lines: int
    width: int
    packs: int
    blocks: int

    @classmethod
    def of(cls, call: NodeCall, target: CodegenTarget) -> _Tiling:
        size = math.prod(int(d) for d in call.attrs["normalized_shape"])
        rows = math.prod(sizes(call.tensor(1).spec)) // size if size else 0
        dtypes = [t.spec.dtype for t in call.tensors]
        width = _PACK_BYTES * 8 // max(d.bits for d in dtypes)
        while size % width:
            width //= 2
        threads, lines = WARP, _WARPS
        if size > _WARP_ELEMENTS:
            lines = 1
            while threads < _MAX_THREADS and threads * _THREAD_ELEMENTS < size:
                threads *= 2
        packs = math.ceil(size / (threads * width)) if size else 0
        blocks = min(math.ceil(rows / lines), multiprocessors(target) * _BLOCKS_PER_SM)
        return cls(rows, size, threads, lines, width, packs, blocks)


class LayerNormBackward(Kernel):
    """Gradients of a layer norm's operand, weight and bias, from the mean and 1 / std that forward computed."""

    name = "norm/generated"
    ops: tuple[str, ...] = ("layer_norm_backward", ADDS)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats."""
        specs = [*(t.spec for t in call.tensors), *call.outputs]
        wrong = next((s.dtype for s in specs if s.dtype not in FLOATS), None)
        if wrong is not None:
            return refuse(wrong, call.op)
        if not all(s.is_dense for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and results must be dense")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to the pass over the rows, and the sum of the partial sums."""
        sums = DType.FLOAT64 if any(t.spec.dtype is DType.FLOAT64 for t in call.tensors) else DType.FLOAT32
        tiling = _Tiling.of(call, target)
        added = min(len(call.outputs) - 1, 2)
        if not tiling.size:
            return LoweredCall(())
        temps = (max(1, added * tiling.blocks * tiling.size) * sums.bits // 8,)
        stages = [] if not tiling.rows else [_rows_stage(call, tiling, sums, added)]
        if added:
            stages.append(_sums_stage(call, tiling, sums, added))
        return LoweredCall(tuple(stages), temps if added else (), accumulates=sums.value)


def _rows_stage(call: NodeCall, t: _Tiling, sums: DType, added: int) -> Stage:
    names = [("in0", 0), ("in1", 1), ("in2", 2), ("in3", 3)]
    weight, adds = call.optional(4), call.op == ADDS
    names += [("in4", 4)] if weight is not None else []
    names += [("in5", 5)] if adds else []
    arguments = [Argument(n, n, STORAGE[call.tensor(i).spec.dtype]) for n, i in names]
    result = STORAGE[call.outputs[0].dtype]
    arguments.append(Argument("out0", "out0", result, True))
    if adds:
        narrow = STORAGE[call.outputs[3].dtype]
        arguments.append(Argument("out3", "out3", narrow, True))
    c, totals = STORAGE[sums], ("dweight", "dbias")[:added]
    if added:
        arguments.append(Argument("temp0", "temp0", c, True))
    packed = [
        "in0",
        "in1",
        "out0",
        *(["in4"] if weight is not None else []),
        *(["in5", "out3"] if adds else []),
    ]
    inside = f"if (i < {t.size}) " if t.packs * t.threads * t.width != t.size else ""
    index = f"const int i = (k * {t.threads} + threadIdx.x) * {t.width};"
    rows = {"g": ("in0", call.tensor(0)), "x": ("in1", call.tensor(1))}
    rows |= {"r": ("in5", call.tensor(5))} if adds else {}
    kept = [f"pack<{STORAGE[o.spec.dtype]}, {t.width}> {n}[{t.packs}];" for n, (_, o) in rows.items()]
    loads = [f"{n}[k] = fetch<{t.width}>({arg} + at + i, aligned.value);" for n, (arg, _) in rows.items()]
    decodes = [f"const auto {n}_k = decoded({n}[k]);" for n in rows]

    def each_pack(body: list[str]) -> list[str]:
        loop = ["#pragma unroll", f"for (int k = 0; k < {t.packs}; ++k) {{"]
        return [*loop, *indented([index, f"{inside}{{", *indented(body), "}"]), "}"]

    def each_element(body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int u = 0; u < {t.width}; ++u) {{", *indented(body), "}"]

    reduce = (
        "warp_reduce<32>({0}, sum_of())"
        if t.lines > 1
        else f"block_reduce<{t.threads // WARP}>({{0}}, sum_of(), smem)"
    )
    factor = " * (C)w_k.at[u]" if weight is not None else ""
    weights = f"const auto w_k = decoded(fetch<{t.width}>(in4 + i, aligned.value));"
    operands = [*decodes, *([weights] if weight is not None else [])]
    element = [
        "const C xhat = ((C)x_k.at[u] - mean) * rstd;",
        f"const C h = (C)g_k.at[u]{factor};",
    ]
    read = [
        *operands,
        *each_element([
            *element,
            "total += h;",
            "dot += h * xhat;",
            *(["dweight[k][u] += (C)g_k.at[u] * xhat;"] if added else []),
            *(["dbias[k][u] += (C)g_k.at[u];"] if added > 1 else []),
        ]),
    ]  # fmt: skip
    outputs = {"out0": result, **({"out3": narrow} if adds else {})}
    value = f"rstd * (h - total - xhat * dot){' + (C)r_k.at[u]' if adds else ''}"
    written = [
        *operands,
        *(f"unpacked<{c_type}, {t.width}> {name}_k;" for name, c_type in outputs.items()),
        *each_element([
            *element,
            f"const C v = {value};",
            *(f"{name}_k.at[u] = (loaded<{c_type}>)v;" for name, c_type in outputs.items()),
        ]),
        *(f"put<{t.width}>({name} + at + i, encoded({name}_k), aligned.value);" for name in outputs),
    ]  # fmt: skip
    body = [
        *(f"C {name}[{t.packs}][{t.width}] = {{}};" for name in totals),
        f"for (int64_t first = (int64_t)blockIdx.x * {t.lines}; first < {t.rows}; first += {t.blocks * t.lines}) {{",
        *indented([
            "const int64_t row = first + threadIdx.y;",
            *([f"if (row >= {t.rows}) break;"] if t.rows % t.lines else []),
            f"const int64_t at = row * {t.size};",
            "const C mean = load<1>(in2 + row), rstd = load<1>(in3 + row);",
            *kept,
            *each_pack(loads),
            "C total = 0, dot = 0;",
            *each_pack(read),
            f"total = {reduce.format('total')} / (C){t.size};",
            f"dot = {reduce.format('dot')} / (C){t.size};",
            *each_pack(written),
        ]),
        "}",
        *(line for which, name in enumerate(totals) for line in _partial_sums(t, name, which, each_pack, each_element)),
    ]  # fmt: skip
    slots = t.lines * t.size * sums.bits // 64 + 1 if t.lines > 1 else t.threads // WARP
    lines = [
        f"typedef {c} C;",
        f"__shared__ uint64_t smem[{slots}];",
        "const auto work = [&](auto aligned) {  // aligned: vectorized loads and stores",
        *indented(body),
        "};",
        f"if ({' && '.join(f'fits<{t.width}>({n})' for n in packed)}) work(true_type());",
        "else work(false_type());",
    ]
    return cuda_stage(
        f"layer_norm_backward_{t.rows}x{t.size}", about(call, f"{t.blocks} blocks of {t.lines} rows at a time"), arguments, lines,
        LaunchConfig((t.blocks, 1, 1), (t.threads, t.lines, 1), min_blocks_per_sm=_BLOCKS_PER_SM if t.lines > 1 else 0), parts=frozenset({"reduce"}),
        flops=12 * t.rows * t.size, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def _partial_sums(t: _Tiling, name: str, which: int, each_pack: _Loop, each_element: _Loop) -> list[str]:
    """Return the lines that store a block's sum of a gradient: over its warps in shared memory, then to memory."""
    to = f"temp0 + ({which} * (int64_t){t.blocks} + blockIdx.x) * {t.size}"
    if t.lines == 1:
        return each_pack(each_element([f"({to})[i + u] = {name}[k][u];"]))
    stored = each_pack(each_element([f"((C *)smem)[threadIdx.y * {t.size} + i + u] = {name}[k][u];"]))
    return [
        "__syncthreads();",
        *stored,
        "__syncthreads();",
        f"for (int j = threadIdx.y * {WARP} + threadIdx.x; j < {t.size}; j += {t.lines * WARP}) {{",
        "    C all = ((C *)smem)[j];",
        f"    for (int y = 1; y < {t.lines}; ++y) all += ((C *)smem)[y * {t.size} + j];",
        f"    ({to})[j] = all;",
        "}",
    ]


def _sums_stage(call: NodeCall, t: _Tiling, sums: DType, added: int) -> Stage:
    """Return the stage that adds the blocks' partial sums, a column of a gradient per thread of a warp."""
    c = STORAGE[sums]
    outputs = list(enumerate(call.outputs))[1 : added + 1]
    steps = max(1, math.ceil(t.blocks / _ADDED))  # CUDA has no arrays without elements
    arguments = [Argument("temp0", "temp0", c)]
    arguments += [Argument(f"out{i}", f"out{i}", STORAGE[s.dtype], True) for i, s in outputs]
    lines = [
        f"__shared__ {c} smem[{_ADDED * _ADDED}];",
        f"const int j = blockIdx.x * {_ADDED} + threadIdx.x;",
        f"const {c} *const parts = temp0 + blockIdx.y * (int64_t){t.blocks * t.size} + j;",
        f"{c} all = 0;",
        f"if (j < {t.size if t.blocks else 0}) {{",
        f"    {c} part[{steps}];  // all loads are in flight at once, also those of the last step, which may read a block twice",
        "    #pragma unroll",
        f"    for (int k = 0; k < {steps}; ++k) {{",
        f"        const int b = k * {_ADDED} + threadIdx.y;",
        f"        part[k] = parts[(int64_t)(b < {t.blocks} ? b : {t.blocks - 1}) * {t.size}];",
        "    }",
        "    #pragma unroll",
        f"    for (int k = 0; k < {steps}; ++k)",
        f"        if (k * {_ADDED} + threadIdx.y < {t.blocks}) all += part[k];",
        "}",
        f"all = column_reduce<{_ADDED}, {_ADDED}>(all, sum_of(), smem);",
        f"if (threadIdx.y != 0 || j >= {t.size}) return;",
    ]
    for which, (i, spec) in enumerate(outputs):
        lines.append(f"if (blockIdx.y == {which}) store<1>(out{i} + j, (loaded<{STORAGE[spec.dtype]}>)all);")
    return cuda_stage(
        f"layer_norm_backward_sums_{t.size}", about(call, f"sums of {t.blocks} partial sums"), arguments, lines,
        LaunchConfig((blocks_for(t.size, _ADDED), added, 1), (_ADDED, _ADDED, 1)), parts=frozenset({"reduce"}),
        flops=added * t.blocks * t.size, bytes=added * t.blocks * t.size * sums.bits // 8,
    )  # fmt: skip
