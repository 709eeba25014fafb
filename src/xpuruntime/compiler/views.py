"""views: nodes that compute nothing since their results already lie in their operand's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ..ir import Node
from ..ir.ops import OPS
from ..types import TensorSpec

__all__ = ["View", "view_of"]


@dataclass(frozen=True, slots=True)
class View:
    """A result that starts ``offset`` bytes into the operand and lies there as its spec says."""

    offset: int


def view_of(node: Node, spec_of: Callable[[str], TensorSpec]) -> tuple[View, ...] | None:
    """Where each result lies within the first operand; None when the node must move or compute something."""
    if not OPS[node.op].view or not isinstance(node.inputs[0], str):
        return None
    x = spec_of(node.inputs[0])
    outs = [spec_of(v.name) for v in node.outputs]
    if any(o.dtype is not x.dtype or o.dtype.bits < 8 for o in outs):
        return None
    if node.op == "clone":
        return (View(0),) if _same_bytes(x, outs[0]) else None
    if OPS[node.op].view == "reshape":
        return (View(0),) if x.is_dense and outs[0].is_dense else None
    if not x.is_dense or not all(o.is_dense for o in outs):
        return None
    item = x.dtype.bits // 8
    match node.op:
        case "permute":
            order = [d for d in node.attrs["dims"] if x.shape[d] != 1]
            return (View(0),) if order == sorted(order) else None
        case "expand":
            return (View(0),) if _elements(x) == _elements(outs[0]) else None
        case "slice" if node.attrs["step"] == 1 and _outermost(x, node.attrs["dim"]):
            extent = int(x.shape[node.attrs["dim"]])
            start = slice(node.attrs["start"], node.attrs["end"]).indices(extent)[0]
            return (View(item * start * _inner(x, node.attrs["dim"])),)
        case "select" if _outermost(x, node.attrs["dim"]):
            extent = int(x.shape[node.attrs["dim"]])
            return (View(item * (node.attrs["index"] % extent) * _inner(x, node.attrs["dim"])),)
        case "split" if _outermost(x, node.attrs["dim"]):
            step, at, views = item * _inner(x, node.attrs["dim"]), 0, []
            for size in node.attrs["sizes"]:
                views.append(View(at * step))
                at += int(size)
            return tuple(views)
    return None


def _same_bytes(a: TensorSpec, b: TensorSpec) -> bool:
    pairs = zip(a.shape, a.physical.strides, b.physical.strides, strict=True)
    return a.physical.elements == b.physical.elements and all(d == 1 or s == t for d, s, t in pairs)


def _elements(spec: TensorSpec) -> int:
    return prod(int(d) for d in spec.shape if isinstance(d, int))


def _outermost(x: TensorSpec, dim: int) -> bool:
    return all(d == 1 for d in x.shape[:dim])


def _inner(x: TensorSpec, dim: int) -> int:
    return prod(int(d) for d in x.shape[dim + 1 :] if isinstance(d, int))
