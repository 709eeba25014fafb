"""Type inference: the specs of an op's results from its operands and attributes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import IrError
from ..types import TensorSpec
from .attributes import Attrs, coerce
from .ops import OPS
from .parts import Source
from .schema import Attr, Mismatch, OpCall, OpEntry, Operand

__all__ = ["check_operands", "find_op", "infer", "infer_normal", "normalize", "output_count", "speaker"]


def find_op(name: str) -> OpEntry:
    """Return the table entry of an op. Raises IrError with the nearest names."""
    row = OPS.get(name)
    if row is None:
        near = difflib.get_close_matches(name, OPS, 3)
        advice = f"Did you mean {', '.join(near)}?" if near else "Write it as an opaque node."
        raise IrError(f"op {name!r}", "is not in the op table", do=advice)
    return row


def speaker(row: OpEntry, name: str, sources: Sequence[Source]) -> str:
    """Return the subject of an error about a node: op, value, source."""
    origin = f" from {sources[0]}" if sources else ""
    return f"{row.name} %{name}{origin}" if name else f"{row.name}{origin}"


def normalize(
    row: OpEntry,
    operands: Sequence[Operand],
    attrs: Mapping[str, Any],
    *,
    name: str = "",
    sources: Sequence[Source] = (),
) -> Attrs:
    """Return the attributes in canonical form: all are present and of their kind, axes count from 0, and a ``dim`` of None is resolved.

    Raises IrError for an unknown or missing attribute or a value of another kind.
    """
    who = speaker(row, name, sources)
    unknown = sorted(set(attrs) - set(row.attrs))
    if unknown:
        names = ", ".join(row.attrs) or "none"
        raise IrError(who, f"has no attribute {unknown[0]!r}", do=f"Known ones: {names}.")
    values: dict[str, Any] = {}
    for attr in row.attrs.values():
        if attr.name not in attrs and attr.required:
            raise IrError(who, f"needs attribute {attr.name!r}", do=f"See {row.signature}.")
        value = attrs.get(attr.name, attr.default)
        try:
            values[attr.name] = coerce(attr.kind, value)
        except ValueError as error:
            raise IrError(who, f"attribute {attr.name!r}: {error}", got=repr(value)[:200]) from error
    first = next((o for o in operands if isinstance(o, TensorSpec)), None)
    if first is not None:
        try:
            _place(row, values, first, operands)
        except Mismatch as error:
            raise IrError(who, error.what, got=error.got, do=error.do) from error
    return Attrs(values)


def _place(row: OpEntry, values: dict[str, Any], first: TensorSpec, operands: Sequence[Operand]) -> None:
    """Wrap axes to the rank of the first tensor, and resolve attributes that depend on the operands."""
    if row.place is not None and operands:
        row.place(values, operands)
    for attr in row.attrs.values():
        kind, value = attr.kind.rstrip("?"), values[attr.name]
        if kind == "axis" and value is not None:
            values[attr.name] = _axis(attr, value, first.rank)
        elif kind == "newaxes":
            values[attr.name] = _axes(attr, value, first.rank + len(value))
        elif kind == "axes":
            all_axes = tuple(range(first.rank))
            values[attr.name] = all_axes if value is None else _axes(attr, value, first.rank)


def _axis(attr: Attr, value: int, rank: int) -> int:
    limit = max(rank, 1)  # a scalar counts as having one dim
    if not -limit <= value < limit:
        raise Mismatch(f"attribute {attr.name!r} is outside the rank", f"{value} for rank {rank}")
    return value + limit if value < 0 else value


def _axes(attr: Attr, value: Sequence[int], rank: int) -> tuple[int, ...]:
    axes = tuple(_axis(attr, v, rank) for v in value)
    if len(set(axes)) != len(axes):
        raise Mismatch(f"attribute {attr.name!r} names an axis twice", list(value))
    return axes


def check_operands(row: OpEntry, operands: Sequence[Operand], who: str) -> None:
    """Check count, presence and kind of operands. Raises IrError."""
    max_operands = None if row.inputs and row.inputs[-1].rest else len(row.inputs)
    if len(operands) < row.min_inputs or (max_operands is not None and len(operands) > max_operands):
        raise IrError(who, "has the wrong number of operands", got=len(operands), do=f"See {row.signature}.")
    for i, operand in enumerate(operands):
        param = row.param(i)
        assert param is not None
        if operand is None:
            if not param.optional:
                raise IrError(who, f"operand {param.name!r} cannot be absent", do=f"See {row.signature}.")
        elif not isinstance(operand, TensorSpec) and not param.number:
            raise IrError(
                who,
                f"operand {param.name!r} must be a tensor",
                got=operand,
                do="Use a constant node instead.",
            )
    if row.pointwise and not any(isinstance(o, TensorSpec) for o in operands):
        raise IrError(
            who,
            "needs a tensor among its operands",
            do="Compute expressions of numbers before building the graph.",
        )


def infer(
    row: OpEntry | str,
    operands: Sequence[Operand],
    attrs: Mapping[str, Any],
    *,
    name: str = "",
    sources: Sequence[Source] = (),
) -> tuple[TensorSpec, ...]:
    """Infer the specs of all results of an op.

    operands: a TensorSpec, an immediate number, or None per operand. attrs: normalized or not.
    name, sources: of the node, for messages. Raises IrError with the node, its source, the mismatch, and advice.
    """
    row = find_op(row) if isinstance(row, str) else row
    who = speaker(row, name, sources)
    check_operands(row, operands, who)
    return infer_normal(row, operands, normalize(row, operands, attrs, name=name, sources=sources), who)


def infer_normal(row: OpEntry, operands: Sequence[Operand], attrs: Attrs, who: str) -> tuple[TensorSpec, ...]:
    """Infer as ``infer``, for checked operands and normalized attributes."""
    try:
        result = row.infer(OpCall(row, operands, attrs))
    except Mismatch as error:
        raise IrError(who, error.what, got=error.got, do=error.do or f"See {row.signature}.") from error
    except (ArithmeticError, IndexError, TypeError, KeyError) as error:
        raise IrError(
            who, "operands or attributes do not fit", got=_shown(operands), do=f"See {row.signature}."
        ) from error
    specs = (result,) if isinstance(result, TensorSpec) else tuple(result)
    for spec in specs:
        if any(isinstance(d, int) and d < 0 for d in spec.shape):
            raise IrError(who, "would have a negative dim", got=spec)
    return specs


def _shown(operands: Sequence[Operand]) -> str:
    return ", ".join(str(o) for o in operands)


def output_count(row: OpEntry, specs: Sequence[object]) -> int:
    """Return the default number of outputs: those that are not optional."""
    return len(specs) if row.outputs and row.outputs[-1].rest else row.min_outputs
