"""Four-bit weights: groups of inputs with one scale and one minimum each, fitted for the smallest squared error.

A group's values are ``low + scale * code``, with codes from 0 to 15. A grid from the minimum to the maximum of a group wastes codes on
outliers; a narrower grid clips them. So several widths are tried. For the codes of each width, scale and low are fitted by least squares
(linear regression), and the best fit of each group is kept. Weights that were quantized before with such a grid keep their codes; their
only error is the rounding of scale and low to bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ...casts import to
from ...protocols import Array
from ...types import DType
from ..device import cpu

__all__ = ["fitted", "int4_groups", "int4_values"]

WIDTHS = (14.0, 15.0, 16.0, 17.0)
"""Steps between a group's minimum and maximum. 15 steps represent both; more clip both ends; 14 leave one code unused."""
_CHUNK = 1 << 18
"""Elements per work item, so that intermediate arrays fit in a cache."""

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
        with np.errstate(all="ignore"):  # groups of one value have no spread
            codes, scale, low = fitted(rows[part].astype(np.float32))
        pairs = codes.reshape(*codes.shape[:-1], -1, 2)
        packed[part, :, : group // 2] = (pairs[..., 0] | (pairs[..., 1] << 4)).view(np.int8)
        bfloats = np.stack([to(scale, DType.BFLOAT16), to(low, DType.BFLOAT16)], -1).view(np.uint16)
        scale_low = np.concatenate([bfloats & 255, bfloats >> 8], -1).astype(np.uint8)
        packed[part, :, group // 2 :] = scale_low.view(np.int8)

    parts = list(_parts(len(rows), k))
    with ThreadPoolExecutor(min(cpu().usable_cores, max(1, len(parts)))) as pool:
        list(pool.map(chunk, parts))
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


def _parts(rows: int, k: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(k, 1))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def fitted(x: Floats) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Return codes [..., group], scale and low [...] of groups [..., group]."""
    smallest, largest = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    mean = x.mean(-1, keepdims=True)
    centered = x - mean
    best: tuple[Floats, Floats, Floats, Floats] | None = None
    for width in WIDTHS:
        scale = _rounded((largest - smallest) / np.float32(width))
        low = _rounded((smallest + largest - 15 * scale) / 2 if width > 15 else smallest)
        codes = _codes(x, scale, low)
        best = _better(best, x, codes, scale, low)
        # Least squares over the codes: scale = cov(codes, x) / var(codes), low from the means.
        codes_mean = codes.mean(-1, keepdims=True)
        codes_centered = codes - codes_mean
        variance = (codes_centered * codes_centered).sum(-1, keepdims=True)
        covariance = (codes_centered * centered).sum(-1, keepdims=True)
        scale = _rounded(np.where(variance > 0, covariance / variance, scale))
        low = _rounded(mean - scale * codes_mean)
        best = _better(best, x, _codes(x, scale, low), scale, low)
    assert best is not None
    _, codes, scale, low = best
    return codes.astype(np.uint8), scale[..., 0], low[..., 0]


def _rounded(x: Floats) -> Floats:
    """Round to bfloat16."""
    return np.asarray(to(x, DType.BFLOAT16)).astype(np.float32)


def _codes(x: Floats, scale: Floats, low: Floats) -> Floats:
    safe = np.where(scale == 0, np.float32(1), scale)
    return np.asarray(np.clip(np.rint((x - low) / safe), 0, 15))


def _better(
    best: tuple[Floats, Floats, Floats, Floats] | None, x: Floats, codes: Floats, scale: Floats, low: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the better of two fits, group by group."""
    error = x - (low + scale * codes)
    error = np.asarray((error * error).sum(-1, keepdims=True))
    if best is None:
        return error, codes, scale, low
    improved = error < best[0]
    pairs = zip((error, codes, scale, low), best, strict=True)
    best_error, best_codes, best_scale, best_low = (np.where(improved, new, old) for new, old in pairs)
    return best_error, best_codes, best_scale, best_low
