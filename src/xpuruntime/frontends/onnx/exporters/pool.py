"""Exporters of pooling and region pooling."""

from __future__ import annotations

from typing import Any

from ....types import DType
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


def _batched(e: NodeExport, rank: int) -> None:
    if e.spec().rank != rank + 2:
        raise e.no("a pool without a batch dim")


def _average(e: NodeExport) -> None:
    _batched(e, len(e["kernel_size"]))
    if e["divisor"] is not None:
        raise e.no("a divisor other than the window's size")
    e.add(
        "AveragePool", [e.operand(0)], out=True, **_window(e), count_include_pad=int(e["count_include_pad"])
    )


def _max(e: NodeExport) -> None:
    _batched(e, len(e["kernel_size"]))
    if len(e.outs) > 1 and e["indices_over"] == "plane":
        raise e.no("indices within a plane")
    order = 1 if e["indices_over"] == "tensor_column_major" else None
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
        _batched(e, len(size))
        if all(d == 1 for d in size) and len(e.outs) == 1:
            e.add(global_op, [e.operand(0)], out=True)
            return
        if len(e.outs) > 1 or not all(
            isinstance(d, int) and isinstance(o, int) and o and d % o == 0
            for d, o in zip(space, size, strict=True)
        ):
            raise e.no("windows of unequal size")
        kernel = [int(d) // int(o) for d, o in zip(space, size, strict=True)]  # type: ignore[arg-type]
        e.add(op, [e.operand(0)], out=True, kernel_shape=kernel, strides=kernel)

    return export


def _unpool(e: NodeExport) -> None:
    if e["indices_over"] != "tensor":
        raise e.no("indices within a plane")
    size = e.builder.dims([*e.spec().shape[: -len(e["output_size"])], *e["output_size"]])
    rank = len(e["output_size"])
    e.add("MaxUnpool", [e.operand(0), e.operand(1), size], out=True, kernel_shape=[1] * rank)


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
    "adaptive_avg_pool": _adaptive("AveragePool", "GlobalAveragePool"),
    "adaptive_max_pool": _adaptive("MaxPool", "GlobalMaxPool"),
    "avg_pool": _average,
    "lp_pool": _lp,
    "max_pool": _max,
    "max_roi_pool": _max_roi,
    "max_unpool": _unpool,
    "roi_align": _roi_align,
}
