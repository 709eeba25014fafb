"""Views: nodes without computation whose results are already in their operand's memory, described by an offset and strides.

``free_views`` makes more nodes views: permutes and slices stay strided views, and a kernel may write its result in the permuted order,
where the adjacent kernels support these strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir import Graph, Node
from ..ir.ops import OPS
from ..types import Layout, TensorSpec

__all__ = ["View", "free_views", "view_of"]

_MOVES = ("permute", "slice", "split", "select")
Works = Callable[[Node, Mapping[str, Layout]], str]
"""Returns the name of the kernel that computes a node with values in these layouts; empty if there is none."""


@dataclass(frozen=True, slots=True)
class View:
    """A result that begins ``offset`` bytes into the operand, with the strides of its spec."""

    offset: int


def view_of(node: Node, spec_of: Callable[[str], TensorSpec]) -> tuple[View, ...] | None:
    """Return the position of each result within the first operand; None if the node must move or compute data."""
    if not OPS[node.op].view or not isinstance(node.inputs[0], str):
        return None
    x = spec_of(node.inputs[0])
    outs = [spec_of(v.name) for v in node.outputs]
    if any(o.dtype is not x.dtype or not o.dtype.bits for o in outs):
        return None
    if OPS[node.op].view == "reshape":
        return (View(0),) if _runs(x.shape, _strides(x)) == _runs(outs[0].shape, _strides(outs[0])) else None
    if x.dtype.bits < 8:  # a part may begin within a byte
        return None
    parts = _parts(node, x)
    if parts is None:
        return None
    for out, (strides, _) in zip(outs, parts, strict=True):
        if any(d > 1 and s != t for d, s, t in zip(_sizes(out), _strides(out), strides, strict=True)):
            return None
    item = x.dtype.bits // 8
    # A part without elements has no position: its start may be after the end of an operand that has none either.
    return tuple(
        View(start * item if all(_sizes(out)) else 0) for out, (_, start) in zip(outs, parts, strict=True)
    )


def _parts(node: Node, x: TensorSpec) -> list[tuple[Sequence[int], int]] | None:
    """Return the strides and the first element of each result of a strided view, in the operand's memory."""
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


Alignment = Callable[[Node, Mapping[str, Layout]], int | None]
"""Returns the alignment in bytes of a value inside a larger one that a node reads; None if it reads a copy faster."""


def free_views(
    graph: Graph, layouts: dict[str, Layout], works: Works, alignment: Alignment | None = None
) -> None:
    """Add to ``layouts`` so that permutes, slices and splits become views, if their readers support the strides.

    alignment: that of readers of parts of channels-last values; None: such parts are copied.
    """
    for node in graph.nodes:
        if node.op not in _MOVES or not isinstance(node.inputs[0], str):
            continue
        x = node.inputs[0]
        if x in graph.weight_names or graph.values[x].spec is None:
            continue
        if node.op == "permute":
            _written_permuted(graph, node, layouts, works)
        layout = replace(graph.spec(x), layout=layouts.get(x)).physical
        if node.op in ("slice", "split") and x in layouts and node.outputs[0].name in layouts:
            if alignment is not None:
                layouts.update(_channel_parts(graph, node, layout, layouts, works, alignment))
            continue
        view_layout = _layout_of_view(node, layout, _sizes(graph.spec(x)))
        for value in node.outputs:
            followed = (
                None
                if view_layout is None
                else _layouts_behind(graph, value.name, view_layout, layouts, works)
            )
            layouts.update(followed or {})


def _channel_parts(
    graph: Graph,
    node: Node,
    layout: Layout,
    layouts: Mapping[str, Layout],
    works: Works,
    alignment: Alignment,
) -> dict[str, Layout]:
    """Return the layouts of a split's or slice's results inside a channels-last value; empty if a reader of one needs a copy."""
    x = graph.spec(str(node.inputs[0]))
    parts = _parts(node, replace(x, layout=layout))
    if x.dtype.bits < 8 or parts is None or layout.alloc != _sizes(x):
        return {}
    changed = {v.name: layout for v in node.outputs}
    now = {**layouts, **changed}
    item = x.dtype.bits // 8
    for value, (strides, start) in zip(node.outputs, parts, strict=True):
        own, users = layouts.get(value.name), graph.users(value.name)
        sizes = _sizes(graph.spec(value.name))
        if (
            own is None
            or (own.order, own.alloc) != (layout.order, sizes)
            or value.name in graph.kept
            or not users
        ):
            return {}
        steps = [s * item for s, d in zip(strides, sizes, strict=True) if d > 1 and s > 1]
        for user in users:
            if OPS[user.op].view or user.op == "cat" or not works(user, layouts) == works(user, now) != "":
                return {}
            needed = alignment(user, now)
            if needed is None or any(offset % needed for offset in (start * item, *steps)):
                return {}
    return changed


def _layouts_behind(
    graph: Graph, value: str, wanted: Layout, layouts: Mapping[str, Layout], works: Works
) -> dict[str, Layout] | None:
    """Return the layouts of a value and of the views behind it, if the value has layout ``wanted``; None if a reader does not support it."""
    users = graph.users(value)
    if value in graph.kept or value in layouts or not users:
        return None
    result = {value: wanted}
    for user in users:
        now = {**layouts, **result}
        if OPS[user.op].view:
            layout = (
                _layout_of_view(user, wanted, _sizes(graph.spec(value))) if user.inputs[0] == value else None
            )
            for output in user.outputs:
                more = None if layout is None else _layouts_behind(graph, output.name, layout, now, works)
                if more is None:
                    return None
                now |= more
                result |= more
        elif not works(user, layouts) == works(user, now) != "":
            return None
    return result


def _layout_of_view(node: Node, layout: Layout, sizes: tuple[int, ...]) -> Layout | None:
    """Return the layout of a view's results without a copy; None if no layout describes it."""
    match node.op:
        case "permute":
            position = {d: i for i, d in enumerate(node.attrs["dims"])}
            return Layout(
                tuple(position[d] for d in layout.order), tuple(layout.alloc[d] for d in node.attrs["dims"])
            )
        case "split":
            return layout
        case "slice" if node.attrs["step"] == 1:
            return layout
        case "select":
            return _without(layout, node.attrs["dim"])
        case _ if OPS[node.op].view == "reshape":
            return _regrouped(layout, sizes, _sizes(node.spec))
    return None


def _without(layout: Layout, dim: int) -> Layout | None:
    """Return the layout after selecting one index of a dim, whose padding moves to the dim inside it; None for the innermost dim."""
    at = layout.order.index(dim)
    if at + 1 == len(layout.order):
        return None
    alloc = list(layout.alloc)
    alloc[layout.order[at + 1]] *= alloc[dim]
    order = (d - (d > dim) for d in layout.order if d != dim)
    return Layout(tuple(order), tuple(a for d, a in enumerate(alloc) if d != dim))


def _regrouped(layout: Layout, sizes: tuple[int, ...], out: tuple[int, ...]) -> Layout | None:
    """Return the layout of the same elements under another shape; None if a run of replaced dims is not contiguous."""
    alloc, before = [1] * len(out), [list[int]() for _ in sizes]
    i = o = 0
    while i < len(sizes) and o < len(out):
        first, dims, have, want = i, [o], sizes[i], out[o]
        i, o = i + 1, o + 1
        while have != want:
            if have < want and i < len(sizes):
                have, i = have * sizes[i], i + 1
            elif have > want and o < len(out):
                want, dims, o = want * out[o], [*dims, o], o + 1
            else:
                return None
        position = layout.order.index(first)
        inner = math.prod(out[d] for d in dims[1:])
        outer = layout.alloc[first] * math.prod(sizes[first + 1 : i])
        dense = all(layout.alloc[d] == sizes[d] for d in range(first + 1, i))
        if (
            layout.order[position : position + i - first] != tuple(range(first, i))
            or not dense
            or not inner
            or outer % inner
        ):
            return None
        for d in dims[1:]:
            alloc[d] = out[d]
        alloc[dims[0]] = outer // inner
        before[first] = dims
    if any(s != 1 or layout.alloc[d] != 1 for d, s in enumerate(sizes[i:], i)) or any(
        d != 1 for d in out[o:]
    ):
        return None
    return Layout(
        (*range(o, len(out)), *(d for position in layout.order for d in before[position])), tuple(alloc)
    )


def _written_permuted(graph: Graph, node: Node, layouts: dict[str, Layout], works: Works) -> None:
    """Let the kernel before a permute write its result in the permuted order, if it supports the strides."""
    x = str(node.inputs[0])
    producer = graph.producer(x)
    if producer is None or OPS[producer.op].view or graph.only_user(x) is not node or x in layouts:
        return
    if node.outputs[0].name in layouts:  # row-major data is in the order of the result's layout already
        return
    shape = _sizes(graph.spec(x))
    changed = {**layouts, x: Layout(tuple(node.attrs["dims"]), shape)}
    if works(producer, layouts) == works(producer, changed) != "":
        layouts[x] = changed[x]


def _runs(shape: Sequence[object], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (extent, stride) of the longest contiguous runs of dims, in logical order. Shapes with equal runs address memory alike."""
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
