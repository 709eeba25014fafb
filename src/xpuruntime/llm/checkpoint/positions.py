"""sinusoidal_positions: the table of positions of Vaswani et al. 2017, sines before cosines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["sinusoidal_positions"]


def sinusoidal_positions(count: int, size: int) -> NDArray[np.float32]:
    """Return the table, [count, size]."""
    frequencies = 1 / np.power(10000, 2 * np.arange((size + 1) // 2) / size)
    angles = np.arange(count)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles[:, : size // 2])], axis=1).astype(np.float32)
