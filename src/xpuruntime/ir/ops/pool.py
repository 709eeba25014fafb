"""Pooling over sliding windows. ``padding`` is as in conv; the layout is [N, C, spatial] or [C, spatial]."""

from __future__ import annotations

from ...types import DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like, pads, spatial, window

__all__ = ["ROWS", "WINDOW"]

WINDOW = "kernel_size: ints, stride: ints, padding: ints, dilation: ints, ceil_mode: bool = false"


def _pooled(c: OpCall) -> tuple[DimLike, ...]:
    x, n = c.tensor(), len(c["kernel_size"])
    if not n or x.rank not in (n + 1, n + 2):
        raise Mismatch(f"x must have rank {n + 1} or {n + 2}", str(x))
    spatial(c, ("kernel_size", "stride", "dilation"), n)
    begins, ends = pads(c["padding"], n)
    sizes = zip(x.shape[-n:], c["kernel_size"], c["stride"], begins, ends, c["dilation"], strict=True)
    return (*x.shape[:-n], *(window(d, k, s, b, e, w, c["ceil_mode"]) for d, k, s, b, e, w in sizes))


def _pool(c: OpCall) -> TensorSpec:
    return like(c.tensor(), _pooled(c))


def _max_pool(c: OpCall) -> list[TensorSpec]:
    shape = _pooled(c)
    return [like(c.tensor(), shape), TensorSpec(shape, DType.INT64)]


def _adaptive(c: OpCall) -> TensorSpec:
    x, n = c.tensor(), len(c["output_size"])
    if x.rank not in (n + 1, n + 2):
        raise Mismatch(f"x must have rank {n + 1} or {n + 2}", str(x))
    return like(x, (*x.shape[:-n], *c["output_size"]))


def _adaptive_max(c: OpCall) -> list[TensorSpec]:
    values = _adaptive(c)
    return [values, TensorSpec(values.shape, DType.INT64)]


def _unpool(c: OpCall) -> TensorSpec:
    x, indices, n = c.tensor(0), c.tensor(1), len(c["output_size"])
    if x.rank not in (n + 1, n + 2) or indices.rank != x.rank:
        raise Mismatch(f"x and indices must have rank {n + 1} or {n + 2}", f"{x} and {indices}")
    return like(x, (*x.shape[:-n], *c["output_size"]))


def _roi(c: OpCall) -> TensorSpec:
    x, rois = c.tensor(0), c.tensor(1)
    if x.rank != 4 or rois.rank != 2:
        raise Mismatch("x must be [N, C, H, W] and rois rank 2", f"{x} and {rois}")
    return like(x, (rois.shape[0], x.shape[1], *c["output_size"]))


ROWS: tuple[OpEntry, ...] = (
    op(
        f"avg_pool(x; {WINDOW}, count_include_pad: bool = true, divisor: int? = none) -> y",
        "pool",
        _pool,
        aten="avg_pool1d avg_pool2d avg_pool3d",
        onnx="AveragePool GlobalAveragePool",
    ),
    op(
        f"max_pool(x; {WINDOW}, indices_over: plane|tensor|tensor_column_major = plane) -> y, indices?",
        "pool",
        _max_pool,
        aten="max_pool2d_with_indices max_pool3d_with_indices",
        onnx="MaxPool",
        meaning="indices are flat: within the plane of one channel (ATen), or over the whole tensor (ONNX)",
    ),
    op(f"lp_pool(x; {WINDOW}, p: float = 2.0) -> y", "pool", _pool, onnx="LpPool"),
    op(
        "adaptive_avg_pool(x; output_size: dims) -> y",
        "pool",
        _adaptive,
        aten="_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d",
    ),
    op(
        "adaptive_max_pool(x; output_size: dims) -> y, indices?",
        "pool",
        _adaptive_max,
        aten="adaptive_max_pool2d adaptive_max_pool3d",
    ),
    op(
        "max_unpool(x, indices; output_size: dims, indices_over: plane|tensor = plane) -> y",
        "pool",
        _unpool,
        aten="max_unpool2d max_unpool3d",
        onnx="MaxUnpool",
        meaning="indices within the plane of one channel (ATen), or over the whole output (ONNX)",
    ),
    op(
        "roi_align(x, rois, batch_indices; output_size: ints, mode: avg|max = avg, sampling_ratio: int = 0,"
        " spatial_scale: float = 1.0, aligned: bool = true) -> y",
        "pool",
        _roi,
        onnx="RoiAlign",
        meaning="aligned: coordinates shift by half a pixel (ONNX half_pixel)",
    ),
    op(
        "max_roi_pool(x, rois; output_size: ints, spatial_scale: float = 1.0) -> y",
        "pool",
        _roi,
        onnx="MaxRoiPool",
    ),
)
