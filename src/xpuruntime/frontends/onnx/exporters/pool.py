"""Pools, and pools of regions, in ONNX."""

from __future__ import annotations

from typing import Any

from ....types import DType
from .graph_builder import Form, Writing, both_ends

__all__ = ["FORMS"]


def _window(w: Writing) -> dict[str, Any]:
    dilations = list(w["dilation"])
    return {
        "kernel_shape": list(w["kernel_size"]),
        "strides": list(w["stride"]),
        "pads": both_ends(w["padding"], len(w["kernel_size"])),
        "dilations": dilations if any(d != 1 for d in dilations) else None,
        "ceil_mode": int(w["ceil_mode"]) or None,
    }


def _batched(w: Writing, rank: int) -> None:
    if w.spec().rank != rank + 2:
        raise w.no("a pool without a batch dim")


def _average(w: Writing) -> None:
    _batched(w, len(w["kernel_size"]))
    if w["divisor"] is not None:
        raise w.no("a divisor other than the window's size")
    w.add(
        "AveragePool", [w.operand(0)], out=True, **_window(w), count_include_pad=int(w["count_include_pad"])
    )


def _max(w: Writing) -> None:
    _batched(w, len(w["kernel_size"]))
    if len(w.outs) > 1 and w["indices_over"] == "plane":
        raise w.no("indices within a plane")
    order = 1 if w["indices_over"] == "tensor_column_major" else None
    w.add("MaxPool", [w.operand(0)], out=True, **_window(w), storage_order=order)


def _lp(w: Writing) -> None:
    if not float(w["p"]).is_integer():
        raise w.no("a fractional p")
    w.add("LpPool", [w.operand(0)], out=True, **_window(w), p=int(w["p"]))


def _adaptive(op: str, whole: str) -> Form:
    """As a pool where the output divides the input evenly."""

    def form(w: Writing) -> None:
        size = list(w["output_size"])
        space = w.spec().shape[-len(size) :]
        _batched(w, len(size))
        if all(d == 1 for d in size) and len(w.outs) == 1:
            w.add(whole, [w.operand(0)], out=True)
            return
        if len(w.outs) > 1 or not all(
            isinstance(d, int) and isinstance(o, int) and o and d % o == 0
            for d, o in zip(space, size, strict=True)
        ):
            raise w.no("windows of unequal size")
        kernel = [int(d) // int(o) for d, o in zip(space, size, strict=True)]  # type: ignore[arg-type]
        w.add(op, [w.operand(0)], out=True, kernel_shape=kernel, strides=kernel)

    return form


def _unpool(w: Writing) -> None:
    if w["indices_over"] != "tensor":
        raise w.no("indices within a plane")
    size = w.pen.dims([*w.spec().shape[: -len(w["output_size"])], *w["output_size"]])
    rank = len(w["output_size"])
    w.add("MaxUnpool", [w.operand(0), w.operand(1), size], out=True, kernel_shape=[1] * rank)


def _roi_align(w: Writing) -> None:
    height, width = w["output_size"]
    mode = "half_pixel" if w["aligned"] else "output_half_pixel"
    if w.opset < 16 and w["aligned"]:
        raise w.no("opsets below 16 do not shift regions")
    w.add(
        "RoiAlign",
        [w.operand(0), w.operand(1), w.operand(2, DType.INT64)],
        out=True,
        output_height=height,
        output_width=width,
        mode=w["mode"],
        sampling_ratio=w["sampling_ratio"],
        spatial_scale=w["spatial_scale"],
        coordinate_transformation_mode=mode if w.opset >= 16 else None,
    )


def _max_roi(w: Writing) -> None:
    w.add(
        "MaxRoiPool",
        w.operands(),
        out=True,
        pooled_shape=list(w["output_size"]),
        spatial_scale=w["spatial_scale"],
    )


FORMS: dict[str, Form] = {
    "adaptive_avg_pool": _adaptive("AveragePool", "GlobalAveragePool"),
    "adaptive_max_pool": _adaptive("MaxPool", "GlobalMaxPool"),
    "avg_pool": _average,
    "lp_pool": _lp,
    "max_pool": _max,
    "max_roi_pool": _max_roi,
    "max_unpool": _unpool,
    "roi_align": _roi_align,
}
