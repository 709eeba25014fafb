"""``elementwise/generated`` on CPUs: any pointwise op, and ``fused`` bodies of them, in one loop nest over operands of any strides.

The loops follow the memory order of the first result. Dims that are contiguous in every operand are merged, and the innermost one is a loop
of vectors. Values that are constant along it are computed once per row. Pointwise kernels are bandwidth-bound.
If the innermost dim is shorter than a vector, such as the channels of an image, and an operand is not contiguous along it, vectors run along
the dim before it. All of the short dim is computed for a vector before the next one, so that cache lines are written once.

A function of one 8-bit operand with an 8-bit result, such as silu between codes, is computed for the 256 codes and then looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.cpp.target import CppTarget
from ...codegen.expr.terms import STORAGE, compute_type
from ...codegen.loops.nest import Nest, TaskSplit, cut, indented, nest, offset_text, task_loops
from ...codegen.loops.plans import CONSTANT, Input, LoopPlan
from ...codegen.target import CodegenTarget
from ...types import DType
from ..kernel import LoweredCall, NodeCall, Stage, operand_ref
from ..portable.text import statement
from ..spec.elementwise import Elementwise, in_place_of, signature, stem_of

__all__ = ["KERNELS", "declared", "function_text", "lanes_for", "lower_pointwise"]


def lanes_for(target: CodegenTarget, dtypes: Sequence[DType]) -> int:
    """Return the lanes of every vector of a kernel: those of one register of the widest dtype, counting at least four bytes per lane."""
    assert isinstance(target, CppTarget)
    widest = max((4, *(d.bits // 8 for d in dtypes)))
    return target.isa.lanes(widest)


def declared(names: Sequence[tuple[str, DType]], outputs: int) -> list[str]:
    """Return lines that declare the typed arguments. The last ``outputs`` of them are written."""
    lines = []
    for at, (name, dtype) in enumerate(names):
        const = "" if at >= len(names) - outputs else "const "
        kind = STORAGE[dtype]
        lines.append(f"{const}{kind} *const {name} = ({const}{kind} *)args[{at}];")
    return lines


@dataclass(frozen=True, slots=True)
class _Loops:
    """The plan of a call, its loop nest, and the split into tasks.

    short: the innermost dim, which ``nest`` lacks, if vectors run along the one before it.
    """

    call: NodeCall
    plan: LoopPlan
    nest: Nest
    tasks: TaskSplit
    lanes: int
    short: Nest | None = None


def lower_pointwise(
    call: NodeCall, plan: LoopPlan, outputs: Sequence[tuple[int, ...]], target: CodegenTarget
) -> LoweredCall:
    """Lower a plan without reductions to one stage. ``outputs``: the results' strides along the space."""
    strides = {i.name: i.strides for i in plan.inputs} | {f"y{i}": s for i, s in enumerate(outputs)}
    order = sorted(range(len(plan.space)), key=lambda d: -outputs[0][d])
    loops = nest(plan.space, strides, order)
    lanes = lanes_for(target, [*(i.dtype for i in plan.inputs), *(o.dtype for o in plan.operations)])
    loops, short = _without_short(loops, lanes)
    tasks = cut(loops, target.config.max_threadgroup_1d // (short.inner if short else 1), lanes)
    stage = _stage(_Loops(call, plan, loops, tasks, lanes, short))
    return LoweredCall((stage,), in_place=in_place_of(call, plan, outputs), accumulates="")


def _without_short(loops: Nest, lanes: int) -> tuple[Nest, Nest | None]:
    """Return the nest without its innermost dim and that dim, if it is shorter than a vector, the one before it is not, and an operand is not
    contiguous along it; else the nest and None.
    """
    contiguous = all(s[-1] in (0, 1) for s in loops.strides.values())
    if contiguous or len(loops.extents) < 2 or loops.inner >= lanes or loops.extents[-2] < lanes:
        return loops, None
    outer = Nest(loops.extents[:-1], {name: s[:-1] for name, s in loops.strides.items()})
    return outer, Nest(loops.extents[-1:], {name: s[-1:] for name, s in loops.strides.items()})


def _moving(loops: _Loops) -> set[str]:
    """Return the names of values that change along the inner loop."""
    moving = {i.name for i in loops.plan.inputs if loops.nest.strides[i.name][-1] != 0}
    for operation in loops.plan.operations:
        if any(o in moving for o in operation.operands if isinstance(o, str)):
            moving.add(operation.name)
    return moving


_CHEAP = frozenset(["arith"])
"""Parts of the prelude without a function that costs more than a lookup."""
_TABLE_ELEMENTS = 4096
"""Elements of the inner loop for which a table of 256 is repaid."""


def _is_table(loops: _Loops, parts: set[str]) -> bool:
    """Return True for a costly function of one contiguous 8-bit operand with one 8-bit result."""
    plan, space = loops.plan, loops.nest
    if len(plan.inputs) != 1 or len(plan.outputs) != 1 or not parts - _CHEAP:
        return False
    dtypes = (plan.inputs[0].dtype, loops.call.outputs[0].dtype)
    contiguous = space.strides[plan.inputs[0].name][-1] == 1 and space.strides["y0"][-1] == 1
    is_large = space.elements > 0 and space.inner >= _TABLE_ELEMENTS
    return contiguous and is_large and all(d in (DType.INT8, DType.UINT8) for d in dtypes)


def _read(entry: Input, stride: int, moving: bool) -> str:
    kind = compute_type(entry.dtype)
    if not moving:
        return f"const {kind} {entry.name} = broadcast<N>({entry.name}_row);"
    if stride == 1:
        return f"const {kind} {entry.name} = load<N>({entry.name}_row + i, n...);"
    return f"const {kind} {entry.name} = gather<N>({entry.name}_row + i * {stride}, {stride}, n...);"


def _write(name: str, value: str, stride: int) -> str:
    if stride == 1:
        return f"store<N>({name}_row + i, {value}, n...);"
    return f"scatter<N>({name}_row + i * {stride}, {stride}, {value}, n...);"


def _stage(loops: _Loops) -> Stage:
    call, plan, space, tasks = loops.call, loops.plan, loops.nest, loops.tasks
    read = sorted({i.operand for i in plan.inputs})
    arguments = [(f"x{at}", call.tensor(at).spec.dtype) for at in read]
    arguments += [(f"y{i}", o.dtype) for i, o in enumerate(call.outputs)]
    moving = _moving(loops)
    parts: set[str] = set()
    outside: list[str] = []
    inside: list[str] = []
    for entry in plan.inputs:
        line = _read(entry, space.strides[entry.name][-1], entry.name in moving)
        (inside if entry.name in moving else outside).append(line)
    for operation in plan.operations:
        line, needed = statement(plan, operation)
        parts |= needed
        (inside if operation.name in moving else outside).append(line)
    for i, value in enumerate(plan.outputs):
        inside.append(_write(f"y{i}", value, space.strides[f"y{i}"][-1]))

    rows = []
    for name in (*(i.name for i in plan.inputs), *(f"y{i}" for i in range(len(call.outputs)))):
        base = name if name.startswith("y") else f"x{next(i.operand for i in plan.inputs if i.name == name)}"
        where = offset_text(space.extents[:-1], space.strides[name][:-1])
        rows.append(
            f"const auto {name}_row{'s' if loops.short else ''} = {base}{'' if where == '0' else f' + {where}'};"
        )
    if loops.short is not None:
        outside, inside = [], _over_short(loops.short, [*outside, *inside])
    write = _table_text if _is_table(loops, parts) else _text
    source = write(loops, declared(arguments, len(call.outputs)), rows, outside, inside)
    if write is _table_text:
        parts.add("table")
    size = sum(s.size_bytes or 0 for s in (*call.outputs, *(call.tensor(at).spec for at in read)))
    work = sum(1 for o in plan.operations if o.op != CONSTANT)
    return Stage(
        stem=stem_of(call),
        source=source,
        args=(
            *(operand_ref("in", at) for at in read),
            *(operand_ref("out", i) for i in range(len(call.outputs))),
        ),
        tasks=tasks.count,
        parts=frozenset(parts),
        flops=work * space.elements,
        bytes=size,
    )


def _over_short(short: Nest, lines: list[str]) -> list[str]:
    """Return the loop over the short dim around lines that read ``<value>_row``."""
    places = [
        f"const auto {n}_row = {n}_rows{f' + c * {s}' if (s := by[0]) else ''};"
        for n, by in short.strides.items()
    ]
    return [
        f"#pragma GCC unroll {short.inner}",
        f"for (int64_t c = 0; c < {short.inner}; ++c) {{",
        *indented([*places, *lines]),
        "}",
    ]


def _text(loops: _Loops, head: list[str], rows: list[str], outside: list[str], inside: list[str]) -> str:
    space, tasks, lanes = loops.nest, loops.tasks, loops.lanes
    low, high = ("first", "last") if tasks.chunk < space.inner else ("0", str(space.inner))
    body = [
        *rows,
        *outside,
        "const auto at = [&](int64_t i, auto... n) __attribute__((always_inline)) {",
        *indented(inside),
        "};",
        f"int64_t i = {low};",
        f"for (; i + N <= {high}; i += N) at(i);",
    ]
    if space.inner % lanes:
        body.append(f"if (i < {high}) at(i, {high} - i);")
    return function_text(loops.call, lanes, head, task_loops(space, tasks, body) if space.elements else [])


def _table_text(
    loops: _Loops, head: list[str], rows: list[str], outside: list[str], inside: list[str]
) -> str:
    space, tasks, entry = loops.nest, loops.tasks, loops.plan.inputs[0]
    low, high = ("first", "last") if tasks.chunk < space.inner else ("0", str(space.inner))
    kinds = [STORAGE[d] for d in (entry.dtype, loops.call.outputs[0].dtype)]
    table = [
        "alignas(64) uint8_t codes[256], table[256];",
        "for (int i = 0; i < 256; ++i) codes[i] = (uint8_t)i;",
        "{",
        f"  const auto {entry.name}_row = (const {kinds[0]} *)codes;",
        f"  const auto y0_row = ({kinds[1]} *)table;",
        *indented(outside),
        "  const auto at = [&](int64_t i, auto... n) __attribute__((always_inline)) {",
        *indented(indented(inside)),
        "  };",
        "  for (int64_t i = 0; i < 256; i += N) at(i);",
        "}",
    ]
    body = [
        *rows,
        f"look_up(table, (const uint8_t *){entry.name}_row + {low}, (uint8_t *)y0_row + {low}, {high} - {low});",
    ]
    return function_text(loops.call, loops.lanes, head, [*table, *task_loops(space, tasks, body)])


def function_text(call: NodeCall, lanes: int, head: Sequence[str], body: Sequence[str]) -> str:
    """Return the function: a comment with its signature, its lanes, its arguments, its body."""
    lines = [
        f"// {signature(call)}",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        *indented([f"constexpr int N = {lanes};", *head, *(body or ["// no elements"])]),
        "}",
        "",
    ]
    return "\n".join(lines)


KERNELS = (Elementwise(lower_pointwise),)
