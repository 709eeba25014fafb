"""The words of a generation: what transformers means by them, what is refused, and that a text depends on its own seed alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from xpuruntime.errors import InputError, PrecisionUnavailable, RunError
from xpuruntime.llm import Generator, Sampling
from xpuruntime.llm.decoding.processors import initial_counts, process
from xpuruntime.llm.decoding.stops import StopStrings
from xpuruntime.llm.decoding.words import IGNORED, NEUTRAL, WORDS, read_words
from xpuruntime.llm.sampling import kept_tokens, pick
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

from .test_texts import save_tokenizer

VOCAB = 211
STOP = 5


def options(config: Any = None, **words: Any) -> Any:
    return read_words(words, config, {}, (STOP,), VOCAB)


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("qwen2", eos_token_id=STOP, pad_token_id=STOP)


@pytest.fixture(scope="module")
def ours(model: Any) -> Iterator[Generator]:
    with Generator(model, capacity=96, buckets=(16,), batch=4) as generator:
        yield generator


def theirs(model: Any, tokens: list[int], **words: Any) -> list[list[int]]:
    """The answers of transformers, without what follows a stop token."""
    inputs = torch.tensor([tokens])
    with torch.no_grad():
        rows = model.generate(inputs, attention_mask=torch.ones_like(inputs), **words)[
            :, len(tokens) :
        ].tolist()
    return [r[: r.index(STOP)] if STOP in r else r for r in rows]


# ── processors ──


CASES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 17},
    {"temperature": 0.8, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 2.5, "min_p": 0.2},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.5, "repetition_penalty": 1.4},
    {"temperature": 1.0, "top_k": 30, "repetition_penalty": 0.7, "no_repeat_ngram_size": 2},
    {"temperature": 1.0, "no_repeat_ngram_size": 1, "top_p": 0.9},
    {"temperature": 1.0, "no_repeat_ngram_size": 30},
    {"temperature": 1.0, "bad_words_ids": [[7], [3, 9], [STOP], [11, 2, 4]], "top_p": 0.95},
    {"temperature": 1.0, "min_new_tokens": 9, "suppress_tokens": [1, 2, 3]},
    {"temperature": 1.0, "min_length": 30, "top_k": 0},
]


@pytest.mark.parametrize("words", CASES, ids=lambda w: "-".join(w))
def test_logits_are_those_of_transformers(words: dict[str, Any]) -> None:
    """The same processors in the same order: the same tokens are kept, and their logits are equal."""
    rng = np.random.default_rng(len(json.dumps(words)))
    config = transformers.GenerationConfig(
        do_sample=True, eos_token_id=STOP, pad_token_id=0, **{"top_k": 0, **words}
    )
    config._eos_token_tensor = torch.tensor([STOP])
    shell = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=VOCAB)
    )
    text = [*rng.integers(0, VOCAB, 12).tolist(), 3]
    answer = [*rng.integers(0, VOCAB, 6).tolist(), 3, 9, 3, 9, 11, 2]  # ends with the beginning of a bad word
    processors = shell._get_logits_processor(
        config, input_ids_seq_length=len(text), encoder_input_ids=None, device="cpu"
    )
    ours = options(**words)
    for scale in (0.5, 2.0, 6.0):
        logits = (rng.standard_normal(VOCAB) * scale).astype(np.float32)
        want = processors(torch.tensor([text + answer]), torch.from_numpy(logits[None].copy()))[0].numpy()
        counts = initial_counts(ours, text, VOCAB) if ours.counts else None
        if counts is not None:
            np.add.at(counts, answer, 2)
        got = process(logits, ours, text, answer, counts)
        kept = kept_tokens(
            got, Sampling(*(getattr(ours.sampling, f) for f in ("temperature", "top_k", "top_p", "min_p")))
        )
        assert kept.tolist() == np.flatnonzero(np.isfinite(want)).tolist()
        np.testing.assert_allclose((got / np.float32(words["temperature"]))[kept], want[kept], rtol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
        {"min_new_tokens": 25},
        {"bad_words_ids": [[3], [8, 8], [90, 17, 55]], "suppress_tokens": [40, 41]},
        {"max_length": 19},
    ],
)
def test_greedy_texts_are_those_of_transformers(model: Any, ours: Generator, words: dict[str, Any]) -> None:
    for seed in (3, 4):
        tokens = prompt(9, seed=seed)
        limit = {} if "max_length" in words else {"max_new_tokens": 40}
        (want,) = theirs(model, tokens, do_sample=False, **limit, **words)
        assert list(ours.generate(tokens, **limit, **words).tokens) == want


BEAMS: list[dict[str, Any]] = [
    {"num_beams": 4},
    {"num_beams": 3, "length_penalty": 0.0},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 3},
    {"num_beams": 2, "early_stopping": "never", "length_penalty": -1.0},
    {"num_beams": 4, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "bad_words_ids": [[8], [3, 4]], "min_new_tokens": 4},
]


@pytest.mark.parametrize("words", BEAMS, ids=str)
def test_beams_are_those_of_transformers(model: Any, ours: Generator, words: dict[str, Any]) -> None:
    for seed in (1, 2):
        tokens = prompt(9, seed=seed)
        want = theirs(model, tokens, do_sample=False, max_new_tokens=20, **words)
        answers = ours.generate([tokens], max_new_tokens=20, **words)
        assert [list(a.tokens) for a in answers] == want
        scores = [a.score for a in answers if a.score is not None]
        assert len(scores) == len(want)
        assert scores == sorted(scores, reverse=True)


def test_beams_that_cannot_be_searched_are_refused(ours: Generator) -> None:
    for words, message in (
        ({"num_beams": 5}, "decodes 4 texts together, fewer than num_beams"),
        (
            {"num_beams": 2, "temperature": 1.0},
            r"does not support sampling \(do_sample or a temperature\) with num_beams",
        ),
        ({"num_beams": 2, "logprobs": 1}, "does not support logprobs with num_beams"),
        ({"num_beams": 2, "n": 3}, "needs num_beams of at least num_return_sequences"),
        ({"n": 2}, "would return equal answers"),
    ):
        with pytest.raises(InputError, match=message):
            ours.generate([1, 2], **words)
    with pytest.raises(InputError, match="supports one answer without beam search"):
        ours.stream([1, 2], num_beams=2)


# ── where words come from ──


def test_every_word_of_transformers_is_known() -> None:
    words = set(transformers.GenerationConfig().to_dict())
    assert words <= {*WORDS, *NEUTRAL, *IGNORED}, words - {*WORDS, *NEUTRAL, *IGNORED}
    assert not set(WORDS) & {*NEUTRAL, *IGNORED}
    assert options(transformers.GenerationConfig()) == options()


def test_configs_are_read_and_arguments_precede(tmp_path: Path) -> None:
    words = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "max_new_tokens": 7,
        "transformers_version": "5",
    }
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(words))
    config = transformers.GenerationConfig(**words)
    of = [options(c) for c in (words, config, file, str(tmp_path))]
    assert of == [of[0]] * 4
    assert of[0].sampling == Sampling(0.6, 50, 0.9)  # transformers' top_k
    assert read_words({}, True, words, (), VOCAB).sampling == of[0].sampling
    assert options(words, top_k=0, temperature=0.5).sampling == Sampling(0.5, 0, 0.9)
    assert options(words, temperature=0).sampling.greedy
    assert options(words, do_sample=False).sampling.greedy
    assert options({"temperature": 0.6}).sampling.greedy  # a config samples if it says so
    assert options(do_sample=True).sampling == Sampling(1.0)
    assert options(words).limit(3) == 7
    assert options().limit(3) == 128
    with pytest.raises(InputError, match="has a prompt of 9 tokens and a max_length of 9"):
        options(max_length=9).limit(9)


def test_a_checkpoint_s_own_config_is_used_where_it_is_asked_for(tmp_path: Path) -> None:
    saved = reference("qwen2", eos_token_id=STOP)
    saved.generation_config.do_sample = True
    saved.generation_config.temperature = 1.7
    saved.generation_config.top_k = 60
    saved.save_pretrained(tmp_path)
    for source in (tmp_path, saved):
        with Generator(source, capacity=48, buckets=(16,)) as generator:
            plain, own = (
                generator.generate(prompt(5), seed=3, max_new_tokens=12, generation_config=c).tokens
                for c in (None, True)
            )
            assert plain == generator.generate(prompt(5), max_new_tokens=12).tokens
            assert (
                own
                == generator.generate(prompt(5), seed=3, max_new_tokens=12, temperature=1.7, top_k=60).tokens
            )
            assert own != plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"temprature": 1.0}, "has an unknown argument; got temprature.*Did you mean temperature"),
        ({"zzz": 1}, "has an unknown argument; got zzz.*The words are max_new_tokens"),
        ({"typical_p": 0.9}, "does not support typical_p; got 0.9"),
        (
            {"forced_eos_token_id": VOCAB},
            "has forced_eos_token_id beyond the vocabulary of 211 tokens; got 211",
        ),
        ({"forced_bos_token_id": []}, "has an invalid forced_bos_token_id"),
        ({"begin_suppress_tokens": [1, VOCAB]}, "has begin_suppress_tokens beyond the vocabulary"),
        ({"language": 5}, "has an invalid language; got 5"),
        ({"return_timestamps": "word"}, "invalid return_timestamps; got 'word'"),
        ({"watermarking_config": 2}, "does not support watermarking_config; got 2"),
        ({"temperature": -1}, "has an invalid temperature; got -1"),
        ({"temperature": math.nan}, "has an invalid temperature"),
        ({"temperature": "warm"}, "has an invalid temperature; got 'warm'"),
        ({"top_k": -1}, "has an invalid top_k"),
        ({"top_k": 1.5}, "has an invalid top_k"),
        ({"top_k": "5"}, "has an invalid top_k; got '5'"),
        ({"top_k": [5]}, "has an invalid top_k"),
        ({"temperature": 1e-40}, "has an invalid temperature.*Give 0 for the most likely token"),
        ({"temperature": 1e300}, "has an invalid temperature"),
        ({"length_penalty": 1e6}, "has an invalid length_penalty.*from -8 to 8"),
        ({"max_new_tokens": math.nan}, "has an invalid max_new_tokens"),
        ({"max_new_tokens": math.inf}, "has an invalid max_new_tokens"),
        ({"seed": math.inf}, "has an invalid seed"),
        ({"eos_token_id": math.nan}, "has an invalid eos_token_id"),
        ({"top_p": 0}, "has an invalid top_p"),
        ({"top_p": 1.1}, "has an invalid top_p"),
        ({"min_p": 2}, "has an invalid min_p"),
        ({"repetition_penalty": 0}, "has an invalid repetition_penalty"),
        ({"presence_penalty": math.inf}, "has an invalid presence_penalty"),
        ({"frequency_penalty": None, "max_new_tokens": 0}, "needs max_new_tokens of at least 1; got 0"),
        ({"max_new_tokens": "7"}, "has an invalid max_new_tokens"),
        ({"seed": -1}, "has an invalid seed"),
        ({"seed": []}, "has an invalid seed"),
        ({"do_sample": 1}, "has an invalid do_sample"),
        ({"stop_strings": [""]}, "has an invalid stop_strings"),
        ({"bad_words_ids": [[]]}, "has an invalid bad_words_ids"),
        ({"bad_words_ids": [[VOCAB]]}, f"has bad_words_ids beyond the vocabulary of {VOCAB} tokens"),
        ({"early_stopping": "sometimes"}, "has an invalid early_stopping"),
        ({"logprobs": -1}, "needs logprobs of at least 0"),
        ({"logprobs": 5000}, "needs logprobs of at most 1024; got 5000"),
        ({"regex": "a", "json_schema": {}}, "takes one grammar; got json_schema and regex"),
        ({"json_schema": {1, 2}}, "has an invalid json_schema"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        options(**words)


def test_configs_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has an unknown word of the generation config; got top_q"):
        options({"top_q": 1})
    with pytest.raises(InputError, match="cannot read the generation config"):
        options(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="has an invalid generation_config"):
        options(tmp_path / "list.json")
    with pytest.raises(InputError, match="has an invalid generation_config; got int"):
        options(7)
    assert options({w: n for w, values in NEUTRAL.items() for n in values}) == options({})


# ── seeds and several answers ──


def test_a_text_depends_on_its_seed_and_on_no_other_text(ours: Generator) -> None:
    prompts, words = [prompt(n, seed=n) for n in (4, 11, 7)], {"temperature": 1.5, "max_new_tokens": 12}
    together = ours.generate(prompts, seed=[1, 2, 3], **words)
    alone = [ours.generate(p, seed=s, **words) for p, s in zip(prompts, (1, 2, 3), strict=True)]
    assert together == alone
    assert ours.generate(prompts[::-1], seed=[3, 2, 1], **words) == alone[::-1]
    assert ours.generate(prompts[0], seed=2, **words) != alone[0]
    with pytest.raises(InputError, match="has 2 seeds for 3 prompts"):
        ours.generate(prompts, seed=[1, 2], **words)
    drawn = {ours.generate(prompts[0], **words).tokens for _ in range(3)}
    assert len(drawn) == 3  # without a seed each answer is another one


def test_n_answers_are_different_and_repeat(ours: Generator) -> None:
    words = {"temperature": 1.5, "max_new_tokens": 10, "seed": 4}
    five = ours.generate(prompt(6), n=5, **words)
    assert isinstance(five, list)
    assert len({a.tokens for a in five}) == 5
    assert five[0] == ours.generate(prompt(6), **words)
    assert ours.generate([prompt(3), prompt(6)], num_return_sequences=5, **words)[5:] == five


def test_logprobs_are_those_of_the_model(model: Any, ours: Generator) -> None:
    tokens = prompt(8)
    done = ours.generate(tokens, max_new_tokens=6, temperature=2.0, seed=1, logprobs=3, eos_token_id=[])
    with torch.no_grad():
        logits = model(torch.tensor([[*tokens, *done.tokens]])).logits[0, len(tokens) - 1 : -1]
    want = torch.log_softmax(logits.double(), -1).numpy()
    assert len(done.logprobs) == 6
    for row, found, token in zip(want, done.logprobs, done.tokens, strict=True):
        assert found.token == token
        assert found.logprob == pytest.approx(row[token], abs=2e-4)
        assert [t for t, _ in found.top] == np.argsort(-row)[:3].tolist()
        assert [p for _, p in found.top] == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=2e-4)
    piece = next(ours.stream(tokens, logprobs=0))
    assert piece.logprob is not None
    assert (piece.logprob.token, piece.logprob.top) == (piece.token, ())
    assert next(ours.stream(tokens)).logprob is None


def test_presence_and_frequency_count_the_answer_alone() -> None:
    ours = options(presence_penalty=0.5, frequency_penalty=0.25, temperature=1)
    counts = initial_counts(ours, [1, 1, 2], VOCAB)
    np.add.at(counts, [2, 3, 3, 3], 2)
    x = process(np.zeros(VOCAB, np.float32), ours, [1, 1, 2], [2, 3, 3, 3], counts)
    assert x[:5].tolist() == [0, 0, -0.75, -1.25, 0]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    from xpuruntime.llm.decoding.answer import checked_token

    for bad in (np.nan, -np.inf):
        x = np.full(7, bad, np.float32)
        for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.5)):
            with pytest.raises(RunError, match="has no token: logits are NaN"):
                checked_token(pick(x, sampling, 1, 0))


@pytest.mark.parametrize(
    "words", [{}, {"temperature": 1.0}, {"num_beams": 2}, {"repetition_penalty": 1.2}], ids=str
)
def test_a_model_without_numbers_is_an_error(broken: Generator, words: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="has no token: logits are NaN"):
        broken.generate([1, 2], max_new_tokens=3, **words)


@pytest.fixture(scope="module")
def broken() -> Iterator[Generator]:
    """A model with one weight of the output layer that is not a number."""
    model = reference("qwen2", num_hidden_layers=1)
    with torch.no_grad():
        model.lm_head.weight[40, 3] = math.nan
    with Generator(model, capacity=24, buckets=(8,), batch=2) as generator:
        yield generator


def test_words_that_leave_no_answer_are_an_error(ours: Generator) -> None:
    vocab = ours.config.vocab
    for words in (
        {"suppress_tokens": range(vocab)},
        {"suppress_tokens": range(vocab), "num_beams": 2},
        {"suppress_tokens": range(1, vocab), "num_beams": 2, "no_repeat_ngram_size": 1, "max_new_tokens": 2},
    ):
        with pytest.raises(RunError, match="suppressed tokens, minimum lengths and grammars leave a token"):
            ours.generate([1, 2], **words)


# ── prompts ──


def test_tokens_of_any_library_are_a_prompt(ours: Generator) -> None:
    tokens = prompt(6)
    want = ours.generate(tokens, max_new_tokens=4)
    for form in (tuple(tokens), np.array(tokens), torch.tensor(tokens), list(torch.tensor(tokens))):
        assert ours.generate(form, max_new_tokens=4) == want
    for form in (np.array(tokens), torch.tensor(tokens)):
        assert ours.generate([form], max_new_tokens=4) == [want]


@pytest.mark.parametrize(
    "form", [None, 3, [1.5], [None], [[1], 3], {"role": "user"}, np.array([[1, 2]])], ids=repr
)
def test_a_prompt_of_another_kind_is_refused(ours: Generator, form: Any) -> None:
    with pytest.raises(InputError, match="has an invalid prompt"):
        ours.generate(form)
    with pytest.raises(InputError, match="has an invalid prompt"):
        ours.stream(form)


def test_a_dtype_that_no_model_computes_in_is_refused(model: Any) -> None:
    for dtype in ("nope", "int8"):
        with pytest.raises(PrecisionUnavailable, match=f"has an unsupported dtype; got {dtype}"):
            Generator(model, dtype=dtype)


# ── sampling on the device ──


ON_DEVICE: list[dict[str, Any]] = [
    {"temperature": 1.4},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9},
    {"temperature": 2.0, "min_p": 0.1, "repetition_penalty": 1.3},
    {"temperature": 1.0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "bad_words_ids": [[1], [2]]},
    {"repetition_penalty": 1.4},
]


@pytest.mark.parametrize("words", ON_DEVICE, ids=str)
def test_the_device_selects_what_the_host_selects(ours: Generator, words: dict[str, Any]) -> None:
    """``logprobs`` brings the logits to the host, which then selects. Otherwise the program does, and no logits leave it."""
    prompts = [prompt(n, seed=n) for n in (3, 14, 8)]
    before = ours.decode.counters["runs"]
    device = ours.generate(prompts, max_new_tokens=24, seed=[5, 6, 7], **words)
    assert ours.decode.counters["runs"] == before
    host = ours.generate(prompts, max_new_tokens=24, seed=[5, 6, 7], logprobs=0, **words)
    assert ours.decode.counters["runs"] > before
    assert [a.tokens for a in device] == [a.tokens for a in host]
    again = ours.generate(
        prompts, max_new_tokens=24, seed=[5, 6, 7], **words
    )  # counts are those of the new texts
    assert again == device
    assert ours.generate(prompts[1], max_new_tokens=24, seed=6, **words) == device[1]


def test_a_top_k_above_the_vocabulary_keeps_all(ours: Generator) -> None:
    words = {"temperature": 1.5, "seed": 3, "max_new_tokens": 8}
    want = ours.generate(prompt(5), **words)
    for top_k in (ours.config.vocab, 2**40, 2**70):
        assert ours.generate(prompt(5), top_k=top_k, **words) == want


def test_a_sampled_token_allocates_and_copies_nothing(ours: Generator) -> None:
    words = {
        "temperature": 1.0,
        "top_k": 9,
        "top_p": 0.9,
        "seed": 1,
        "repetition_penalty": 1.1,
        "eos_token_id": [],
    }
    ours.generate(prompt(5), max_new_tokens=4, **words)
    sample = ours.steps.executors[-1]
    assert sample.entry.name == "sample"
    assert [s.name for s in sample.entry.outputs] == ["token"]
    before = sample.counters
    ours.generate(prompt(5), max_new_tokens=32, **words)
    spent = {k: v - before[k] for k, v in sample.counters.items()}
    assert spent["runs"] == 31  # the first token comes from the prefill
    assert (spent["allocations"], spent["copies"], spent["prepared"]) == (0, 0, 0)
    assert len(sample.plan.calls) == len(ours.decode.plan.calls)


def test_cuda_code_samples_as_the_host() -> None:
    """Emulated on the CPU: a decoder whose step ends with the three launches of sampling."""
    from xpuruntime.llm import open_checkpoint
    from xpuruntime.llm.build import build_program, decoder_graphs
    from xpuruntime.llm.steps import Steps
    from xpuruntime.runtime import load_weights
    from xpuruntime.testing.emulation.cuda_host import cuda_host

    found = open_checkpoint(reference("llama", num_hidden_layers=1))
    graphs = decoder_graphs(found.config, capacity=48, batch=2, buckets=(16,), sampling=True)
    program = build_program(graphs, target=cuda_host())
    calls = {e.name: e.plans[0].calls for e in program.entries}
    assert (
        len(calls["sample"]) == len(calls["decode"]) + 2
    )  # three launches instead of one: counts are updated in place
    weights = load_weights(found.arrays, program, "cpu")
    steps = Steps(program, weights, batch=2, vocab=97, dtype=found.config.dtype)
    sampling = Sampling(1.3, 30, 0.9, 0.01, 1.2)
    texts, counts = [prompt(7), prompt(12, seed=1)], np.zeros((2, 97), np.int32)
    for row, text in zip(counts, texts, strict=True):
        row[text] = 1
    steps.write_counts(list(counts))
    steps.read(texts)
    tokens, positions = [t[-1] for t in texts], [len(t) - 1 for t in texts]
    for step in range(5):
        numbers = [(seed, step, 0, 30, 1) for seed in (3, 4)]
        drawn = steps.sample(tokens, positions, [sampling.settings] * 2, numbers).tolist()
        logits = steps.step(tokens, positions).copy()
        x = [sampling.processed(r, c) for r, c in zip(logits, counts, strict=True)]
        assert drawn == [pick(r, sampling, seed, step) for r, seed in zip(x, (3, 4), strict=True)]
        counts[[0, 1], drawn] += 2
        tokens, positions = drawn, [p + 1 for p in positions]
    steps.close()


# ── texts that end ──


@settings(max_examples=200, deadline=None)
@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.randoms(),
)
def test_a_stop_string_is_found_however_the_text_is_cut(text: str, strings: list[str], random: Any) -> None:
    stops, shown, at = StopStrings(strings), "", 0
    while at < len(text) and not stops.stopped:
        size = random.randint(1, 5)
        shown += stops.add(text[at : at + size])
        at += size
    shown += stops.end()
    ends = [i + len(s) for s in strings for i in [text.find(s)] if i >= 0]
    assert stops.stopped is bool(ends)
    if not ends:
        assert shown == text
    else:
        read = text[: min(at, len(text))]
        assert shown == read[: min(i for s in strings for i in [read.find(s)] if i >= 0)]


def test_stop_strings_end_a_text_before_them(tmp_path: Path) -> None:
    reference("qwen2", vocab_size=260).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    words = {"max_new_tokens": 40, "temperature": 1.5, "seed": 2}
    with Generator(tmp_path, capacity=96, buckets=(16,), batch=2) as generator:
        whole = generator.generate("hello", **words)
        at = next(i for i in range(6, len(whole.text) - 2) if whole.text[i : i + 2].isascii())
        stop = whole.text[at : at + 2]
        cut = generator.generate("hello", stop_strings=[stop, "never there"], **words)
        assert cut.text == whole.text[: whole.text.find(stop)]
        assert cut.finish == "stop"
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
        assert len(cut.tokens) < 40
        streamed = "".join(p.text for p in generator.stream("hello", stop_strings=stop, **words))
        assert streamed == cut.text
        rest = generator.generate("hello", stop_strings=whole.text[-1] + "x", **words)
        assert rest.text == whole.text  # what was held back is shown at the end


def test_stop_strings_need_a_tokenizer(ours: Generator) -> None:
    with pytest.raises(InputError, match="has no tokenizer, which stop_strings need"):
        ours.generate([1], stop_strings="x")
