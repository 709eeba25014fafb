"""Llama, and decoders with its layers: RMS norms, a gated MLP, rotary positions."""

from __future__ import annotations

from dataclasses import replace

from .family import DecoderFamily
from .names import ATTENTION, ENDS, GATED_MLP, NORMS, QK_NORM, RMS_EPS

__all__ = ["LLAMA", "MISTRAL", "OLMO2", "PHI3", "QWEN2", "QWEN3"]

_QWEN_WINDOW = frozenset(["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"])

LLAMA = DecoderFamily(
    models="Llama 1, 2, 3, 3.x",
    ends=ENDS,
    parts={**NORMS, **ATTENTION, **GATED_MLP},
    bias={"qkv": "attention_bias", "o": "attention_bias", "mlp": "mlp_bias"},
    keys=RMS_EPS,
    defaults={"rms_norm_eps": 1e-6},
    reads=frozenset(["attention_bias", "mlp_bias"]),
    only={"rope_interleaved": (False,)},
)
QWEN2 = replace(
    LLAMA,
    models="Qwen2, Qwen2.5",
    bias={"qkv": True},
    windows="last",
    defaults={
        **LLAMA.defaults,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    reads=_QWEN_WINDOW,
    only={"use_mrope": (False,)},
)
QWEN3 = replace(
    QWEN2,
    models="Qwen3",
    parts={**LLAMA.parts, **QK_NORM},
    qk_norm="head",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={**QWEN2.defaults, "head_dim": 128},
    reads=_QWEN_WINDOW | {"attention_bias"},
)
MISTRAL = replace(
    LLAMA,
    models="Mistral",
    bias={},
    windows="all",
    defaults={**LLAMA.defaults, "sliding_window": 4096, "num_key_value_heads": 8},
    reads=frozenset(["sliding_window"]),
    only={"attention_bias": (False,)},
)
PHI3 = replace(
    LLAMA,
    models="Phi-3, Phi-3.5-mini, Phi-4",
    parts={
        **NORMS,
        "qkv": "self_attn.qkv_proj",
        "o": "self_attn.o_proj",
        "gate_up": "mlp.gate_up_proj",
        "down": "mlp.down_proj",
    },
    bias={},
    windows="all",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": None, "max_position_embeddings": 4096},
    reads=frozenset(["sliding_window", "original_max_position_embeddings"]),
    only={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "lm_head_bias": (False,),
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
    },
)
OLMO2 = replace(
    LLAMA,
    models="OLMo-2",
    parts={
        **ATTENTION,
        **GATED_MLP,
        **QK_NORM,
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    qk_norm="whole",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={"rms_norm_eps": 1e-5},
    reads=frozenset(["attention_bias"]),
)
