"""Fourier transforms in complex128. ATen's take complex tensors, ONNX's pairs of reals in the last dim."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]


def _factor(x: Array, sizes: Sequence[int], normalization: str) -> float:
    """Return the scale factor of a transform of that many elements."""
    n = math.prod(sizes)
    return {"none": 1.0, "by_root": 1 / math.sqrt(n) if n else 1.0, "by_n": 1 / n if n else 1.0}[
        normalization
    ]


def _transform(x: Array, dims: Sequence[int], forward: bool) -> Array:
    """Transform without scaling, in either direction."""
    if not dims:
        return x
    return np.fft.fftn(x, axes=tuple(dims)) if forward else np.fft.ifftn(x, axes=tuple(dims), norm="forward")


def fft_c2c(x: Array, *, dims: Sequence[int], normalization: str, forward: bool) -> Array:
    """Transform complex to complex."""
    return _transform(x, dims, forward) * _factor(x, [x.shape[d] for d in dims], normalization)


def fft_r2c(x: Array, *, dims: Sequence[int], normalization: str, onesided: bool) -> Array:
    """Transform real to complex; onesided keeps the first half of the last of dims, which determines the rest."""
    full = _transform(x.astype(np.complex128), dims, True)
    full = full * _factor(x, [x.shape[d] for d in dims], normalization)
    return np.take(full, range(x.shape[dims[-1]] // 2 + 1), axis=dims[-1]) if onesided else full


def fft_c2r(x: Array, *, dims: Sequence[int], normalization: str, last_size: int) -> Array:
    """Return the half that fft_r2c keeps back to ``last_size`` reals."""
    *other_dims, last = dims
    y = np.fft.irfft(_transform(x, other_dims, False), n=last_size, axis=last, norm="forward")
    return np.asarray(y * _factor(y, [y.shape[d] for d in dims], normalization))


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(np.complex128)


def _pairs(x: Array) -> Array:
    return np.stack([x.real, x.imag], axis=-1)


def dft(x: Array, *, dim: int, length: int | None, inverse: bool, onesided: bool) -> Array:
    """Transform along dim, cropped or zero-padded to ``length``; the inverse divides by it. Onesided: half out, or half in and reals out."""
    signal = _complex(x)
    if inverse and onesided:
        n = 2 * (x.shape[dim] - 1) if length is None else length
        return np.fft.irfft(signal, n=n, axis=dim)[..., None]
    n = x.shape[dim] if length is None else length
    y = np.fft.ifft(signal, n=n, axis=dim) if inverse else np.fft.fft(signal, n=n, axis=dim)
    return _pairs(np.take(y, range(n // 2 + 1), axis=dim) if onesided else y)


def stft(x: Array, window: Array | None, *, frame_length: int, frame_step: int, onesided: bool) -> Array:
    """Return [batch, frames, frequencies, 2], the transform of each frame times the window."""
    frames = np.lib.stride_tricks.sliding_window_view(_complex(x), frame_length, axis=1)[:, ::frame_step]
    shaped = np.ones(frame_length)
    if window is not None:  # a shorter window is centered in its frame
        shaped = np.zeros(frame_length)
        begin = (frame_length - window.size) // 2
        shaped[begin : begin + window.size] = window
    y = np.fft.fft(frames * shaped, axis=2)
    return _pairs(y[..., : frame_length // 2 + 1] if onesided else y)


RULES: dict[str, InterpRule] = {
    "fft_r2c": wide(fft_r2c),
    "fft_c2r": wide(fft_c2r),
    "fft_c2c": wide(fft_c2c),
    "dft": wide(dft),
    "stft": wide(stft),
}
