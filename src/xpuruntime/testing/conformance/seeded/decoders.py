"""Tiny seeded decoders of every family from transformers, the references of ``xpuruntime.llm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....protocols import Array

__all__ = ["FAMILIES", "LLAMA3", "SIZES", "greedy", "logits_of", "prompt", "randomized", "reference"]

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "eos_token_id": None, "bos_token_id": None,
    "attn_implementation": "eager",
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.9, "mscale_all_dim": 0.5,
    "original_max_position_embeddings": 32,
}  # fmt: skip


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen3": ("Qwen3", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}),
    "gemma": ("Gemma", {}),
    "gemma2": (
        "Gemma2",
        {"sliding_window": 7, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 15.0, "query_pre_attn_scalar": 24,
         "tie_word_embeddings": False},
    ),
    "gemma3_text": (
        "Gemma3",
        {
            "sliding_window": 7, "query_pre_attn_scalar": 24, "tie_word_embeddings": False,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            },
        },
    ),
    "phi3": (
        "Phi3",
        {"sliding_window": 7, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
         "original_max_position_embeddings": 256},
    ),
    "olmo2": ("Olmo2", {}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "phi": ("Phi", {}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt2": ("GPT2", {"n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 256}),
    "falcon": ("Falcon", {"num_kv_heads": 2, "new_decoder_architecture": True, "bias": True, "ffn_hidden_size": 160}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 12, "tie_word_embeddings": False}),
    "mpt": ("Mpt", {"d_model": 96, "n_layers": 2, "n_heads": 6, "max_seq_len": 256, "attn_config": {"clip_qkv": 1.5}}),
    "opt": ("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 96, "dropout": 0.0}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "intermediate_size": 56, "sliding_window": 7}),
    "qwen2_moe": (
        "Qwen2Moe",
        {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "num_hidden_layers": 3,
         "mlp_only_layers": [1]},
    ),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 40, "norm_topk_prob": True}),
    "deepseek_v2": (
        "DeepseekV2",
        {
            "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_key_value_heads": 6, "q_lora_rank": 40, "kv_lora_rank": 24,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2,
            "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 2.5, "attention_bias": True, "rope_parameters": YARN,
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 9, "num_experts_per_tok": 2, "intermediate_size": 40}),
}  # fmt: skip
"""``model_type`` -> class in transformers, and sizes that let every part matter: windows below the text's length, soft caps that bite."""

_SPECIAL = {"bos_token_id", "eos_token_id", "pad_token_id", "vocab_size", "attn_implementation"}
_CONFIGS = {"gemma3_text": "Gemma3Text"}


def reference(family: str, **overrides: Any) -> Any:
    """Return a seeded transformers model in which every part matters: biases, norm scales and weights are far from neutral."""
    import transformers

    name, facts = FAMILIES[family]
    kind = getattr(transformers, f"{_CONFIGS.get(family, name)}Config")
    fields = {*kind().to_dict(), *_SPECIAL}
    sizes = {k: v for k, v in {**SIZES, "pad_token_id": None}.items() if k in fields}
    model = getattr(transformers, f"{name}ForCausalLM" if name != "GPT2" else "GPT2LMHeadModel")(
        kind(**{**sizes, **facts, **overrides})
    )
    return randomized(model)


def randomized(model: Any) -> Any:
    """Return the model with seeded weights that are far from neutral."""
    import torch

    model = model.eval()
    seed = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=seed)
            is_norm = p.ndim == 1 and not name.endswith("bias")
            p.copy_(1 + 0.3 * noise if is_norm else 0.5 * noise if p.ndim == 1 else 0.2 * noise)
    model.tie_weights()
    return model


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return seeded tokens."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, SIZES["vocab_size"], length)]


def logits_of(model: Any, tokens: list[int]) -> Array:
    """Return the reference's logits after each token, float32[length, vocab]."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].float().numpy())


def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    """Return the reference's own greedy continuation."""
    import torch

    inputs = torch.tensor([tokens])
    out = model.generate(  # without a mask it would treat tokens 0 as padding
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return [int(t) for t in out[0, len(tokens) :]]
