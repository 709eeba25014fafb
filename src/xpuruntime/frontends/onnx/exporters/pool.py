"""Exporters of pooling and region pooling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ....ir import Node, Value
from ....types import DType, TensorSpec
from .graph_builder import Exporter, NodeExport, full_padding

__all__ = ["EXPORTERS"]


def _window(e: NodeExport) -> dict[str, Any]:
    dilations = list(e["dilation"])
    return {
        "kernel_shape": list(e["kernel_size"]),
        "strides": list(e["stride"]),
        "pads": full_padding(e["padding"], len(e["kernel_size"])),
        "dilations": dilations if any(d != 1 for d in dilations) else None,
        "ceil_mode": int(e["ceil_mode"]) or None,
    }


_MAX_WINDOWS = 1 << 22
"""Maximum elements of a table of windows."""


class _WithBatch(NodeExport):
    """A pool of one image, as one of a batch with a single image."""

    __slots__ = ("image",)

    def __init__(self, e: NodeExport) -> None:
        outputs = tuple(
            Value(e.builder.fresh(f"{v.name}.batch"), None if v.spec is None else _one_image(v.spec))
            for v in e.node.outputs
        )
        super().__init__(e.builder, Node(e.node.op, e.node.inputs, e.node.attrs, outputs, e.node.sources))
        self.image = _axis(e, "Unsqueeze", e.operand(0))

    def spec(self, position: int = 0) -> TensorSpec:
        spec = super().spec(position)
        return spec if position else _one_image(spec)

    def operand(self, position: int, dtype: DType | None = None) -> str:
        return super().operand(position, dtype) if position else self.image


def _one_image(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(1, *spec.shape))


def _axis(e: NodeExport, op: str, value: str, outputs: list[str] | None = None) -> str:
    """Add Squeeze or Unsqueeze of the first axis, which is an input from opset 13 on."""
    if e.opset >= 13:
        return e.builder.add(op, [value, e.ints([0])], outputs)
    return e.builder.add(op, [value], outputs, axes=[0])


def _pool(exporter: Exporter, size: str = "kernel_size") -> Exporter:
    """Return the exporter of a pool with or without a batch dim; ONNX needs one. size: the attribute with a number per spatial dim."""

    def export(e: NodeExport) -> None:
        if e.spec().rank == len(e[size]) + 2:
            exporter(e)
            return
        inner = _WithBatch(e)
        exporter(inner)
        for value, name in zip(inner.outs, e.outs, strict=True):
            _axis(e, "Squeeze", value, [name])

    return export


def _average(e: NodeExport) -> None:
    if e["divisor"] is None:
        padded = int(e["count_include_pad"])
        e.add("AveragePool", [e.operand(0)], out=True, **_window(e), count_include_pad=padded)
        return
    if e["ceil_mode"]:
        raise e.no("a divisor of its own with ceil_mode")
    mean = e.add("AveragePool", [e.operand(0)], **_window(e), count_include_pad=1)
    factor = math.prod(e["kernel_size"]) / e["divisor"]
    e.add("Mul", [mean, e.constant(factor, e.spec().dtype)], out=True)


def _max(e: NodeExport) -> None:
    order = 1 if e["indices_over"] == "tensor_column_major" else None
    outs = e.outs
    if len(outs) > 1 and e["indices_over"] == "plane":  # ONNX counts through the whole tensor
        over_all = e.builder.fresh(outs[1])
        e.builder.add("MaxPool", [e.operand(0)], [outs[0], over_all], **_window(e))
        plane = e.builder.dim(math.prod(e.spec().shape[2:]))
        e.builder.add("Mod", [over_all, plane], [outs[1]])
        return
    e.add("MaxPool", [e.operand(0)], out=True, **_window(e), storage_order=order)


def _lp(e: NodeExport) -> None:
    if not float(e["p"]).is_integer():
        raise e.no("a fractional p")
    e.add("LpPool", [e.operand(0)], out=True, **_window(e), p=int(e["p"]))


def _adaptive(op: str, global_op: str) -> Exporter:
    """Return the exporter of adaptive pooling, as a pool if the output size divides the input size."""

    def export(e: NodeExport) -> None:
        size = list(e["output_size"])
        space = e.spec().shape[-len(size) :]
        if all(d == 1 for d in size) and len(e.outs) == 1:
            e.add(global_op, [e.operand(0)], out=True)
            return
        if not all(isinstance(d, int) and isinstance(o, int) and o for d, o in zip(space, size, strict=True)):
            raise e.no("windows of symbolic size")
        sizes = [(int(d), int(o)) for d, o in zip(space, size, strict=True)]  # type: ignore[arg-type]
        if len(e.outs) > 1:
            _maxima(e, sizes)
            return
        if any(d % o for d, o in sizes):
            _unequal(e, sizes, average=op == "AveragePool")
            return
        kernel = [d // o for d, o in sizes]
        e.add(op, [e.operand(0)], out=True, kernel_shape=kernel, strides=kernel)

    return export


def _unequal(e: NodeExport, sizes: list[tuple[int, int]], *, average: bool) -> None:
    """Write adaptive pooling with windows of unequal size axis by axis: a Gather of the windows, and a reduction of each."""
    value, dtype, axis = e.operand(0), e.spec().dtype, 2
    if e.opset < 18:
        raise e.no("windows of unequal size below opset 18")
    for d, o in sizes:
        windows = [range(i * d // o, -((i + 1) * d // -o)) for i in range(o)]
        longest = max(map(len, windows))
        # A shorter window ends with its last element, which changes no maximum.
        table = np.array([[w[min(k, len(w) - 1)] for k in range(longest)] for w in windows], np.int64)
        lines = e.add("Gather", [value, e.constant(table)], axis=axis)
        after = [1] * (len(sizes) + 1 - axis)
        if average:
            inside = np.array([[k < len(w) for k in range(longest)] for w in windows])
            inside = inside.reshape(o, longest, *after)
            lines = e.add("Where", [e.constant(inside), lines, e.constant(0, dtype)])
            total = e.add("ReduceSum", [lines, e.ints([axis + 1])], keepdims=0)
            length = e.constant(np.array([len(w) for w in windows]).reshape(o, *after), dtype)
            value = e.add("Div", [total, length])
        else:
            value = e.add("ReduceMax", [lines, e.ints([axis + 1])], keepdims=0)
        axis += 1
    e.add("Identity", [value], out=True)


def _maxima(e: NodeExport, sizes: list[tuple[int, int]]) -> None:
    """Write adaptive max pooling with indices: a Gather of all windows of a plane, and the place of the maximum of each.

    The last NaN of a window is its maximum, else the first of the largest elements. A shorter window repeats its last element.
    """
    table = np.zeros((1, 1), np.int64)
    for d, o in sizes:
        windows = [range(i * d // o, -((i + 1) * d // -o)) for i in range(o)]
        longest = max(map(len, windows))
        along = np.array([[w[min(k, len(w) - 1)] for k in range(longest)] for w in windows], np.int64)
        table = (table[:, None, :, None] * d + along[None, :, None, :]).reshape(
            len(table) * o, table.shape[1] * longest
        )
    if table.size > _MAX_WINDOWS or e.opset < 18:
        raise e.no(f"windows of {table.size:,} elements in all, or indices of maxima below opset 18")
    outer = e.spec().shape[: -len(sizes)]
    planes = e.add("Reshape", [e.operand(0), e.builder.dims([*outer, math.prod(d for d, _ in sizes)])])
    elements = e.add("Gather", [planes, e.constant(table)], axis=len(outer))
    best = e.add("ArgMax", [elements], axis=-1, keepdims=1)
    if e.spec().dtype.is_float:
        no_number = e.cast(e.add("IsNaN", [elements]), DType.INT32)
        last = e.add("ArgMax", [no_number], axis=-1, keepdims=1, select_last_index=1)
        found = e.add("ReduceMax", [no_number, e.ints([-1])], keepdims=1)
        best = e.add("Where", [e.add("Greater", [found, e.constant(0, DType.INT32)]), last, best])
    everywhere = e.add("Expand", [e.constant(table), e.builder.dims([*outer, *table.shape])])
    shape = e.builder.dims([*outer, *(o for _, o in sizes)])
    for source, name in zip((elements, everywhere), e.outs, strict=True):
        chosen = e.add("GatherElements", [source, best], axis=-1)
        e.builder.add("Reshape", [chosen, shape], [name])


def _unpool(e: NodeExport) -> None:
    rank = len(e["output_size"])
    outer = e.spec().shape[:-rank]
    if e["indices_over"] == "tensor":
        size = e.builder.dims([*outer, *e["output_size"]])
        e.add("MaxUnpool", [e.operand(0), e.operand(1), size], out=True, kernel_shape=[1] * rank)
        return
    plane = math.prod(e["output_size"])
    lines = e.builder.dims([*outer, -1])
    zeros = e.add("Expand", [e.constant(0, e.spec().dtype), e.builder.dims([*outer, plane])])
    operands = [e.add("Reshape", [e.operand(i), lines]) for i in (1, 0)]
    flat = e.add("ScatterElements", [zeros, *operands], axis=len(outer))
    e.add("Reshape", [flat, e.builder.dims([*outer, *e["output_size"]])], out=True)


def _roi_align(e: NodeExport) -> None:
    height, width = e["output_size"]
    mode = "half_pixel" if e["aligned"] else "output_half_pixel"
    if e.opset < 16 and e["aligned"]:
        raise e.no("opsets below 16 do not support half-pixel coordinates")
    e.add(
        "RoiAlign",
        [e.operand(0), e.operand(1), e.operand(2, DType.INT64)],
        out=True,
        output_height=height,
        output_width=width,
        mode=e["mode"],
        sampling_ratio=e["sampling_ratio"],
        spatial_scale=e["spatial_scale"],
        coordinate_transformation_mode=mode if e.opset >= 16 else None,
    )


def _max_roi(e: NodeExport) -> None:
    e.add(
        "MaxRoiPool",
        e.operands(),
        out=True,
        pooled_shape=list(e["output_size"]),
        spatial_scale=e["spatial_scale"],
    )


EXPORTERS: dict[str, Exporter] = {
    "adaptive_avg_pool": _pool(_adaptive("AveragePool", "GlobalAveragePool"), "output_size"),
    "adaptive_max_pool": _pool(_adaptive("MaxPool", "GlobalMaxPool"), "output_size"),
    "avg_pool": _pool(_average),
    "lp_pool": _pool(_lp),
    "max_pool": _pool(_max),
    "max_roi_pool": _max_roi,
    "max_unpool": _unpool,
    "roi_align": _roi_align,
}
