"""Speculative decoding: the same text as without it, exact in distribution, and a receipt that counts guesses."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.errors import InputError, PolicyError
from xpuruntime.llm import Generator, Sampling
from xpuruntime.llm.decoding.answer import AnswerState
from xpuruntime.llm.decoding.words import GenerationOptions
from xpuruntime.llm.sampling import probabilities
from xpuruntime.llm.speculation import PromptLookup
from xpuruntime.llm.steps import Steps
from xpuruntime.storage.tensor_files import read_safetensors, write_safetensors

from .test_draws import p_value
from .test_plan_and_receipt import write_checkpoint

REPEATING = [5, 6, 7, 8] * 5
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 3},
    "filtered": {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "seed": 4},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.1, "seed": 5},
    "n-grams": {"no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[7, 8], [9]], "suppress_tokens": [11]},
    "least": {"min_new_tokens": 30, "eos_token_id": [5, 6, 7, 8, 20, 21, 22]},
    "log probabilities": {"logprobs": 3, "temperature": 0.7, "seed": 6},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, and a draft model that is the same but for one layer."""
    folder = tmp_path_factory.mktemp("speculation")
    write_checkpoint(folder / "large")
    write_checkpoint(folder / "small", num_hidden_layers=1)
    with (
        Generator(folder / "large", buckets=(8, 16)) as large,
        Generator(folder / "small", buckets=(8,)) as small,
    ):
        yield large, small


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_text_is_that_without_speculation(models: Any, setting: str) -> None:
    large, small = models
    words = {"max_new_tokens": 40, **SETTINGS[setting]}
    want = large.generate(REPEATING, **words)
    ways: list[dict[str, Any]] = [
        {"prompt_lookup_num_tokens": 4},
        {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
        {"assistant_model": small},
        {"assistant_model": small, "num_assistant_tokens": 2},
    ]
    for way in ways:
        got = large.generate(REPEATING, **words, **way)
        assert got.tokens == want.tokens, way
        assert got.finish == want.finish
        for a, b in zip(got.logprobs, want.logprobs, strict=True):
            assert a.token == b.token
            assert abs(a.logprob - b.logprob) < 1e-4
    pieces = [p.token for p in large.stream(REPEATING, **words, **ways[0])]
    assert tuple(pieces[: len(want.tokens)]) == want.tokens


def test_several_prompts_and_answers(models: Any) -> None:
    large, _ = models
    words = {"max_new_tokens": 12, "temperature": 1.0, "seed": [1, 2], "n": 2}
    prompts = [REPEATING, [1, 2, 3]]
    assert large.generate(prompts, **words, prompt_lookup_num_tokens=3) == large.generate(prompts, **words)


def test_every_guess_of_an_equal_model_is_accepted(models: Any, tmp_path: Path) -> None:
    large, _ = models
    folder = write_checkpoint(tmp_path / "equal")
    for words in ({}, {"temperature": 1.1, "top_k": 20, "seed": 2}):
        before = vars_of(large)
        got = large.generate(
            [1, 2, 3], max_new_tokens=25, assistant_model=folder, num_assistant_tokens=5, **words
        )
        drafted, accepted, rounds = (vars_of(large)[k] - before[k] for k in ("drafted", "accepted", "rounds"))
        assert len(got.tokens) == 25
        assert drafted == accepted
        assert rounds == 4  # one token of the prefill, then six a run


def vars_of(model: Generator) -> dict[str, int]:
    return {k: getattr(model.drafts, k) for k in ("rounds", "drafted", "accepted", "steps", "tokens")}


def test_texts_end_at_the_edge_of_the_cache(models: Any, tmp_path: Path) -> None:
    large, small = models
    for prompt in ([1, 2] * 46, [1, 2] * 48):  # 92 and 96 of 96 tokens
        want = large.generate(prompt, max_new_tokens=40)
        assert want.finish == "capacity"
        assert large.generate(prompt, max_new_tokens=40, prompt_lookup_num_tokens=7) == want
        assert large.generate(prompt, max_new_tokens=40, assistant_model=small) == want
    with Generator(write_checkpoint(tmp_path / "short", max_position_embeddings=40), buckets=(8,)) as short:
        want = large.generate(REPEATING, max_new_tokens=50)
        assert large.generate(REPEATING, max_new_tokens=50, assistant_model=short) == want


def test_a_guess_is_what_followed() -> None:
    def state(*tokens: int) -> AnswerState:
        options = GenerationOptions(Sampling(), frozenset())
        return AnswerState(tokens, options, seed=0, sample=0, vocab=10, capacity=99, text=None, matcher=None)

    def guess(tokens: tuple[int, ...], most: int, ngram: int = 2) -> list[int]:
        return PromptLookup(ngram).draft(state(*tokens), most)

    assert guess((1, 2, 3, 4, 1, 2), 2) == [3, 4]
    assert guess((1, 2, 3, 9, 2, 4, 1, 2), 1) == [3]  # two tokens fit better than the last one alone
    assert guess((1, 2, 3, 9, 2, 4, 1, 2), 1, ngram=1) == [4]
    assert guess((1, 2, 1, 2), 5) == [1, 2, 1, 2, 1]
    assert guess((3, 3), 3) == [3, 3, 3]
    assert guess((1, 2, 3), 4) == []
    lookup, text = PromptLookup(2), state(1, 2, 3, 1)
    assert lookup.draft(text, 2) == [2, 3]
    text.tokens += [2, 5, 1, 2]
    assert lookup.draft(text, 2) == [5, 1]


# ── distribution ──

DRAWS = 20_000
LIKELY = {"temperature": 1.2, "top_k": 3}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 24}
    write_checkpoint(folder / "model", **sizes)
    file, rng = write_checkpoint(folder / "draft", **sizes) / "model.safetensors", np.random.default_rng(1)
    arrays = {
        n: a + rng.standard_normal(a.shape, np.float32) * 0.05 for n, a in read_safetensors(file).items()
    }
    write_safetensors({n: a.astype(np.float32) for n, a in arrays.items()}, file)
    words = {"buckets": (8, 32), "capacity": 48}
    with Generator(folder / "model", **words) as model, Generator(folder / "draft", **words) as draft:
        yield model, draft


def joint(model: Generator, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """The exact probability of each answer of three tokens."""
    sampling = Sampling(**LIKELY)

    def after(tokens: tuple[int, ...]) -> Any:
        return probabilities(model.read([*prompt, *tokens])[0].copy(), sampling)

    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        spread = {tokens: after(tokens) for tokens in found}
        found = {
            (*tokens, int(t)): found[tokens] * float(p[t])
            for tokens, p in spread.items()
            for t in np.flatnonzero(p)
        }
    return found


def shuffled(seed: int) -> list[int]:
    """Every token once, so that each has been followed by another one."""
    return np.random.default_rng(seed).permutation(24).tolist()


def guessed_right(model: Generator, prompt: list[int]) -> float:
    """The probability that the second token is what followed the first one in the prompt."""
    followed = dict(itertools.pairwise(prompt))
    return sum(p for (a, b, _), p in joint(model, prompt).items() if followed.get(a) == b)


def drawn(
    model: Generator, prompt: list[int], way: dict[str, Any], draws: int = DRAWS
) -> Counter[tuple[int, ...]]:
    return Counter(
        model.generate(prompt, max_new_tokens=3, seed=1_000_000 + i, **LIKELY, **way).tokens
        for i in range(draws)
    )


def fit(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """The probability of a larger chi-square."""
    if counts.keys() - exact.keys():
        return 0.0
    return p_value(np.array([counts[k] for k in exact]), np.array(list(exact.values())))


@pytest.mark.sampled(1, one_in=3)
@pytest.mark.parametrize("way", ["lookup", "draft"])
def test_answers_have_the_exact_distribution(tiny: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, draft = tiny
    prompt = next(p for p in map(shuffled, range(100)) if guessed_right(model, p) > 0.1)
    words = (
        {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 1}
        if way == "lookup"
        else {"assistant_model": draft}
    )
    exact = joint(model, prompt)
    assert len(exact) == 27
    before = vars_of(model)
    counts = drawn(model, prompt, words)
    spent = {k: v - before[k] for k, v in vars_of(model).items()}
    assert 0.05 * spent["drafted"] < spent["accepted"] < 0.95 * spent["drafted"]  # both outcomes were met
    assert fit(counts, exact) > 0.001

    # A planted error: guesses are compared with the rows before theirs.
    verify = Steps.verify
    monkeypatch.setattr(Steps, "verify", lambda *args: np.roll(verify(*args), 1, axis=0))
    assert fit(drawn(model, prompt, words, DRAWS // 4), exact) < 1e-6


# ── words, policy, receipt ──


def test_the_receipt_counts_guesses(models: Any) -> None:
    large, _ = models
    large.generate(REPEATING, max_new_tokens=20, prompt_lookup_num_tokens=4)
    receipt = large.receipt()
    assert receipt.confirmed, receipt.text()
    facts = receipt.evidence["verify_5"]
    assert facts.options["phase"] == "decode"
    assert {k: int(facts.options[k]) for k in ("rounds", "drafted", "accepted")} == {
        k: vars_of(large)[k] for k in ("rounds", "drafted", "accepted")
    }
    assert "drafted tokens" in receipt.text()


def test_a_policy_selects_speculation(models: Any, tmp_path: Path) -> None:
    large, _ = models
    folder = tmp_path / "model"
    write_checkpoint(folder)
    want = large.generate(REPEATING, max_new_tokens=20)
    policy = {"version": 1, "execution": {"engine_options": {"native": {"prompt_lookup_num_tokens": 4}}}}
    with Generator(folder, buckets=(8, 16), policy=policy, batch=2) as ours:
        assert ours.generate(REPEATING, max_new_tokens=20) == want
        assert ours.drafts.rounds > 0
        rounds = ours.drafts.rounds
        ours.generate(REPEATING, max_new_tokens=5, num_beams=2)  # beams are not speculated
        assert ours.drafts.rounds == rounds
        assert "prompt_lookup_num_tokens" in ours.plan.explain()
    policy["execution"] = {"engine_options": {"native": {"shape_buckets": 4}}}
    with pytest.raises(PolicyError, match="native's options at a Generator are prompt_lookup_num_tokens"):
        Generator(folder, policy=policy)
    policy["execution"] = {"engine_options": {"native": {"prompt_lookup_num_tokens": "many"}}}
    with pytest.raises(InputError, match="has an invalid prompt_lookup_num_tokens"):
        Generator(folder, policy=policy)


def test_wrong_words_are_errors(models: Any, tmp_path: Path) -> None:
    large, small = models
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompt_lookup_num_tokens": 0}, "needs prompt_lookup_num_tokens of at least 1"),
        ({"prompt_lookup_num_tokens": 2, "assistant_model": small}, "has both assistant_model and"),
        (
            {"prompt_lookup_num_tokens": 2, "num_beams": 2},
            "does not support speculative decoding with num_beams",
        ),
        ({"assistant_model": large}, "cannot be its own assistant_model"),
        (
            {"assistant_model": write_checkpoint(tmp_path / "other", vocab_size=50)},
            "with the same tokens; got other",
        ),
    ]
    for words, message in wrong:
        with pytest.raises(InputError, match=message):
            large.generate([1, 2, 3], max_new_tokens=4, **words)
    stream = small.stream([1, 2], max_new_tokens=4)
    next(stream)
    with pytest.raises(InputError, match="has another active stream on this thread"):
        large.generate([1, 2, 3], max_new_tokens=4, assistant_model=small)
    stream.close()
    assert large.generate([1, 2, 3], max_new_tokens=4, assistant_model=small).tokens


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs tokenizers")
def test_the_command_speculates(tmp_path: Path) -> None:
    from .test_texts import save_tokenizer

    folder = write_checkpoint(tmp_path / "model", vocab_size=257)
    save_tokenizer(folder)
    told = ["generate", str(folder), "-p", "abcabcabc", "-n", "16", "--json", "--receipt"]
    plain = CliRunner().invoke(app, told)
    guessed = CliRunner().invoke(app, [*told, "--prompt-lookup-num-tokens", "3"])
    assert plain.exit_code == guessed.exit_code == 0, guessed.output
    one, two = (json.loads(r.stdout) for r in (plain, guessed))
    assert one["tokens"] == two["tokens"]
    assert int(two["receipt"]["evidence"]["verify_4"]["options"]["rounds"]) > 0


def test_an_encoder_decoder_refuses_guesses() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from xpuruntime.testing.conformance.seeded.encoder_decoders import reference

    with (
        Generator(reference("t5"), capacity=16, source_capacity=16, buckets=(8,)) as model,
        pytest.raises(InputError, match="is an encoder-decoder, which does not support speculative decoding"),
    ):
        model.generate([1, 2, 3], max_new_tokens=2, prompt_lookup_num_tokens=3)
