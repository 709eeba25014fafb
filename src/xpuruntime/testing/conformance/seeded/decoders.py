"""Tiny seeded decoders of the Llama and Qwen2 families from transformers, the references of ``xpuruntime.llm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....protocols import Array

__all__ = ["LLAMA3", "SIZES", "greedy", "logits_of", "prompt", "reference"]

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "eos_token_id": None, "bos_token_id": None,
    "attn_implementation": "eager",
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def reference(family: str, **overrides: Any) -> Any:
    """Return a seeded transformers model in which every part matters: biases, norm scales and weights are far from neutral."""
    import torch
    import transformers

    if family == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**SIZES, **overrides}))
    else:
        facts = {"tie_word_embeddings": True, "rope_parameters": LLAMA3, **SIZES, **overrides}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**facts))
    model = model.eval()
    seed = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=seed)
            p.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise if p.ndim == 1 else 0.2 * noise)
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
