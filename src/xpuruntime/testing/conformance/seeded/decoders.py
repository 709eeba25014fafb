"""Tiny seeded decoders of the Llama and Qwen2 families, as transformers builds them: what ``xpuruntime.llm`` is judged by."""

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


def reference(family: str, **more: Any) -> Any:
    """A seeded transformers model whose every part matters: biases, norm scales and weights are all far from neutral."""
    import torch
    import transformers

    if family == "qwen2":
        made = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**SIZES, **more}))
    else:
        facts = {"tie_word_embeddings": True, "rope_parameters": LLAMA3, **SIZES, **more}
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**facts))
    made = made.eval()
    seed = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in made.named_parameters():
            noise = torch.randn(p.shape, generator=seed)
            p.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise if p.ndim == 1 else 0.2 * noise)
    made.tie_weights()
    return made


def prompt(length: int, seed: int = 0) -> list[int]:
    """Seeded tokens."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, SIZES["vocab_size"], length)]


def logits_of(model: Any, tokens: list[int]) -> Array:
    """What the reference says after each token, float32[length, vocab]."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].float().numpy())


def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    """The reference's own continuation."""
    import torch

    given = torch.tensor([tokens])
    out = model.generate(  # without a mask it would take tokens 0 for padding
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return [int(t) for t in out[0, len(tokens) :]]
