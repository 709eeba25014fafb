"""Lowerings of pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results, per_dim

__all__ = ["LOWERINGS", "window"]


def window(n: AtenLoweringContext, rank: int) -> dict[str, Any]:
    """Return the attributes of a pooling window; the default stride is the kernel size."""
    kernel = per_dim(n["kernel_size"], rank)
    dilation = n["dilation"] if "dilation" in n.args else 1
    return {
        "kernel_size": kernel,
        "stride": per_dim(n["stride"], rank) or kernel,
        "padding": per_dim(n["padding"], rank),
        "dilation": per_dim(dilation, rank),
        "ceil_mode": n["ceil_mode"],
    }


def _avg(rank: int) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        divisor = n["divisor_override"] if "divisor_override" in n.args else None
        inside = n["count_include_pad"]
        return str(n.b.avg_pool(n.x, count_include_pad=inside, divisor=divisor, **window(n, rank)))

    return lower


def _max(rank: int, *, indices: bool = False) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        outputs = n.b.max_pool(n.x, outputs=n.needed(2) if indices else 1, **window(n, rank))
        return outputs if isinstance(outputs, str) else list(outputs)

    return lower


def _adaptive(op: str, rank: int, *, indices: bool = False) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        size = per_dim(n["output_size"], rank)
        count = n.needed(2) if indices else 1
        outputs = n.b.call(op, n.x, output_size=size, outputs=count)
        return outputs if isinstance(outputs, str) else list(outputs)

    return lower


def _unpool(rank: int) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("stride", "padding")  # output_size determines the result
        size = per_dim(n["output_size"], rank)
        return str(n.b.max_unpool(n.x, n.t("indices"), output_size=size))

    return lower


def _window_starts(
    n: AtenLoweringContext, samples: str, axis: int, size: int, kernel: int, count: int
) -> str:
    """Return where the windows of a fractional pool begin along a dim, [N, C, count] in int64.

    They are computed in the samples' type, as in PyTorch: with 16 bits every step is rounded.
    """
    b, dtype = n.b, n.spec(samples).dtype
    wide = DType.FLOAT32 if dtype.bits < 32 else dtype
    sample = n.cast(str(b.slice(samples, dim=2, start=axis, end=axis + 1, step=1)), wide)
    last = n.like(size - kernel, DType.INT64)
    if count == 1:
        return str(b.add(b.mul(b.cast(sample, dtype=DType.INT64), 0), last))

    def rounded(value: Any) -> str:
        return n.cast(n.cast(str(value), dtype), wide)

    step = (np.asarray(size - kernel, wide.numpy) / np.asarray(count - 1, wide.numpy)).astype(dtype.numpy)
    alpha = n.like(step.astype(wide.numpy), wide)
    numbers = n.like(np.arange(count), wide)
    ends = rounded(b.mul(rounded(b.add(sample, numbers)), alpha))
    starts = b.sub(n.cast(ends, DType.INT64), n.cast(rounded(b.mul(sample, alpha)), DType.INT64))
    return str(b.where(n.like(np.arange(count) == count - 1, DType.BOOL), last, starts))


def _fractional(rank: int) -> OpLowering:
    """Return the lowering of a fractional max pool, whose windows begin where random samples say; those of 2 dims store the last dim first."""

    def lower(n: AtenLoweringContext) -> Results:
        b, x, samples = n.b, n.x, n.t("random_samples")
        kernel, out = per_dim(n["kernel_size"], rank), per_dim(n["output_size"], rank)
        space = [d for d in n.spec().shape[-rank:] if isinstance(d, int)]
        if len(space) < rank or not all(isinstance(d, int) for d in out):
            raise NotLowered("a symbolic size is not supported")
        batch = n.spec().shape[:-rank] if n.spec().rank > rank + 1 else (1, n.spec().shape[0])
        order = (1, 0) if rank == 2 else (0, 1, 2)
        index: str | None = None
        for d in range(rank):
            starts = _window_starts(n, samples, order[d], space[d], kernel[d], out[d])
            inside = b.add(b.unsqueeze(starts, dims=[3]), n.like(np.arange(kernel[d]), DType.INT64))
            sizes = [out[i] if i == d else 1 for i in range(rank)]
            sizes += [kernel[i] if i == d else 1 for i in range(rank)]
            offsets = b.view(b.mul(inside, math.prod(space[d + 1 :])), size=[*batch, *sizes])
            index = str(offsets if index is None else b.add(index, offsets))
        windows, points = math.prod(out), math.prod(kernel)
        index = str(b.view(index, size=[*batch, windows * points]))
        values = b.gather(b.view(x, size=[*batch, math.prod(space)]), index, dim=2)
        values = b.view(values, size=[*batch, windows, points])
        most = b.view(b.amax(values, dim=[3], keepdim=False), size=n.out().shape)
        if not n.has_readers(1):
            return [str(most), None]
        # The first of equal values, and the last of several NaN.
        is_nan = b.isnan(values)
        place = b.where(
            b.any(is_nan, dim=[3], keepdim=True),
            b.argmax(b.cast(is_nan, dtype=DType.INT32), dim=3, keepdim=True, last=True),
            b.argmax(values, dim=3, keepdim=True),
        )
        index = str(b.view(index, size=[*batch, windows, points]))
        return [str(most), str(b.view(b.gather(index, place, dim=3), size=n.out(1).shape))]

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "_adaptive_avg_pool2d": _adaptive("adaptive_avg_pool", 2),
    "_adaptive_avg_pool3d": _adaptive("adaptive_avg_pool", 3),
    "adaptive_avg_pool1d": _adaptive("adaptive_avg_pool", 1),
    "adaptive_avg_pool2d": _adaptive("adaptive_avg_pool", 2),
    "adaptive_avg_pool3d": _adaptive("adaptive_avg_pool", 3),
    "adaptive_max_pool2d": _adaptive("adaptive_max_pool", 2, indices=True),
    "adaptive_max_pool3d": _adaptive("adaptive_max_pool", 3, indices=True),
    "avg_pool1d": _avg(1),
    "avg_pool2d": _avg(2),
    "avg_pool3d": _avg(3),
    "fractional_max_pool2d": _fractional(2),
    "fractional_max_pool3d": _fractional(3),
    "max_pool1d": _max(1),
    "max_pool2d": _max(2),
    "max_pool2d_with_indices": _max(2, indices=True),
    "max_pool3d": _max(3),
    "max_pool3d_with_indices": _max(3, indices=True),
    "max_unpool2d": _unpool(2),
    "max_unpool3d": _unpool(3),
}
