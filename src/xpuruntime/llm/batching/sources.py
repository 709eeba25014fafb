"""SourceSlots: the places of encoded sources in a batch, which texts of the same source share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from ..answers import Source
from .scheduler import BatchText

__all__ = ["SourceSlots", "source_key"]


def source_key(source: Source) -> bytes:
    """Return the digest of a source, before the first block of its texts: their keys and values depend on it."""
    array = np.ascontiguousarray(source)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()


class SourceSlots:
    """Slots of encoded sources. A slot that no text uses keeps its source until another one needs it."""

    def __init__(self, count: int) -> None:
        self._content: list[bytes] = [b""] * count
        self._texts: list[set[BatchText]] = [set() for _ in range(count)]
        self._idle = dict.fromkeys(range(count))  # the one that was idle longest first
        self._slots: dict[BatchText, int] = {}

    def release(self, running: Iterable[BatchText]) -> None:
        """Release the slots of texts that do not run any more."""
        for text in set(self._slots).difference(running):
            slot = self._slots.pop(text)
            self._texts[slot].discard(text)
            if not self._texts[slot]:
                self._idle[slot] = None

    def take(self, text: BatchText) -> tuple[int, bool]:
        """Return the slot of a text that runs, and whether its source must be encoded into it."""
        if text in self._slots:
            return self._slots[text], False
        found = text.root in self._content
        slot = self._content.index(text.root) if found else next(iter(self._idle))
        self._idle.pop(slot, None)
        self._content[slot] = text.root
        self._texts[slot].add(text)
        self._slots[text] = slot
        return slot, not found

    def forget(self, slot: int) -> None:
        """Forget the content of a slot, whose encoding failed."""
        for text in self._texts[slot]:
            del self._slots[text]
        self._texts[slot].clear()
        self._content[slot] = b""
        self._idle[slot] = None
