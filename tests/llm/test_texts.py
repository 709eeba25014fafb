"""Texts: tokenizers and chat templates of checkpoints, streaming, GGUF files, and the command line over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.errors import InputError, ModelError
from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.checkpoint.template import render
from xpuruntime.llm.checkpoint.text import TextCodec, TextStream, open_text
from xpuruntime.testing.conformance.seeded.decoders import greedy, prompt, reference

tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def save_tokenizer(folder: Path, template: str = TEMPLATE) -> Any:
    """Bytes alone, one token each for 95 of them: enough for ASCII and for characters of several bytes."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    made.save(str(folder / "tokenizer.json"))
    facts = {"eos_token": {"content": "<end>"}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer."""
    made = tmp_path_factory.mktemp("model")
    save_tokenizer(made)
    reference("qwen2", vocab_size=257, eos_token_id=256).save_pretrained(made)
    return made


def test_texts_come_back_and_special_tokens_do_not_show(folder: Path) -> None:
    text = open_text(folder)
    assert isinstance(text, TextCodec)
    assert text.decode([*text.encode("Grüße, 世界"), 256]) == "Grüße, 世界"


def test_a_conversation_is_written_by_the_template(folder: Path) -> None:
    text = open_text(folder)
    assert isinstance(text, TextCodec)
    tokens = text.chat([{"role": "user", "content": "hi"}])
    assert text.tokenizer.decode(tokens, skip_special_tokens=False) == "<user>hi<end><assistant>"
    assert tokens.count(256) == 1


def test_templates_that_fail_or_are_not_there_say_so(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "{{ raise_exception('roles must alternate') }}")
    text = open_text(tmp_path)
    assert isinstance(text, TextCodec)
    with pytest.raises(InputError, match="roles must alternate"):
        text.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(InputError, match="has none"):
        TextCodec(text.tokenizer).chat([])
    save_tokenizer(tmp_path, "{{ ''.__class__.__mro__ }}")
    with pytest.raises(InputError, match="does not fit"):  # templates are not trusted
        open_text(tmp_path).chat([])  # type: ignore[union-attr]


TEMPLATES = {
    "tojson": "{{ messages[0] | tojson }}|{{ messages | tojson(indent=2) }}",
    "break": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}[{{ m.content }}]{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}<{{ m.role }}> {{ m.content | trim }}{% endgeneration %}{% endfor %}",
    "white space": "{%- for m in messages %}\n    {{- '<' + m['role'] + '>' }}\n  {% if loop.last %}\nlast\n  {% endif %}\n{% endfor %}",
    "clock": "{{ strftime_now('%Y') }}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "facts": "{{ bos_token }}{{ tools is none }}{{ documents is defined }}{% if add_generation_prompt %}<go>{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_says_what_transformers_says(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": " <a> & 'ü' \n"}, {"role": "assistant", "content": "no"}]
    (want,), _ = render_jinja_template(
        [messages], chat_template=TEMPLATES[name], add_generation_prompt=True, bos_token="<s>", tools=None
    )
    assert render(TEMPLATES[name], messages, {"bos_token": "<s>"}) == want


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than 5 s or 1024 MiB",
        ),
        ("{{ 'a' * 3000000000 }}", "takes more memory than a template may"),
        ("{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}", "produces more than 4000000 bytes"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ strftime_now.__globals__['sys'] }}", "SecurityError|UndefinedError"),
        ("{{ raise_exception.__globals__['sys'] }}", "SecurityError|UndefinedError"),
        ("{% include 'x' %}", "TypeError|TemplateNotFound"),
        ("x" * 1_000_001, "has 1000001 characters, more than 1000000"),
    ],
    ids=["time", "memory", "output", "change", "clock", "function", "include", "size"],
)
def test_a_template_is_bounded(template: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(template, [{"role": "user", "content": "hi"}], {})


def test_a_stream_waits_for_whole_characters_and_adds_up(folder: Path) -> None:
    text = open_text(folder)
    assert isinstance(text, TextCodec)
    words = "a世b ñ 🙂."
    stream = TextStream(text)
    pieces = [stream.add(t) for t in text.encode(words)]
    assert "".join(pieces) + stream.end() == words
    assert not any("\ufffd" in p for p in pieces)
    half = TextStream(text)
    assert half.add(text.encode("世")[0]) == ""
    assert half.end() == "\ufffd"


def test_a_damaged_tokenizer_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        open_text(tmp_path)


def test_the_command_line_says_what_the_generator_says(folder: Path) -> None:
    with Generator(folder, capacity=64) as ours:
        want = ours.generate([{"role": "user", "content": "hi"}], max_new_tokens=12)
    told = ["generate", str(folder), "-p", "hi", "-n", "12", "--capacity", "64"]
    done = CliRunner().invoke(app, [*told, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["tokens"], document["text"]) == (list(want.tokens), want.text)
    assert document["dispatches_per_token"] == 16  # 7 for each of two layers, 2 around them
    streamed = CliRunner().invoke(app, [*told, "--stream"])
    assert streamed.stdout == want.text + "\n"
    assert CliRunner().invoke(app, ["generate", str(folder / "no"), "-p", "hi"]).exit_code == 3


def test_the_command_line_takes_the_words(folder: Path, tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        done = CliRunner().invoke(
            app, ["generate", str(folder), "-p", "hi", "-n", "12", "--capacity", "64", "--json", *words]
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    (tmp_path / "words.json").write_text(json.dumps({"do_sample": True, "temperature": 1.3}))
    config = str(tmp_path / "words.json")
    drawn = run(
        "--generation-config",
        config,
        "--seed",
        "4",
        "--top-k",
        "30",
        "--num-return-sequences",
        "2",
        "--logprobs",
        "1",
    )
    best = run("--num-beams", "3", "--num-return-sequences", "2", "--length-penalty", "0", "--early-stopping", "true",
               "--bad-words-ids", "5,6", "--bad-words-ids", "7")  # fmt: skip
    with Generator(folder, capacity=64, batch=3) as ours:
        ask = [[{"role": "user", "content": "hi"}]]
        words = {"temperature": 1.3, "seed": 4, "top_k": 30, "n": 2, "logprobs": 1}
        beams = {
            "num_beams": 3,
            "n": 2,
            "length_penalty": 0,
            "early_stopping": True,
            "bad_words_ids": [[5, 6], [7]],
        }
        want, ranked = (ours.generate(ask, max_new_tokens=12, **w) for w in (words, beams))
    assert [a["tokens"] for a in drawn["answers"]] == [list(a.tokens) for a in want]
    assert drawn["logprobs"][0]["logprob"] == pytest.approx(want[0].logprobs[0].logprob, abs=1e-4)
    assert [a["tokens"] for a in best["answers"]] == [list(a.tokens) for a in ranked]
    assert best["score"] == pytest.approx(ranked[0].score, abs=1e-3)
    (tmp_path / "words.json").write_text(json.dumps({"num_beams": 3, "num_return_sequences": 2}))
    ranked = run("--generation-config", config)[
        "answers"
    ]  # the config decides how many texts are decoded together
    assert ranked[0]["score"] >= ranked[1]["score"]
    told = ["generate", str(folder), "-p", "hi", "--generation-config", config, "--stream"]
    assert "--stream shows one answer" in CliRunner().invoke(app, told).output
    told = ["generate", str(folder), "-p", "hi", "--bad-words-ids", "x"]
    assert "has invalid --bad-words-ids" in CliRunner().invoke(app, told).output


# ── GGUF ──


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_file_is_the_model_that_was_written(tmp_path: Path, family: str) -> None:
    """Written as converters write it: a Llama's rotary pairs side by side. Tokens must be those of the original."""
    gguf = pytest.importorskip("gguf")
    from xpuruntime.llm.checkpoint.gguf_names import gguf_name
    from xpuruntime.llm.families import FAMILIES

    more: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    model = reference(family, vocab_size=257, hidden_size=96, **more)
    config = model.config
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(file), family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(16)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*alphabet, "<end>"])
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges([])
    writer.add_eos_token_id(256)
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = p.numpy()
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = array.shape[0] // 16
            array = array.reshape(heads, 2, 8, -1).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(gguf_name(family, FAMILIES[family], name), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    found = open_checkpoint(file)
    assert found.config.stops == (256,)
    assert found.text is not None
    assert found.text.decode(found.text.encode("12 apples")) == "12 apples"
    with Generator(found, capacity=64, buckets=(16,)) as ours:
        made = ours.generate(prompt(12), max_new_tokens=20, stops=[])
    assert list(made.tokens) == greedy(model, prompt(12), 20)


def test_a_file_that_is_no_gguf_is_a_model_error(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="is not a GGUF file, or damaged"):
        open_checkpoint(tmp_path / "x.gguf")
