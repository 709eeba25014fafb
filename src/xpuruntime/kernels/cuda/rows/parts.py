"""Rows that several blocks share: which formulas allow it, and the text in which the last block to finish joins the partial results.

One pass: the partial results of the blocks are reduced once more. A position (argmax, argmin): each block finds its extreme and the position of it;
the same formula over those pairs gives the row's, whichever of equal ones it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....codegen.expr.terms import STORAGE, compute_type
from ....codegen.loops.nest import indented
from ....codegen.loops.plans import POSITION, LoopPlan, Operation
from ....types import DType
from ...spec.row_plan import neutral_of

if TYPE_CHECKING:
    from .text import RowText

__all__ = ["SLOT", "divisible", "joined_parts", "one_pass", "partial_of", "shared_parts"]

SLOT = 8
"""Bytes of a partial result."""
_WORDS = frozenset({"float", "double", "int32_t", "uint32_t", "int64_t", "uint64_t"})
"""What ``ld_cg`` reads."""


def _word(dtype: DType) -> str:
    """Return the C type of a partial result."""
    return {"bf16": "float", "f16": "float"}.get(STORAGE[dtype], STORAGE[dtype])


def partial_of(plan: LoopPlan) -> list[Operation]:
    """Return the reductions, in order."""
    return [o for o in plan.operations if o.reduces]


def divisible(plan: LoopPlan) -> bool:
    """Return whether blocks may share a row of this plan: results are of rows as a whole, and computed in one pass or as a position."""
    made = partial_of(plan)
    if not made or any(_word(o.dtype) not in _WORDS for o in made):
        return False
    if one_pass(plan):
        return True
    reads = [i for i in plan.inputs if i.operand != POSITION and any(i.strides[d] for d in plan.reduced)]
    places = [i for i in plan.inputs if i.operand == POSITION]
    if len(made) != 2 or len(reads) != 1 or len(places) != 1:
        return False
    return made[0].operands[:1] == (reads[0].name,) and {made[0].op, made[1].op} <= {"amax", "amin", "top"}


def one_pass(plan: LoopPlan) -> bool:
    """Return whether no reduction needs another's result."""
    after = set[str]()
    for o in plan.operations:
        later = any(n in after for n in o.operands if isinstance(n, str))
        if later and o.reduces:
            return False
        if later or o.reduces:
            after.add(o.name)
    return True


def shared_parts(writer: RowText, each: Callable[[list[str]], list[str]]) -> list[str]:
    """Return the lines in which blocks that share rows store their partial results, up to where only the last block continues.

    each: the loop over a thread's rows, ``u`` and values ``v_of[u]``.
    """
    share = writer.share
    made = partial_of(writer.plan)
    slots = share.kept.elements * share.parts
    wide = share.width > 1 and share.across
    if share.across:  # partial results of adjacent threads are contiguous
        place, step = "c" if share.kept.rows == 1 else f"row * {share.kept.inner} + c", share.kept.elements
        one, counter = writer.place.live("threadIdx.y == 0"), "group"
    else:
        place, step = f"row * {share.parts}", 1
        one, counter = "threadIdx.x == 0", "row"
    lines, stores = list[str](), list[str]()
    for j, o in enumerate(made):
        kind = _word(o.dtype)
        lines.append(f"{kind} *const {o.name}_parts = ({kind} *)(parts + {j * slots * SLOT}) + {place};")
        at, value = _times("part", step), f"{o.name}_of[u]" if wide else o.name
        stores.append(f"{o.name}_parts[{at}{' + u' if wide else ''}] = {value};")
    return [
        *lines,
        f"if ({one}) {{",
        *indented(each(stores)),
        "}",
        f"if (!is_last_block(counters + {counter}, {share.parts})) return;",
    ]


def joined_parts(writer: RowText) -> list[str]:
    """Return the lines after a block's own part, up to the reductions of the whole row."""
    share = writer.share
    made = partial_of(writer.plan)
    if share.across:
        step, lane, lanes = share.kept.elements, "threadIdx.y", share.y
        join = f"column_reduce<{share.x}, {share.y}>"
    else:
        step, lane, lanes = 1, "threadIdx.x", share.x
        join = f"block_reduce<{share.x // 32}>"
    lines = shared_parts(writer, lambda stores: stores)
    for at in range(len(writer.needs.wanted) - 1):
        for o in (o for o in made if writer.needs.passes[o.name] == at + 1):
            kind, operand = compute_type(o.dtype), str(o.operands[0])
            body = [f"const {kind} mine = ld_cg({o.name}_parts + {_times('s', step)});"]
            term = "mine"
            if at:  # a place: the formula again, over the parts' extremes and places
                body, term = _again(writer, made[0], o, operand, step), operand
            lines += [
                f"{o.name} = ({kind})({neutral_of(o)});",
                f"for (int s = {lane}; s < {share.parts}; s += {lanes}) {{",
                *indented([*body, f"{o.name} = {o.op}_of()({o.name}, ({kind})({term}));"]),
                "}",
                f"{o.name} = {join}({o.name}, {o.op}_of(), room);",
            ]
        lines += writer.row_level(at + 1)
    return lines


def _times(index: str, step: int) -> str:
    return index if step == 1 else f"{index} * {step}"


def _again(writer: RowText, first: Operation, place: Operation, operand: str, step: int) -> list[str]:
    lines = []
    for name in writer.needs.closure([operand], set()):
        entry = writer.needs.inputs.get(name)
        if entry is None:
            lines.append(writer.statement(writer.needs.operations[name]))
            continue
        part = place.name if entry.operand == POSITION else first.name
        lines.append(f"const {compute_type(entry.dtype)} {name} = ld_cg({part}_parts + {_times('s', step)});")
    return lines
