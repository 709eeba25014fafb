"""Decoders with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from .experts import BLOCK_SPARSE, EXPERTS, GATED_SHARED, SHARED, ExpertLayers
from .family import DecoderFamily, Variant
from .llama import LLAMA, MISTRAL, QWEN2, QWEN3
from .names import ENDS, GATED_MLP, NORMS, QK_NORM, RMS_EPS

__all__ = ["DEEPSEEK2", "MIXTRAL", "OLMOE", "QWEN2_MOE", "QWEN3_MOE"]

MIXTRAL = replace(
    MISTRAL,
    models="Mixtral",
    defaults={**MISTRAL.defaults, "rms_norm_eps": 1e-5, "sliding_window": None, "rope_theta": 1e6},
    experts=ExpertLayers(layouts=BLOCK_SPARSE, count=("num_local_experts",), inner="intermediate_size"),
)
QWEN2_MOE = replace(
    QWEN2,
    models="Qwen1.5-MoE, Qwen2-MoE",
    bias={"qkv": "qkv_bias"},
    windows="alternate first",
    defaults={
        **QWEN2.defaults,
        "qkv_bias": True,
        "norm_topk_prob": False,
        "num_experts_per_tok": 4,
        "num_experts": 60,
    },
    reads=QWEN2.reads | {"qkv_bias"},
    experts=ExpertLayers(
        layouts=GATED_SHARED,
        shared="shared_expert_intermediate_size",
        normalize="norm_topk_prob",
        dense="steps",
    ),
)
QWEN3_MOE = replace(
    QWEN3,
    models="Qwen3-MoE",
    windows="all",
    defaults={
        **LLAMA.defaults,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "norm_topk_prob": False,
    },
    reads=frozenset(["use_sliding_window", "sliding_window", "attention_bias"]),
    harmless=frozenset(["max_window_layers"]),
    experts=ExpertLayers(
        layouts=EXPERTS, count=("num_local_experts", "num_experts"), normalize="norm_topk_prob", dense="steps"
    ),
)
OLMOE = replace(
    LLAMA,
    models="OLMoE",
    parts={**LLAMA.parts, **QK_NORM},
    qk_norm="whole",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={"rms_norm_eps": 1e-5, "norm_topk_prob": False, "num_experts_per_tok": 8},
    reads=frozenset(["attention_bias"]),
    only={"clip_qkv": ()},
    experts=ExpertLayers(layouts=EXPERTS, inner="intermediate_size", normalize="norm_topk_prob"),
)
DEEPSEEK2 = DecoderFamily(
    models="DeepSeek-V2, DeepSeek-V2-Lite",
    ends=ENDS,
    parts={
        **NORMS,
        **GATED_MLP,
        "q_a": "self_attn.q_a_proj",
        "q_a_norm": "self_attn.q_a_layernorm",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_a_norm": "self_attn.kv_a_layernorm",
        "kv_b": "self_attn.kv_b_proj",
        "o": "self_attn.o_proj",
    },
    interleaved=True,
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    keys=RMS_EPS,
    defaults={
        "rms_norm_eps": 1e-6,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "topk_method": "greedy",
    },
    reads=frozenset(
        [
            "attention_bias",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "qk_head_dim",
            "v_head_dim",
        ]
    ),
    only={
        "mlp_bias": (False,),
        "norm_topk_prob": (False,),
        "moe_layer_freq": (1,),
        "scoring_func": ("softmax",),
    },
    equal={"num_key_value_heads": "num_attention_heads"},
    harmless=frozenset(["aux_loss_alpha", "seq_aux", "ep_size"]),
    experts=ExpertLayers(
        layouts=SHARED,
        count=("n_routed_experts", "num_experts"),
        shared_times="n_shared_experts",
        normalize=False,
        scale="routed_scaling_factor",
        groups=("n_group", "topk_group", "topk_method"),
        dense="first",
    ),
    variants=(
        Variant(
            when={"q_lora_rank": None},
            parts={"q": "self_attn.q_proj", "q_a": None, "q_a_norm": None, "q_b": None},
        ),
    ),
)
