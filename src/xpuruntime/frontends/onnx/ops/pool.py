"""Lowerings of pooling over windows and regions of interest."""

from __future__ import annotations

from typing import Any

from ....types import DimLike
from .context import OnnxLoweringContext, OpLowering, Results
from .window import window

__all__ = ["LOWERINGS", "pool_window"]


def pool_window(n: OnnxLoweringContext, space: tuple[DimLike, ...]) -> dict[str, Any]:
    """Return the window of a pool over ``space``."""
    kernel = list(n.attr("kernel_shape"))
    attrs = window(n, kernel, space)
    return {"kernel_size": kernel, **attrs, "ceil_mode": bool(n.attr("ceil_mode", 0))}


def _window(n: OnnxLoweringContext) -> dict[str, Any]:
    return pool_window(n, n.spec().shape[2:])


def _average(n: OnnxLoweringContext) -> Results:
    return str(n.b.avg_pool(n.x, **_window(n), count_include_pad=bool(n.attr("count_include_pad", 0))))


def _max(n: OnnxLoweringContext) -> Results:
    """Lower MaxPool. Indices are a result only if something reads them."""
    over = "tensor_column_major" if n.attr("storage_order", 0) else "tensor"
    if n.has_readers(1):
        return tuple(n.b.call("max_pool", n.x, outputs=2, **_window(n), indices_over=over))
    return str(n.b.max_pool(n.x, **_window(n), indices_over=over))


def _unpool(n: OnnxLoweringContext) -> Results:
    """Lower MaxUnpool. By default, the result has the size of an input from which a MaxPool with this window makes the size of x."""
    kernel = list(n.attr("kernel_shape"))
    rank = len(kernel)
    stride = n.attr("strides") or [1] * rank
    pads = n.attr("pads") or [0] * (2 * rank)
    inferred = [
        (d - 1) * s - pads[i] - pads[i + rank] + k
        for i, (d, s, k) in enumerate(zip(n.spec().shape[2:], stride, kernel, strict=True))
    ]
    size = n.dims(2, "output shape")[2:] if n.opt(2) else inferred
    if size == inferred:
        return str(n.b.max_unpool(n.x, n.input(1), output_size=size, indices_over="tensor"))
    # Indices refer to the inferred size; a larger output is padded with zeros.
    y = n.b.max_unpool(n.x, n.input(1), output_size=inferred, indices_over="tensor")
    growth = [want - have for want, have in zip(size, inferred, strict=True)]
    return str(n.b.pad(y, pads=[0] * (rank + 2) + [0, 0, *growth]))


def _roi_align(n: OnnxLoweringContext) -> Results:
    """Lower RoiAlign. Since opset 16 an attribute selects half-pixel coordinates; in earlier opsets regions are not shifted."""
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    return str(
        n.b.roi_align(
            n.x,
            n.input(1),
            n.input(2),
            output_size=[n.attr("output_height", 1), n.attr("output_width", 1)],
            mode=n.attr("mode", "avg"),
            sampling_ratio=n.attr("sampling_ratio", 0),
            spatial_scale=n.attr("spatial_scale", 1.0),
            aligned=n.attr("coordinate_transformation_mode", default) == "half_pixel",
        )
    )


def _lp(n: OnnxLoweringContext) -> Results:
    return str(n.b.lp_pool(n.x, **_window(n), p=float(n.attr("p", 2))))


def _max_roi(n: OnnxLoweringContext) -> Results:
    size, scale = n.attr("pooled_shape"), n.attr("spatial_scale", 1.0)
    return str(n.b.max_roi_pool(n.x, n.input(1), output_size=size, spatial_scale=scale))


LOWERINGS: dict[str, OpLowering] = {
    "AveragePool": _average,
    "LpPool": _lp,
    "MaxPool": _max,
    "MaxRoiPool": _max_roi,
    "MaxUnpool": _unpool,
    "RoiAlign": _roi_align,
}
