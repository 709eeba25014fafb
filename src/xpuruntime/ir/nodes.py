"""Nodes with inferred types: what ``GraphBuilder`` and ``Editor`` create, and ``verify`` checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import IrError
from .infer import check_operands, find_op, infer_normal, normalize, output_count, speaker
from .parts import Input, Node, Source, Value
from .schema import OpEntry, Operand

__all__ = ["make_node", "operand_specs"]


def operand_specs(
    row: OpEntry, inputs: Sequence[Input], values: Mapping[str, Value], who: str
) -> list[Operand]:
    """Return the operands of a node as inference sees them. Raises IrError for an unknown value or one of unknown type."""
    specs: list[Operand] = []
    for item in inputs:
        if not isinstance(item, str):
            specs.append(item)
            continue
        value = values.get(item)
        if value is None:
            raise IrError(
                who,
                "reads a value that does not exist",
                got=f"%{item}",
                do="Create the value before its user.",
            )
        if value.spec is None:
            raise IrError(
                who, "reads a value of unknown type", got=f"%{item}", do="Make this node opaque, too."
            )
        specs.append(value.spec)
    return specs


def make_node(
    op: str,
    inputs: Sequence[Input],
    attrs: Mapping[str, Any],
    names: Callable[[int], Sequence[str]],
    values: Mapping[str, Value],
    *,
    outputs: int | None = None,
    sources: Sequence[Source] = (),
) -> Node:
    """Create a node with inferred types. ``names(n)`` returns n output names. Raises IrError."""
    row = find_op(op)
    who = speaker(row, "", sources)
    operands = operand_specs(row, inputs, values, who)
    check_operands(row, operands, who)
    full = normalize(row, operands, attrs, sources=sources)
    specs = infer_normal(row, operands, full, who)
    count = output_count(row, specs) if outputs is None else outputs
    if not row.min_outputs <= count <= len(specs):
        raise IrError(
            who, f"has {row.min_outputs} to {len(specs)} outputs", got=count, do=f"See {row.signature}."
        )
    results = tuple(Value(n, s) for n, s in zip(names(count), specs[:count], strict=True))
    return Node(op, tuple(inputs), full, results, tuple(sources))
