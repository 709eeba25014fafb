"""Lowerings of interpolation and grid sampling. Attribute values are ONNX's."""

from __future__ import annotations

from typing import Any

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}
_EXACT = {"mode": "nearest", "coordinates": "half_pixel", "nearest": "round_prefer_ceil"}


def _scales(n: AtenLoweringContext, rank: int) -> list[float]:
    """Return the given scale factors, which determine the sample positions instead of the ratio of sizes."""
    if "scale_factors" in n.args:
        n.ignore("output_size")
        factors = n["scale_factors"]
    else:
        names = [k for k in n.args if k.startswith("scales")]
        factors = [n[k] for k in names]
        factors = None if all(f is None for f in factors) else factors
    if not factors:
        return []
    if len(factors) != rank or any(f is None for f in factors):
        raise NotLowered("only some of its scale factors are given")
    return [1.0, 1.0, *(float(f) for f in factors)]


def _aligned_scales(n: AtenLoweringContext, rank: int) -> list[float]:
    """Return the scale factors of a filter with ``align_corners``: PyTorch takes the distance of corners for them, but half pixels for positions."""
    factors = [1.0, 1.0]
    for size, out in zip(n.spec().shape[-rank:], n.out().shape[-rank:], strict=True):
        if not isinstance(size, int) or not isinstance(out, int) or (out == 1 and size > 1):
            raise NotLowered(
                "a filter with align_corners to one element, or of symbolic sizes, is not supported"
            )
        factors.append(float(out) if size == 1 else (out - 1) / (size - 1))
    return factors


def _upsample(rank: int, **fixed_attrs: Any) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("output_size")
        scales, attrs = _scales(n, rank), dict(fixed_attrs)
        if n.spec().dtype.value == "uint8" and attrs["mode"] != "nearest":
            raise NotLowered("uint8 is not supported, because PyTorch rounds after each axis")
        if "align_corners" in n.args:
            aligned = n["align_corners"]
            filtered = bool(attrs.get("antialias"))
            attrs["coordinates"] = "align_corners" if aligned and not filtered else "half_pixel"
            scales = _aligned_scales(n, rank) if aligned and filtered else [] if aligned else scales
        if attrs.get("antialias"):
            attrs["exclude_outside"] = True
        return str(n.b.resize(n.x, size=n.out().shape, scales=scales, **attrs))

    return lower


def _grid(n: AtenLoweringContext) -> Results:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    sampled = n.b.grid_sample(
        n.x,
        n.t("grid"),
        mode=modes[n["interpolation_mode"]],
        padding_mode=paddings[n["padding_mode"]],
        align_corners=n["align_corners"],
    )
    return str(sampled)


def _affine_grid(n: AtenLoweringContext) -> Results:
    return str(n.b.affine_grid(n.x, size=n["size"], align_corners=n["align_corners"]))


_KINDS: dict[str, OpLowering] = {
    "upsample_nearest1d": _upsample(1, **_NEAREST),
    "upsample_nearest2d": _upsample(2, **_NEAREST),
    "upsample_nearest3d": _upsample(3, **_NEAREST),
    "_upsample_nearest_exact1d": _upsample(1, **_EXACT),
    "_upsample_nearest_exact2d": _upsample(2, **_EXACT),
    "_upsample_nearest_exact3d": _upsample(3, **_EXACT),
    "upsample_linear1d": _upsample(1, mode="linear"),
    "upsample_bilinear2d": _upsample(2, mode="linear"),
    "upsample_trilinear3d": _upsample(3, mode="linear"),
    "upsample_bicubic2d": _upsample(2, mode="cubic"),
    "_upsample_bilinear2d_aa": _upsample(2, mode="linear", antialias=True),
    "_upsample_bicubic2d_aa": _upsample(2, mode="cubic", antialias=True, cubic_a=-0.5),
}

LOWERINGS: dict[str, OpLowering] = (
    _KINDS
    | {f"{name}.vec": row for name, row in _KINDS.items()}
    | {"affine_grid_generator": _affine_grid, "grid_sampler_2d": _grid, "grid_sampler_3d": _grid}
)
