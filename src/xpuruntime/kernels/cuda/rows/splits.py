"""Split reductions: which formulas allow several blocks per row, and the text in which the last block combines their partial results.

A formula with one pass reduces the partial results once more. For argmax and argmin, each block finds its extreme and the position of it.
The same formula over those pairs gives the row's position, with the same choice between equal elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....codegen.expr.terms import STORAGE, compute_type
from ....codegen.loops.combine import neutral_of
from ....codegen.loops.nest import indented
from ....codegen.loops.plans import POSITION, LoopPlan, Operation
from ....types import DType

if TYPE_CHECKING:
    from .text import RowText

__all__ = ["PARTIAL_BYTES", "combined_splits", "one_pass", "reductions_of", "splittable", "stored_splits"]

PARTIAL_BYTES = 8
"""Bytes reserved for a partial result."""
_PARTIAL_TYPES = frozenset({"float", "double", "int32_t", "uint32_t", "int64_t", "uint64_t"})
"""C types of partial results: those that ``ld_cg`` loads."""


def _partial_type(dtype: DType) -> str:
    """Return the C type of a partial result."""
    return {"bf16": "float", "f16": "float"}.get(STORAGE[dtype], STORAGE[dtype])


def reductions_of(plan: LoopPlan) -> list[Operation]:
    """Return a plan's reductions, in order."""
    return [o for o in plan.operations if o.reduces]


def splittable(plan: LoopPlan) -> bool:
    """Return whether blocks may split a row of this plan. Its results are one value per row, from one pass or from a position."""
    reductions = reductions_of(plan)
    if not reductions or any(_partial_type(o.dtype) not in _PARTIAL_TYPES for o in reductions):
        return False
    if one_pass(plan):
        return True
    reads = [i for i in plan.inputs if i.operand != POSITION and any(i.strides[d] for d in plan.reduced)]
    positions = [i for i in plan.inputs if i.operand == POSITION]
    if len(reductions) != 2 or len(reads) != 1 or len(positions) != 1:
        return False
    return reductions[0].operands[:1] == (reads[0].name,) and {reductions[0].op, reductions[1].op} <= {
        "amax",
        "amin",
        "top",
    }


def one_pass(plan: LoopPlan) -> bool:
    """Return whether no reduction depends on another's result."""
    dependent = set[str]()
    for o in plan.operations:
        depends = any(n in dependent for n in o.operands if isinstance(n, str))
        if depends and o.reduces:
            return False
        if depends or o.reduces:
            dependent.add(o.name)
    return True


def stored_splits(writer: RowText, each: Callable[[list[str]], list[str]]) -> list[str]:
    """Return the lines in which the blocks of a group store their partial results. After them, only the last block continues.

    each: the function that wraps statements in the loop over a thread's rows (``u``, with values ``v_of[u]``).
    """
    tiling = writer.tiling
    reductions = reductions_of(writer.plan)
    slots = tiling.kept.elements * tiling.splits
    several = tiling.width > 1 and tiling.across
    if tiling.across:  # adjacent threads store adjacent partial results: coalesced
        offset, step = (
            "c" if tiling.kept.rows == 1 else f"row * {tiling.kept.inner} + c",
            tiling.kept.elements,
        )
        stores_if, counter = writer.addresses.live("threadIdx.y == 0"), "group"
    else:
        offset, step = f"row * {tiling.splits}", 1
        stores_if, counter = "threadIdx.x == 0", "row"
    lines, stores = list[str](), list[str]()
    for j, o in enumerate(reductions):
        kind = _partial_type(o.dtype)
        lines.append(
            f"{kind} *const {o.name}_parts = ({kind} *)(parts + {j * slots * PARTIAL_BYTES}) + {offset};"
        )
        at, value = _times("part", step), f"{o.name}_of[u]" if several else o.name
        stores.append(f"{o.name}_parts[{at}{' + u' if several else ''}] = {value};")
    return [
        *lines,
        f"if ({stores_if}) {{",
        *indented(each(stores)),
        "}",
        f"if (!is_last_block(counters + {counter}, {tiling.splits})) return;",
    ]


def combined_splits(writer: RowText) -> list[str]:
    """Return the lines in which the last block combines the partial results of a group into the reductions of the whole row."""
    tiling = writer.tiling
    reductions = reductions_of(writer.plan)
    if tiling.across:
        step, lane, lanes = tiling.kept.elements, "threadIdx.y", tiling.y
        join = f"column_reduce<{tiling.x}, {tiling.y}>"
    else:
        step, lane, lanes = 1, "threadIdx.x", tiling.x
        join = f"block_reduce<{tiling.x // 32}>"
    lines = stored_splits(writer, lambda stores: stores)
    for at in range(len(writer.needs.values_by_pass) - 1):
        for o in (o for o in reductions if writer.needs.passes[o.name] == at + 1):
            kind, operand = compute_type(o.dtype), str(o.operands[0])
            body = [f"const {kind} mine = ld_cg({o.name}_parts + {_times('s', step)});"]
            term = "mine"
            if at:  # a position: the formula again, over the splits' extremes and positions
                body, term = _position_again(writer, reductions[0], o, operand, step), operand
            lines += [
                f"{o.name} = ({kind})({neutral_of(o)});",
                f"for (int s = {lane}; s < {tiling.splits}; s += {lanes}) {{",
                *indented([*body, f"{o.name} = {o.op}_of()({o.name}, ({kind})({term}));"]),
                "}",
                f"{o.name} = {join}({o.name}, {o.op}_of(), smem);",
            ]
        lines += writer.row_level(at + 1)
    return lines


def _times(index: str, step: int) -> str:
    return index if step == 1 else f"{index} * {step}"


def _position_again(
    writer: RowText, first: Operation, position: Operation, operand: str, step: int
) -> list[str]:
    lines = []
    for name in writer.needs.closure([operand], set()):
        entry = writer.needs.inputs.get(name)
        if entry is None:
            lines.append(writer.statement(writer.needs.operations[name]))
            continue
        part = position.name if entry.operand == POSITION else first.name
        lines.append(f"const {compute_type(entry.dtype)} {name} = ld_cg({part}_parts + {_times('s', step)});")
    return lines
