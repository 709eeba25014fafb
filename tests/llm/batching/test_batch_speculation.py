"""Guesses from the text itself in a batch: the same bits as without them, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.errors import InputError, PolicyError
from xpuruntime.llm import BatchGenerator, Generator
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

INVARIANT = {"batch_invariant": True}
LOOKUP = {"engine_options": {"native": {"prompt_lookup_num_tokens": 3}}}
SIZES: dict[str, Any] = {"capacity": 64, "block_size": 8, "device": device_name()}
GREEDY = {"max_new_tokens": 30}
WORDS: list[dict[str, Any]] = [
    GREEDY,
    {"max_new_tokens": 30, "temperature": 0.1, "top_k": 3, "seed": 4},
    {"max_new_tokens": 30, "repetition_penalty": 1.01, "logprobs": 3},
    {"max_new_tokens": 30, "temperature": 0.1, "seed": 5, "min_new_tokens": 28, "stops": list(range(48))},
    {"max_new_tokens": 30, "temperature": 0.1, "forced_eos_token_id": 5, "seed": 1},
]
TEXTS = [[5, 6, 7, 8] * 4, prompt(9), prompt(20, seed=2), [1, 1, 1, 1], prompt(3, seed=4)]


def policy(kernel: Any = None, execution: Any = None) -> dict[str, Any]:
    return {"version": 1, "kernel": kernel or {}, "execution": execution or {}}


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("qwen2")


@pytest.fixture(scope="module")
def batch(model: Any) -> Iterator[BatchGenerator]:
    """Equal bits in any step, and a cache in which texts preempt each other."""
    with BatchGenerator(model, texts=12, cache_tokens=160, policy=policy(INVARIANT), **SIZES) as generator:
        yield generator


def bits(answer: Any) -> Any:
    return answer.tokens, answer.finish, answer.text, answer.logprobs


@pytest.mark.parametrize("words", WORDS)
def test_answers_have_the_bits_of_those_without_guesses(batch: BatchGenerator, words: dict[str, Any]) -> None:
    before = batch.statistics()
    want = [bits(a) for a in batch.generate(TEXTS, **words)]
    between, drafts = batch.statistics(), batch.drafts
    accepted, tokens = drafts.accepted, drafts.tokens
    got = [bits(a) for a in batch.generate(TEXTS, prompt_lookup_num_tokens=4, **words)]
    after = batch.statistics()
    assert got == want
    assert drafts.accepted > accepted
    assert drafts.accepted <= drafts.drafted
    assert drafts.tokens - tokens == sum(len(tokens) + (finish == "stop") for tokens, finish, *_ in got)
    if words is GREEDY:
        assert after.steps - between.steps < between.steps - before.steps
    assert after.preemptions > before.preemptions
    assert after.used_blocks == 0


def test_texts_with_and_without_guesses_run_together(batch: BatchGenerator) -> None:
    """Rows of different texts in one step keep their numbers and settings."""
    more = [{"prompt_lookup_num_tokens": 1 + i} if i % 2 else {} for i in range(len(WORDS))]
    want = [bits(batch.submit(t, **w).result()) for t, w in zip(TEXTS, WORDS, strict=True)]
    answers = [batch.submit(t, **w, **m) for t, w, m in zip(TEXTS, WORDS, more, strict=True)]
    assert [bits(a.result()) for a in answers] == want


def test_answers_are_those_of_a_generator(model: Any, batch: BatchGenerator) -> None:
    with Generator(model, capacity=64, buckets=(16,), device=device_name()) as alone:
        want = [alone.generate(t, **GREEDY, prompt_lookup_num_tokens=4).tokens for t in TEXTS]
    assert [a.tokens for a in batch.generate(TEXTS, **GREEDY, prompt_lookup_num_tokens=4)] == want


def test_a_policy_gives_steps_results_for_guesses(model: Any, batch: BatchGenerator) -> None:
    """With as many texts as the batch has, guesses need results of their own."""
    want = [bits(a) for a in batch.generate(TEXTS, **GREEDY)]
    sizes = {**SIZES, "texts": len(TEXTS)}
    with (
        BatchGenerator(model, policy=policy(INVARIANT, LOOKUP), **sizes) as demanded,
        BatchGenerator(model, policy=policy(INVARIANT), **sizes) as plain,
    ):
        assert (demanded.steps.results, plain.steps.results) == (4 * len(TEXTS), len(TEXTS))
        assert [bits(a) for a in demanded.generate(TEXTS, **GREEDY)] == want
        assert [bits(a) for a in plain.generate(TEXTS, **GREEDY)] == want
        assert demanded.drafts.accepted > 0
        assert plain.drafts.drafted == 0


def test_draft_models_are_refused(model: Any, batch: BatchGenerator) -> None:
    with pytest.raises(InputError, match="does not support assistant_model"):
        batch.submit([1, 2, 3], assistant_model="elsewhere")
    demand = {"engine_options": {"native": {"assistant_model": "elsewhere"}}}
    with pytest.raises(PolicyError, match="does not support a draft model in batches"):
        BatchGenerator(model, texts=2, policy=policy(None, demand), **SIZES)
