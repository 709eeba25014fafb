"""Gemma: norms with an offset, scaled embeddings, soft caps, windows."""

from __future__ import annotations

from dataclasses import replace

from .llama import LLAMA
from .names import ATTENTION, GATED_MLP, QK_NORM, RMS_EPS

__all__ = ["GEMMA", "GEMMA2", "GEMMA3"]

_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new")


_GEMMA_KEYS = frozenset(["attention_bias"])
GEMMA = replace(
    LLAMA,
    models="Gemma 1",
    norm_offset=1.0,
    embed_scale="sqrt",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={
        "rms_norm_eps": 1e-6,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
    },
    reads=_GEMMA_KEYS,
    # Gemma 1 was trained with the tanh form. Early configs say "gelu", which releases of transformers read differently.
    only={"hidden_act": _GELU_TANH, "hidden_activation": _GELU_TANH},
)
GEMMA2 = replace(
    GEMMA,
    models="Gemma 2",
    parts={
        **ATTENTION,
        **GATED_MLP,
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    windows="alternate",
    keys={**RMS_EPS, "hidden_act": "hidden_activation"},
    defaults={
        **GEMMA.defaults,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    reads=_GEMMA_KEYS
    | {
        "query_pre_attn_scalar",
        "sliding_window",
        "layer_types",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    },
    only={"hidden_activation": _GELU_TANH, "hidden_act": _GELU_TANH},
    harmless=frozenset(["cache_implementation"]),
)
GEMMA3 = replace(
    GEMMA2,
    models="Gemma 3 (text)",
    parts={**GEMMA2.parts, **QK_NORM},
    qk_norm="head",
    windows="periodic",
    defaults={
        **GEMMA2.defaults,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
    },
    reads=GEMMA2.reads | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
)
