"""Untrusted checkpoints: configs out of range, index files, and chat templates without end are named errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xpuruntime.errors import FormatError, InputError, ModelError
from xpuruntime.llm import DecoderConfig, open_checkpoint
from xpuruntime.llm.checkpoint.template import render

pytest.importorskip("jinja2")

GOOD: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0, "eos_token_id": [1, 2],
}  # fmt: skip
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")  # fmt: skip


def test_a_config_in_range_is_read() -> None:
    assert DecoderConfig.from_json(GOOD).layers == 2
    assert DecoderConfig.from_json({**GOOD, "vocab_size": 64.0, "head_dim": None}).head_dim == 4
    assert DecoderConfig.from_json({**GOOD, "eos_token_id": 5}).stops == (5,)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(
    "value", [0, -1, 2**31, 10**9 * 10, 2**80, 1.5, float("nan"), float("inf"), True, "2", [2], {}]
)
def test_sizes_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"has a {key} that is not a whole number from 1 to"):
        DecoderConfig.from_json({**GOOD, key: value})


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
)
def test_absent_sizes_are_refused(key: str) -> None:
    with pytest.raises(ModelError, match=f"has a {key} that is not"):
        DecoderConfig.from_json({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9), ("num_key_value_heads", 3), ("num_key_value_heads", 8), ("head_dim", -4), ("rms_norm_eps", "x"),
        ("rms_norm_eps", float("nan")), ("rms_norm_eps", -1), ("rms_norm_eps", None), ("rope_theta", float("inf")), ("rope_theta", -1.0),
        ("rope_theta", "x"), ("rope_scaling", 5), ("rope_scaling", {"rope_type": "linear", "factor": 0}), ("rope_scaling", ["type"]),
        ("rope_scaling", {"rope_type": "linear", "factor": "x"}), ("rope_scaling", {"rope_type": "llama3", "high_freq_factor": 1, "low_freq_factor": 4}),
        ("eos_token_id", "x"), ("eos_token_id", [1, None]), ("eos_token_id", [2**40]), ("eos_token_id", 1.5), ("layer_types", 5),
        ("hidden_act", []), ("model_type", None), ("sliding_window", {"a": 1}), ("layer_types", [{}]),
    ],
)  # fmt: skip
def test_other_damage_is_a_model_error(key: str, value: object) -> None:
    with pytest.raises(ModelError):
        DecoderConfig.from_json({**GOOD, key: value})


@pytest.mark.parametrize("text", ["", "[]", "5", "{", "[" * 100_000, '{"a": 1', "\x00", '"x"'])
def test_config_files_that_are_no_objects_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": 5},
        {"weight_map": []},
        {"weight_map": {"a": "../x"}},
        {"weight_map": {"a": 5}},
        {"weight_map": {"a": ""}},
    ],
)
def test_index_files_are_checked(index: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises((ModelError, FormatError)):
        open_checkpoint(tmp_path)


# ── chat templates ──

ASKED = [{"role": "user", "content": "héllo\n{{ 7 * 7 }}"}]


def test_a_template_is_rendered_with_its_facts() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    assert render(template, ASKED, {"bos_token": "<s>"}) == "<s>[user] héllo\n{{ 7 * 7 }}>"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than 1 s"),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "produces more than 4000000 bytes"),
        ("{{ '%1000000000d' % 1 }}", "memory|produces more than|more than 1 s"),
        ("{{ '{:1000000000d}'.format(1) }}", "memory|produces more than|more than 1 s"),
        ("{{ 'x'.ljust(1000000000) }}", "memory|produces more than|more than 1 s"),
        ("{{ ('x' * 100000000) | length * 10 ** 10000000000 }}", "memory|more than 1 s|too large|exceeds"),
        ("{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}", "memory|more than 1 s"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[5].content.x }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ raise_exception('no system prompt') }}", "no system prompt"),
        ("{% include 'x' %}", "TypeError|no loader"),
        ("{{", "TemplateSyntaxError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError|memory"),
        ("{{ 'a' | nothing }}", "TemplateAssertionError|TemplateRuntimeError"),
    ],
)  # fmt: skip
def test_templates_without_end_and_broken_ones_are_refused(
    template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpuruntime.llm.checkpoint.template.MAX_SECONDS", 1)
    with pytest.raises(InputError, match=f"does not fit the model's template.*({why})"):
        render(template, ASKED, {})


def test_a_template_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    (tmp_path / "jinja2.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert render("{{ 1 + 1 }}", ASKED, {}) == "2"
