"""The scheduler and its blocks, without a model: random texts that arrive, grow, are cancelled and preempted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xpuruntime.llm.batching.blocks import BlockPool, block_key
from xpuruntime.llm.batching.scheduler import BatchText, Scheduler
from xpuruntime.llm.paged import PagedCache


class Cache:
    """What a cache would hold: the token of each row. A chunk reads all rows of its text, so a wrong block is noticed."""

    def __init__(self, cache: PagedCache) -> None:
        self.size = cache.block_size
        self.rows = np.full(cache.rows, -1)

    def places(self, text: BatchText, positions: Any) -> Any:
        return np.array(text.blocks)[positions // self.size] * self.size + positions % self.size

    def run(self, chunks: list[Any]) -> None:
        for c in chunks:
            at = np.arange(c.start, c.start + len(c.tokens))
            self.rows[self.places(c.text, at)] = c.tokens
        for c in chunks:
            at = np.arange(c.start + c.count)
            assert self.rows[self.places(c.text, at)].tolist() == c.text.tokens[: len(at)]


def check_blocks(scheduler: Scheduler) -> None:
    """Each block is empty, kept, or used by as many texts as it has references."""
    pool = scheduler.pool
    counted = np.zeros(pool.blocks, int)
    for text in scheduler.running:
        for block in text.blocks:
            counted[block] += 1
    assert counted[0] == 0
    assert counted.tolist() == [pool.references(b) for b in range(pool.blocks)]
    assert pool.used == np.count_nonzero(counted)
    assert pool.used + pool.available == pool.blocks - 1
    assert not any(t.blocks for t in scheduler.waiting)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("guesses", [0, 3])
def test_every_text_ends_within_the_blocks(seed: int, share: bool, guesses: int) -> None:
    """Also with guesses, of which the text accepts some. Rows of those that it does not accept are written again."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    capacity = int(rng.integers(8, 60))
    blocks = math.ceil(capacity / size) + int(rng.integers(0, 8))
    texts = int(rng.integers(1, 9))
    cache = PagedCache(blocks + 1, size, capacity)
    results = int(rng.integers(texts, 4 * texts)) if guesses else 0
    scheduler = Scheduler(
        cache, texts=texts, step_tokens=texts + int(rng.integers(0, 20)), share=share, results=results
    )
    accepted = 0
    contents = Cache(cache)
    goals: dict[BatchText, int] = {}
    arrived = ended = steps = 0
    common = rng.integers(0, 3, capacity).tolist()
    while arrived < 40 or goals:
        if arrived < 40 and rng.random() < 0.5:
            prompt = common[: int(rng.integers(1, capacity + 1))]
            if rng.random() < 0.4:
                prompt = rng.integers(0, 3, len(prompt)).tolist()
            text = BatchText(prompt, arrived)
            goals[text] = int(rng.integers(len(prompt), capacity + 1))
            scheduler.add(text)
            arrived += 1
        if goals and rng.random() < 0.05:
            text = list(goals)[int(rng.integers(len(goals)))]
            scheduler.remove(text)
            del goals[text]
        for text, goal in goals.items():
            room = max(0, min(guesses, goal - len(text.tokens)))
            text.drafts = rng.integers(0, 3, room).tolist()
        chunks = scheduler.schedule()
        assert bool(chunks) == bool(goals)  # a step always advances something
        assert sum(len(c.tokens) for c in chunks) <= scheduler.step_tokens
        assert sum(c.results for c in chunks) <= scheduler.results
        assert len(scheduler.running) <= texts
        check_blocks(scheduler)
        contents.run(chunks)
        scheduler.commit(chunks)
        for c in chunks:
            assert c.ends == (c.text.remaining == 0)
            if c.ends and len(c.text.tokens) >= goals[c.text]:
                scheduler.remove(c.text)
                del goals[c.text]
                ended += 1
            elif c.ends:
                count = 0
                while True:
                    c.text.tokens.append(int(rng.integers(0, 3)))
                    full = len(c.text.tokens) == goals[c.text]
                    if full or c.drafts[count : count + 1] != (c.text.tokens[-1],):
                        break
                    count += 1
                scheduler.computed(c.text, count)
                scheduler.drop_unread(c.text)
                accepted += count
        steps += 1
        assert steps < 20000
    assert ended > 10
    assert accepted == 0 or guesses
    assert scheduler.pool.used == 0
    check_blocks(scheduler)


def test_the_oldest_text_is_never_preempted() -> None:
    cache = PagedCache(7, 4, 24)
    scheduler = Scheduler(cache, texts=3, step_tokens=12, share=False)
    texts = [BatchText([1] * 4, i) for i in range(3)]
    for text in texts:
        scheduler.add(text)
    for _ in range(60):
        chunks = scheduler.schedule()
        scheduler.commit(chunks)
        for c in chunks:
            if c.ends and len(c.text.tokens) < 24:
                c.text.tokens.append(1)
        if len(texts[0].tokens) == 24:
            break
    assert len(texts[0].tokens) == 24
    assert texts[0].preemptions == 0
    assert texts[2].preemptions > 0


def test_texts_that_begin_alike_share_blocks() -> None:
    cache = PagedCache(33, 4, 40)
    scheduler = Scheduler(cache, texts=4, step_tokens=64)
    prompt = list(range(18))
    texts = [BatchText([*prompt, 50 + i], i) for i in range(4)]
    for text in texts:
        scheduler.add(text)
    first = scheduler.schedule()  # all four are there: one computes what the others then find
    assert [(c.text, c.count) for c in first] == [(texts[0], 19)]
    scheduler.commit(first)
    second = scheduler.schedule()
    assert [(c.text, c.start, c.count) for c in second if c.text is not texts[0]] == [
        (t, 16, 3) for t in texts[1:]
    ]
    assert {tuple(t.blocks[:4]) for t in texts} == {tuple(texts[0].blocks[:4])}
    assert len({t.blocks[4] for t in texts}) == 4  # the last block is not full
    assert scheduler.shared_tokens == 3 * 16


def test_a_prompt_that_is_in_the_cache_still_computes_its_last_token() -> None:
    scheduler = Scheduler(PagedCache(9, 4, 16), texts=2, step_tokens=16)
    for arrival in range(2):
        text = BatchText([1, 2, 3, 4, 5, 6, 7, 8], arrival)
        scheduler.add(text)
        chunks = scheduler.schedule()
        assert [(c.start, c.count, c.ends) for c in chunks] == [(4 * arrival, 8 - 4 * arrival, True)]
        scheduler.commit(chunks)
        scheduler.remove(text)


def test_content_that_nobody_uses_is_replaced_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(3)]
    keys = [block_key(b"", [i]) for i in range(3)]
    for block, key in zip(blocks, keys, strict=True):
        pool.register(block, key)
    assert pool.take() is None
    pool.release([blocks[1]])
    pool.release([blocks[0]])
    assert (pool.available, pool.kept) == (2, 2)
    assert pool.find(keys[0]) == blocks[0]
    assert pool.take() == blocks[1]
    assert pool.find(keys[1]) is None
    assert pool.find(keys[0]) == blocks[0]
    pool.forget()
    assert pool.find(keys[0]) is None
    assert (pool.available, pool.kept, pool.peak) == (1, 0, 3)


def test_a_key_depends_on_all_tokens_before() -> None:
    keys = {
        block_key(parent, tokens) for parent in (b"", b"x") for tokens in ([1, 2], [2, 1], [1], [1, 2, 0])
    }
    assert len(keys) == 8
    text, other = BatchText([1, 2, 3, 4], 0), BatchText([2, 1, 3, 4], 1)
    assert text.key(1, 2) != other.key(1, 2)
