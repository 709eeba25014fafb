"""Pooling of regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]


def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    output_size: Sequence[int],
    mode: str,
    sampling_ratio: int,
    spatial_scale: float,
    aligned: bool,
) -> Array:
    """Pool each region [x1, y1, x2, y2] to output_size bins; a bin is the mean (or maximum) of samples (He et al., 2017).

    sampling_ratio 0: the bin's size rounded up. The maximum is over the weighted corners of all samples,
    as ONNX defines it.
    """
    high, wide_ = output_size
    y = np.zeros((rois.shape[0], x.shape[1], high, wide_))
    for number, (roi, batch) in enumerate(zip(rois, batch_indices, strict=True)):
        x1, y1, x2, y2 = roi * spatial_scale - (0.5 if aligned else 0.0)
        height, width = y2 - y1, x2 - x1
        if not aligned:
            height, width = max(height, 1.0), max(width, 1.0)
        rows, per_row = _samples(y1, height, high, sampling_ratio)
        columns, per_column = _samples(x1, width, wide_, sampling_ratio)
        if not (per_row and per_column):
            continue
        corners = _corners(x[int(batch)], rows, columns)  # [4, C, rows, columns]
        parts = corners.reshape(4, x.shape[1], high, per_row, wide_, per_column)
        y[number] = parts.sum(axis=0).mean(axis=(2, 4)) if mode == "avg" else parts.max(axis=(0, 3, 5))
    return y


def _samples(start: float, size: float, bins: int, ratio: int) -> tuple[Array, int]:
    """Return the positions of all samples along one axis, and the number per bin."""
    count = ratio if ratio > 0 else max(math.ceil(size / bins), 0)
    step = size / bins / max(count, 1)
    return start + (np.arange(bins * count) + 0.5) * step, count


def _corners(x: Array, rows: Array, columns: Array) -> Array:
    """Return [4, C, rows, columns]: the four neighbors of each sample times their weights; 0 for samples more than one pixel outside."""
    (low_r, high_r, share_r, in_r), (low_c, high_c, share_c, in_c) = (
        _neighbors(at, size) for at, size in zip((rows, columns), x.shape[1:], strict=True)
    )
    inside = in_r[:, None] & in_c
    return np.stack(
        [
            x[:, r][:, :, c] * np.where(inside, wr[:, None] * wc, 0.0)
            for r, wr in ((low_r, 1 - share_r), (high_r, share_r))
            for c, wc in ((low_c, 1 - share_c), (high_c, share_c))
        ]
    )


def _neighbors(at: Array, size: int) -> tuple[Array, Array, Array, Array]:
    inside = (at >= -1) & (at <= size)
    near = np.clip(at, 0, size - 1)
    low = np.floor(near).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), near - low, inside


def max_roi_pool(x: Array, rois: Array, *, output_size: Sequence[int], spatial_scale: float) -> Array:
    """Pool each region [batch, x1, y1, x2, y2], rounded to integers, to the maximum of each bin; an empty bin gives 0.

    (Girshick, "Fast R-CNN", 2015.)
    """
    high, wide_ = output_size
    y = np.zeros((rois.shape[0], x.shape[1], high, wide_))
    for number, roi in enumerate(rois):
        x1, y1, x2, y2 = (math.floor(v * spatial_scale + 0.5) for v in roi[1:])
        rows = _bins(y1, max(y2 - y1 + 1, 1), high, x.shape[2])
        columns = _bins(x1, max(x2 - x1 + 1, 1), wide_, x.shape[3])
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                part = x[int(roi[0]), :, top:bottom, left:right]
                if part.size:
                    y[number, :, i, j] = part.max(axis=(1, 2))
    return y


def _bins(start: int, size: int, bins: int, limit: int) -> list[tuple[int, int]]:
    step = size / bins
    return [
        (
            min(max(math.floor(i * step) + start, 0), limit),
            min(max(math.ceil((i + 1) * step) + start, 0), limit),
        )
        for i in range(bins)
    ]


RULES: dict[str, InterpRule] = {"roi_align": wide(roi_align), "max_roi_pool": wide(max_roi_pool)}
