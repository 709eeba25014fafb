"""Concatenation without copies: kernels write operands directly into the result's memory.

An operand then has the result's strides, and an offset in its memory. A chain of concatenations (each layer of a DenseNet block appends its
channels) becomes one buffer, of which every link is a longer prefix. An operand is placed only if its producer and its readers support
the strides, which ``works`` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from ..ir import Graph, Node
from ..ir.ops import OPS
from ..types import Layout, TensorSpec

__all__ = ["Placement", "place_concats"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A value stored within another one, ``offset`` bytes from its start."""

    within: str
    offset: int


def place_concats(
    graph: Graph,
    layouts: dict[str, Layout],
    works: Callable[[Node, Mapping[str, Layout]], str],
    known: Container[str] = (),
    alignment: Callable[[Node, Mapping[str, Layout]], int] = lambda node, layouts: 1,
) -> dict[str, Placement]:
    """Return placements by value, and add their strides to ``layouts``.

    works:     the name of the kernel that computes a node with values in these layouts; empty if there is none.
    known:     constant values, which recipes make and no kernel writes.
    alignment: the alignment in bytes that a node's operand or result needs inside another value.
    """
    placements: dict[str, Placement] = {}
    for node in reversed(graph.nodes):
        if (
            node.outputs[0].name in known
            or node.op != "cat"
            or node.outputs[0].spec is None
            or not node.spec.is_static
        ):
            continue
        result = node.outputs[0].name
        base = placements.get(result, Placement(result, 0))
        whole_layout = replace(node.spec, layout=layouts.get(result)).physical
        dim, start = node.attrs["dim"], 0
        for operand in node.inputs:
            if not isinstance(operand, str):
                continue
            spec = graph.spec(operand)
            offset = base.offset + start * whole_layout.strides[dim] * spec.dtype.bits // 8
            if operand not in known and _may_move(graph, node, operand, layouts, whole_layout):
                layout = Layout(whole_layout.order, whole_layout.alloc)
                changed = {**layouts, operand: layout}
                neighbors = [
                    n
                    for n in (graph.producer(operand), *graph.users(operand))
                    if n is not None and n is not node
                ]
                if all(
                    works(n, layouts) == works(n, changed) != "" and offset % alignment(n, changed) == 0
                    for n in neighbors
                    if n.op != "cat"
                ):
                    layouts[operand] = layout
                    placements[operand] = Placement(base.within, offset)
            start += int(spec.shape[dim])
    return placements


def _may_move(
    graph: Graph, node: Node, operand: str, layouts: Mapping[str, Layout], whole_layout: Layout
) -> bool:
    """Return True if a kernel produces the operand and nothing else determines its memory."""
    producer, spec = graph.producer(operand), graph.spec(operand)
    if producer is None or operand in graph.kept or node.inputs.count(operand) != 1 or spec.dtype.bits < 8:
        return False
    if any(
        n is not node and n.op == "cat" and n.attrs["dim"] != node.attrs["dim"] for n in graph.users(operand)
    ):
        return False
    if any(OPS[n.op].view for n in (producer, *graph.users(operand))):
        return False
    return replace(spec, layout=layouts.get(operand)).physical.order == whole_layout.order and _is_own(
        spec, layouts.get(operand)
    )


def _is_own(spec: TensorSpec, layout: Layout | None) -> bool:
    """Return True if the value has its own strides, because it was not placed before."""
    return layout is None or layout.alloc == spec.shape
