"""Bridges of interpolation, grids and Fourier transforms."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, named

__all__ = ["BRIDGES"]

_F = "nn.functional."


def grid_sample(s: Any) -> Adapted:
    grid, *positional = s.args
    if grid.element_size() < 4:
        raise NotComparable("places in a half type, which PyTorch computes in it")
    kwargs = dict(zip(("mode", "padding_mode", "align_corners"), positional, strict=False)) | dict(s.kwargs)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(kwargs.get("mode", "bilinear"), kwargs.get("mode"))
    return [s.input, grid], {
        "mode": mode,
        "padding_mode": kwargs.get("padding_mode", "zeros"),
        "align_corners": bool(kwargs.get("align_corners")),
    }


def interpolate(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        kwargs = named(
            s, "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"
        )
        if mode == "bicubic" and "uint8" in str(s.input.dtype):
            raise NotComparable("uint8, which PyTorch clips after each axis")
        n = s.input.dim() - 2
        size: Any = kwargs.get("size")
        factor: Any = kwargs.get("scale_factor")
        scales: list[float] = []
        if size is None:
            factors = [float(f) for f in (factor if isinstance(factor, tuple | list) else [factor] * n)]
            factors = factors * (n if len(factors) == 1 else 1)
            size = [int(d * f) for d, f in zip(s.input.shape[2:], factors, strict=True)]
            if not kwargs.get("recompute_scale_factor"):
                scales = [1.0, 1.0, *factors]
        size = [size] * n if isinstance(size, int) else list(size)
        attrs: dict[str, Any] = {
            "size": [*s.input.shape[:2], *size],
            "scales": scales,
            "antialias": bool(kwargs.get("antialias")),
        }
        if mode == "nearest":
            return [s.input], attrs | {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}
        if mode == "nearest-exact":
            exact = {"mode": "nearest", "coordinates": "half_pixel", "nearest": "round_prefer_ceil"}
            return [s.input], attrs | exact
        if kwargs.get("align_corners"):
            attrs["scales"] = []
        attrs["coordinates"] = "align_corners" if kwargs.get("align_corners") else "half_pixel"
        attrs["exclude_outside"] = attrs["antialias"]
        if attrs["antialias"]:
            attrs["cubic_a"] = -0.5
        return [s.input], attrs | {"mode": "cubic" if mode == "bicubic" else "linear"}

    return adapt


_NORM = {
    "forward": {"forward": "by_n", "backward": "none"},
    "inverse": {"forward": "none", "backward": "by_n"},
}


def fourier(kind: str, several: bool) -> Adapt:
    """Return a bridge of torch.fft's functions of one or several dims, without cropping and padding."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, "n", "dim", "norm")
        size = kwargs.get("n", kwargs.get("s"))
        if size is not None and kind != "c2r":
            raise NotComparable("cut or filled to a size")
        default = list(range(s.input.dim())) if several else [-1]
        axes = kwargs.get("dim")
        axes = default if axes is None else [axes] if isinstance(axes, int) else list(axes)
        if kind == "c2c" and not s.input.is_complex():
            raise NotComparable("a real operand")
        if kind == "r2c" and (s.input.is_complex() or not s.input.is_floating_point()):
            raise NotComparable("not a real operand")
        if kind == "c2r":
            if not s.input.is_complex() or not isinstance(size, int | None):
                raise NotComparable("a real operand")
            last = 2 * (s.input.shape[axes[-1]] - 1) if size is None else size
            if last // 2 + 1 != s.input.shape[axes[-1]]:
                raise NotComparable("cut or filled to a size")
            factors = _NORM["inverse"]
            norm = factors.get(kwargs.get("norm") or "backward", "by_root")
            return [s.input], {"dims": axes, "normalization": norm, "last_size": last}
        inverse = kind == "c2c" and getattr(s, "inverse", False)
        norm = _NORM["inverse" if inverse else "forward"].get(kwargs.get("norm") or "backward", "by_root")
        return [s.input], {"dims": axes, "normalization": norm}

    return adapt


BRIDGES: dict[str, Bridge] = {
    "grid_sampler_2d": Bridge("grid_sample", grid_sample, info=f"{_F}grid_sample"),
    "interpolate.nearest": Bridge(
        "resize", interpolate("nearest"), variants=("nearest",), info=f"{_F}interpolate"
    ),
    "interpolate.nearest-exact": Bridge(
        "resize", interpolate("nearest-exact"), variants=("nearest-exact",), info=f"{_F}interpolate"
    ),
    "interpolate.linear": Bridge(
        "resize",
        interpolate("linear"),
        variants=("linear", "bilinear", "trilinear"),
        info=f"{_F}interpolate",
    ),
    "interpolate.bicubic": Bridge(
        "resize", interpolate("bicubic"), variants=("bicubic",), info=f"{_F}interpolate"
    ),
    "fft.fft": Bridge("fft_c2c", fourier("c2c", False)),
    "fft.fftn": Bridge("fft_c2c", fourier("c2c", True)),
    "fft.rfft": Bridge("fft_r2c", fourier("r2c", False)),
    "fft.rfftn": Bridge("fft_r2c", fourier("r2c", True)),
    "fft.irfft": Bridge("fft_c2r", fourier("c2r", False)),
    "fft.irfftn": Bridge("fft_c2r", fourier("c2r", True)),
}
