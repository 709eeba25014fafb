"""views: nodes that compute nothing since their results already lie in their operand's memory, by offset and strides.

``free_views`` goes further: it lets results of permutes and slices lie as they come, and lets kernels write what a permute would make of it,
wherever the kernels around take that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir import Graph, Node
from ..ir.ops import OPS
from ..types import Layout, TensorSpec

__all__ = ["View", "free_views", "view_of"]

Works = Callable[[Node, Mapping[str, Layout]], str]
"""The name of the kernel that computes a node with values lying as the layouts say; empty when none does."""


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
    if OPS[node.op].view == "reshape":
        return (View(0),) if _runs(x.shape, _strides(x)) == _runs(outs[0].shape, _strides(outs[0])) else None
    parts = _parts(node, x)
    if parts is None:
        return None
    for out, (strides, _) in zip(outs, parts, strict=True):
        if any(d > 1 and s != t for d, s, t in zip(_sizes(out), _strides(out), strides, strict=True)):
            return None
    item = x.dtype.bits // 8
    return tuple(View(start * item) for _, start in parts)


def _parts(node: Node, x: TensorSpec) -> list[tuple[Sequence[int], int]] | None:
    """Strides and first element of each result of a strided view, in the operand's memory."""
    strides, shape, at = _strides(x), _sizes(x), node.attrs
    match node.op:
        case "permute":
            return [([strides[d] for d in at["dims"]], 0)]
        case "expand":
            lead = len(at["size"]) - len(shape)
            same = all(d == s for d, s in zip(node.spec.shape[lead:], shape, strict=True))
            return (
                [([0] * lead + list(strides), 0)]
                if same and all(d == 1 for d in node.spec.shape[:lead])
                else None
            )
        case "slice" if at["step"] == 1:
            start = slice(at["start"], at["end"]).indices(shape[at["dim"]])[0]
            return [(strides, start * strides[at["dim"]])]
        case "select":
            d = at["dim"]
            return [([*strides[:d], *strides[d + 1 :]], at["index"] % shape[d] * strides[d])]
        case "split":
            starts, start = [], 0
            for size in at["sizes"]:
                starts.append((strides, start * strides[at["dim"]]))
                start += int(size)
            return list(starts)
    return None


def free_views(graph: Graph, layouts: dict[str, Layout], works: Works) -> None:
    """Complete ``layouts`` so that permutes, slices and splits become views where the kernels around them allow it."""
    for node in graph.nodes:
        if node.op not in ("permute", "slice", "split") or not isinstance(node.inputs[0], str):
            continue
        x = node.inputs[0]
        if x in graph.weight_names or graph.values[x].spec is None:
            continue
        if node.op == "permute":
            _written_permuted(graph, node, layouts, works)
        here = replace(graph.spec(x), layout=layouts.get(x)).physical
        for value in node.outputs:
            wanted = _lying(node, here)
            if value.name in graph.kept or wanted is None or value.name in layouts:
                continue
            changed = {**layouts, value.name: wanted}
            users = graph.users(value.name)
            takes = all(works(u, layouts) == works(u, changed) != "" and not OPS[u.op].view for u in users)
            if users and takes:
                layouts[value.name] = wanted


def _lying(node: Node, here: Layout) -> Layout | None:
    """How a result lies when nothing moves; None for a slice over which no layout can be laid."""
    if node.op == "permute":
        place = {d: i for i, d in enumerate(node.attrs["dims"])}
        return Layout(tuple(place[d] for d in here.order), tuple(here.alloc[d] for d in node.attrs["dims"]))
    return here if node.op == "split" or node.attrs["step"] == 1 else None


def _written_permuted(graph: Graph, node: Node, layouts: dict[str, Layout], works: Works) -> None:
    """Let the kernel before a permute write its result in the order that the permute makes."""
    x = str(node.inputs[0])
    producer = graph.producer(x)
    if producer is None or OPS[producer.op].view or graph.only_user(x) is not node or x in layouts:
        return
    shape = _sizes(graph.spec(x))
    changed = {**layouts, x: Layout(tuple(node.attrs["dims"]), shape)}
    if works(producer, layouts) == works(producer, changed) != "":
        layouts[x] = changed[x]


def _runs(shape: Sequence[object], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(extent, stride) of the longest runs of dims that lie one after the other, in logical order: equal for two shapes that
    number the same elements of memory alike.
    """
    if any(d == 0 for d in shape):
        return []
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if not isinstance(extent, int) or extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    return spec.physical.strides


def _sizes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(d) for d in spec.shape if isinstance(d, int))
