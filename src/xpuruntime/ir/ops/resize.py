"""Resampling: resizing by scale or size (ONNX's Resize covers PyTorch's upsample), and sampling at a grid."""

from __future__ import annotations

from ...types import TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like, same

__all__ = ["ROWS"]


def _resize(c: OpCall) -> TensorSpec:
    x, size = c.tensor(), c["size"]
    if len(size) != x.rank or len(c["scales"]) not in (0, x.rank) or len(c["roi"]) not in (0, 2 * x.rank):
        raise Mismatch(
            "size and scales take one number per dim, roi two", f"{list(size)}, {list(c['scales'])} for {x}"
        )
    return like(x, size)


def _grid_sample(c: OpCall) -> TensorSpec:
    x, grid = c.tensor(0), c.tensor(1)
    if x.rank < 3 or grid.rank != x.rank:
        raise Mismatch("x must be [N, C, spatial...] and the grid of the same rank", f"{x} and {grid}")
    same(grid.shape[-1], x.rank - 2, "the grid's last dim and the number of spatial dims")
    return like(
        x, (same(x.shape[0], grid.shape[0], "the batch of x and grid"), x.shape[1], *grid.shape[1:-1])
    )


def _affine_grid(c: OpCall) -> TensorSpec:
    theta, size = c.tensor(), c["size"]
    if theta.rank != 3 or len(size) not in (4, 5):
        raise Mismatch("theta must be [N, n, n+1] and size 4 or 5 numbers", f"{theta}, {list(size)}")
    return like(theta, (size[0], *size[2:], len(size) - 2))


ROWS: tuple[OpEntry, ...] = (
    op(
        "resize(x; size: dims, scales: floats = [], roi: floats = [], mode: nearest|linear|cubic = nearest,"
        " coordinates: half_pixel|half_pixel_symmetric|pytorch_half_pixel|align_corners|asymmetric|tf_half_pixel_for_nn|"
        "tf_crop_and_resize = half_pixel, nearest: round_prefer_floor|round_prefer_ceil|floor|ceil = round_prefer_floor,"
        " cubic_a: float = -0.75, exclude_outside: bool = false, extrapolation_value: float = 0.0,"
        " antialias: bool = false) -> y",
        "resize",
        _resize,
        aten="upsample_nearest2d.vec upsample_bilinear2d.vec",
        onnx="Resize Upsample",
        meaning="size of every dim; coordinates use scales (one per dim; default size / x's); modes have ONNX's names",
    ),
    op(
        "grid_sample(x, grid; mode: linear|nearest|cubic = linear, padding_mode: zeros|border|reflection = zeros,"
        " align_corners: bool = false) -> y",
        "resize",
        _grid_sample,
        aten="grid_sampler_2d grid_sampler_3d",
        onnx="GridSample",
    ),
    op(
        "affine_grid(theta; size: dims, align_corners: bool = false) -> y",
        "resize",
        _affine_grid,
        aten="affine_grid_generator",
        onnx="AffineGrid",
    ),
)
