"""Four-bit weights: groups of inputs with a scale and a minimum each, fitted for the least squared error.

A group's values are ``low + scale * code``, codes from 0 to 15. The widest grid, from the least value to the largest, wastes codes on few outliers; a narrower
one cuts those off. So several widths are tried, and for the codes that each gives scale and low are fitted by least squares, as in
linear regression; the best of all is kept, group by group. Weights that come from such a grid (a checkpoint that was quantized before) are found again: their
error is that of rounding scale and low to bfloat16.
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
"""Steps between a group's least value and its largest. 15 reach both; more cut both ends off; fewer leave a code free."""
_CHUNK = 1 << 18
"""Elements at a time, so that what is between stays in a cache."""

Floats = NDArray[np.float32]


def int4_groups(weight: Array, group: int) -> NDArray[np.int8]:
    """Quantize [..., k] of any float to int8[..., k / group, group / 2 + 4].
    bfloat16, the low bytes of both before the high ones: scale, low, scale, low.
    """
    k = weight.shape[-1]
    rows = weight.reshape(-1, k // group, group)
    packed = np.empty((*rows.shape[:2], group // 2 + 4), np.int8)

    def chunk(part: slice) -> None:
        with np.errstate(all="ignore"):  # groups of one value have no spread
            codes, scale, low = fitted(rows[part].astype(np.float32))
        pairs = codes.reshape(*codes.shape[:-1], -1, 2)
        packed[part, :, : group // 2] = (pairs[..., 0] | (pairs[..., 1] << 4)).view(np.int8)
        words = np.stack([to(scale, DType.BFLOAT16), to(low, DType.BFLOAT16)], -1).view(np.uint16)
        both = np.concatenate([words & 255, words >> 8], -1).astype(np.uint8)
        packed[part, :, group // 2 :] = both.view(np.int8)

    parts = list(_parts(len(rows), k))
    with ThreadPoolExecutor(min(cpu().usable_cores, max(1, len(parts)))) as pool:
        list(pool.map(chunk, parts))
    return packed.reshape(*weight.shape[:-1], k // group, -1)


def int4_values(groups: NDArray[np.int8], group: int) -> Floats:
    """Dequantize the result of ``int4_groups``."""
    half = group // 2
    codes = groups[..., :half].view(np.uint8)
    each = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], group).astype(np.float32)
    words = groups[..., half:].view(np.uint8).astype(np.uint32)
    numbers = ((words[..., :2] | words[..., 2:] << 8) << 16).view(np.float32)
    values = numbers[..., 1:] + numbers[..., :1] * each
    return np.asarray(values.reshape(*groups.shape[:-2], -1))


def _parts(rows: int, k: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(k, 1))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def fitted(x: Floats) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Return codes [..., group], scale and low [...] of groups [..., group]."""
    least, most = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    mean = x.mean(-1, keepdims=True)
    off = x - mean
    best: tuple[Floats, Floats, Floats, Floats] | None = None
    for width in WIDTHS:
        scale = _rounded((most - least) / np.float32(width))
        low = _rounded((least + most - 15 * scale) / 2 if width > 15 else least)
        codes = _codes(x, scale, low)
        best = _better(best, x, codes, scale, low)
        # Least squares over the codes: scale = cov(codes, x) / var(codes), low from the means.
        middle = codes.mean(-1, keepdims=True)
        away = codes - middle
        spread = (away * away).sum(-1, keepdims=True)
        scale = _rounded(np.where(spread > 0, (away * off).sum(-1, keepdims=True) / spread, scale))
        low = _rounded(mean - scale * middle)
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
    mine = error < best[0]
    pairs = zip((error, codes, scale, low), best, strict=True)
    one, two, three, four = (np.where(mine, a, b) for a, b in pairs)
    return one, two, three, four
