"""split_transposed: write a transposed convolution as a convolution, for which kernels are fast, and an interleaving of its results.

conv_transpose(x, w), stride 1   ->  convolution(x, flip(w))
conv_transpose(x, w), stride s   ->  interleave(convolution(x, w')), with s times as many filters per dim

Outputs whose positions are equal modulo the stride read the same taps: each such phase is a convolution of stride 1. The filters of all phases
are the channels of one convolution. Taps are padded with zeros to a multiple of the stride.
"""

from __future__ import annotations

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
class _TransposedDim:
    """One spatial dim: taps of a phase, the convolution's padding, and where the result begins in the interleaved phases."""

    stride: int
    kernel: int
    taps: int
    begin: int
    end: int
    phase_size: int
    first: int
    out: int

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, dilation: int, begin: int, out: int) -> _TransposedDim:
        """Return the dim of a transposed convolution of ``size`` inputs and ``out`` results whose first ``begin`` results are cut off."""
        taps = -(-kernel // stride)
        first, last = begin // stride, (begin + out - 1) // stride
        return cls(
            stride, kernel, taps, dilation * (taps - 1) - first, last - (size - 1), last - first + 1,
            begin - first * stride, out,
        )  # fmt: skip


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
    lines = [_TransposedDim.of(*(int(n) for n in line)) for line in shapes]
    if any(line.begin < 0 or line.end < 0 for line in lines):
        return
    if not context.may_become("convolution", editor.graph, [node]):
        return
    groups = attrs["groups"]
    filters = _filters(editor, node, lines, groups)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    phases = math.prod(strides)
    if bias is not None and phases > 1:
        each = int(w.shape[1])  # type: ignore[arg-type]
        bias = editor.insert(node, "view", bias, size=[groups, 1, each])
        bias = editor.insert(node, "expand", bias, size=[groups, phases, each])
        bias = editor.insert(node, "view", bias, size=[groups * phases * each])
    how = {
        "stride": [1] * rank, "padding": [*(line.begin for line in lines), *(line.end for line in lines)], "dilation": dilations, "groups": groups,
        "transposed": False, "output_padding": [],
    }  # fmt: skip
    if phases == 1:
        editor.replace(node, "convolution", node.inputs[0], filters, bias, **how)
        return
    y = editor.insert(node, "convolution", node.inputs[0], filters, bias, **how)
    editor.forward(node.name, _interleaved(editor, node, y, lines, groups))


def _filters(editor: Editor, node: Node, lines: Sequence[_TransposedDim], groups: int) -> Any:
    """Return the filters of all phases, [groups x phases x filters, channels of a group, taps ...], from [channels, filters of a group, kernel ...]."""
    value, rank = node.inputs[1], len(lines)
    spec = spec_of(editor, value)
    assert spec is not None
    channels, each = (int(d) for d in spec.shape[:2])  # type: ignore[arg-type]
    more = [line.taps * line.stride - line.kernel for line in lines]
    if any(more):
        value = editor.insert(node, "pad", value, pads=[*[0] * (rank + 4), *more])
    parts = [extent for line in lines for extent in (line.taps, line.stride)]
    value = editor.insert(node, "view", value, size=[groups, channels // groups, each, *parts])
    taps, phases = [3 + 2 * i for i in range(rank)], [4 + 2 * i for i in range(rank)]
    value = editor.insert(node, "flip", value, dims=taps)
    value = editor.insert(node, "permute", value, dims=[0, *phases, 2, 1, *taps])
    count = groups * math.prod(line.stride for line in lines) * each
    return editor.insert(
        node, "view", value, size=[count, channels // groups, *(line.taps for line in lines)]
    )


def _interleaved(editor: Editor, node: Node, value: Any, lines: Sequence[_TransposedDim], groups: int) -> Any:
    """Return the results in order, from channels [groups, phases ..., filters] over the positions of a phase."""
    rank, (images, channels) = len(lines), (int(d) for d in node.spec.shape[:2])  # type: ignore[arg-type]
    strides, sizes = [line.stride for line in lines], [line.phase_size for line in lines]
    value = editor.insert(node, "view", value, size=[images, groups, *strides, channels // groups, *sizes])
    spatial = [d for i in range(rank) for d in (3 + rank + i, 2 + i)]
    value = editor.insert(node, "permute", value, dims=[0, 1, 2 + rank, *spatial])
    whole = [line.stride * line.phase_size for line in lines]
    value = editor.insert(node, "view", value, size=[images, channels, *whole])
    for dim, line in enumerate(lines, 2):
        if line.first or line.out != whole[dim - 2]:
            value = editor.insert(node, "slice", value, dim=dim, start=line.first, end=line.first + line.out)
    return value
