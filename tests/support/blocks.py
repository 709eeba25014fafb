"""Random blocks of GGUF formats: every bit pattern of codes and small scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpuruntime.storage.blocks import BLOCK_FORMATS

HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""Places of float16 numbers in a block."""


_SPREAD = {
    "Q4_0": 4.6,
    "Q4_1": 9.0,
    "Q5_0": 9.2,
    "Q5_1": 18.0,
    "Q8_0": 74.0,
    "Q4_K": 340.0,
    "Q5_K": 660.0,
    "Q6_K": 1370.0,
}
"""Standard deviation of values whose codes and small scales are random bits, and whose float16 numbers are normal."""


def random_blocks(name: str, rows: int, blocks: int, seed: int = 0) -> Any:
    """Return rows of blocks, uint8[rows, bytes]: random bits, with float16 numbers that give values of a layer's size."""
    draw, form = np.random.default_rng(seed), BLOCK_FORMATS[name]
    raw = draw.integers(0, 256, (rows, blocks, form.bytes), dtype=np.uint8)
    for at in HALVES[name]:
        numbers = draw.standard_normal((rows, blocks, 1)) * (0.05 / _SPREAD[name])
        raw[..., at : at + 2] = numbers.astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)
