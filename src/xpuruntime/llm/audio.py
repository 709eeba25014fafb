"""Audio files, and log_mel: features of audio as Whisper reads them (Radford et al. 2022), with NumPy alone."""

from __future__ import annotations

import io
import wave
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..storage.files import read_regular

__all__ = ["HOP", "RATE", "log_mel", "read_wav"]

RATE = 16000
"""Samples per second."""
HOP = 160
"""Samples per frame."""
_MAX_BYTES = 64 << 20
_WINDOW = 400
_HIGHEST = 8000.0
_LINEAR_MELS, _LINEAR_HERTZ, _HERTZ_PER_MEL = 15.0, 1000.0, 200 / 3
_LOG_STEP = np.log(6.4) / 27
"""Slaney's scale of mels is linear up to 1,000 Hz and logarithmic above."""


def read_wav(path: Path) -> NDArray[np.float32]:
    """Return the samples of a WAV file of 16-bit integers at 16 kHz, from -1 to 1; the mean of several channels. Raises InputError."""
    who, do = f"audio {path}", f"Convert it: ffmpeg -i {path.name} -ar {RATE} -ac 1 -c:a pcm_s16le OUT.wav"
    try:
        with wave.open(io.BytesIO(read_regular(path, _MAX_BYTES))) as file:
            rate, size, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(file.getnframes())
    except (OSError, ValueError, EOFError, wave.Error) as error:
        raise InputError(who, "cannot be read as WAV", got=error, do=do) from error
    if (rate, size) != (RATE, 2):
        raise InputError(
            who, f"must have 16-bit samples at {RATE} Hz", got=f"{8 * size} bits at {rate} Hz", do=do
        )
    samples = np.frombuffer(data[: len(data) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels)
    return np.asarray(samples.mean(axis=1) / 32768, np.float32)


def log_mel(samples: NDArray[np.floating], features: int, frames: int) -> NDArray[np.float32]:
    """Return the features of audio, [features, frames]. What follows the samples is silence; further samples are ignored."""
    size = frames * HOP
    padded = np.zeros(size, np.float32)
    padded[: min(size, samples.size)] = samples[:size]
    padded = np.pad(padded, _WINDOW // 2, mode="reflect")
    at = HOP * np.arange(frames)[:, None] + np.arange(_WINDOW)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.abs(np.fft.rfft(padded[at] * window, axis=1)) ** 2
    logs = np.log10(np.maximum(_filters(features) @ power.T, 1e-10))
    return np.asarray((np.maximum(logs, logs.max() - 8) + 4) / 4, np.float32)


@cache
def _filters(count: int) -> NDArray[np.float64]:
    """Return triangular filters of equal area, [count, frequencies]."""
    ends = _hertz(np.linspace(0, _mels(_HIGHEST), count + 2))
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    rising = (frequencies - ends[:-2, None]) / np.diff(ends)[:-1, None]
    falling = (ends[2:, None] - frequencies) / np.diff(ends)[1:, None]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * (2 / (ends[2:] - ends[:-2]))[:, None])


def _mels(hertz: float) -> float:
    return float(_LINEAR_MELS + np.log(hertz / _LINEAR_HERTZ) / _LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    exponential = _LINEAR_HERTZ * np.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    return np.where(mels < _LINEAR_MELS, _HERTZ_PER_MEL * mels, exponential)
