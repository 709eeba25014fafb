"""Lowerings of Resize in all its versions, Upsample, and sampling by grids."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ....types import DimLike
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers

__all__ = ["LOWERINGS"]


def _scaled(size: DimLike, scale: float) -> DimLike:
    """Return floor(size * scale), exact for a symbolic size if the scale is a ratio of small integers."""
    if isinstance(size, int):
        return math.floor(size * scale)
    ratio = Fraction(scale).limit_denominator(1 << 16)
    if abs(float(ratio) - scale) > 1e-7:
        raise NotLowered(f"scaling a symbolic dim by {scale} is not supported")
    return size * ratio.numerator // ratio.denominator


def _resize(n: OnnxLoweringContext) -> Results:
    if n.opset < 11:  # version 10 is Upsample with another name
        return _upsample(n)
    rank = n.spec().rank
    axes = [a % rank for a in n.attr("axes") or range(rank)]
    mode = n.attr("mode", "nearest")
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel")
    scales, size = [1.0] * rank, list(n.spec().shape)
    if n.opt(2) is not None and (n.opt(3) is None or n.array(2, "scales").size):
        for axis, scale in zip(axes, n.array(2, "scales").ravel().tolist(), strict=True):
            scales[axis], size[axis] = float(scale), _scaled(size[axis], scale)
        own = scales
    else:
        size, own = _by_size(n, axes, n.dims(3, "sizes"))
    roi: list[float] = []
    if coordinates == "tf_crop_and_resize":
        region = [float(v) for v in n.array(1, "region").ravel()]
        roi = [0.0] * rank + [1.0] * rank
        for i, axis in enumerate(axes):
            roi[axis], roi[axis + rank] = region[i], region[i + len(axes)]
    return str(
        n.b.resize(
            n.x,
            size=size,
            scales=own,
            roi=roi,
            mode=mode,
            coordinates=coordinates,
            nearest=n.attr("nearest_mode", "round_prefer_floor"),
            cubic_a=n.attr("cubic_coeff_a", -0.75),
            exclude_outside=bool(n.attr("exclude_outside", 0)),
            extrapolation_value=n.attr("extrapolation_value", 0.0),
            antialias=bool(n.attr("antialias", 0)),
        )
    )


def _by_size(
    n: OnnxLoweringContext, axes: list[int], sizes: list[DimLike]
) -> tuple[list[DimLike], list[float]]:
    """Return the sizes of all dims, and scales only if keeping the aspect ratio decides them."""
    size = list(n.spec().shape)
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for axis, want in zip(axes, sizes, strict=True):
            size[axis] = want
        return size, []
    have = numbers([size[a] for a in axes], "an axis whose aspect ratio is kept")
    pick = min if policy == "not_larger" else max
    scale = pick(w / h for w, h in zip(numbers(sizes, "a size"), have, strict=True))
    scales = [1.0] * len(size)
    for axis, h in zip(axes, have, strict=True):
        size[axis], scales[axis] = math.floor(h * scale + 0.5), scale
    return size, scales


def _upsample(n: OnnxLoweringContext) -> Results:
    scales = n.attr("scales") or [float(v) for v in n.array(1, "scales").ravel()]
    size = [_scaled(d, s) for d, s in zip(n.spec().shape, scales, strict=True)]
    mode = {"bilinear": "linear"}.get(n.attr("mode", "nearest"), n.attr("mode", "nearest"))
    down = [min(s, 1.0) for s in scales]
    if mode != "nearest" or all(s == 1.0 for s in down):
        return _asymmetric(n, n.x, size, scales, mode, "floor")
    # Resize of opset 10 says no rounding. ONNX Runtime rounds up along axes that shrink, and down along others.
    if down == scales:
        return _asymmetric(n, n.x, size, scales, mode, "ceil")
    shape = n.spec().shape
    first = [new if s < 1.0 else old for new, old, s in zip(size, shape, scales, strict=True)]
    x = _asymmetric(n, n.x, first, down, mode, "ceil")
    return _asymmetric(n, x, size, [max(s, 1.0) for s in scales], mode, "floor")


def _asymmetric(
    n: OnnxLoweringContext, x: str, size: list[DimLike], scales: list[float], mode: str, nearest: str
) -> str:
    return str(n.b.resize(x, size=size, scales=scales, mode=mode, coordinates="asymmetric", nearest=nearest))


_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(n: OnnxLoweringContext) -> Results:
    mode = n.attr("mode", "linear")
    flags: dict[str, Any] = {"padding_mode": n.attr("padding_mode", "zeros")}
    flags["align_corners"] = bool(n.attr("align_corners", 0))
    return str(n.b.grid_sample(n.x, n.input(1), mode=_MODES.get(mode, mode), **flags))


def _affine_grid(n: OnnxLoweringContext) -> Results:
    size = n.dims(1, "size")
    return str(n.b.affine_grid(n.x, size=size, align_corners=bool(n.attr("align_corners", 0))))


LOWERINGS: dict[str, OpLowering] = {
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "Resize": _resize,
    "Upsample": _upsample,
}
