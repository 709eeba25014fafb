"""Many texts at once: every answer is that of the text alone, whatever arrives, leaves or is preempted around it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.errors import BuildError, InputError, PolicyError, RunError
from xpuruntime.llm import Generator
from xpuruntime.llm.batching.generate import BatchGenerator
from xpuruntime.testing.conformance.seeded.decoders import FAMILIES, prompt, reference

DEVICE = device_name()
INVARIANT = {"version": 1, "kernel": {"batch_invariant": True}}
SIZES: dict[str, Any] = {
    "texts": 4,
    "capacity": 64,
    "cache_tokens": 104,
    "block_size": 8,
    "step_tokens": 16,
    "device": DEVICE,
}


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("qwen2")


@pytest.fixture(scope="module")
def alone(model: Any) -> Iterator[Generator]:
    with Generator(model, capacity=64, buckets=(16,), device=DEVICE) as generator:
        yield generator


@pytest.fixture(scope="module")
def batch(model: Any) -> Iterator[BatchGenerator]:
    """A cache for a text and a half: four texts that grow preempt each other."""
    with BatchGenerator(model, **SIZES) as generator:
        yield generator


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    """Prompts of several lengths; every second one begins as the others do."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, longest, count)
    return [prompt(int(n), seed=0 if i % 2 else i) for i, n in enumerate(lengths)]


# ── answers ──


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.1, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0.8, "no_repeat_ngram_size": 2, "logprobs": 2},
        {"min_new_tokens": 5, "stops": list(range(40)), "bad_words_ids": [[3], [4, 5]]},
    ],
)
def test_answers_are_those_of_a_text_alone(
    batch: BatchGenerator, alone: Generator, words: dict[str, Any]
) -> None:
    texts, seeds = prompts(9), list(range(9))
    before = batch.statistics()
    got = batch.generate(texts, max_new_tokens=24, seed=seeds, **words)
    after = batch.statistics()
    for text, seed, answer in zip(texts, seeds, got, strict=True):
        want = alone.generate(text, max_new_tokens=24, seed=seed, **words)
        assert (answer.tokens, answer.finish, answer.prompt_tokens) == (
            want.tokens,
            want.finish,
            want.prompt_tokens,
        )
        for a, w in zip(answer.logprobs, want.logprobs, strict=True):
            assert a.logprob == pytest.approx(w.logprob, abs=1e-4)
    assert after.preemptions > before.preemptions or "stops" in words
    assert after.shared_tokens > before.shared_tokens
    assert (after.used_blocks, after.running, after.waiting) == (0, 0, 0)


def test_texts_with_different_words_run_together(batch: BatchGenerator, alone: Generator) -> None:
    """Steps choose tokens on the device or on the host, as the texts in them need."""
    words: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "presence_penalty": 0.5},
        {"logprobs": 1, "max_new_tokens": 3},
        {"temperature": 1.0, "top_k": 5, "max_new_tokens": 30},
    ]
    words = [{"max_new_tokens": 12, "seed": i, **w} for i, w in enumerate(words)]
    texts = prompts(len(words))
    answers = [batch.submit(t, **w) for t, w in zip(texts, words, strict=True)]
    for answer, text, w in zip(answers, texts, words, strict=True):
        assert answer.result().tokens == alone.generate(text, **w).tokens


def test_several_answers_to_a_prompt(batch: BatchGenerator, alone: Generator) -> None:
    words = {"temperature": 1.0, "n": 3, "seed": 7, "max_new_tokens": 10}
    got = batch.generate([prompt(20), prompt(11, seed=2)], **words)
    want = [c for p in (prompt(20), prompt(11, seed=2)) for c in alone.generate(p, **words)]
    assert [a.tokens for a in got] == [w.tokens for w in want]


def test_answers_of_one_prompt_are_read_as_they_come(batch: BatchGenerator, alone: Generator) -> None:
    """They begin together, and share the blocks of their prompt."""
    words, before = {"temperature": 1.0, "n": 3, "seed": 7, "max_new_tokens": 10}, batch.statistics()
    answers = batch.submit_all([prompt(30)], **words)
    pieces = [[p.token for p in answer] for answer in answers]
    assert pieces == [list(c.tokens) for c in alone.generate(prompt(30), **words)]
    assert len({tuple(p) for p in pieces}) == 3
    assert batch.statistics().shared_tokens >= before.shared_tokens + 2 * 24


@pytest.mark.parametrize(
    "words",
    [
        {"forced_eos_token_id": 11},
        {"begin_suppress_tokens": list(range(0, 97, 2))},
        {"forced_eos_token_id": 11, "repetition_penalty": 1.2},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_and_first_tokens(
    batch: BatchGenerator, alone: Generator, words: dict[str, Any], temperature: float
) -> None:
    """Tokens that a step samples on the device are still forced at the end, and suppressed at the beginning."""
    words = {**words, "temperature": temperature, "max_new_tokens": 6, "stops": [0]}
    texts, seeds = prompts(5), [1, 2, 3, 4, 5]
    got = [a.tokens for a in batch.generate(texts, seed=seeds, **words)]
    assert got == [alone.generate(t, seed=s, **words).tokens for t, s in zip(texts, seeds, strict=True)]
    for tokens in got:
        assert "begin_suppress_tokens" not in words or tokens[0] % 2 == 1
        assert "forced_eos_token_id" not in words or tokens[-1] == 11 or len(tokens) < 6


def test_a_text_ends_at_the_capacity(batch: BatchGenerator, alone: Generator) -> None:
    text = prompt(50)
    want = alone.generate(text, max_new_tokens=100)
    got = batch.submit(text, max_new_tokens=100).result()
    assert (got.tokens, got.finish) == (want.tokens, want.finish)
    assert got.finish == "capacity"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(family: str) -> None:
    """Windows, soft caps, latent attention, experts, learned positions: what a family has, it has over blocks, too."""
    model = reference(family)
    texts = prompts(5, 30)
    with Generator(model, capacity=48, buckets=(16,), device=DEVICE) as alone:
        want = [alone.generate(t, max_new_tokens=12).tokens for t in texts]
    with BatchGenerator(
        model, texts=3, capacity=48, cache_tokens=80, block_size=8, step_tokens=8, device=DEVICE
    ) as batch:
        assert [a.tokens for a in batch.generate(texts, max_new_tokens=12)] == want


def stress(batch: BatchGenerator, expected: Any, steps: int, seed: int, **more: Any) -> dict[str, int]:
    """Random arrivals and cancellations for so many steps; every answer must be ``expected(text, sampling seed)`` as far as it goes."""
    rng = np.random.default_rng(seed)
    live: dict[Any, tuple[int, int]] = {}
    counts = {"whole": 0, "cancelled": 0}
    size, budget = batch.cache.block_size, batch.cache.blocks - 1

    def finished(answer: Any, key: tuple[int, int]) -> None:
        want, got = expected(*key), answer.result()
        count = len(got.tokens)
        assert got.tokens == want.tokens[:count], (key, got.finish)
        assert got.logprobs == want.logprobs[:count], (key, got.finish)
        if got.finish == "cancelled":
            counts["cancelled"] += 1
        else:
            assert count == len(want.tokens), (key, got.finish)
            counts["whole"] += 1

    for _ in range(steps):
        while len(live) < 64 + 8 and rng.random() < 0.8:
            key = (int(rng.integers(0, 24)), int(rng.integers(0, 2)))
            live[batch.submit(TEXTS[key[0]], **words_of(*key), **more)] = key
        if live and rng.random() < 0.03:
            list(live)[int(rng.integers(len(live)))].cancel()
        batch.step()
        stats = batch.statistics()
        assert stats.used_blocks <= budget
        assert stats.used_blocks * size <= batch.cache.rows - size
        for answer in [a for a in live if a.done]:
            finished(answer, live.pop(answer))
    for answer in list(live):
        answer.result()
        finished(answer, live.pop(answer))
    stats = batch.statistics()
    assert (stats.used_blocks, stats.running, stats.waiting, batch.pending) == (0, 0, 0, 0)
    return counts


TEXTS = prompts(24, 36)


def words_of(text: int, sampled: int) -> dict[str, Any]:
    sampling = {"temperature": 1.0, "top_k": 20, "seed": text} if sampled else {}
    return {"max_new_tokens": 1 + 3 * text % 25, **sampling}


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.sampled(1, one_in=2)
def test_random_arrivals_and_cancellations(model: Any, alone: Generator, invariant: bool) -> None:
    arrivals_and_cancellations(model, alone, 400, invariant)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.slow
@pytest.mark.sampled(0)
def test_ten_thousand_steps_of_arrivals_and_cancellations(
    model: Any, alone: Generator, invariant: bool
) -> None:
    arrivals_and_cancellations(model, alone, 10_000, invariant)


def arrivals_and_cancellations(model: Any, alone: Generator, steps: int, invariant: bool) -> None:
    """64 texts at once in the memory of ten. With ``batch_invariant`` every logit has the bits of the text alone."""
    answers: dict[tuple[int, int], Any] = {}
    more: dict[str, Any] = {"logprobs": 3} if invariant else {}
    sizes: dict[str, Any] = {
        "texts": 64,
        "capacity": 64,
        "block_size": 8,
        "step_tokens": 96,
        "device": DEVICE,
    }
    sizes["policy"] = INVARIANT if invariant else None

    def expected(text: int, sampled: int) -> Any:
        if (text, sampled) not in answers:
            words = {**words_of(text, sampled), **more}
            one = single.submit(TEXTS[text], **words).result() if invariant else None
            answers[text, sampled] = one or alone.generate(TEXTS[text], **words)
        return answers[text, sampled]

    with (
        BatchGenerator(model, cache_tokens=640, **sizes) as batch,
        BatchGenerator(model, cache_tokens=64, share_prefixes=False, **sizes) as single,
    ):
        stress(batch, expected, 50, seed=1, **more)
        gc.collect()
        before = resident()
        counts = stress(batch, expected, steps, seed=2, **more)
        stats = batch.statistics()
        assert counts["whole"] > steps // 2
        assert counts["cancelled"] > steps // 50
        assert stats.preemptions > steps // 40
        assert stats.shared_tokens > steps
        gc.collect()
        assert resident() - before < 4 << 20


def resident() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


# ── the handle ──


def test_pieces_come_as_they_are_generated(batch: BatchGenerator, alone: Generator) -> None:
    first, second = (batch.submit(p, max_new_tokens=8) for p in (prompt(9), prompt(12, seed=3)))
    pieces = iter(first)
    assert next(pieces).token == alone.generate(prompt(9), max_new_tokens=1).tokens[0]
    assert not first.done
    rest = [p.token for p in pieces]
    assert len(rest) == 7
    assert first.done
    assert [p.token for p in second] == list(alone.generate(prompt(12, seed=3), max_new_tokens=8).tokens)
    assert list(second) == []
    assert second.result().finish == "length"


def test_a_cancelled_answer_keeps_what_there_is(batch: BatchGenerator) -> None:
    answer, other = (batch.submit(prompt(n), max_new_tokens=30) for n in (6, 7))
    waiting = [batch.submit(prompt(8), max_new_tokens=30) for _ in range(4)]
    pieces = iter(answer)
    tokens = [next(pieces).token for _ in range(3)]
    before = batch.statistics()
    answer.cancel()
    answer.cancel()
    for w in waiting:
        w.cancel()
    after = batch.statistics()
    assert after.cancelled == before.cancelled + 5
    assert list(answer) == []
    assert (answer.finish, list(answer.result().tokens)) == ("cancelled", tokens)
    assert waiting[3].result().tokens == ()
    assert len(other.result().tokens) == 30
    assert batch.statistics().used_blocks == 0


def test_an_error_of_one_text_ends_that_text_alone(batch: BatchGenerator, alone: Generator) -> None:
    everything = {"suppress_tokens": list(range(batch.config.vocab)), "max_new_tokens": 4}
    bad, good = batch.submit(prompt(5), **everything), batch.submit(prompt(6), max_new_tokens=6)
    assert good.result().tokens == alone.generate(prompt(6), max_new_tokens=6).tokens
    with pytest.raises(RunError, match="has no token"):
        bad.result()
    with pytest.raises(RunError, match="has no token"):
        next(iter(bad))
    stats = batch.statistics()
    assert (stats.failed, stats.used_blocks) == (1, 0)


def test_a_step_that_fails_changes_no_text(
    model: Any, alone: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BatchGenerator(model, **SIZES) as batch:
        answers = [batch.submit(p, max_new_tokens=9) for p in prompts(6)]
        run, calls = batch.steps.run, [0]

        def faulty(*args: Any) -> None:
            calls[0] += 1
            if calls[0] % 3 == 0:
                raise RunError("device", "is lost for a moment")
            run(*args)

        monkeypatch.setattr(batch.steps, "run", faulty)
        while batch.pending:
            if calls[0] % 3 == 2:
                with pytest.raises(RunError, match="lost for a moment"):
                    batch.step()
            else:
                batch.step()
        assert calls[0] > 9
        for text, answer in zip(prompts(6), answers, strict=True):
            assert answer.result().tokens == alone.generate(text, max_new_tokens=9).tokens


def test_threads_read_their_own_answers(batch: BatchGenerator, alone: Generator) -> None:
    texts = prompts(8)
    got: dict[int, list[int]] = {}

    def read(i: int) -> None:
        got[i] = [p.token for p in batch.submit(texts[i], max_new_tokens=10)]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[i] for i in range(8)] == [list(alone.generate(t, max_new_tokens=10).tokens) for t in texts]


# ── refusals ──


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"texts": 0}, "invalid texts"),
        ({"block_size": True}, "invalid block_size"),
        ({"step_tokens": 3}, "needs a token of each of 4 texts"),
        ({"cache_tokens": 60}, "less than one text of capacity 64"),
        ({"cache_tokens": None, "cache_bytes": 100}, "less than one text of capacity 64"),
        ({"cache_bytes": 1 << 20}, "takes cache_tokens or cache_bytes"),
        ({"capacity": 1 << 20}, "capacity that is out of range"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(model: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        BatchGenerator(model, **{**SIZES, **words})


def test_the_cache_in_bytes(model: Any) -> None:
    with BatchGenerator(model, texts=2, capacity=32, cache_bytes=1 << 16, block_size=4) as batch:
        stats = batch.statistics()
        states = [s for s in batch.program.states if not s.name.startswith("token_counts")]
        assert stats.cache_bytes == sum(s.spec.size_bytes or 0 for s in states)
        assert 0 <= (1 << 16) + 4 * batch.cache_bytes // batch.cache.rows - stats.cache_bytes < 4096


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (prompt(65), {}, "capacity of 64 tokens"),
        ([], {}, "one token or more"),
        ([1000], {}, "takes tokens from 0"),
        (prompt(5), {"num_beams": 5}, "fewer than num_beams"),
        (prompt(5), {"n": 2, "temperature": 1.0}, "returns one answer"),
        (prompt(5), {"temprature": 1.0}, "unknown argument"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(
    batch: BatchGenerator, text: list[int], words: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        batch.submit(text, **words)
    assert batch.pending == 0


def test_a_closed_batch_says_so(model: Any) -> None:
    with BatchGenerator(model, **SIZES) as batch:
        answer = batch.submit(prompt(4))
    assert answer.result().finish == "cancelled"
    for call in (batch.step, lambda: batch.submit(prompt(4))):
        with pytest.raises(RunError, match="is closed"):
            call()


# ── batch_invariant ──


def bits(answer: Any) -> Any:
    """The tokens, and every logit of every position up to a constant."""
    return answer.tokens, [(p.logprob, p.top) for p in answer.logprobs]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen2", "float32"),
        ("qwen2", "bfloat16"),
        ("llama", "float16"),
        ("mixtral", "bfloat16"),
        ("deepseek_v2", "float32"),
        ("gemma3_text", "bfloat16"),
        ("gpt2", "float32"),
        ("bloom", "bfloat16"),
        ("mpt", "float32"),
    ],
)
@pytest.mark.sampled(1)
def test_answers_have_the_bits_of_a_text_alone(family: str, dtype: str) -> None:
    """At 1, 3, 8 and 64 texts, in a cache that preempts, with shared prefixes, and with other orders of arrival."""
    model, texts = reference(family), prompts(64, 24)
    words = {"max_new_tokens": 10, "logprobs": 97, "temperature": 1.0, "seed": 5}
    sizes: dict[str, Any] = {
        "capacity": 40,
        "block_size": 8,
        "step_tokens": 64,
        "dtype": dtype,
        "device": DEVICE,
        "policy": INVARIANT,
    }
    with BatchGenerator(model, texts=64, cache_tokens=40 * 64, share_prefixes=False, **sizes) as roomy:
        assert len(roomy.steps.sizes) == 1
        want = [bits(roomy.submit(t, **words).result()) for t in texts]
        for count in (1, 3, 8, 64):
            got = [bits(a) for a in roomy.generate(texts[:count], **words)]
            assert got == want[:count]
    with BatchGenerator(model, texts=64, cache_tokens=480, **sizes) as tight:
        answers = [tight.submit(t, **words) for t in reversed(texts)]
        assert [bits(a.result()) for a in reversed(answers)] == want
        stats = tight.statistics()
        assert stats.preemptions > 4
        assert stats.shared_tokens > 100


def test_without_the_policy_sizes_of_steps_differ(model: Any) -> None:
    """What the policy is for: the mutation of one size into several is noticed."""
    words = {"max_new_tokens": 10, "logprobs": 97}
    with BatchGenerator(model, texts=64, capacity=40, block_size=8, device=DEVICE) as batch:
        assert batch.steps.sizes == (1, 8, 16, 32, 64)
        alone = [bits(batch.submit(t, **words).result()) for t in prompts(8, 24)]
        assert [bits(a) for a in batch.generate(prompts(8, 24), **words)] != alone


def test_a_generator_with_a_batch_refuses_the_demand(model: Any) -> None:
    with pytest.raises(PolicyError, match="does not support batch_invariant with a batch"):
        Generator(model, capacity=32, buckets=(8,), batch=2, policy=INVARIANT)


# ── opening, plan and receipt ──


def test_progress_of_opening(model: Any, tmp_path: Path) -> None:
    steps: list[str] = []
    with BatchGenerator(model, **SIZES, cache_dir=tmp_path, on_progress=steps.append):
        assert steps[0].startswith("compiling")
        assert any(s.startswith("loading weights") for s in steps)
    with pytest.raises(InputError, match="on_progress"):
        BatchGenerator(model, **SIZES, on_progress=3)


def test_plan_and_receipt_say_what_ran(model: Any, alone: Generator) -> None:
    """One report for both: the choices of a batch are those of a Generator, and the runs are counted per size of a step."""
    with BatchGenerator(model, **SIZES) as batch:
        batch.generate(prompts(4), max_new_tokens=3)
        batch.submit(prompt(3), temperature=1.0, max_new_tokens=2).result()
        plan, receipt = batch.plan, batch.receipt()
        runs = {r.id: int(receipt.evidence[r.id].options["runs"]) for r in plan.regions}
        assert sum(runs.values()) == batch.statistics().steps
        assert set(runs) == {f"{kind}_{n}" for kind in ("decode", "sample") for n in (1, 8, 16)}
        assert any("paged_attention" in n.op for n in plan.nodes)
        own = {d.question for d in alone.plan.decisions if not d.question.startswith("kernel")}
        assert {d.question for d in plan.decisions} >= own >= {"engine", "precision", "program", "weights"}
        ran = [e for name, e in receipt.evidence.items() if runs[name]]
        assert all(row.time_us for e in ran for row in e.rows)
        assert 2 <= len(ran) < len(runs)


# ── programs ──


def test_a_second_start_compiles_nothing(model: Any, tmp_path: Path) -> None:
    words = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    answers, found = [], []
    for _ in range(2):
        with BatchGenerator(model, **SIZES, cache_dir=tmp_path) as batch:
            assert not any(e.entry.name.startswith("sample") for e in batch.steps.executors)
            answers.append(batch.submit(prompt(9), **words).result().tokens)
            assert {e.entry.name.partition("_")[0] for e in batch.steps.executors} == {"decode", "sample"}
            found.append([o.from_store for o in batch.programs.opened.values()])
    assert answers[0] == answers[1]
    assert found == [[False, False], [True, True]]
    with BatchGenerator(model, **{**SIZES, "cache_tokens": 112}, cache_dir=tmp_path) as other:
        assert not any(o.from_store for o in other.programs.opened.values())


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_of_fewer_bits_keep_the_bits_of_answers(weights: str) -> None:
    model = reference("llama", tie_word_embeddings=False, hidden_size=192, intermediate_size=256)
    policy = {"version": 1, "kernel": {"weights": weights, "batch_invariant": True}}
    words, texts = {"max_new_tokens": 8, "logprobs": 97}, prompts(16)
    with BatchGenerator(model, texts=16, capacity=64, block_size=8, policy=policy, device=DEVICE) as batch:
        kernels = {c.kernel for e in batch.steps.executors for c in e.plan.calls}
        assert f"matmul/{weights}_weights" in kernels
        alone = [bits(batch.submit(t, **words).result()) for t in texts]
        assert [bits(a) for a in batch.generate(texts, **words)] == alone
