"""Tiny seeded encoder-decoders of every family from transformers, the references of ``xpuruntime.llm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....protocols import Array
from .decoders import randomized

__all__ = ["FAMILIES", "encoded_by", "features", "greedy", "logits_of", "reference"]

_T5: dict[str, Any] = {
    "vocab_size": 97, "d_model": 96, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6,
    "relative_attention_num_buckets": 16, "relative_attention_max_distance": 20, "decoder_start_token_id": 5, "eos_token_id": None,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": 97, "d_model": 96, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 112, "max_position_embeddings": 128, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": None,
    "decoder_start_token_id": 2, "forced_eos_token_id": None, "dropout": 0.0, "scale_embedding": True,
}  # fmt: skip
_WHISPER: dict[str, Any] = {
    **{k: v for k, v in _BART.items() if k not in ("max_position_embeddings", "scale_embedding")},
    "num_mel_bins": 10, "max_source_positions": 32, "max_target_positions": 128, "begin_suppress_tokens": None,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "mt5": ("MT5ForConditionalGeneration", _T5),
    "bart": ("BartForConditionalGeneration", {**_BART, "scale_embedding": False}),
    "mbart": ("MBartForConditionalGeneration", _BART),
    "marian": ("MarianMTModel", {**_BART, "activation_function": "swish", "decoder_vocab_size": 97}),
    "pegasus": ("PegasusForConditionalGeneration", _BART),
    "whisper": ("WhisperForConditionalGeneration", _WHISPER),
}
"""``model_type`` -> class in transformers, and sizes that let every part matter: distances beyond the last bucket, sides of other depths."""


def reference(family: str, **overrides: Any) -> Any:
    """Return a seeded transformers model in which every part matters: biases, norm scales and weights are far from neutral."""
    import torch
    import transformers

    name, facts = FAMILIES[family]
    kind = getattr(transformers, name)
    config = kind.config_class(**{**facts, "attn_implementation": "eager", **overrides})
    model = kind(config)
    stored = {key: p.clone() for key, p in model.named_parameters() if not p.requires_grad}
    model = randomized(model)
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.3, generator=torch.Generator().manual_seed(8))
        for key, p in model.named_parameters():
            if key in stored:
                p.copy_(stored[key])  # tables of sines, which are not learned
        for key, p in model.named_parameters():
            if key.endswith("Attention.q.weight"):
                p.mul_(0.25)  # T5 does not scale scores, so that its queries are small
    return model


def features(model: Any, seed: int = 0) -> Array:
    """Return seeded frames of audio, float32[features, frames]."""
    c = model.config
    noise = np.random.default_rng(seed).standard_normal((c.num_mel_bins, 2 * c.max_source_positions))
    return noise.astype(np.float32)


def _inputs(source: Any) -> dict[str, Any]:
    import torch

    if isinstance(source, np.ndarray):
        return {"input_features": torch.tensor(source)[None]}
    tokens = torch.tensor([source])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def encoded_by(model: Any, source: Any) -> Array:
    """Return the reference's output of the encoder for tokens or features, float32[length, hidden]."""
    import torch

    with torch.no_grad():
        return np.asarray(model.get_encoder()(**_inputs(source)).last_hidden_state[0].float().numpy())


def logits_of(model: Any, source: Any, tokens: list[int]) -> Array:
    """Return the reference's logits after each token of the decoder's text, float32[length, vocab]."""
    import torch

    with torch.no_grad():
        out = model(**_inputs(source), decoder_input_ids=torch.tensor([tokens]))
    return np.asarray(out.logits[0].float().numpy())


def greedy(model: Any, source: Any, count: int, **words: Any) -> list[int]:
    """Return the reference's own answer, without the tokens that it starts with."""
    from transformers import GenerationMixin

    settings = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **words}
    out = GenerationMixin.generate(model, **_inputs(source), **settings)
    return [int(t) for t in out[0, 1:]]
