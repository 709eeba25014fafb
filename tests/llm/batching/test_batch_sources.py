"""Encoder-decoders in a batch: the answers of a Generator and of transformers, with sources that come, leave and are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.errors import InputError
from xpuruntime.llm import BatchGenerator, Generator
from xpuruntime.llm.batching.scheduler import BatchText
from xpuruntime.llm.batching.sources import SourceSlots, source_key
from xpuruntime.testing.conformance.seeded.decoders import prompt
from xpuruntime.testing.conformance.seeded.encoder_decoders import features, greedy, reference

INVARIANT = {"version": 1, "kernel": {"batch_invariant": True}}
BEGUN = {"decoder_input_ids": [5, 9, 3, 7, 2, 8, 4, 6, 1]}


def sources(model: Any, count: int) -> list[Any]:
    """Sources of several lengths."""
    if model.config.model_type == "whisper":
        return [features(model, seed) for seed in range(count)]
    return [prompt(n, seed=n) for n in (30, 3, 17, 1, 40, 22)[:count]]


def sizes(model: Any) -> dict[str, Any]:
    size = {} if model.config.model_type == "whisper" else {"source_capacity": 48}
    return {"capacity": 40, "device": device_name(), **size}


def few(model: Any, **more: Any) -> BatchGenerator:
    """Three texts at once, in a cache in which they preempt each other."""
    return BatchGenerator(
        model, texts=3, block_size=4, cache_tokens=64, step_tokens=8, **{**sizes(model), **more}
    )


@pytest.mark.parametrize("family", ["t5", "bart", "whisper", "pegasus"])
@pytest.mark.sampled(1)
def test_answers_are_those_of_a_generator_and_of_transformers(family: str) -> None:
    model, words = reference(family), {"max_new_tokens": 14}
    texts = sources(model, 6)
    ways: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"temperature": 0.9, "seed": list(range(6))},
        {"num_beams": 3, "n": 2},
        {**BEGUN, "forced_eos_token_id": 3, "begin_suppress_tokens": [4, 5]},
    ]
    with Generator(model, buckets=(16,), batch=3, **sizes(model)) as alone, few(model) as batch:
        assert [list(a.tokens) for a in batch.generate(texts, **words)] == [
            greedy(model, t, 14) for t in texts
        ]
        for way in ways:
            got, want = (m.generate(texts, **words, **way) for m in (batch, alone))
            assert [(a.tokens, a.finish, a.prompt_tokens) for a in got] == [
                (a.tokens, a.finish, a.prompt_tokens) for a in want
            ]
            values = [[(p.logprob for p in a.logprobs) for a in answers] for answers in (got, want)]
            for one, other in zip(*values, strict=True):
                assert list(one) == pytest.approx(list(other), abs=1e-4)
        stats = batch.statistics()
        assert stats.preemptions > 0
        assert (stats.used_blocks, stats.running) == (0, 0)


def test_texts_of_equal_beginnings_share_blocks_only_with_an_equal_source() -> None:
    """Keys and values of the decoder depend on the source. An equal source is encoded once."""
    model = reference("bart")
    texts = [prompt(20, seed=1), prompt(20, seed=2)]
    words = {"max_new_tokens": 8, "logprobs": 97, **BEGUN}
    with few(model, policy=INVARIANT) as batch:
        want = [batch.submit(t, **words).result() for t in texts]
        assert want[0].logprobs != want[1].logprobs
        runs = [e for e in batch.steps.executors if e.entry.name.startswith("encode")]
        encoded, shared = sum(e.counters["runs"] for e in runs), batch.statistics().shared_tokens
        assert encoded == 2
        got = batch.generate([texts[0], list(texts[0]), texts[1]], **words)
        assert [a.logprobs for a in got] == [want[0].logprobs, want[0].logprobs, want[1].logprobs]
        assert sum(e.counters["runs"] for e in runs) == encoded
        assert batch.statistics().shared_tokens >= shared + 3 * 8


def test_answers_have_the_bits_of_a_text_alone() -> None:
    model = reference("t5")
    texts, words = sources(model, 6), {"max_new_tokens": 24, "logprobs": 97, "temperature": 1.0, "seed": 3}
    with few(model, policy=INVARIANT) as batch:
        alone = [batch.submit(t, **words).result().logprobs for t in texts]
        assert [a.logprobs for a in batch.generate(texts, **words)] == alone
        assert batch.statistics().preemptions > 0


def test_the_language_of_speech_is_found() -> None:
    model = reference("whisper")
    model.generation_config.lang_to_id = {"<|en|>": 20, "<|de|>": 30, "<|fr|>": 40}
    model.generation_config.task_to_id = {"transcribe": 50, "translate": 51}
    model.generation_config.no_timestamps_token_id = 60
    texts = sources(model, 4)
    with Generator(model, buckets=(16,), **sizes(model)) as alone, few(model) as batch:
        want = alone.generate(texts, max_new_tokens=6)
        assert [a.tokens for a in batch.generate(texts, max_new_tokens=6)] == [a.tokens for a in want]


def test_slots_are_reused_oldest_first() -> None:
    slots = SourceSlots(2)
    keys = [source_key([i, 2]) for i in range(3)]
    texts = [BatchText([1], i, root=keys[i % 3]) for i in range(5)]
    assert [slots.take(t) for t in texts[:2]] == [(0, True), (1, True)]
    assert slots.take(texts[3]) == (0, False)
    slots.release([texts[1], texts[3]])
    assert slots.take(texts[0]) == (0, False)
    slots.release([texts[1]])
    assert slots.take(texts[2]) == (0, True)
    slots.forget(0)
    slots.release([])
    assert slots.take(texts[4]) == (1, False)
    assert slots.take(texts[2]) == (0, True)
    assert source_key(np.array([[1.0]], np.float32)) != source_key(np.array([[1.0, 0.0]], np.float32))


def test_sources_that_do_not_fit_are_refused() -> None:
    with few(reference("bart")) as batch:
        with pytest.raises(InputError, match="source_capacity of 48 tokens"):
            batch.submit(prompt(49))
        with pytest.raises(InputError, match="does not support speculative decoding"):
            batch.submit(prompt(4), prompt_lookup_num_tokens=3)
        assert batch.pending == 0
