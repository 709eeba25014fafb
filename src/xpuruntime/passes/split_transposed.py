"""split_transposed: write a transposed convolution as convolutions, for which kernels are fast, and an interleaving of their results.

conv_transpose(x, w), stride 1   ->  convolution(x, flip(w))
conv_transpose(x, w), stride s   ->  interleave(convolution(x, w')), with s times as many filters per dim

Outputs whose positions are equal modulo the stride read the same taps: each such phase is a convolution of stride 1. If all phases have as many
taps, the filters of all are the channels of one convolution; otherwise each phase is a convolution of its own. Taps are never padded with
zeros, which would make NaN of an infinite input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import Editor, Graph, Node
from ..ir.ops._shapes import pads
from ._lib.pattern_utils import spec_of
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without transposed convolutions of known shapes, if the context asks for library ops."""
    context = context or PassContext()
    if not context.library_ops:
        return graph
    return graph.rewrite(lambda editor, node: _rule(editor, node, context))


@dataclass(frozen=True, slots=True)
class _Phase:
    """Outputs of one spatial dim at ``index`` modulo the stride: their taps, and the padding of their convolution."""

    index: int
    taps: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _TransposedDim:
    """One spatial dim: its phases, the outputs of each, and where the result begins in the interleaved phases."""

    stride: int
    kernel: int
    phases: tuple[_Phase, ...]
    phase_size: int
    first: int
    out: int

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, dilation: int, begin: int, out: int) -> _TransposedDim:
        """Return the dim of a transposed convolution of ``size`` inputs and ``out`` results whose first ``begin`` results are cut off."""
        first, last = begin // stride, (begin + out - 1) // stride
        taps = [-(-(kernel - index) // stride) for index in range(stride)]
        phases = tuple(
            _Phase(index, n, dilation * (n - 1) - first, last - (size - 1)) for index, n in enumerate(taps)
        )
        return cls(stride, kernel, phases, last - first + 1, begin - first * stride, out)

    @property
    def even(self) -> bool:
        """True if all phases have as many taps."""
        return self.kernel % self.stride == 0


def _rule(editor: Editor, node: Node, context: PassContext) -> None:
    if node.op != "convolution" or not node.attrs["transposed"] or not node.spec.is_static:
        return
    x, w = (spec_of(editor, v) for v in node.inputs[:2])
    if x is None or w is None or not (x.is_static and w.is_static) or 0 in (*x.shape, *node.spec.shape):
        return
    attrs, rank = node.attrs, x.rank - 2
    strides, dilations = attrs["stride"], attrs["dilation"]
    if any(d != 1 for d in dilations) and any(s != 1 for s in strides):
        return
    begins = pads(attrs["padding"], rank)[0]
    shapes = zip(x.shape[2:], w.shape[2:], strides, dilations, begins, node.spec.shape[2:], strict=True)
    dims = [_TransposedDim.of(*(int(n) for n in extents)) for extents in shapes]
    if any(p.taps < 1 or p.begin < 0 or p.end < 0 for dim in dims for p in dim.phases):
        return
    if not context.may_become("convolution", editor.graph, [node]):
        return
    if all(dim.even for dim in dims):
        values = [_all_phases(editor, node, dims)]
    else:
        chosen = itertools.product(*(dim.phases for dim in dims))
        values = [_one_phase(editor, node, phases) for phases in chosen]
    if math.prod(strides) == 1:
        editor.forward(node.name, values[0])
    else:
        editor.forward(node.name, _interleaved(editor, node, values, dims))


def _all_phases(editor: Editor, node: Node, dims: Sequence[_TransposedDim]) -> Any:
    """Return the convolution whose channels are the filters of all phases."""
    groups, count = node.attrs["groups"], math.prod(dim.stride for dim in dims)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and count > 1:
        each = _filters_of_group(editor, node)
        bias = editor.insert(node, "view", bias, size=[groups, 1, each])
        bias = editor.insert(node, "expand", bias, size=[groups, count, each])
        bias = editor.insert(node, "view", bias, size=[groups * count * each])
    return _convolution(editor, node, _filters(editor, node, dims), bias, [dim.phases[0] for dim in dims])


def _one_phase(editor: Editor, node: Node, phases: Sequence[_Phase]) -> Any:
    """Return the convolution of one phase of each dim."""
    value, spec, groups = node.inputs[1], spec_of(editor, node.inputs[1]), node.attrs["groups"]
    assert spec is not None
    channels, each, *kernel = (int(d) for d in spec.shape)  # type: ignore[arg-type]
    for axis, (phase, stride, extent) in enumerate(zip(phases, node.attrs["stride"], kernel, strict=True), 2):
        if stride > 1:
            value = editor.insert(node, "slice", value, dim=axis, start=phase.index, end=extent, step=stride)
    rank, taps = len(phases), [phase.taps for phase in phases]
    value = editor.insert(node, "flip", value, dims=[2 + i for i in range(rank)])
    value = editor.insert(node, "view", value, size=[groups, channels // groups, each, *taps])
    value = editor.insert(node, "permute", value, dims=[0, 2, 1, *range(3, 3 + rank)])
    value = editor.insert(node, "view", value, size=[groups * each, channels // groups, *taps])
    return _convolution(editor, node, value, node.inputs[2] if len(node.inputs) > 2 else None, phases)


def _convolution(editor: Editor, node: Node, filters: Any, bias: Any, phases: Sequence[_Phase]) -> Any:
    return editor.insert(
        node, "convolution", node.inputs[0], filters, bias, stride=[1] * len(phases),
        padding=[*(p.begin for p in phases), *(p.end for p in phases)], dilation=node.attrs["dilation"],
        groups=node.attrs["groups"], transposed=False, output_padding=[],
    )  # fmt: skip


def _filters_of_group(editor: Editor, node: Node) -> int:
    spec = spec_of(editor, node.inputs[1])
    assert spec is not None
    return int(spec.shape[1])  # type: ignore[arg-type]


def _filters(editor: Editor, node: Node, dims: Sequence[_TransposedDim]) -> Any:
    """Return the filters of all phases, [groups x phases x filters, channels of a group, taps ...], from [channels, filters of a group, kernel ...]."""
    value, rank, groups = node.inputs[1], len(dims), node.attrs["groups"]
    spec = spec_of(editor, value)
    assert spec is not None
    channels, each = (int(d) for d in spec.shape[:2])  # type: ignore[arg-type]
    counts = [dim.kernel // dim.stride for dim in dims]
    parts = [extent for dim, count in zip(dims, counts, strict=True) for extent in (count, dim.stride)]
    value = editor.insert(node, "view", value, size=[groups, channels // groups, each, *parts])
    taps, phases = [3 + 2 * i for i in range(rank)], [4 + 2 * i for i in range(rank)]
    value = editor.insert(node, "flip", value, dims=taps)
    value = editor.insert(node, "permute", value, dims=[0, *phases, 2, 1, *taps])
    total = groups * math.prod(dim.stride for dim in dims) * each
    return editor.insert(node, "view", value, size=[total, channels // groups, *counts])


def _interleaved(editor: Editor, node: Node, values: Sequence[Any], dims: Sequence[_TransposedDim]) -> Any:
    """Return the results in order. ``values``: one whose channels are [groups, phases ..., filters], or one for each phase."""
    rank, (images, channels) = len(dims), (int(d) for d in node.spec.shape[:2])  # type: ignore[arg-type]
    groups, strides, sizes = node.attrs["groups"], [d.stride for d in dims], [d.phase_size for d in dims]
    value = values[0]
    if len(values) > 1:
        shape = [images, groups, 1, channels // groups, *sizes]
        value = editor.insert(
            node, "cat", *(editor.insert(node, "view", v, size=shape) for v in values), dim=2
        )
    value = editor.insert(node, "view", value, size=[images, groups, *strides, channels // groups, *sizes])
    spatial = [d for i in range(rank) for d in (3 + rank + i, 2 + i)]
    value = editor.insert(node, "permute", value, dims=[0, 1, 2 + rank, *spatial])
    whole = [dim.stride * dim.phase_size for dim in dims]
    value = editor.insert(node, "view", value, size=[images, channels, *whole])
    for axis, (dim, extent) in enumerate(zip(dims, whole, strict=True), 2):
        if dim.first or dim.out != extent:
            value = editor.insert(node, "slice", value, dim=axis, start=dim.first, end=dim.first + dim.out)
    return value
