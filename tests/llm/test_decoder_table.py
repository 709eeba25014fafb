"""Every family of the table against transformers: the same logits in prefill and for 64 given tokens, the same text; and parts that are left
out are noticed.
"""

from __future__ import annotations

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

from xpuruntime.errors import ModelError
from xpuruntime.ir import interp
from xpuruntime.llm import DecoderConfig, Generator, decoder_graph, open_checkpoint
from xpuruntime.llm.build import DECODE, build_program, decoder_graphs
from xpuruntime.llm.families import FAMILIES
from xpuruntime.llm.families.biases import Alibi
from xpuruntime.llm.steps import Steps
from xpuruntime.runtime import load_weights
from xpuruntime.testing.conformance.seeded.decoders import FAMILIES as REFERENCES
from xpuruntime.testing.conformance.seeded.decoders import YARN, greedy, logits_of, prompt, reference
from xpuruntime.testing.conformance.seeded.encoder_decoders import FAMILIES as ENCODER_DECODERS
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

LIMIT = 1e-4
DECODERS = [name for name, row in FAMILIES.items() if row.encoder is None]
LENGTH = 24

LONG = {
    "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
}  # fmt: skip
EAGER_TWICE = {"attn_implementation": "sdpa"}
"""transformers' eager attention adds the linear biases of Falcon twice, its default implementation once."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in DECODERS},
    "qwen3, biases and no window": ("qwen3", {"attention_bias": True, "use_sliding_window": False}),
    "mistral, a window that is longer than the cache": ("mistral", {"sliding_window": 4096}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "gemma2, tied, no soft caps": ("gemma2", {"tie_word_embeddings": True, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3, tied, soft caps": ("gemma3_text", {"tie_word_embeddings": True, "final_logit_softcapping": 15.0, "num_hidden_layers": 2, "attention_bias": True}),
    "phi3, whole heads": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
    "olmo2, biases": ("olmo2", {"attention_bias": True, "num_key_value_heads": 6}),
    "gpt_neox, in turn": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True}),
    "gpt2, inner size and own head": ("gpt2", {"n_inner": 100, "tie_word_embeddings": False, "activation_function": "gelu"}),
    "falcon, one key head": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": None, "bias": False}),
    "falcon, as many key heads, in turn": (
        "falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "num_kv_heads": None}
    ),
    "falcon, one norm": ("falcon", {"num_ln_in_parallel_attn": 1}),
    "falcon, linear biases": (
        "falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "num_kv_heads": None, "alibi": True, **EAGER_TWICE}
    ),
    "falcon, linear biases of one key head": (
        "falcon", {"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": None, "alibi": True, "num_attention_heads": 12, **EAGER_TWICE}
    ),
    "bloom, eight heads, tied": ("bloom", {"n_head": 8, "tie_word_embeddings": True}),
    "mpt, four heads, no clipping": ("mpt", {"n_heads": 4, "attn_config": {"clip_qkv": None}, "tie_word_embeddings": False}),
    "opt, no biases": ("opt", {"enable_bias": False, "tie_word_embeddings": False}),
    "mixtral, one expert, no window": ("mixtral", {"num_experts_per_tok": 1, "num_local_experts": 3, "sliding_window": None}),
    "qwen2_moe, every second layer, scores of sum 1": (
        "qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": True, "qkv_bias": False}
    ),
    "qwen2_moe, windows": ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "qwen3_moe, all experts, windows and biases": (
        "qwen3_moe",
        {"num_experts_per_tok": 6, "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 7, "attention_bias": True},
    ),
    "deepseek_v2, plain queries, one group": (
        "deepseek_v2", {"q_lora_rank": None, "topk_method": "greedy", "attention_bias": False, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    ),
    "llama, yarn": ("llama", {"rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None}}),
    "llama, yarn between pairs, another factor": ("llama", {"rope_parameters": {**YARN, "truncate": False, "attention_factor": 0.7, "beta_fast": None}}),
    "qwen2, yarn by the model's maximum": ("qwen2", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}}),
    "llama, dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}}),
    "phi3, short factors": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "phi3, long factors": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 20}),
    "stablelm, norms of queries and keys": ("stablelm", {"qk_layernorm": True, "num_key_value_heads": 1}),
    "phi, norms of queries and keys": ("phi", {"qk_layernorm": True}),
    "opt, projections": ("opt", {"word_embed_proj_dim": 40}),
    "opt, projections and norms after sums": ("opt", {"word_embed_proj_dim": 40, "do_layer_norm_before": False, "tie_word_embeddings": False}),
    "olmoe, scores of sum 1": ("olmoe", {"norm_topk_prob": True, "attention_bias": True}),
}  # fmt: skip


def far(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|d| / max|ref|"""
    return float(abs(ours.astype(np.float64) - theirs).max() / abs(theirs).max())


def interpreted(config: DecoderConfig, arrays: dict[str, Any], tokens: list[int]) -> np.ndarray:
    """Logits of every row by the reference interpreter."""
    n = len(tokens)
    graph = decoder_graph(config, length=n, capacity=32, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(n)[None], "last": np.array([n - 1])}
    return np.asarray(interp.run(graph, feeds, weights=arrays, states={})["logits"])


@cache
def checked(name: str) -> tuple[DecoderConfig, dict[str, Any], list[int], np.ndarray]:
    family, changes = VARIANTS[name]
    model = reference(family, **changes)
    found, tokens = open_checkpoint(model), prompt(LENGTH, seed=3)
    return found.config, dict(found.arrays), tokens, logits_of(model, tokens)


def test_every_family_has_a_reference() -> None:
    assert {*REFERENCES, *ENCODER_DECODERS} == {*FAMILIES}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_graph_is_the_model(name: str) -> None:
    config, arrays, tokens, want = checked(name)
    assert far(interpreted(config, arrays, tokens), want) < 1e-5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", DECODERS)
def test_a_folder_prefills_and_decodes_as_transformers(family: str, tmp_path: Path) -> None:
    model, tokens = reference(family), prompt(90, seed=3)
    model.save_pretrained(tmp_path)
    want = logits_of(model, tokens)[20:]
    with Generator(tmp_path, capacity=96, buckets=(16,), device=device_name()) as ours:
        rows = [ours.read(tokens[:21])[0].copy()]  # one whole chunk, one that is padded
        rows += [ours.step(t, 21 + i)[0].copy() for i, t in enumerate(tokens[21:])]
        text = greedy(model, tokens[:9], 40)
        assert far(np.stack(rows), want) < LIMIT
        assert len(set(text)) > 3, "a text that hides nothing"
        assert list(ours.generate(tokens[:9], max_new_tokens=40).tokens) == text


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import numpy as np
from xpuruntime.llm import Generator
tokens = [int(t) for t in sys.argv[2].split(",")]
with Generator(sys.argv[1], capacity=48, buckets=(16,)) as model:
    np.save(sys.argv[3], model.read(tokens))
"""


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("family", DECODERS)
def test_a_folder_needs_neither_torch_nor_transformers(family: str, tmp_path: Path) -> None:
    model, tokens = reference(family), prompt(LENGTH, seed=3)
    model.save_pretrained(tmp_path / "model")
    words = [str(tmp_path / "model"), ",".join(map(str, tokens)), str(tmp_path / "logits.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], check=True, timeout=240)
    assert far(np.load(tmp_path / "logits.npy")[0], logits_of(model, tokens)[-1]) < LIMIT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", DECODERS)
def test_cuda_code_prefills_and_decodes_as_transformers(family: str) -> None:
    """Emulated on the CPU, where a step takes a fifth of a second."""
    model, tokens = reference(family), prompt(32, seed=3)
    found, want = open_checkpoint(model), logits_of(model, tokens)[19:]
    program = build_program(decoder_graphs(found.config, capacity=48, buckets=(16,)), target=cuda_host())
    steps = Steps(
        program, load_weights(found.arrays, program, "cpu"), batch=1, vocab=97, dtype=found.config.dtype
    )
    rows = [steps.read([tokens[:20]])[0].copy()]
    rows += [steps.step([t], [20 + i])[0].copy() for i, t in enumerate(tokens[20:])]
    steps.close()
    assert far(np.stack(rows), want) < LIMIT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", DECODERS)
def test_texts_of_a_batch_are_those_that_each_prompt_gets_alone(family: str) -> None:
    model = reference(family)
    texts = [prompt(5), prompt(14, seed=1), prompt(1, seed=2)]
    with Generator(model, capacity=48, buckets=(16,), batch=3, device=device_name()) as ours:
        answers = ours.generate(texts, max_new_tokens=20)
    assert [list(a.tokens) for a in answers] == [greedy(model, t, 20) for t in texts]


# ── what each part is worth ──

Change = Callable[[DecoderConfig], DecoderConfig]


def without(**parts: str | None) -> Change:
    return lambda c: replace(c, row=replace(c.row, **parts))


def with_experts(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    assert config.experts is not None
    return replace(config, experts=replace(config.experts, **changes))


def with_rotary(config: DecoderConfig, **changes: Any) -> DecoderConfig:
    rotary = replace(config.rotary, explicit=(), **changes)
    return replace(config, rotary=rotary, local_rotary=rotary)


def without_name(config: DecoderConfig, part: str) -> DecoderConfig:
    assert config.experts is not None
    return with_experts(config, names={k: v for k, v in config.experts.names.items() if k != part})


def without_end(config: DecoderConfig, part: str) -> DecoderConfig:
    return replace(
        config, row=replace(config.row, ends={k: v for k, v in config.row.ends.items() if k != part})
    )


MUTATIONS: dict[str, tuple[str, Change]] = {
    "the window is dropped": ("mistral", lambda c: replace(c, windows=(0, 0))),
    "the window is one longer": ("mistral", lambda c: replace(c, windows=(8, 8))),
    "layers of a window are exchanged": ("gemma2", lambda c: replace(c, windows=c.windows[::-1])),
    "soft caps of scores are dropped": ("gemma2", lambda c: replace(c, attention_softcap=0.0)),
    "soft caps of logits are dropped": ("gemma2", lambda c: replace(c, logits_softcap=0.0)),
    "another scale": ("gemma2", lambda c: replace(c, scale=c.head_dim**-0.5)),
    "norms of queries and keys are dropped": ("qwen3", without(qk_norm="")),
    "norms of whole queries and keys are dropped": ("olmo2", without(qk_norm="")),
    "norms have no offset": ("gemma", without(norm_offset=0.0)),
    "embeddings are not scaled": ("gemma", without(embed_scale="")),
    "another activation": ("gemma", lambda c: replace(c, activation="silu")),
    "exact instead of tanh": ("gpt2", lambda c: replace(c, activation="gelu")),
    "both kinds of layers rotate alike": ("gemma3_text", lambda c: replace(c, local_rotary=c.rotary)),
    "whole heads rotate": ("stablelm", lambda c: replace(c, rotary_dim=c.head_dim)),
    "blocks are in turn": ("phi", without(parallel=False)),
    "blocks are parallel": ("stablelm", without(parallel=True)),
    "fused rows in parts": ("gpt_neox", without(qkv_order="parts")),
    "positions without their offset": ("opt", without(position_offset=0)),
    "experts of one fewer": ("mixtral", lambda c: with_experts(c, chosen=1)),
    "scores of another sum": ("mixtral", lambda c: with_experts(c, normalize=False)),
    "scores of sum 1": ("olmoe", lambda c: with_experts(c, normalize=True)),
    "experts of all groups": ("deepseek_v2", lambda c: with_experts(c, groups=1)),
    "experts of one group": ("deepseek_v2", lambda c: with_experts(c, chosen_groups=1, chosen=2)),
    "scores are not scaled": ("deepseek_v2", lambda c: with_experts(c, scale=1.0)),
    "the plain shared expert is dropped": ("deepseek_v2", lambda c: with_experts(c, shared=0)),
    "rotary pairs in halves": ("deepseek_v2", without(interleaved=False)),
    "another epsilon of compressed rows": ("deepseek_v2", without(latent_eps=0.1)),
    "scores without YaRN's factor": ("deepseek_v2", lambda c: replace(c, scale=c.head_dim**-0.5)),
    "angles without YaRN's factor": ("deepseek_v2", lambda c: with_rotary(c, attention=1.0)),
    "YaRN's range ends elsewhere": ("deepseek_v2", lambda c: with_rotary(c, low=0.25)),
    "the shared expert is dropped": ("qwen2_moe", lambda c: with_experts(c, shared=0)),
    "the shared expert is not scaled": ("qwen2_moe", lambda c: without_name(c, "shared_scale")),
    "slopes are dropped": ("bloom", lambda c: replace(c, slopes=())),
    "slopes of the heads are exchanged": ("bloom", lambda c: replace(c, slopes=c.slopes[::-1])),
    "slopes of eight heads": ("mpt", lambda c: replace(c, slopes=tuple(Alibi().slopes(8)[: c.heads]))),
    "biases are not scaled": ("falcon, linear biases", without(alibi=Alibi(rounded=True))),
    "values are not clipped": ("mpt", lambda c: replace(c, clip=0.0)),
    "embeddings without their norm": ("bloom", lambda c: without_end(c, "embed_norm")),
    "another epsilon": ("llama", lambda c: replace(c, eps=1e-2)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_left_out_is_noticed(name: str) -> None:
    family, change = MUTATIONS[name]
    config, arrays, tokens, want = checked(family)
    changed = change(config)
    # A shorter table of positions has other rows.
    arrays = {n: arrays[n][: s[0]] for n, s in changed.shapes().items()}
    least = 1 if name == "exact instead of tanh" else 10
    assert far(interpreted(changed, arrays, tokens), want) > least * LIMIT


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "deepseek_v2"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_experts_in_bfloat16_are_as_exact_as_transformers(family: str, target: str) -> None:
    """Rounding changes which experts are chosen, so that errors are those of the type, in transformers, too."""
    model, tokens = reference(family), prompt(28, seed=3)
    found, want = open_checkpoint(model), logits_of(model, tokens)[19:]
    rounded = logits_of(reference(family).bfloat16(), tokens)[19:]
    graphs = decoder_graphs(
        found.config, capacity=48, buckets=(16,), dtype=DType.BFLOAT16, stored=found.specs
    )
    program = build_program(graphs, target="cpu" if target == "cpu" else cuda_host())
    steps = Steps(
        program, load_weights(found.arrays, program, "cpu"), batch=1, vocab=97, dtype=DType.BFLOAT16
    )
    rows = [steps.read([tokens[:20]])[0].copy()]
    rows += [steps.step([t], [20 + i])[0].copy() for i, t in enumerate(tokens[20:])]
    steps.close()
    assert far(np.stack(rows), want) < 2 * far(rounded, want)


EXPERT_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "two experts are exchanged": lambda w: w[[1, 0, *range(2, len(w))]],
    "all experts are the first": lambda w: np.repeat(w[:1], len(w), axis=0),
    "experts are counted from the other end": lambda w: w[::-1].copy(),
}


@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("change", EXPERT_CHANGES)
def test_an_expert_in_another_s_place_is_noticed(change: str, part: str) -> None:
    """All 24 tokens choose among five experts, so that each one matters."""
    config, arrays, tokens, want = checked("mixtral")
    name = f"{config.layer(1)}.mlp.experts.{part}"
    changed = {**arrays, name: EXPERT_CHANGES[change](arrays[name])}
    assert far(interpreted(config, changed, tokens), want) > 10 * LIMIT


@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_an_expert_of_a_folder_in_another_s_place_is_noticed(part: str, tmp_path: Path) -> None:
    """Folders have a matrix for each expert."""
    reference("qwen3_moe").save_pretrained(tmp_path)
    found, tokens = open_checkpoint(tmp_path), prompt(LENGTH, seed=3)
    want = interpreted(found.config, dict(found.arrays), tokens)
    assert far(want, checked("qwen3_moe")[3]) < 1e-5
    a, b = (f"model.layers.0.mlp.experts.{i}.{part}_proj.weight" for i in (0, 1))
    swapped = {**found.arrays, a: found.arrays[b], b: found.arrays[a]}
    assert far(interpreted(found.config, swapped, tokens), want) > 10 * LIMIT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_token_reads_the_chosen_experts_only(family: str, target: str) -> None:
    """The weights of experts that the first token does not choose are NaN."""
    config, arrays, tokens, _ = checked(family)
    assert config.experts is not None
    feeds = {
        "tokens": np.array([tokens[:1]]),
        "positions": np.zeros((1, 1), np.int64),
        "last": np.zeros(1, np.int64),
    }
    chosen: list[np.ndarray] = []
    graphs = {DECODE: decoder_graph(config, length=1, capacity=8)}
    want = interp.run(
        graphs[DECODE], feeds, weights=arrays, states={}, watch=lambda node, y: chosen.append(y[1]) if node.op == "topk" else None
    )["logits"]  # fmt: skip
    sparse = [i for i, experts in enumerate(config.experts.sparse) if experts]
    assert len(chosen) == len(sparse)
    arrays = dict(arrays)
    for layer, ids in zip(sparse, chosen, strict=True):
        idle = [e for e in range(config.experts.count) if e not in ids]
        assert idle
        for part in ("gate_up_proj", "down_proj"):
            name = f"{config.layer(layer)}.mlp.experts.{part}"
            arrays[name] = arrays[name].copy()
            arrays[name][idle] = np.nan
    program = build_program(graphs, target="cpu" if target == "cpu" else cuda_host())
    steps = Steps(program, load_weights(arrays, program, "cpu"), batch=1, vocab=97, dtype=config.dtype)
    got = steps.step(tokens[:1], [0])
    steps.close()
    assert far(got, want) < LIMIT


# ── fields of configs ──


@pytest.mark.parametrize("family", DECODERS)
def test_an_unknown_field_is_an_error_with_its_name_and_value(family: str) -> None:
    data = reference(family).config.to_dict()
    assert DecoderConfig.from_json(data).family == family
    assert DecoderConfig.from_json({**data, "depth_scaling": None}).family == family
    for value in (0.5, False, 0, "x", [1]):
        with pytest.raises(ModelError, match="unknown depth_scaling in its config") as raised:
            DecoderConfig.from_json({**data, "depth_scaling": value})
        assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "scale_attn_weights", False), ("bloom", "apply_residual_connection_post_layernorm", True), ("mpt", "expansion_ratio", 2), ("opt", "_remove_final_layer_norm", True), ("gemma", "hidden_act", "gelu"),
        ("gemma2", "use_bidirectional_attention", True), ("gemma3_text", "hidden_activation", "silu"), ("llama", "hidden_act", "mish"),
        ("llama", "quantization_config", {"bits": 4}), ("mistral", "attention_bias", True), ("qwen2", "attention_bias", False),
        ("mixtral", "attention_bias", True), ("olmoe", "clip_qkv", 8.0), ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v2", "scoring_func", "sigmoid"), ("deepseek_v2", "norm_topk_prob", True), ("deepseek_v2", "head_dim", 12),
        ("deepseek_v2", "num_key_value_heads", 2), ("deepseek_v2", "qk_head_dim", 48), ("opt", "layer_norm_elementwise_affine", False),
    ],
)  # fmt: skip
def test_values_that_are_not_supported_are_refused_by_name(family: str, field: str, value: object) -> None:
    data = {**reference(family).config.to_dict(), field: value}
    with pytest.raises(ModelError, match=rf"has an (unsupported|unknown) {field}\b") as raised:
        DecoderConfig.from_json(data)
    assert repr(value)[:80] in str(raised.value)


@pytest.mark.parametrize("norms", [None, 1, 2])
def test_new_falcon_layers_in_turn_are_refused(norms: int | None) -> None:
    """transformers makes such a module with a norm more, and its forward fails."""
    data = reference("falcon").config.to_dict()
    data |= {"new_decoder_architecture": True, "parallel_attn": False, "num_ln_in_parallel_attn": norms}
    with pytest.raises(ModelError, match=r"has an unsupported parallel_attn for new_decoder_architecture=True; got False\."):  # fmt: skip
        DecoderConfig.from_json(data)


@pytest.mark.parametrize("value", ["mamba", "", "deepseek_v3", "bert"])
def test_an_unknown_family_is_refused_with_those_that_are_known(value: str) -> None:
    with pytest.raises(ModelError, match="has an unsupported model_type") as raised:
        DecoderConfig.from_json({"model_type": value})
    assert all(name in str(raised.value) for name in (repr(value), *FAMILIES))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["sliding_attention"]), ("layer_types", ["sliding_attention", "chunked_attention"]), ("layer_types", "xx"),
        ("sliding_window", 0), ("sliding_window", -4), ("sliding_window", 2.5), ("sliding_window", None), ("query_pre_attn_scalar", -1),
        ("query_pre_attn_scalar", "x"), ("attn_logit_softcapping", -1.0), ("final_logit_softcapping", float("nan")),
    ],
)  # fmt: skip
def test_fields_of_a_wrong_value_are_refused(field: str, value: object) -> None:
    data = {**reference("gemma2").config.to_dict(), field: value}
    with pytest.raises(ModelError, match=field):
        DecoderConfig.from_json(data)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mscale": 2.0}, "unknown mscale"),
        ({"rope_type": "yarn", "factor": 2.0, "short_factor": [1.0]}, "unknown short_factor"),
        ({"rope_type": "proportional", "factor": 2.0}, "unsupported scaling"),
        ({"rope_type": "yarn", "factor": -2.0}, "finite and positive"),
        ({"rope_type": "yarn"}, "need a factor"),
        ({"rope_type": "linear"}, "need a factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": []}, "as many short factors"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ],
)
def test_rotary_parameters_are_checked(change: dict[str, Any], match: str) -> None:
    data = reference("stablelm").config.to_dict()
    data["rope_parameters"] = {**data["rope_parameters"], **change}
    with pytest.raises(ModelError, match=match):
        DecoderConfig.from_json(data)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("mixtral", "num_local_experts", 0), ("mixtral", "num_experts_per_tok", 6), ("mixtral", "num_experts_per_tok", True),
        ("qwen2_moe", "mlp_only_layers", [0.5]), ("qwen2_moe", "decoder_sparse_step", 0), ("qwen2_moe", "norm_topk_prob", 1),
        ("qwen2_moe", "shared_expert_intermediate_size", None), ("deepseek_v2", "n_group", 3), ("deepseek_v2", "topk_group", 5),
        ("deepseek_v2", "routed_scaling_factor", 0), ("deepseek_v2", "first_k_dense_replace", -1), ("deepseek_v2", "kv_lora_rank", "x"),
        ("deepseek_v2", "qk_rope_head_dim", 7), ("deepseek_v2", "num_experts_per_tok", 5),
    ],
)  # fmt: skip
def test_sizes_of_experts_and_latent_rows_are_checked(family: str, field: str, value: object) -> None:
    data = {
        k: v for k, v in reference(family).config.to_dict().items() if k not in ("head_dim", "qk_head_dim")
    }
    with pytest.raises(ModelError, match=field):
        DecoderConfig.from_json({**data, field: value})


def test_experts_that_a_policy_does_not_quantize_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = reference("mixtral", num_hidden_layers=1)
    for weights in ("int8", "model"):
        caplog.clear()
        policy = {"version": 1, "kernel": {"weights": weights}}
        with caplog.at_level("WARNING", logger="xpuruntime.session"):
            Generator(model, capacity=32, buckets=(8,), policy=policy).close()
        assert ("does not apply to the matrices of experts" in caplog.text) is (weights == "int8")


def test_two_numbers_of_experts_that_differ_are_refused() -> None:
    data = reference("qwen3_moe").config.to_dict()
    assert DecoderConfig.from_json({**data, "num_experts": 6}).experts is not None
    with pytest.raises(ModelError, match="num_local_experts that is not that of num_experts"):
        DecoderConfig.from_json({**data, "num_experts": 7})


def test_the_fields_of_phi_4_mini_are_known() -> None:
    data = reference("phi3").config.to_dict()
    facts = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}
    assert DecoderConfig.from_json({**data, **facts}) == DecoderConfig.from_json(data)
    for field, value in (("full_attn_mod", 2), ("lm_head_bias", True)):
        with pytest.raises(ModelError, match=f"unsupported {field}"):
            DecoderConfig.from_json({**data, **facts, field: value})


def test_older_names_of_sizes_are_read() -> None:
    data = reference("bloom").config.to_dict()
    new = DecoderConfig.from_json(data)
    old = {"n_embed": data["hidden_size"], "num_attention_heads": data["n_head"], "num_hidden_layers": 2}
    rest = {k: v for k, v in data.items() if k not in ("hidden_size", "n_head", "n_layer")}
    assert DecoderConfig.from_json({**rest, **old, "seq_length": 2048}) == new
    with pytest.raises(ModelError, match="has an n_embed that differs from hidden_size"):
        DecoderConfig.from_json({**data, "n_embed": 5})


def test_a_field_of_a_nested_config_is_refused_by_its_path() -> None:
    data = reference("mpt").config.to_dict()
    with pytest.raises(ModelError, match=r"unsupported attn_config\.qk_ln"):
        DecoderConfig.from_json({**data, "attn_config": {**data["attn_config"], "qk_ln": True}})
    with pytest.raises(ModelError, match=r"unsupported attn_config\.alibi_bias_max"):
        DecoderConfig.from_json({**data, "attn_config": {**data["attn_config"], "alibi_bias_max": 16}})
    with pytest.raises(ModelError, match=r"unknown attn_config\.rope"):
        DecoderConfig.from_json({**data, "attn_config": {**data["attn_config"], "rope": True}})


def test_older_words_of_configs_are_read() -> None:
    """Releases of transformers before 5 name rotary parameters and windows otherwise."""
    data = reference("gpt_neox").config.to_dict()
    new = DecoderConfig.from_json(data)
    del data["rope_parameters"]
    assert DecoderConfig.from_json({**data, "rotary_pct": 0.25, "rotary_emb_base": 10000}) == new
    assert DecoderConfig.from_json({**data, "rotary_pct": 0.5}).rotary_dim == 8
    with pytest.raises(ModelError, match="differs from rotary_emb_base"):
        DecoderConfig.from_json({**data, "rope_theta": 5.0, "rotary_emb_base": 10000})
    data = reference("gemma3_text", num_hidden_layers=12, layer_types=None).config.to_dict()
    new = DecoderConfig.from_json(data)
    old = {
        k: v
        for k, v in data.items()
        if k not in ("rope_parameters", "layer_types", "_sliding_window_pattern")
    }
    old |= {"sliding_window_pattern": 6, "rope_theta": 5000.0, "rope_local_base_freq": 100.0}
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    assert DecoderConfig.from_json(old) == new
    assert [i for i, w in enumerate(new.windows) if not w] == [5, 11]


def test_a_checkpoint_without_the_prefix_of_its_names_is_read(tmp_path: Path) -> None:
    """As the first GPT-2 files are."""
    from safetensors.numpy import load_file, save_file

    model, tokens = reference("gpt2"), prompt(LENGTH, seed=3)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    bare = {n.removeprefix("transformer."): a for n, a in load_file(file).items()}
    bare["h.1.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
    save_file(bare, file)
    found = open_checkpoint(tmp_path)
    assert far(interpreted(found.config, dict(found.arrays), tokens), logits_of(model, tokens)) < 1e-5


# Sizes that transformers relates to others, and switches that shape its outputs alone.
UNCHANGED = frozenset(
    [
        "vocab_size",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "is_encoder_decoder",
        "chunk_size_feed_forward",
    ]
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", DECODERS)
def test_every_field_that_changes_is_followed_or_refused(family: str) -> None:
    """No silent wrong answer: where transformers runs with another value, ours has the same logits, or an error names the field."""
    tokens, followed = prompt(LENGTH, seed=3), 0
    refusals: list[tuple[str, str]] = []
    for name, value in reference(family).config.to_dict().items():
        changed = another(value)
        if changed is None or name in UNCHANGED:
            continue
        try:
            eager = EAGER_TWICE if (family, name) == ("falcon", "alibi") else {}
            model = reference(family, **{name: changed}, **eager)
            want = logits_of(model, tokens)
        except Exception:  # transformers refuses the value in various ways
            continue
        if model.config.to_dict().get(name) != changed:
            continue
        try:
            found = open_checkpoint(model)
        except ModelError as error:
            refusals.append((name, str(error)))
            continue
        assert far(interpreted(found.config, dict(found.arrays), tokens), want) < 1e-5, (name, changed)
        followed += 1
    assert followed > 5
    related = (
        "partial_rotary_factor",
        "rotary_pct",
        "num_key_value_heads",
        "n_group",
        "num_experts_per_tok",
    )  # they depend on sizes
    assert all(any(n in text for n in (name, *related)) for name, text in refusals), refusals
