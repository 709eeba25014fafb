"""BlockPool: the blocks of a paged KV cache, their references, and the content by which texts share them.

A block that is full has a key: a digest of its tokens and of all tokens before them. Texts that begin alike share such blocks. A block without
references keeps its content until another text needs it; the one that was unused longest is reused first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

__all__ = ["BlockPool", "block_key"]


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full block. ``parent``: the key of the block before it, empty for the first one."""
    return hashlib.sha256(parent + np.asarray(tokens, np.int64).tobytes()).digest()


class BlockPool:
    """Blocks 1 to ``blocks - 1``. Block 0 belongs to no text.

    peak: the most blocks that texts had at once.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.peak = 0
        self._empty = deque(range(1, blocks))
        self._kept: OrderedDict[int, None] = (
            OrderedDict()
        )  # without references, with content, unused longest first
        self._references = [0] * blocks
        self._keys: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks without references."""
        return len(self._empty) + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks with references."""
        return self.blocks - 1 - self.available

    @property
    def kept(self) -> int:
        """Blocks without references whose content is kept."""
        return len(self._kept)

    def references(self, block: int) -> int:
        """Return the number of texts that use a block."""
        return self._references[block]

    def take(self) -> int | None:
        """Return a block for one text, without content; None if all are in use."""
        if self._empty:
            block = self._empty.popleft()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            del self._by_key[self._keys.pop(block)]
        else:
            return None
        self._references[block] = 1
        self.peak = max(self.peak, self.used)
        return block

    def find(self, key: bytes) -> int | None:
        """Return the block with this content, or None."""
        return self._by_key.get(key)

    def share(self, block: int) -> None:
        """Add a reference to a block with content."""
        self._references[block] += 1
        self._kept.pop(block, None)
        self.peak = max(self.peak, self.used)

    def register(self, block: int, key: bytes) -> None:
        """Give the content of a full block a key. If another block has it already, that one stays the one to share."""
        if key not in self._by_key and block not in self._keys:
            self._by_key[key] = block
            self._keys[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a reference of each block. Later blocks of a text are reused before earlier ones."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._keys:
                self._kept[block] = None
            else:
                self._empty.append(block)

    def forget(self) -> None:
        """Forget the content of all blocks without references."""
        for block in self._kept:
            del self._by_key[self._keys.pop(block)]
            self._empty.append(block)
        self._kept.clear()
