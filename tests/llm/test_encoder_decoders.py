"""Every encoder-decoder of the table against transformers: the same output of the encoder, the same logits in prefill and for 64 given tokens,
the same texts, also with beams; and parts that are left out are noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.changed_fields import another
from support.device_under_test import device_name
from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.errors import BuildError, InputError, ModelError
from xpuruntime.ir import interp
from xpuruntime.llm import DecoderConfig, Generator, calibrated, decoder_graph, open_checkpoint
from xpuruntime.llm.build import build_program, decoder_graphs, with_source
from xpuruntime.llm.decoding.sources import first_tokens
from xpuruntime.llm.decoding.texts import options_of
from xpuruntime.llm.decoding.words import read_words
from xpuruntime.llm.encoder import encoder_graph
from xpuruntime.llm.families import FAMILIES
from xpuruntime.llm.families.biases import DistanceBuckets
from xpuruntime.llm.steps import Steps
from xpuruntime.runtime import load_weights
from xpuruntime.testing.conformance.seeded.decoders import prompt
from xpuruntime.testing.conformance.seeded.decoders import reference as decoder_reference
from xpuruntime.testing.conformance.seeded.encoder_decoders import FAMILIES as REFERENCES
from xpuruntime.testing.conformance.seeded.encoder_decoders import (
    encoded_by,
    features,
    greedy,
    logits_of,
    reference,
)
from xpuruntime.testing.emulation.cuda_host import cuda_host

LIMIT = 1e-4
LENGTH, SOURCE, CAPACITY = 24, 30, 32
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in REFERENCES},
    "t5, a gate of tanh": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "t5, a gate of silu, outputs that are not scaled": ("t5", {"feed_forward_proj": "gated-silu", "scale_decoder_outputs": False}),
    "t5, a gate that its kind does not say": ("t5", {"is_gated_act": True, "dense_act_fn": "silu"}),
    "t5, few buckets": ("t5", {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 11, "num_decoder_layers": None}),
    "mt5, no gate": ("mt5", {"feed_forward_proj": "gelu", "num_heads": 4, "d_kv": 10}),
    "bart, scaled embeddings, relu": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "mbart, embeddings that are not scaled": ("mbart", {"scale_embedding": False}),
    "pegasus, sides of other sizes": ("pegasus", {"encoder_ffn_dim": 40, "decoder_attention_heads": 12, "encoder_layers": 1}),
    "whisper, twelve features": ("whisper", {"num_mel_bins": 12, "activation_function": "relu", "encoder_attention_heads": 3}),
}  # fmt: skip


def far(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|d| / max|ref|"""
    return float(abs(ours.astype(np.float64) - theirs).max() / abs(theirs).max())


def source_of(model: Any, length: int = SOURCE, seed: int = 1) -> Any:
    return features(model, seed) if model.config.model_type == "whisper" else prompt(length, seed)


def opened(source: Any, **options: Any) -> Generator:
    checkpoint = open_checkpoint(source)
    encoder = checkpoint.config.encoder
    assert encoder is not None
    size = {} if encoder.features else {"source_capacity": 48}
    return Generator(checkpoint, buckets=(16,), device=device_name(), **size, **options)


def interpreted(
    config: DecoderConfig, arrays: dict[str, Any], source: Any, tokens: list[int], padding: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """The encoder's output, and logits of every row, by the reference interpreter. The encoder's tokens are followed by padding."""
    encoder = config.encoder
    assert encoder is not None
    if encoder.features:
        feeds, rows = {"features": source[None]}, encoder.max_positions
    else:
        feeds, rows = {"tokens": np.array([[*source, *[7] * padding]])}, len(source)
    feeds |= {"source_lengths": np.array([rows]), "row": np.array([0])}
    length = encoder.max_positions if encoder.features else rows + padding
    graph = encoder_graph(config, length=length)
    states: dict[str, Any] = {}
    encoded = interp.run(graph, feeds, weights=arrays, states=states)["encoded"][0, :rows]
    n = len(tokens)
    graph = decoder_graph(config, length=n, capacity=32, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(n)[None], "last": np.array([n - 1]), "source_lengths": np.array([rows])}  # fmt: skip
    return encoded, np.asarray(interp.run(graph, feeds, weights=arrays, states=states)["logits"])


def short(config: DecoderConfig) -> DecoderConfig:
    """Return the config for sources of 32 tokens."""
    assert config.encoder is not None
    return config if config.encoder.features else replace(config, encoder=replace(config.encoder, max_positions=CAPACITY))  # fmt: skip


def fitting(config: DecoderConfig, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a config; a shorter table of positions has the first rows."""
    return {n: arrays[n][tuple(slice(d) for d in s)] for n, s in config.shapes().items()}


@cache
def checked(name: str) -> tuple[DecoderConfig, dict[str, Any], Any, list[int], np.ndarray, np.ndarray]:
    family, changes = VARIANTS[name]
    model = reference(family, **changes)
    found, tokens, source = open_checkpoint(model), prompt(LENGTH, seed=3), source_of(model)
    want = encoded_by(model, source), logits_of(model, source, tokens)
    return short(found.config), dict(found.arrays), source, tokens, *want


def test_every_encoder_decoder_has_a_reference() -> None:
    assert {*REFERENCES} == {name for name, row in FAMILIES.items() if row.encoder is not None}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_graphs_are_the_model(name: str) -> None:
    config, arrays, source, tokens, encoded, want = checked(name)
    ours, logits = interpreted(config, fitting(config, arrays), source, tokens)
    assert far(ours, encoded) < 1e-5
    assert far(logits, want) < 2e-5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", REFERENCES)
def test_a_folder_encodes_prefills_and_decodes_as_transformers(family: str, tmp_path: Path) -> None:
    model, tokens = reference(family), prompt(90, seed=3)
    model.save_pretrained(tmp_path)
    source = source_of(model)
    with opened(tmp_path, capacity=96) as ours:
        assert far(ours.encode(source), encoded_by(model, source)) < LIMIT
        rows = [ours.read(tokens[:21])[0].copy()]
        rows += [ours.step(t, 21 + i)[0].copy() for i, t in enumerate(tokens[21:])]
        assert far(np.stack(rows), logits_of(model, source, tokens)[20:]) < LIMIT
        for words in ({}, {"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.7}):
            text = greedy(model, source, 40, **words)
            assert list(ours.generate(source, max_new_tokens=40, **words).tokens) == text
        assert len(set(text)) > 3, "a text that hides nothing"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import numpy as np
from xpuruntime.llm import Generator
source, tokens = np.load(sys.argv[2]), np.load(sys.argv[3]).tolist()
with Generator(sys.argv[1], capacity=48, buckets=(16,)) as model:
    encoded = model.encode(source if source.ndim == 2 else source.tolist())
    np.savez(sys.argv[4], encoded=encoded, logits=model.read(tokens))
"""


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("family", REFERENCES)
def test_a_folder_needs_neither_torch_nor_transformers(family: str, tmp_path: Path) -> None:
    model, tokens = reference(family), prompt(LENGTH, seed=3)
    source = source_of(model)
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "source.npy", source)
    np.save(tmp_path / "tokens.npy", tokens)
    words = [str(tmp_path / n) for n in ("model", "source.npy", "tokens.npy", "results.npz")]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], check=True, timeout=240)
    results = np.load(tmp_path / "results.npz")
    assert far(results["encoded"], encoded_by(model, source)) < LIMIT
    assert far(results["logits"][0], logits_of(model, source, tokens)[-1]) < LIMIT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", REFERENCES)
def test_cuda_code_encodes_prefills_and_decodes_as_transformers(family: str) -> None:
    """Emulated on the CPU."""
    config, arrays, source, tokens, encoded, want = checked(family)
    program = build_program(decoder_graphs(config, capacity=48, buckets=(16,)), target=cuda_host())
    weights = load_weights(fitting(config, arrays), program, "cpu")
    steps = Steps(program, weights, batch=1, vocab=97, dtype=config.dtype)
    assert far(steps.encode([source])[0], encoded) < LIMIT
    rows = [steps.read([tokens[:19]])[0].copy()]
    rows += [steps.step([t], [19 + i])[0].copy() for i, t in enumerate(tokens[19:])]
    steps.close()
    assert far(np.stack(rows), want[18:]) < LIMIT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", REFERENCES)
def test_texts_of_a_batch_are_those_that_each_source_gets_alone(family: str) -> None:
    """Sources differ in length, and more are given than a batch has."""
    model = reference(family)
    sources = [source_of(model, n, seed) for seed, n in enumerate((30, 5, 17, 1, 40))]
    words: dict[str, Any] = {"no_repeat_ngram_size": 2}
    with opened(model, capacity=48, batch=3) as ours:
        answers = ours.generate(sources, max_new_tokens=20, **words)
    assert [list(a.tokens) for a in answers] == [greedy(model, s, 20, **words) for s in sources]
    rows = 32 if family == "whisper" else None
    assert [a.prompt_tokens for a in answers] == [rows or len(s) for s in sources]


SUMMARY: dict[str, Any] = {
    "num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3, "min_length": 6, "max_length": 24,
    "forced_bos_token_id": 9, "forced_eos_token_id": 11, "eos_token_id": 11,
}  # fmt: skip
"""The words of BART's models of summaries, with smaller numbers."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", REFERENCES)
def test_beams_find_the_answers_of_transformers(family: str, tmp_path: Path) -> None:
    model = reference(family)
    for word, value in SUMMARY.items():
        setattr(model.generation_config, word, value)
    model.save_pretrained(tmp_path)
    sources = [source_of(model), source_of(model, 12, seed=5)]
    with opened(tmp_path, capacity=48, batch=4) as ours:
        answers = ours.generate(sources, generation_config=True)
        pairs = ours.generate(sources[0], generation_config=True, n=2, early_stopping=False)
    for answer, source in zip(answers, sources, strict=True):
        want = greedy(model, source, None, **SUMMARY)  # type: ignore[arg-type]
        assert want[0] == 9
        assert 11 in want
        assert list(answer.tokens) == want[: want.index(11)]
    assert len({a.tokens for a in pairs}) == 2


def test_a_source_of_several_answers_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(reference("mbart"), capacity=32, batch=4) as ours:
        rows: list[int] = []
        encode = ours.steps._encoded
        monkeypatch.setattr(ours.steps, "_encoded", lambda s, row: (rows.append(row), encode(s, row))[1])
        sources = [prompt(20, seed=1), prompt(9, seed=2)]
        words: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_new_tokens": 9}
        answers = ours.generate(sources, n=2, **words)
        assert rows == [0, 2]
        ours.generate(sources[0], num_beams=4, max_new_tokens=9)
        assert rows == [0, 2, 0]
        assert [a.tokens for a in answers[::2]] == [ours.generate(s, **words).tokens for s in sources]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        {"forced_bos_token_id": 9, "forced_eos_token_id": 11},
        {"forced_bos_token_id": 9, "begin_suppress_tokens": [53, 39]},
        {"begin_suppress_tokens": [53]},
        {"suppress_tokens": [53, 39, 17], "repetition_penalty": 1.3},
        {"forced_eos_token_id": [13, 12], "repetition_penalty": 1.3},
    ],
)  # fmt: skip
def test_forced_and_suppressed_tokens_are_those_of_transformers(words: dict[str, Any]) -> None:
    """On the host, and on the device where no other word needs the host."""
    model, source = reference("bart"), prompt(SOURCE, seed=1)
    with bart() as ours:
        want = greedy(model, source, 12, **words)
        assert want != greedy(model, source, 12)
        assert list(ours.generate(source, max_new_tokens=12, **words).tokens) == want
        logged = ours.generate(source, max_new_tokens=12, logprobs=1, **words)
        assert list(logged.tokens) == want


def bart() -> Generator:
    return opened(reference("bart"), capacity=32)


def test_a_checkpoint_s_forced_tokens_hold_unless_an_argument_removes_them(tmp_path: Path) -> None:
    model, source = reference("bart"), prompt(SOURCE, seed=1)
    model.generation_config.forced_bos_token_id = 9
    model.generation_config.suppress_tokens = [17]
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "normalize_before": False, "num_hidden_layers": 3})
    )
    with opened(tmp_path, capacity=32) as ours:
        first = ours.generate(source, max_new_tokens=9)
        free = ours.generate(source, max_new_tokens=9, forced_bos_token_id=None, suppress_tokens=None)
    assert list(first.tokens) == greedy(model, source, 9)
    assert first.tokens[0] == 9
    assert 17 not in first.tokens
    assert list(free.tokens) == greedy(reference("bart"), source, 9)
    # Folders of older releases have these words in the config.
    words = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    older = {w: words[w] for w in ("forced_bos_token_id", "suppress_tokens", "decoder_start_token_id")}
    (tmp_path / "config.json").write_text(json.dumps({**config, **older}))
    with opened(tmp_path, capacity=32) as ours:
        assert ours.generate(source, max_new_tokens=9) == first


def test_an_answer_may_begin_with_given_tokens() -> None:
    import torch

    model, source = reference("t5"), prompt(SOURCE, seed=1)
    with opened(model, capacity=48) as ours:
        got = ours.generate(source, decoder_input_ids=[5, 4, 33], max_new_tokens=10).tokens
    start = torch.tensor([[5, 4, 33]])
    out = model.generate(torch.tensor([source]), decoder_input_ids=start, max_new_tokens=10, do_sample=False)
    assert list(got) == out[0, 3:].tolist()


def test_sampled_answers_repeat_by_seed_and_differ_by_source() -> None:
    model = reference("mbart")
    sources = [prompt(20, seed=1), prompt(9, seed=2)]
    with opened(model, capacity=48, batch=2) as ours:
        words: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_new_tokens": 16}
        both = ours.generate(sources, **words)
        assert both == [ours.generate(s, **words) for s in sources]
        assert both[0].tokens != both[1].tokens
        assert tuple(p.token for p in ours.stream(sources[1], **words)) == both[1].tokens


# ── what each part is worth ──

Change = Callable[[DecoderConfig], DecoderConfig]


def encoder(**changes: Any) -> Change:
    return lambda c: replace(c, encoder=replace(c.encoder, **changes))  # type: ignore[type-var]


def without(**parts: Any) -> Change:
    return lambda c: replace(c, row=replace(c.row, **parts))


def without_part(part: str, of: str = "parts") -> Change:
    return lambda c: without(**{of: {k: v for k, v in getattr(c.row, of).items() if k != part}})(c)


def norms_before(config: DecoderConfig) -> DecoderConfig:
    """Move the norms of the decoder after its sums before its blocks."""
    moved = {"attention_sum_norm": "input_norm", "cross_sum_norm": "cross_norm", "mlp_sum_norm": "mlp_norm"}
    return without(parts={moved.get(k, k): v for k, v in config.row.parts.items()})(config)


MUTATIONS: dict[str, tuple[str, Change]] = {
    "the decoder's biases of distances are dropped": ("t5", lambda c: replace(c, buckets=None)),
    "the encoder's biases of distances are dropped": ("t5", encoder(buckets=None)),
    "the last bucket begins elsewhere": ("t5", lambda c: replace(c, buckets=DistanceBuckets(16, 60))),
    "the encoder does not look ahead": ("t5", encoder(buckets=DistanceBuckets(16, 20))),
    "scores are scaled": ("t5", lambda c: replace(c, scale=c.head_dim**-0.5)),
    "outputs are not scaled": ("t5", without(output_scale="")),
    "the decoder does not attend to the encoder": ("bart", without_part("cross_q")),
    "norms before blocks": ("bart", norms_before),
    "embeddings without their norm": ("bart", without_part("embed_norm", "ends")),
    "logits without their bias": ("bart", without_part("logits_bias", "ends")),
    "positions without their offset": ("bart", without(position_offset=0)),
    "embeddings are not scaled": ("mbart", without(embed_scale="")),
    "no last norm": ("pegasus", without_part("final_norm", "ends")),
    "another activation": ("marian", lambda c: replace(c, activation="gelu")),
    "another activation of the encoder": ("whisper", encoder(activation="relu")),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_left_out_is_noticed(name: str) -> None:
    family, change = MUTATIONS[name]
    config, arrays, source, tokens, _, want = checked(family)
    changed = change(config)
    _, logits = interpreted(changed, fitting(changed, arrays), source, tokens)
    assert far(logits, want) > 10 * LIMIT


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_padding_that_is_not_masked_is_noticed(family: str) -> None:
    """Both the encoder and the decoder would read it."""
    config, arrays, source, tokens, encoded, want = checked(family)
    ours, logits = interpreted(config, fitting(config, arrays), [*source, 7, 7], tokens, padding=0)
    assert far(ours[:SOURCE], encoded) > 10 * LIMIT
    assert far(logits, want) > 10 * LIMIT


# ── distances ──


@pytest.mark.parametrize("count", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("longest", [40, 77, 128, 1000])
@pytest.mark.parametrize("both", [False, True])
def test_buckets_are_those_of_transformers(count: int, longest: int, both: bool) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-longest, longest + 1 if both else 1)
    want = T5Attention._relative_position_bucket(distances, both, count, longest)
    assert (DistanceBuckets(count, longest, both).of_distances() == want.numpy()).all()


# ── the command line ──


def saved_text_model(folder: Path, **sizes: Any) -> Any:
    """Save a T5 with a tokenizer of letters, and return it."""
    import tokenizers

    alphabet = ["<pad>", "</s>", "<unk>", *map(chr, range(97, 123)), " ", ":", "."]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [], unk_token="<unk>")
    )
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    made.decoder = tokenizers.decoders.Fuse()
    model = reference(
        "t5", vocab_size=len(alphabet), decoder_start_token_id=0, feed_forward_proj="gated-gelu", **sizes
    )
    model.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return model


def test_the_command_line_answers_with_an_encoder_decoder(tmp_path: Path) -> None:
    model = saved_text_model(tmp_path)
    told = ["generate", str(tmp_path), "-n", "12", "--capacity", "32", "--source-capacity", "40", "--json"]
    text = "summarize: a sea."
    with Generator(tmp_path, capacity=32, source_capacity=40) as ours:
        tokens = ours.tokens(text)
        assert tokens[-1] == 1
    for words in ({}, {"num_beams": 3}):
        options = [f"--{k.replace('_', '-')}={v}" for k, v in words.items()]
        run = CliRunner().invoke(app, [*told, "-p", text, *options])
        assert run.exit_code == 0, run.output
        document = json.loads(run.stdout)
        assert document["tokens"] == greedy(model, tokens, 12, **words)
        assert document["text"]
        assert document["prompt_tokens"] == len(tokens)
    run = CliRunner().invoke(app, [*told, "-p", text * 5])
    assert "Shorten the prompt, or give source_capacity=86 or more." in json.loads(run.stdout)["do"]


# ── errors, and fields of configs ──


def test_sizes_and_words_that_do_not_fit_are_refused() -> None:
    config = open_checkpoint(reference("bart")).config
    with pytest.raises(BuildError, match=r"source_capacity that is out of range; got 129\. Give 1 to 128"):
        with_source(config, 129, "model")
    with pytest.raises(BuildError, match="has no encoder"):
        with_source(replace(config, encoder=None), 5, "model")
    with pytest.raises(BuildError, match="invalid source_capacity"):
        with_source(config, 2.5, "model")  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="encodes audio of one length"):
        with_source(open_checkpoint(reference("whisper")).config, 5, "model")
    with bart() as ours:
        with pytest.raises(
            InputError, match=r"has a source_capacity of 48 tokens; got 49.*source_capacity=49"
        ):
            ours.generate([3] * 49)
        with pytest.raises(InputError, match="has a capacity of 32 tokens; got 33"):
            ours.generate([3], decoder_input_ids=[3] * 33)
        with pytest.raises(InputError, match="decoder_input_ids beyond the vocabulary"):
            ours.generate([3], decoder_input_ids=[97])
        with pytest.raises(InputError, match="knows no such language; got en"):
            ours.generate([3], language="en")
    with pytest.raises(InputError, match="no decoder_start_token_id"):
        first_tokens(
            replace(open_checkpoint(reference("t5", decoder_start_token_id=None)), generation={}),
            read_words({}, None, {}, (), 97),
            32,
        )


def test_an_output_layer_of_its_own_is_used_and_one_that_is_missing_is_the_embedding(tmp_path: Path) -> None:
    """Configs of T5 v1.1 and Flan-T5 say that it is not tied; files may have the embedding under other names."""
    from safetensors.numpy import load_file, save_file

    model, source, tokens = reference("t5"), prompt(SOURCE, seed=1), prompt(LENGTH, seed=3)
    model.save_pretrained(tmp_path)
    file, want = tmp_path / "model.safetensors", logits_of(model, source, tokens)
    arrays = load_file(file)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scale_decoder_outputs"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    embed = arrays.pop("shared.weight")
    save_file({**arrays, "encoder.embed_tokens.weight": embed, "lm_head.weight": embed * 2}, file)
    found = open_checkpoint(tmp_path)
    assert not found.config.tied
    got = interpreted(short(found.config), dict(found.arrays), source, tokens)[1]
    assert far(got / 96**0.5 / 2, want) < 1e-5
    save_file({**arrays, "shared.weight": embed}, file)
    found = open_checkpoint(tmp_path)
    assert found.config.tied
    assert far(interpreted(short(found.config), dict(found.arrays), source, tokens)[1] / 96**0.5, want) < 1e-5


@pytest.mark.parametrize("family", REFERENCES)
def test_an_unknown_field_is_an_error_with_its_name_and_value(family: str) -> None:
    data = reference(family).config.to_dict()
    assert DecoderConfig.from_json(data).family == family
    for value in (0.5, False, 0, "x", [1]):
        with pytest.raises(ModelError, match="unknown depth_scaling in its config") as raised:
            DecoderConfig.from_json({**data, "depth_scaling": value})
        assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("t5", "feed_forward_proj", "gated-tanh"), ("t5", "is_encoder_decoder", False), ("t5", "relative_attention_num_buckets", 7),
        ("t5", "relative_attention_num_buckets", 40), ("mt5", "relative_attention_max_distance", 1 << 20), ("t5", "decoder_start_token_id", "x"),
        ("bart", "add_bias_logits", True), ("marian", "share_encoder_decoder_embeddings", False), ("marian", "decoder_vocab_size", 98),
        ("whisper", "use_weighted_layer_sum", True), ("whisper", "num_mel_bins", 0), ("bart", "activation_function", "tanh"),
    ],
)  # fmt: skip
def test_values_that_are_not_supported_are_refused_by_name(family: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field) as raised:
        DecoderConfig.from_json({**reference(family).config.to_dict(), field: value})
    assert repr(value)[:80] in str(raised.value)


RELEASED: dict[str, dict[str, Any]] = {
    "t5": {"n_positions": 512, "output_past": True, "task_specific_params": {"summarization": {"prefix": "summarize: "}}, "dense_act_fn": None},
    "bart": {
        "_num_labels": 3, "add_final_layer_norm": False, "classif_dropout": 0.0, "force_bos_token_to_be_generated": True,
        "normalize_before": False, "num_hidden_layers": 12, "output_past": True, "prefix": " ", "no_repeat_ngram_size": 3,
    },
    "marian": {"add_bias_logits": False, "normalize_embedding": False, "static_position_embeddings": True, "bad_words_ids": [[96]]},
    "pegasus": {"extra_pos_embeddings": 0, "normalize_before": True},
    "whisper": {"forced_decoder_ids": [[1, 9]], "suppress_tokens": [1, 2], "max_length": 448},
}  # fmt: skip
"""Fields of released configs that change no result, or only the words of a generation."""


@pytest.mark.parametrize("family", RELEASED)
def test_the_fields_of_released_configs_are_known(family: str) -> None:
    data = reference(family).config.to_dict()
    assert DecoderConfig.from_json({**data, **RELEASED[family]}) == DecoderConfig.from_json(data)


UNCHANGED = frozenset(["vocab_size", "return_dict", "output_hidden_states", "output_attentions", "is_encoder_decoder"])  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", REFERENCES)
def test_every_field_that_changes_is_followed_or_refused(family: str) -> None:
    """No silent wrong answer: where transformers runs with another value, ours has the same logits, or an error names the field."""
    tokens, followed = prompt(LENGTH, seed=3), 0
    refusals: list[tuple[str, str]] = []
    for name, value in reference(family).config.to_dict().items():
        changed = another(value)
        if changed is None or name in UNCHANGED:
            continue
        try:
            model = reference(family, **{name: changed})
            source = source_of(model)
            want = logits_of(model, source, tokens)
        except Exception:  # transformers refuses the value in various ways
            continue
        if model.config.to_dict().get(name) != changed:
            continue
        try:
            found = open_checkpoint(model)
        except ModelError as error:
            refusals.append((name, str(error)))
            continue
        config = short(found.config)
        got = interpreted(config, fitting(config, dict(found.arrays)), source, tokens)[1]
        assert far(got, want) < 2e-5, (name, changed)
        followed += 1
    assert followed > 5
    related = "relative_attention_num_buckets"  # a multiple of 4 below twice the longest distance
    assert all(name in text or related in text for name, text in refusals), refusals


def test_words_of_sources_are_refused_without_an_encoder() -> None:
    found = open_checkpoint(decoder_reference("qwen2"))
    for words in ({"decoder_input_ids": [3]}, {"language": "en"}, {"task": "transcribe"}):
        with pytest.raises(InputError, match="has no encoder, which this word is for; got"):
            options_of(found, words)
    with pytest.raises(InputError, match="does not support encoder-decoders; got bart"):
        calibrated(reference("bart"), [[3] * 64], length=32)
