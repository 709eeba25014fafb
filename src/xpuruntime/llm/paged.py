"""PagedCache: the layout of a KV cache that many texts share in blocks of equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["PagedCache"]


@dataclass(frozen=True, slots=True)
class PagedCache:
    """The layout of a cache in blocks (Kwon et al., 2023). Block 0 belongs to no text: rows of a step without a token write to it.

    blocks:     number of blocks, including block 0.
    block_size: tokens per block.
    capacity:   maximum tokens of a text.
    sources:    sources of an encoder-decoder whose keys and values are kept, each in a block of the source capacity.
    """

    blocks: int
    block_size: int
    capacity: int
    sources: int = 0

    @property
    def rows(self) -> int:
        """Rows of each layer's cache: one per token."""
        return self.blocks * self.block_size

    @property
    def listed(self) -> int:
        """Blocks of a text's table."""
        return math.ceil(self.capacity / self.block_size)
