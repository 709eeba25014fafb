"""The text of pointwise kernels on CUDA devices: one plan (``codegen/loops/body``), one thread per pack of contiguous elements.

Dims that are contiguous in every operand are merged. The innermost dim is divided into packs of up to 16 bytes, which move in coalesced
vector loads and stores where addresses are aligned. The kernel tests alignment at run time, because a buffer may be the caller's and a view
may begin at any element. Pointwise kernels are bandwidth-bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.expr.terms import STORAGE
from ...codegen.loops.nest import Nest, indented, nest, offset_text
from ...codegen.loops.plans import CONSTANT, LoopPlan, Operation
from ...codegen.target import CodegenTarget
from ...types import HALF_FLOATS, DType
from ..kernel import LoweredCall, NodeCall, Stage, operand_ref
from ..portable.text import statement as plain_statement
from ..spec.elementwise import in_place_of, signature, stem_of
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage

__all__ = [
    "arguments_of",
    "index_type",
    "lower_pointwise",
    "pack_of",
    "statement",
    "unrounded",
    "value_lines",
]

NARROW = {"gelu": ("gelu", "gelu_tanh"), "sigmoid": ("sigmoid",), "silu": ("silu",), "silu_mul": ("silu",)}
"""Functions with a shorter approximation whose error is below the rounding of 16-bit results (``templates/cuda/narrow.cuh``)."""

_PACK_BYTES = 16
"""Bytes of the widest vector load."""
_MAX_PACK = 8
"""Maximum elements of a pack."""
_MIN_THREADS = 1 << 16
"""Threads that occupy a device. Packs are smaller where larger ones would leave fewer threads."""


def index_type(reach: int) -> str:
    """Return the C type of offsets up to ``reach``. 32-bit division is several times as fast as 64-bit division."""
    return "uint32_t" if reach < 2**31 else "int64_t"


def reach_of(extents: Sequence[int], *strides: Sequence[int]) -> int:
    """Return the larger of the largest offset and the number of elements."""
    offsets = [sum(abs(s) * max(e - 1, 0) for s, e in zip(steps, extents, strict=True)) for steps in strides]
    return max([math.prod(extents), *offsets])


def pack_of(dtypes: Sequence[DType], strides: Sequence[Sequence[int]], inner: int, elements: int) -> int:
    """Return the elements of a pack: a power of two that fills 16 bytes of the narrowest dtype and divides rows and their strides."""
    width = min(_MAX_PACK, max((_PACK_BYTES * 8 // max(d.bits, 8) for d in dtypes), default=1))
    while width > 1 and (
        elements // width < _MIN_THREADS
        or inner % width
        or any(step % width for row_strides in strides for step in row_strides[:-1] if row_strides[-1] == 1)
    ):
        width //= 2
    return width


def arguments_of(call: NodeCall, read: Sequence[int]) -> list[Argument]:
    """Return the operands by position and all results, as pointers ``in0`` ... ``out0``."""
    operands = [
        Argument(operand_ref("in", at), operand_ref("in", at), STORAGE[call.tensor(at).spec.dtype])
        for at in read
    ]
    results = [
        Argument(operand_ref("out", i), operand_ref("out", i), STORAGE[o.dtype], True)
        for i, o in enumerate(call.outputs)
    ]
    return [*operands, *results]


def statement(plan: LoopPlan, operation: Operation) -> tuple[str, frozenset[str]]:
    """Return the line that computes an operation, and the parts of the prelude that it needs."""
    if operation.op not in NARROW or operation.dtype not in HALF_FLOATS:
        return plain_statement(plan, operation)
    kind = STORAGE[operation.dtype]
    functions = {name: f"{name}_narrow<{kind}>" for name in NARROW[operation.op]}
    line, parts = plain_statement(plan, operation, functions=functions)
    return line, parts | {"narrow"}


def unrounded(plan: LoopPlan, value: str, dtype: DType) -> str:
    """Return the float32 value whose conversion to 16 bits a result of this dtype is, since the store rounds; else the result's value."""
    made = next((o for o in plan.operations if o.name == value and o.op == "cast"), None)
    source = made.operands[0] if made is not None and made.dtype is dtype and dtype in HALF_FLOATS else None
    return source if isinstance(source, str) and plan.spec(source)[0] is DType.FLOAT32 else value


def value_lines(plan: LoopPlan, operations: Sequence[Operation], parts: set[str]) -> list[str]:
    """Return the lines that compute operations, one scalar each."""
    lines = []
    for operation in operations:
        line, needed = statement(plan, operation)
        parts |= needed
        lines.append(line)
    return lines


def lower_pointwise(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[tuple[int, ...]], target: CodegenTarget
) -> LoweredCall:
    """Lower a plan without reductions to one stage. ``outputs``: the results' strides along the space."""
    strides = {i.name: i.strides for i in plan.inputs} | {f"y{i}": s for i, s in enumerate(outputs)}
    order = sorted(range(len(plan.space)), key=lambda d: -outputs[0][d])
    loops = nest(plan.space, strides, order)
    dtypes = [*(i.dtype for i in plan.inputs if loops.strides[i.name][-1]), *(o.dtype for o in call.outputs)]
    packed = [loops.strides[n] for n in strides]
    packable = all(value_strides[-1] in (0, 1) for value_strides in packed)
    width = pack_of(dtypes, packed, loops.inner, loops.elements) if packable else 1
    writer = _Pointwise(call, plan, loops, width, target.config.max_threadgroup_1d)
    return LoweredCall((writer.stage(),), in_place=in_place_of(call, plan, outputs), accumulates="")


@dataclass(frozen=True, slots=True)
class _Pointwise:
    """The text of one kernel: ``width`` elements per thread, ``threads`` per block."""

    call: NodeCall
    plan: LoopPlan
    nest: Nest
    width: int
    threads: int

    def stage(self) -> Stage:
        call, plan, nest_ = self.call, self.plan, self.nest
        read = sorted({i.operand for i in plan.inputs})
        parts = {"math"}
        items = nest_.elements // self.width if nest_.elements else 0
        launch = LaunchConfig.flat(blocks_for(items, self.threads), self.threads)
        body = self._body(items, parts) if items else []
        size = sum(s.size_bytes or 0 for s in (*call.outputs, *(call.tensor(at).spec for at in read)))
        work = sum(1 for o in plan.operations if o.op != CONSTANT)
        return cuda_stage(
            stem_of(call), signature(call), arguments_of(call, read), body, launch,
            parts=frozenset(parts), flops=work * nest_.elements, bytes=size,
        )  # fmt: skip

    def _moving(self) -> set[str]:
        """Return the names of values that differ between the elements of a pack."""
        moving = {i.name for i in self.plan.inputs if self.nest.strides[i.name][-1]}
        for o in self.plan.operations:
            if any(n in moving for n in o.operands if isinstance(n, str)):
                moving.add(o.name)
        return moving

    def _body(self, items: int, parts: set[str]) -> list[str]:
        nest_, width, plan = self.nest, self.width, self.plan
        kind = index_type(reach_of(nest_.extents, *nest_.strides.values()))
        number = f"({kind})blockIdx.x * {self.threads} + threadIdx.x"
        first = f"({number}) * {width}" if width > 1 else number
        lines = ["constexpr int N = 1;", f"const {kind} e = {first};"]
        if items % self.threads:
            lines.append(f"if (e >= {nest_.elements}) return;")
        if nest_.rows > 1:
            lines.append(f"const {kind} row = e / {nest_.inner}, i = e % {nest_.inner};")
        moving = self._moving() if width > 1 else set()
        bases = [f"const auto *{i.name}_at = {self._address(i.name, f'in{i.operand}')};" for i in plan.inputs]
        results = [f"y{i}" for i in range(len(plan.outputs))]
        bases += [f"auto *{y}_at = {self._address(y, f'out{y[1:]}')};" for y in results]
        lines += bases
        uniform = [i for i in plan.inputs if i.name not in moving]
        lines += [f"const auto {i.name} = load<N>({i.name}_at);" for i in uniform]
        lines += value_lines(plan, [o for o in plan.operations if o.name not in moving], parts)
        stores = [
            (y, unrounded(plan, value, o.dtype))
            for y, value, o in zip(results, plan.outputs, self.call.outputs, strict=True)
        ]
        if width == 1:
            lines += [f"store<N>({y}_at, {value});" for y, value in stores]
            return lines
        packed = [i for i in plan.inputs if i.name in moving]
        inside = value_lines(plan, [o for o in plan.operations if o.name in moving], parts)
        aligned = [f"fits<{width}>({n}_at)" for n in (*(i.name for i in packed), *results)]
        vectorized = [f"const auto {i.name}_of = decoded(fetch<{width}>({i.name}_at, true));" for i in packed]
        vectorized += [
            f"unpacked<{STORAGE[o.dtype]}, {width}> {y}_of;"
            for y, o in zip(results, self.call.outputs, strict=True)
        ]
        vectorized += _each(
            width,
            "unroll",
            [f"const auto {i.name} = {i.name}_of.at[u];" for i in packed]
            + inside
            + [f"{y}_of.at[u] = {value};" for y, value in stores],
        )
        vectorized += [f"put<{width}>({y}_at, encoded({y}_of), true);" for y in results]
        scalar = _each(
            width,
            "unroll 1",
            [f"const auto {i.name} = load<N>({i.name}_at + u);" for i in packed]
            + inside
            + [f"store<N>({y}_at + u, {value});" for y, value in stores],
        )
        return [
            *lines,
            f"if ({' && '.join(aligned)}) {{",
            *indented(vectorized),
            "} else {",
            *indented(scalar),
            "}",
        ]

    def _address(self, name: str, base: str) -> str:
        """Return the address of the thread's first element of a value."""
        extents, strides = self.nest.extents, self.nest.strides[name]
        if self.nest.rows == 1:
            terms = ["e" if strides[-1] == 1 else f"e * {strides[-1]}"] if strides[-1] else []
        else:
            where = offset_text(extents[:-1], strides[:-1])
            terms = [] if where == "0" else [f"({where})" if " + " in where else where]
            if strides[-1]:
                terms.append("i" if strides[-1] == 1 else f"i * {strides[-1]}")
        return " + ".join([base, *terms])


def _each(width: int, pragma: str, body: Sequence[str]) -> list[str]:
    """Return the loop over a thread's elements."""
    return [f"#pragma {pragma}", f"for (int u = 0; u < {width}; ++u) {{", *indented(body), "}"]
