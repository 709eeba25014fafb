"""Beam search in a batch: the answers of a Generator and of transformers, whatever other texts do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.errors import InputError, RunError
from xpuruntime.llm import BatchGenerator, Generator
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

INVARIANT = {"version": 1, "kernel": {"batch_invariant": True}}
SIZES: dict[str, Any] = {"texts": 6, "capacity": 48, "block_size": 4, "device": device_name()}
TEXTS = [prompt(n, seed=n) for n in (7, 3, 12)]
WORDS: list[dict[str, Any]] = [
    {"num_beams": 4, "n": 3, "max_new_tokens": 14},
    {"num_beams": 3, "n": 3, "max_new_tokens": 12, "stops": list(range(20)), "length_penalty": -0.5},
    {"num_beams": 4, "max_new_tokens": 12, "stops": list(range(20)), "early_stopping": True},
    {"num_beams": 2, "max_new_tokens": 60, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
]


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("qwen2")


@pytest.fixture(scope="module")
def batch(model: Any) -> Iterator[BatchGenerator]:
    """A cache for one search and a half."""
    with BatchGenerator(model, cache_tokens=144, policy=INVARIANT, **SIZES) as generator:
        yield generator


@pytest.fixture(scope="module")
def alone(model: Any) -> Iterator[Generator]:
    with Generator(model, capacity=48, buckets=(16,), batch=4, device=device_name()) as generator:
        yield generator


def facts(answer: Any) -> Any:
    return answer.tokens, answer.text, answer.finish, answer.prompt_tokens


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", WORDS)
def test_answers_are_those_of_a_generator(
    batch: BatchGenerator, alone: Generator, words: dict[str, Any]
) -> None:
    """Among texts that arrive before and after them, in a cache in which they preempt each other."""
    want = [a for t in TEXTS for a in np.atleast_1d(np.array(alone.generate(t, **words), object))]
    before = batch.statistics()
    others = [batch.submit(prompt(n), max_new_tokens=20) for n in (5, 9)]
    answers = batch.submit_all(TEXTS, **words)
    others += [batch.submit(prompt(n), max_new_tokens=20, temperature=1.0, seed=n) for n in (6, 2)]
    assert batch.pending == len(answers) + 4
    got = [a.result() for a in answers]
    assert [facts(g) for g in got] == [facts(w) for w in want]
    for g, w in zip(got, want, strict=True):
        assert g.score == pytest.approx(w.score, abs=1e-4)
    for other in others:
        assert len(other.result().tokens) == 20
    after = batch.statistics()
    assert after.preemptions > before.preemptions
    assert after.finished == before.finished + len(answers) + 4
    assert (after.used_blocks, after.running, after.waiting, batch.pending) == (0, 0, 0, 0)


def test_scores_have_the_same_bits_in_every_company(batch: BatchGenerator) -> None:
    words = WORDS[0]
    alone = [[(a.tokens, a.score) for a in batch.generate([t], **words)] for t in TEXTS]
    for texts in (TEXTS, TEXTS[::-1]):
        together = batch.generate(texts, **words)
        got = [[(a.tokens, a.score) for a in together[i : i + 3]] for i in range(0, 9, 3)]
        assert (got if texts is TEXTS else got[::-1]) == alone


def test_answers_are_those_of_transformers(model: Any, batch: BatchGenerator) -> None:
    import torch

    words = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 12, "length_penalty": 0.7}
    for text in TEXTS:
        want = model.generate(
            torch.tensor([text]), do_sample=False, output_scores=True, return_dict_in_generate=True, eos_token_id=None,
            pad_token_id=0, **words,
        )  # fmt: skip
        got = batch.generate([text], stops=[], **words)
        assert [list(a.tokens) for a in got] == [s[len(text) :].tolist() for s in want.sequences]
        assert [a.score for a in got] == pytest.approx(want.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("share", [True, False])
def test_beams_take_the_blocks_of_their_text(model: Any, alone: Generator, share: bool) -> None:
    """Without blocks that texts share by their content, beams still share those of the text that they continue."""
    sizes = {**SIZES, "texts": 12, "cache_tokens": 400}
    with BatchGenerator(model, share_prefixes=share, **sizes) as roomy:
        answers = roomy.generate(TEXTS, **WORDS[0])
        want = [facts(a) for t in TEXTS for a in alone.generate(t, **WORDS[0])]
        assert [facts(a) for a in answers] == want
        stats = roomy.statistics()
        assert (stats.preemptions, stats.used_blocks) == (0, 0)
        # Each of 13 steps computes one token of each beam, and of some up to a block.
        beams = 3 * 4 * 13
        assert stats.tokens < beams + sum(map(len, TEXTS)) * (1 if share else 4) + beams * 2


def test_pieces_come_when_the_search_ends(batch: BatchGenerator) -> None:
    first, second, third = batch.submit_all([TEXTS[0]], **WORDS[0])
    second.cancel()
    pieces = list(first)
    assert len(pieces) == 14
    assert [p.finish for p in pieces[-2:]] == ["", "length"]
    assert third.done
    assert second.result().tokens == ()
    answers = batch.submit_all([TEXTS[0]], **WORDS[0])
    batch.step()
    batch.step()
    for answer in answers:
        answer.cancel()
    assert (batch.pending, batch.statistics().used_blocks) == (0, 0)


def test_decoding_begins_when_the_prompt_was_read(
    batch: BatchGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are steps here. The pieces of a search come all at its end."""
    first = batch.statistics().steps
    monkeypatch.setattr("time.perf_counter", lambda: float(batch.statistics().steps - first))
    (answer,) = batch.generate(TEXTS[:1], num_beams=2, max_new_tokens=6)
    assert (len(answer.tokens), answer.decode_s) == (6, 5.0)
    assert answer.tokens_per_second == 1.0


def test_an_error_ends_the_search_alone(batch: BatchGenerator) -> None:
    everything = {"suppress_tokens": list(range(batch.config.vocab)), "max_new_tokens": 4, "num_beams": 3}
    bad, good = batch.submit(prompt(5), **everything), batch.submit(prompt(6), max_new_tokens=6)
    assert len(good.result().tokens) == 6
    with pytest.raises(RunError, match="has no token"):
        bad.result()
    assert (batch.pending, batch.statistics().used_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_beams": 7}, "decodes 6 texts together, fewer than num_beams"),
        ({"num_beams": 6, "max_new_tokens": 20}, "has a cache of 36 blocks, fewer than 6 beams may need"),
    ],
)
def test_searches_that_do_not_fit_are_refused(
    batch: BatchGenerator, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        batch.submit_all([[1, 2], prompt(9)], **words)
    assert batch.pending == 0
