"""Four-bit weights: groups of inputs with one scale and one minimum each, fitted for the smallest squared error.

A group's values are ``low + scale * code``, with codes from 0 to 15. A grid from the minimum to the maximum of a group wastes codes on
outliers; a narrower grid clips them. So several widths are tried. For the codes of each width, scale and low are fitted by least squares
(linear regression), and the best fit of each group is kept. Weights that were quantized before with a grid of up to 16 values keep their
codes; their only error is the rounding of scale and low to bfloat16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...casts import to
from ...protocols import Array
from ...types import DType
from .parts import over_rows

__all__ = ["fitted", "int4_groups", "int4_values"]

WIDTHS = (14.0, 15.0, 16.0, 17.0)
"""Steps between a group's minimum and maximum. 15 steps represent both; more clip both ends; 14 leave one code unused."""
_ROUNDS = np.float32(1.5 * 2**23)
"""A float32 plus and minus this number is rounded to an integer."""

Floats = NDArray[np.float32]


def int4_groups(weight: Array, group: int) -> NDArray[np.int8]:
    """Quantize [..., k] of any float type to int8[..., k / group, group / 2 + 4].

    A group is stored as two codes per byte (low bits first), then scale and low in bfloat16: the low bytes of scale and low, then
    their high bytes.
    """
    k = weight.shape[-1]
    rows = weight.reshape(-1, k // group, group)
    packed = np.empty((*rows.shape[:2], group // 2 + 4), np.int8)

    def chunk(part: slice) -> None:
        codes, scale, low = fitted(rows[part].astype(np.float32))
        pairs = codes.reshape(*codes.shape[:-1], -1, 2)
        packed[part, :, : group // 2] = (pairs[..., 0] | (pairs[..., 1] << 4)).view(np.int8)
        bfloats = np.stack([to(scale, DType.BFLOAT16), to(low, DType.BFLOAT16)], -1).view(np.uint16)
        scale_low = np.concatenate([bfloats & 255, bfloats >> 8], -1).astype(np.uint8)
        packed[part, :, group // 2 :] = scale_low.view(np.int8)

    over_rows(len(rows), k, chunk)
    return packed.reshape(*weight.shape[:-1], k // group, -1)


def int4_values(groups: NDArray[np.int8], group: int) -> Floats:
    """Dequantize the result of ``int4_groups``."""
    half = group // 2
    codes = groups[..., :half].view(np.uint8)
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], group).astype(np.float32)
    bytes_ = groups[..., half:].view(np.uint8).astype(np.uint32)
    scale_low = ((bytes_[..., :2] | bytes_[..., 2:] << 8) << 16).view(np.float32)
    values = scale_low[..., 1:] + scale_low[..., :1] * unpacked
    return np.asarray(values.reshape(*groups.shape[:-2], -1))


def fitted(x: Floats) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Return codes [..., group], scale and low [...] of groups [..., group].

    Groups are columns inside, so that NumPy reduces over the first dim: sums of neighbors are many times slower.
    """
    columns = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)
    codes, scale, low = _fitted_columns(columns)
    return codes.T.astype(np.uint8).reshape(x.shape), scale.reshape(x.shape[:-1]), low.reshape(x.shape[:-1])


def _fitted_columns(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return codes [group, n], scale and low [n] of groups [group, n]."""
    smallest, largest = x.min(0), x.max(0)
    mean = x.mean(0)
    centered = x - mean
    fit = _BestFit(x)
    widths: list[Floats] = [*(np.full_like(mean, w) for w in WIDTHS), _steps(x)]
    for width in widths:
        scale = _rounded((largest - smallest) / width)
        low = _rounded(np.where(width > 15, (smallest + largest - 15 * scale) / 2, smallest))
        codes = fit.offer(scale, low)
        # Least squares over the codes: scale = cov(codes, x) / var(codes), low from the means.
        codes_mean = codes.mean(0)
        codes -= codes_mean
        covariance, variance = (np.einsum("ij,ij->j", codes, other) for other in (centered, codes))
        scale = _rounded(np.where(variance > 0, covariance / variance, scale))
        fit.offer(scale, _rounded(mean - scale * codes_mean))
    return fit.codes, fit.scale, fit.low


def _steps(x: Floats) -> Floats:
    """Return the steps of each group's grid, from 1 to 15, if its values are on one: its range over the distance of neighboring values.

    Distances below half the least step of 15 are rounding, and so are differences between those of up to 1.5 times the least one.
    """
    ordered = np.sort(x, axis=0)
    reach, distances = ordered[-1] - ordered[0], np.diff(ordered, axis=0)
    least = np.where(distances > reach / 30, distances, np.inf).min(0)
    single = (distances > reach / 30) & (distances < 1.5 * least)
    step = np.where(single, distances, 0).sum(0) / single.sum(0)
    return np.asarray(np.clip(np.nan_to_num(np.rint(reach / step), nan=15), 1, 15), np.float32)


class _BestFit:
    """The best of several grids for each group, which is a column of ``x``."""

    def __init__(self, x: Floats) -> None:
        self._x, self._codes, self._error = x, np.empty_like(x), np.empty_like(x)
        self.codes, self.scale, self.low = np.empty_like(x), np.empty_like(x[0]), np.empty_like(x[0])
        self._smallest = np.full_like(x[0], np.nan)  # no error: the first grid is better

    def offer(self, scale: Floats, low: Floats) -> Floats:
        """Keep a grid for the groups that it fits better than those before. Return its codes, until the next call."""
        codes, error = self._codes, self._error
        np.subtract(self._x, low, out=codes)
        codes /= np.where(scale == 0, np.float32(1), scale)
        np.clip(codes, 0, 15, out=codes)
        codes += _ROUNDS  # to the nearest integer, half to even
        codes -= _ROUNDS
        np.multiply(codes, scale, out=error)
        error += low
        error -= self._x
        errors = np.einsum("ij,ij->j", error, error)
        improved = ~(errors >= self._smallest)  # also where a weight is not finite
        for new, old in ((errors, self._smallest), (codes, self.codes), (scale, self.scale), (low, self.low)):
            np.copyto(old, new, where=improved)
        return codes


def _rounded(x: Floats) -> Floats:
    """Round to bfloat16."""
    return np.asarray(to(x, DType.BFLOAT16)).astype(np.float32)
