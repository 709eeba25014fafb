"""Scheduler: which tokens of which texts the next step computes, within the blocks of the cache.

A step has at most ``step_tokens`` tokens. Texts that are past their prompt come first, with one token each; chunks of prompts fill the rest, in the
order of arrival. A text is admitted when the blocks of its tokens are available. If a running text needs a block and there is none, the text
that arrived last is preempted: its blocks are released and it waits again, with all its tokens, which are computed again later. The oldest text
therefore always advances, so every text ends.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..paged import PagedCache
from .blocks import BlockPool, block_key

__all__ = ["BatchText", "Chunk", "Scheduler"]


@dataclass(slots=True, eq=False)
class BatchText:
    """The scheduler's record of a text.

    tokens:   prompt and answer so far.
    arrival:  place in the order of arrival.
    computed: tokens whose keys and values are in the cache.
    blocks:   the text's blocks. table: the same as an array, which may have more entries.
    keys:     the keys of its full blocks, as far as they were needed.
    drafts:   guesses of the tokens that follow, for the next step to check.
    root:     the key before the first block; texts of different sources have different ones.
    slot, source_rows: place of the encoded source, and its rows; -1 and 0 without one.
    shared:   tokens that were found in the cache. recomputed: tokens that preemption lost.
    """

    tokens: list[int]
    arrival: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    keys: list[bytes] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    root: bytes = b""
    slot: int = -1
    source_rows: int = 0
    running: bool = False
    shared: int = 0
    recomputed: int = 0
    preemptions: int = 0

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.computed

    def append(self, block: int) -> None:
        """Append a block."""
        count = len(self.blocks)
        if count == len(self.table):
            self.table = np.concatenate([self.table, np.zeros(count, np.int32)])
        self.table[count] = block
        self.blocks.append(block)

    def key(self, index: int, size: int) -> bytes:
        """Return the key of a full block."""
        while len(self.keys) <= index:
            start = len(self.keys) * size
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, self.tokens[start : start + size]))
        return self.keys[index]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of a text in a step.

    ends:   the next token is chosen after it.
    drafts: guesses of the tokens after it, which the step checks.
    """

    text: BatchText
    start: int
    count: int
    ends: bool
    drafts: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """Return the tokens that the step reads."""
        return [*self.text.tokens[self.start : self.start + self.count], *self.drafts]

    @property
    def results(self) -> int:
        """Return the number of its tokens after which another one is chosen."""
        return 1 + len(self.drafts) if self.ends else 0


class Scheduler:
    """The texts that wait and those that run, and the blocks that they have.

    texts:       maximum running texts.
    step_tokens: maximum tokens of a step, at least ``texts``.
    share:       share blocks of texts that begin alike.
    results:     maximum tokens of a step after which another one is chosen. Default: ``texts``.
    """

    def __init__(
        self, cache: PagedCache, *, texts: int, step_tokens: int, share: bool = True, results: int = 0
    ) -> None:
        self.cache, self.texts, self.step_tokens, self.share = cache, texts, step_tokens, share
        self.results = results or texts
        self.pool = BlockPool(cache.blocks)
        self.waiting: deque[BatchText] = deque()
        self.running: list[BatchText] = []
        self.preemptions = self.shared_tokens = self.recomputed_tokens = 0
        self._budget = 0  # tokens that the step under way can still take

    def add(self, text: BatchText) -> None:
        """Add a text to those that wait, in the order of arrival."""
        place = next((i for i, t in enumerate(self.waiting) if t.arrival > text.arrival), len(self.waiting))
        self.waiting.insert(place, text)

    def remove(self, text: BatchText) -> None:
        """Remove a text and release its blocks."""
        if text.running:
            self._stop(text)
        elif text in self.waiting:
            self.waiting.remove(text)
        self._release(text)

    def fork(self, text: BatchText, other: BatchText) -> None:
        """Give a text the tokens of another one, and its full blocks."""
        size = self.cache.block_size
        self._release(text)
        text.tokens, text.keys = list(other.tokens), list(other.keys)
        if text.running:
            for block in other.blocks[: other.computed // size]:
                self.pool.share(block)
                text.append(block)
            text.computed = len(text.blocks) * size

    # ── a step ──

    def schedule(self) -> list[Chunk]:
        """Return the chunks of the next step; none if no text is there. Blocks for them are taken."""
        chunks: dict[BatchText, Chunk] = {}
        computing: set[bytes] = set()  # keys of blocks that this step fills
        self._budget = self.step_tokens
        for decoding in (True, False):
            for text in [t for t in self.running if (t.remaining == 1) == decoding and t not in chunks]:
                if text.running:
                    self._advance(text, chunks, computing)
        while self.waiting and self._budget > 0:
            text = self.waiting[0]
            if len(self.running) >= self.texts or not self._fits(text):
                # Beams begin after texts that arrived later. These must not keep an older text from its blocks.
                youngest = max(self.running, key=lambda t: t.arrival, default=text)
                if youngest.arrival <= text.arrival:
                    break
                self._lose(youngest, chunks)
                continue
            self.waiting.popleft()
            self.running.append(text)
            text.running = True
            self._advance(text, chunks, computing)
        return self._drafted(list(chunks.values()))

    def commit(self, chunks: list[Chunk]) -> None:
        """Record that the chunks were computed. Full blocks can be shared from now on."""
        for chunk in chunks:
            self.computed(chunk.text, chunk.start + chunk.count - chunk.text.computed)

    def computed(self, text: BatchText, count: int) -> None:
        """Record that the keys and values of so many more tokens of a text are in its blocks."""
        size, before = self.cache.block_size, text.computed
        text.computed += count
        if self.share:
            for index in range(before // size, text.computed // size):
                self.pool.register(text.blocks[index], text.key(index, size))

    def drop_unread(self, text: BatchText) -> None:
        """Release the blocks that were taken for guesses, and that the text's tokens do not reach."""
        needed = math.ceil(len(text.tokens) / self.cache.block_size)
        self.pool.release(text.blocks[needed:])
        del text.blocks[needed:]

    def _drafted(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks with as many guesses as the rest of the step and its results have room for, the oldest texts' first. Guesses
        take blocks, but preempt no text.
        """
        room = min(self._budget, self.results - sum(c.ends for c in chunks))
        for i, chunk in sorted(enumerate(chunks), key=lambda c: c[1].text.arrival):
            text = chunk.text
            drafts = text.drafts[:room] if chunk.ends else []
            end = text.computed + chunk.count
            while drafts and len(text.blocks) * self.cache.block_size < end + len(drafts):
                block = self.pool.take()
                if block is None:
                    drafts = drafts[: len(text.blocks) * self.cache.block_size - end]
                    break
                text.append(block)
            if drafts:
                chunks[i] = replace(chunk, drafts=tuple(drafts))
                room -= len(drafts)
        return chunks

    def _advance(self, text: BatchText, chunks: dict[BatchText, Chunk], computing: set[bytes]) -> None:
        """Add the next chunk of a running text, if there are tokens and blocks for it."""
        size = self.cache.block_size
        self._adopt(text)
        if text.computed % size == 0 and self._next_key(text) in computing:
            return  # another text computes the block in this step
        count = min(self._budget, text.remaining)
        if count <= 0 or not self._grow(text, text.computed + count, chunks):
            return
        count = min(count, len(text.blocks) * size - text.computed)
        chunks[text] = Chunk(text, text.computed, count, ends=count == text.remaining)
        self._budget -= count
        if self.share:
            full = range(text.computed // size, (text.computed + count) // size)
            computing.update(text.key(i, size) for i in full)

    def _next_key(self, text: BatchText) -> bytes | None:
        """Return the key of the block at ``computed``; None if it is not full, or has the last token, whose logits are needed."""
        size = self.cache.block_size
        if not self.share or text.computed + size >= len(text.tokens):
            return None
        return text.key(text.computed // size, size)

    def _adopt(self, text: BatchText) -> None:
        """Take blocks from the cache that have the next tokens of a text."""
        size = self.cache.block_size
        while text.computed % size == 0 and len(text.blocks) == text.computed // size:
            key = self._next_key(text)
            block = None if key is None else self.pool.find(key)
            if block is None:
                return
            self.pool.share(block)
            text.append(block)
            text.computed += size
            text.shared += size
            self.shared_tokens += size

    def _grow(self, text: BatchText, tokens: int, chunks: dict[BatchText, Chunk]) -> bool:
        """Take blocks for so many tokens of a text. Return False if it has none for the next token; it may then be preempted itself."""
        size = self.cache.block_size
        while len(text.blocks) * size < tokens:
            block = self.pool.take()
            if block is not None:
                text.append(block)
                continue
            if len(text.blocks) * size > text.computed:
                return True  # a shorter chunk
            victim = max(self.running, key=lambda t: t.arrival)
            self._lose(victim, chunks)
            if victim is text:
                return False
        return True

    def _lose(self, text: BatchText, chunks: dict[BatchText, Chunk]) -> None:
        """Preempt a text, and take it out of the step."""
        if lost := chunks.pop(text, None):
            self._budget += lost.count
        self._preempt(text)

    def _preempt(self, text: BatchText) -> None:
        """Release the blocks of a running text. It waits again, before all that arrived later."""
        self._stop(text)
        self.preemptions += 1
        text.preemptions += 1
        self.recomputed_tokens += text.computed
        text.recomputed += text.computed
        self._release(text)
        self.add(text)

    def _stop(self, text: BatchText) -> None:
        self.running.remove(text)
        text.running = False

    def _release(self, text: BatchText) -> None:
        self.pool.release(text.blocks)
        text.blocks = []
        text.computed = 0

    def _fits(self, text: BatchText) -> bool:
        """Return whether the blocks of a text, with one token more, are available next to what running texts still need."""
        needed = self._blocks(text)
        found, size = [], self.cache.block_size
        if self.share:
            for index in range((len(text.tokens) - 1) // size):
                block = self.pool.find(text.key(index, size))
                if block is None:
                    break
                found.append(block)
        idle = sum(not self.pool.references(b) for b in found)
        promised = sum(max(0, self._blocks(t) - len(t.blocks)) for t in self.running)
        return needed - len(found) <= self.pool.available - idle - promised

    def _blocks(self, text: BatchText) -> int:
        """Return the blocks of a text with one token more."""
        tokens = min(len(text.tokens) + 1, self.cache.capacity)
        return math.ceil(tokens / self.cache.block_size)
