"""Sequences whose elements the import knows: lists of values, so that the nodes that read them read tensors.

The nodes that make such sequences stay opaque, and are removed if nothing else reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import IrError
from ..not_lowered import NotLowered
from .nodes import attributes
from .scope import Scope
from .values import OnnxValues

__all__ = ["READERS", "elements_made", "value_read"]

READERS = frozenset(["ConcatFromSequence", "SequenceAt", "SequenceLength"])


def elements_made(values: OnnxValues, node: Any, scope: Scope) -> tuple[str, ...] | None:
    """Return the elements of the sequence that a node makes; None if it makes none, or one that only a run knows."""
    mark = values.mark()
    try:
        return _made(values, node, scope)
    except (IrError, NotLowered):
        values.undo(mark)
        return None


def value_read(values: OnnxValues, node: Any, scope: Scope) -> str:
    """Return the tensor that a node reads from a sequence. Raise NotLowered if its elements or the position are not known."""
    elements, attrs = _elements(values, node, scope), attributes(node)
    if node.op_type == "SequenceLength":
        return str(values.b.constant(np.asarray(len(elements), np.int64)))
    if node.op_type == "SequenceAt":
        return elements[_position(values, node.input[1], scope, len(elements), len(elements) - 1)]
    if not elements:
        raise NotLowered("its sequence is empty")
    axis = attrs["axis"]
    if attrs.get("new_axis", 0):
        elements = [str(values.b.unsqueeze(e, dims=[axis])) for e in elements]
    return str(values.b.call("cat", *elements, dim=axis))


def _made(values: OnnxValues, node: Any, scope: Scope) -> tuple[str, ...] | None:
    match node.op_type:
        case "SequenceEmpty":
            return ()
        case "SequenceConstruct":
            return tuple(values.value(name, scope) for name in node.input)
        case "SplitToSequence":
            return _split(values, node, scope)
        case "SequenceInsert":
            elements = _elements(values, node, scope)
            end = len(elements)
            at = _position(values, node.input[2], scope, end, end) if _has(node, 2) else end
            return (*elements[:at], values.value(node.input[1], scope), *elements[at:])
        case "SequenceErase":
            elements = _elements(values, node, scope)
            last = len(elements) - 1
            at = _position(values, node.input[1], scope, len(elements), last) if _has(node, 1) else last
            return (*elements[:at], *elements[at + 1 :])
        case _:
            return None


def _split(values: OnnxValues, node: Any, scope: Scope) -> tuple[str, ...]:
    attrs, x = attributes(node), values.value(node.input[0], scope)
    spec = values.b.values[x].spec
    if spec is None:
        raise NotLowered("it splits a value of an unknown type")
    axis = attrs.get("axis", 0) % spec.rank
    size, given = spec.shape[axis], _content(values, node.input[1], scope) if _has(node, 1) else None
    if given is not None and given.ndim:
        sizes = [int(s) for s in given]
    elif not isinstance(size, int):
        raise NotLowered("it splits a symbolic dim")
    else:
        step = 1 if given is None else int(given)
        sizes = [min(step, size - start) for start in range(0, size, step)]
    if not sizes:
        return ()
    parts = values.b.split(x, sizes=sizes, dim=axis)
    parts = (parts,) if isinstance(parts, str) else parts
    if given is None and not attrs.get("keepdims", 1):
        parts = [values.b.squeeze(p, dims=[axis]) for p in parts]
    return tuple(str(p) for p in parts)


def _elements(values: OnnxValues, node: Any, scope: Scope) -> list[str]:
    elements = values.sequences.get(values.value(node.input[0], scope))
    if elements is None:
        raise NotLowered("the elements of its sequence are known only at run time")
    return list(elements)


def _position(values: OnnxValues, name: str, scope: Scope, count: int, last: int) -> int:
    """Return a position of at most ``last``; negative ones count from the end of ``count`` elements."""
    at = int(_content(values, name, scope).reshape(()))
    if not -count <= at <= last:
        raise NotLowered(f"its position {at} is outside of the sequence")
    return at + count if at < 0 else at


def _content(values: OnnxValues, name: str, scope: Scope) -> Any:
    value = values.value(name, scope)
    content = values.content(value)
    if content is None:
        raise NotLowered("a number of a sequence is known only at run time", value)
    return content


def _has(node: Any, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])
