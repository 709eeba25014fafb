"""GGUF files of every architecture, written as converters write them, are the models that transformers runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import ModelError
from xpuruntime.ir import interp
from xpuruntime.llm import decoder_graph, open_checkpoint
from xpuruntime.llm.checkpoint.gguf_names import ARCHITECTURES, config_facts
from xpuruntime.testing.conformance.seeded.decoders import YARN, logits_of, prompt, reference

gguf = pytest.importorskip("gguf")

PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
CHANGES: dict[str, dict[str, Any]] = {
    "llama": PLAIN,
    "qwen3": {"use_sliding_window": False},
    "qwen2moe": {"mlp_only_layers": []},  # the architecture has no names for other layers
    "deepseek2": {"attention_bias": False, "rope_parameters": {**YARN, "mscale": 0.5}},  # one number for both
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3": {
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": None,
        "tie_word_embeddings": True,
    },
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, CHANGES.get(name, {})) for name in ARCHITECTURES},
    "falcon, one key head": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": None, "bias": False}),
    "gpt2, own head": ("gpt2", {"tie_word_embeddings": False}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True}),
    "deepseek2, plain queries, halves of the expanding matrix": (
        "deepseek2", {"attention_bias": False, "q_lora_rank": None, "topk_method": "greedy", "halves": True, "rope_parameters": {**YARN, "mscale": 0.5}}
    ),
    "qwen2, yarn": ("qwen2", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}}),
    "llama, experts": ("llama", {"family": "mixtral", "sliding_window": None}),
    "qwen3moe, scores as they are": ("qwen3moe", {"norm_topk_prob": False}),
}  # fmt: skip


def converted(architecture: str, model: Any) -> dict[str, np.ndarray]:
    """Return tensors by their names in a file. Names are the package's own."""
    config = model.config.to_dict()
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    heads, tied = model.config.num_attention_heads, config["tie_word_embeddings"]
    tensors: dict[str, np.ndarray] = {}
    for name, p in model.state_dict().items():
        array = p.numpy()
        if tied and name.startswith("lm_head."):
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            array = array.reshape(len(array) // 16, 2, 8, -1).swapaxes(1, 2).reshape(array.shape)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if architecture == "gpt2" and ".c_" in name and name.endswith(".weight"):
            array = array.T
        if "query_key_value" in name:
            size = 96 // heads
            count = len(array) // size
            kv = (count - heads) // 2
            grouped = array.reshape(kv, heads // kv + 2, size, *array.shape[1:])
            parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
            array = np.concatenate([x.reshape(-1, *array.shape[1:]) for x in parts])
        if name.endswith("experts.gate_up_proj"):
            parts = dict(zip(("gate_proj", "up_proj"), np.split(array, 2, axis=1), strict=True))
        elif name.endswith("experts.down_proj"):
            parts = {"down_proj": array}
        else:
            parts = {"": array}
        for part, x in parts.items():
            stem = f"{name.rpartition('.')[0]}.{part}.weight" if part else name
            there = names.get_name(stem, try_suffixes=(".weight", ".bias"))
            assert there is not None, stem
            tensors[there] = np.ascontiguousarray(x.squeeze())  # as converters do
    return tensors


def written(
    folder: Path, architecture: str, model: Any, changes: dict[str, Any] | None = None, **more: Any
) -> Path:
    """Write metadata as converters do, and tensors."""
    c, data, changes = model.config, model.config.to_dict(), changes or {}
    file = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    inner = next(
        (data[k] for k in ("intermediate_size", "ffn_hidden_size") if data.get(k)), 4 * c.hidden_size
    )
    writer.add_feed_forward_length(inner)
    writer.add_head_count(c.num_attention_heads)
    key_heads = data.get("num_key_value_heads") or c.num_attention_heads
    if architecture == "falcon":
        key_heads = data["num_kv_heads"] if data["new_decoder_architecture"] else 1
    writer.add_head_count_kv(key_heads)
    size = data.get("head_dim") or c.hidden_size // c.num_attention_heads
    if architecture == "deepseek2":
        if data["q_lora_rank"]:
            writer.add_q_lora_rank(data["q_lora_rank"])
        writer.add_kv_lora_rank(data["kv_lora_rank"])
        writer.add_key_length(data["qk_nope_head_dim"] + data["qk_rope_head_dim"])
        writer.add_value_length(data["v_head_dim"])
        writer.add_leading_dense_block_count(data["first_k_dense_replace"])
        writer.add_expert_shared_count(data["n_shared_experts"])
        writer.add_expert_weights_scale(data["routed_scaling_factor"])
        if data["topk_method"] != "greedy":
            writer.add_expert_group_count(data["n_group"])
            writer.add_expert_group_used_count(data["topk_group"])
    elif data.get("head_dim"):
        writer.add_key_length(size)
    rope = data.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if rope:
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_dimension_count(int(size * full.get("partial_rotary_factor", 1.0)))
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if full.get("mscale_all_dim"):
            writer.add_rope_scaling_yarn_log_mul(0.1 * full["mscale_all_dim"])
        for name in ("beta_fast", "beta_slow"):
            if full.get(name):
                writer.add_float32(f"{architecture}.rope.scaling.yarn_{name}", full[name])
    if full.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if "sliding_attention" in rope:
        writer.add_float32(f"{architecture}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    eps = data.get("rms_norm_eps")
    if eps is not None:
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(data.get("layer_norm_eps") or data["layer_norm_epsilon"])
    if data.get("num_experts_per_tok"):
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        writer.add_expert_count(next(data[n] for n in names if data.get(n)))
        writer.add_expert_used_count(data["num_experts_per_tok"])
        if "moe_intermediate_size" in data:
            writer.add_expert_feed_forward_length(data["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in data:
            writer.add_expert_shared_feed_forward_length(data["shared_expert_intermediate_size"])
        if "norm_topk_prob" in changes:
            writer.add_expert_weights_norm(changes["norm_topk_prob"])
    if architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(data["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(data["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(data["final_logit_softcapping"])
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(data["use_parallel_residual"])
    tensors = {**converted(architecture, model), **more}
    for layer in range(c.num_hidden_layers if changes.get("halves") else 0):
        heads = tensors.pop(f"blk.{layer}.attn_kv_b.weight").reshape(
            c.num_attention_heads, -1, c.kv_lora_rank
        )
        keys, values = np.split(heads, [c.qk_nope_head_dim], axis=1)
        tensors[f"blk.{layer}.attn_k_b.weight"] = np.ascontiguousarray(keys.swapaxes(1, 2))
        tensors[f"blk.{layer}.attn_v_b.weight"] = np.ascontiguousarray(values)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_is_the_model(name: str, tmp_path: Path) -> None:
    architecture, changes = VARIANTS[name][0], dict(VARIANTS[name][1])
    family = changes.pop("family", ARCHITECTURES[architecture])
    sizes = {k: v for k, v in changes.items() if k != "halves"}
    model, tokens = reference(family, **sizes), prompt(24, seed=3)
    found = open_checkpoint(written(tmp_path, architecture, model, changes))
    graph = decoder_graph(found.config, length=24, capacity=32, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(24)[None], "last": np.array([23])}
    ours = interp.run(graph, feeds, weights=dict(found.arrays), states={})["logits"]
    want = logits_of(model, tokens)
    assert abs(ours - want).max() < 1e-5 * abs(want).max()


def test_weights_in_float64_are_read(tmp_path: Path) -> None:
    model = reference("llama")
    down = model.state_dict()["model.layers.0.mlp.down_proj.weight"].numpy().astype(np.float64)
    found = open_checkpoint(written(tmp_path, "llama", model, **{"blk.0.ffn_down.weight": down}))
    name = next(n for n, kind in found.formats.items() if kind == "F64")
    assert found.arrays[name].dtype == np.float32
    assert np.array_equal(found.arrays[name], down.astype(np.float32))


def test_the_largest_gemma_has_another_scale(tmp_path: Path) -> None:
    """Files do not have the scale: readers derive it from the number of layers."""
    model = reference(
        "gemma2", num_hidden_layers=46, query_pre_attn_scalar=16, hidden_size=48, tie_word_embeddings=True
    )
    found = open_checkpoint(written(tmp_path, "gemma2", model))
    assert found.config.scale == (48 / 6) ** -0.5


@pytest.mark.parametrize(
    ("tensor", "match"),
    [("blk.1.attn_sinks.weight", "unknown tensors"), ("rope_factors_long.weight", "unknown tensors"), ("rope_freqs.weight", "unsupported scaling")],
)  # fmt: skip
def test_tensors_that_nothing_reads_are_refused(tensor: str, match: str, tmp_path: Path) -> None:
    file = written(tmp_path, "phi3", reference("phi3"), **{tensor: np.ones(4, np.float32)})
    with pytest.raises(ModelError, match=match) as raised:
        open_checkpoint(file)
    assert tensor in str(raised.value)


@pytest.mark.parametrize(
    ("architecture", "facts", "match"),
    [
        ("qwen2", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_attn_factor": 2.0}, "unsupported rope.scaling.yarn_attn_factor"),
        ("qwen2", {"rope.scaling.type": "longrope"}, "unsupported scaling of rotary positions"),
        ("qwen3moe", {"expert_count": 4, "expert_used_count": 2, "expert_gating_func": 2}, "unsupported expert_gating_func"),
        ("deepseek2", {"expert_count": 4, "expert_weights_norm": True, "attention.kv_lora_rank": 8, "attention.key_length": 16,
                       "attention.value_length": 8, "rope.dimension_count": 8}, "unsupported expert_weights_norm"),
        ("deepseek2", {"expert_count": 4, "attention.key_length": 16, "attention.value_length": 8, "rope.dimension_count": 8},
         "no integer attention.kv_lora_rank"),
        ("olmoe", {}, "unsupported number of experts for olmoe"),
        ("qwen2", {"expert_count": 4}, "unsupported number of experts for qwen2"),
    ],
)  # fmt: skip
def test_metadata_that_changes_results_is_refused(
    architecture: str, facts: dict[str, Any], match: str
) -> None:
    common = {
        "attention.head_count": 4,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 32,
        "context_length": 64,
    }
    data = {f"{architecture}.{k}": v for k, v in {**common, **facts}.items()}
    with pytest.raises(ModelError, match=match):
        config_facts(
            architecture,
            lambda key, default=None: data.get(key, default),
            {"token_embd.weight": (9, 64)},
            "file",
        )


def test_an_unknown_architecture_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(file), "mamba")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"general.architecture; got 'mamba'.*gptneox") as raised:
        open_checkpoint(file)
    assert all(name in str(raised.value) for name in ARCHITECTURES)
