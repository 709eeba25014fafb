"""FAMILIES: the table of decoders, one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .bart import BART, MARIAN, MBART, PEGASUS, WHISPER
from .biases import Alibi
from .experts import EXPERTS, GATED_SHARED, MIXTRAL, SHARED, ExpertLayers
from .family import UNLIMITED, DecoderFamily, Variant
from .t5 import MT5, T5

__all__ = ["FAMILIES"]

_ENDS = {"embed": "embed_tokens", "final_norm": "norm", "head": "lm_head"}
_ATTENTION = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
}
_QK_NORM = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_NORMS = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_EPS = {"norm_eps": "rms_norm_eps"}
_LAYER_EPS = {"norm_eps": "layer_norm_eps"}
_ALL_BIASES = {"qkv": True, "o": True, "mlp": True}
_QWEN_WINDOW = frozenset(["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"])
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new")

_LLAMA = DecoderFamily(
    models="Llama 1, 2, 3, 3.x",
    ends=_ENDS,
    parts={**_NORMS, **_ATTENTION, **_MLP},
    bias={"qkv": "attention_bias", "o": "attention_bias", "mlp": "mlp_bias"},
    keys=_EPS,
    defaults={"rms_norm_eps": 1e-6},
    reads=frozenset(["attention_bias", "mlp_bias"]),
    only={"rope_interleaved": (False,)},
)
_QWEN2 = replace(
    _LLAMA,
    models="Qwen2, Qwen2.5",
    bias={"qkv": True},
    windows="last",
    defaults={
        **_LLAMA.defaults,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    reads=_QWEN_WINDOW,
    only={"use_mrope": (False,)},
)
_QWEN3 = replace(
    _QWEN2,
    models="Qwen3",
    parts={**_LLAMA.parts, **_QK_NORM},
    qk_norm="head",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={**_QWEN2.defaults, "head_dim": 128},
    reads=_QWEN_WINDOW | {"attention_bias"},
)
_MISTRAL = replace(
    _LLAMA,
    models="Mistral",
    bias={},
    windows="all",
    defaults={**_LLAMA.defaults, "sliding_window": 4096, "num_key_value_heads": 8},
    reads=frozenset(["sliding_window"]),
    only={"attention_bias": (False,)},
)
_GEMMA_KEYS = frozenset(["attention_bias"])
_GEMMA = replace(
    _LLAMA,
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
_GEMMA2 = replace(
    _GEMMA,
    models="Gemma 2",
    parts={
        **_ATTENTION,
        **_MLP,
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    windows="alternate",
    keys={**_EPS, "hidden_act": "hidden_activation"},
    defaults={
        **_GEMMA.defaults,
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
_GEMMA3 = replace(
    _GEMMA2,
    models="Gemma 3 (text)",
    parts={**_GEMMA2.parts, **_QK_NORM},
    qk_norm="head",
    windows="periodic",
    defaults={
        **_GEMMA2.defaults,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
    },
    reads=_GEMMA2.reads | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
)
_PHI3 = replace(
    _LLAMA,
    models="Phi-3, Phi-3.5-mini, Phi-4",
    parts={
        **_NORMS,
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
_OLMO2 = replace(
    _LLAMA,
    models="OLMo-2",
    parts={
        **_ATTENTION,
        **_MLP,
        **_QK_NORM,
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    qk_norm="whole",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={"rms_norm_eps": 1e-5},
    reads=frozenset(["attention_bias"]),
)
_STABLELM = DecoderFamily(
    models="StableLM",
    ends=_ENDS,
    parts={**_NORMS, **_ATTENTION, **_MLP},
    norm="layer_norm",
    bias={"qkv": "use_qkv_bias"},
    keys=_LAYER_EPS,
    defaults={
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "use_qkv_bias": False,
        "max_position_embeddings": 4096,
    },
    qk_norm="each",
    reads=frozenset(["use_qkv_bias", "use_parallel_residual", "qk_layernorm"]),
    variants=(
        Variant(when={"use_parallel_residual": True}, parts={"mlp_norm": None}, changes={"parallel": True}),
        Variant(
            when={"qk_layernorm": True},
            parts={"q_norm": "self_attn.q_layernorm.norms", "k_norm": "self_attn.k_layernorm.norms"},
        ),
    ),
)
_PHI = DecoderFamily(
    models="Phi-1, Phi-1.5, Phi-2",
    ends={"embed": "embed_tokens", "final_norm": "final_layernorm", "head": "lm_head"},
    parts={
        **_ATTENTION,
        "o": "self_attn.dense",
        "input_norm": "input_layernorm",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    norm="layer_norm",
    parallel=True,
    bias={**_ALL_BIASES, "head": True},
    keys=_LAYER_EPS,
    defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
    qk_norm="head",
    reads=frozenset(["qk_layernorm"]),
    variants=(
        Variant(
            when={"qk_layernorm": True},
            parts={"q_norm": "self_attn.q_layernorm", "k_norm": "self_attn.k_layernorm"},
        ),
    ),
)
_NEOX = DecoderFamily(
    models="GPT-NeoX, Pythia",
    base="gpt_neox.",
    ends={"embed": "embed_in", "final_norm": "final_layer_norm", "head": "embed_out"},
    parts={
        **_NORMS,
        "qkv": "attention.query_key_value",
        "o": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    norm="layer_norm",
    parallel=True,
    qkv_order="groups",
    bias={"qkv": "attention_bias", "o": "attention_bias", "mlp": True},
    keys={**_LAYER_EPS, "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    defaults={
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.25,
        "hidden_act": "gelu",
        "attention_bias": True,
        "use_parallel_residual": True,
    },
    reads=frozenset(["attention_bias", "use_parallel_residual"]),
    buffers=("attention.bias", "attention.masked_bias"),
    variants=(Variant(when={"use_parallel_residual": False}, changes={"parallel": False}),),
)
_GPT2 = DecoderFamily(
    models="GPT-2",
    base="transformer.",
    ends={"embed": "wte", "positions": "wpe", "final_norm": "ln_f", "head": "lm_head"},
    layers="h",
    parts={
        "input_norm": "ln_1",
        "mlp_norm": "ln_2",
        "qkv": "attn.c_attn",
        "o": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    norm="layer_norm",
    rotary=False,
    transposed=True,
    bias=_ALL_BIASES,
    inner_default=True,
    keys={
        "norm_eps": "layer_norm_epsilon",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "hidden_act": "activation_function",
    },
    defaults={
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "n_positions": 1024,
    },
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "num_key_value_heads": (),
        "head_dim": (),
    },
    harmless=frozenset(["reorder_and_upcast_attn", "n_ctx"]),
    buffers=("attn.bias", "attn.masked_bias"),
)
_FALCON = DecoderFamily(
    models="Falcon 7B, 11B, 40B, 180B, Falcon-RW",
    base="transformer.",
    ends={"embed": "word_embeddings", "final_norm": "ln_f", "head": "lm_head"},
    layers="h",
    parts={
        "input_norm": "input_layernorm",
        "qkv": "self_attention.query_key_value",
        "o": "self_attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    norm="layer_norm",
    parallel=True,
    qkv_order="groups",
    bias={"qkv": "bias", "o": "bias", "mlp": "bias"},
    inner_default=True,
    keys={
        "norm_eps": "layer_norm_epsilon",
        "num_key_value_heads": "num_kv_heads",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
    },
    defaults={
        "layer_norm_epsilon": 1e-5,
        "activation": "gelu",
        "tie_word_embeddings": True,
        "bias": False,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "num_ln_in_parallel_attn": None,
        "alibi": False,
    },
    reads=frozenset(["bias", "multi_query", "parallel_attn", "new_decoder_architecture", "alibi"]),
    only={
        "num_ln_in_parallel_attn": (1, 2),
        "apply_residual_connection_post_layernorm": (False,),
        "head_dim": (),
    },
    aliases={"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    variants=(
        Variant(when={"alibi": True}, changes={"rotary": False, "alibi": Alibi(scaled=True, rounded=True)}),
        Variant(when={"new_decoder_architecture": False, "multi_query": True}, facts={"num_kv_heads": 1}),
        Variant(when={"new_decoder_architecture": False, "multi_query": False}, facts={"num_kv_heads": None}),
        Variant(
            when={"new_decoder_architecture": False, "parallel_attn": False},
            parts={"mlp_norm": "post_attention_layernorm"},
            changes={"parallel": False},
        ),
        *(
            Variant(
                when={
                    "new_decoder_architecture": True,
                    "parallel_attn": True,
                    "num_ln_in_parallel_attn": norms,
                },
                parts={"input_norm": "ln_attn", "mlp_norm": "ln_mlp"},
            )
            for norms in (None, 2)
        ),
    ),
)
_BLOOM = DecoderFamily(
    models="BLOOM, BLOOMZ",
    base="transformer.",
    ends={
        "embed": "word_embeddings",
        "embed_norm": "word_embeddings_layernorm",
        "final_norm": "ln_f",
        "head": "lm_head",
    },
    layers="h",
    parts={
        "input_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "qkv": "self_attention.query_key_value",
        "o": "self_attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    norm="layer_norm",
    rotary=False,
    alibi=Alibi(),
    qkv_order="groups",
    bias=_ALL_BIASES,
    inner_default=True,
    aliases={
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    keys={"norm_eps": "layer_norm_epsilon", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    defaults={
        "layer_norm_epsilon": 1e-5,
        "hidden_act": "gelu_new",
        "tie_word_embeddings": True,
        "max_position_embeddings": UNLIMITED,
    },
    only={
        "apply_residual_connection_post_layernorm": (False,),
        "slow_but_exact": (False,),
        "skip_bias_add_qkv": (False,),
        "hidden_act": (),
        "n_inner": (),
        "intermediate_size": (),
        "num_key_value_heads": (),
        "head_dim": (),
    },
    harmless=frozenset(
        [
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "offset_alibi",
            "seq_length",
            "skip_bias_add",
            "unk_token_id",
        ]
    ),
)
_MPT = DecoderFamily(
    models="MPT",
    base="transformer.",
    ends={"embed": "wte", "final_norm": "norm_f", "head": "lm_head"},
    layers="blocks",
    parts={
        "input_norm": "norm_1",
        "mlp_norm": "norm_2",
        "qkv": "attn.Wqkv",
        "o": "attn.out_proj",
        "up": "ffn.up_proj",
        "down": "ffn.down_proj",
    },
    norm="layer_norm",
    norm_bias=False,
    rotary=False,
    alibi=Alibi(),
    clip="attn_config.clip_qkv",
    inner_default=True,
    nested=("attn_config",),
    keys={
        "norm_eps": "layer_norm_epsilon",
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    },
    defaults={
        "layer_norm_epsilon": 1e-5,
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
    },
    reads=frozenset(["attn_config.clip_qkv"]),
    only={
        "attn_config.alibi": (True,),
        "attn_config.alibi_bias_max": (8,),
        "attn_config.prefix_lm": (False,),
        "attn_config.qk_ln": (False,),
        "attn_config.attn_uses_sequence_id": (False,),
        "attn_config.attn_type": ("multihead_attention",),
        "attn_config.softmax_scale": (),
        "expansion_ratio": (4,),
        "no_bias": (True,),
        "logit_scale": (),
        "norm_type": ("low_precision_layernorm",),
        "hidden_act": (),
        "intermediate_size": (),
        "num_key_value_heads": (),
        "head_dim": (),
    },
    harmless=frozenset(
        [
            "attn_config.attn_impl",
            "attn_config.attn_pdrop",
            "attn_config.model_type",
            "emb_pdrop",
            "embedding_fraction",
            "init_config",
            "init_device",
            "learned_pos_emb",
            "tokenizer_name",
            "verbose",
        ]
    ),
)
_OPT = DecoderFamily(
    models="OPT",
    base="model.",
    ends={
        "embed": "decoder.embed_tokens",
        "positions": "decoder.embed_positions",
        "final_norm": "decoder.final_layer_norm",
        "project_in": "decoder.project_in",
        "project_out": "decoder.project_out",
        "head": "lm_head",
    },
    layers="decoder.layers",
    parts={
        **_ATTENTION,
        "o": "self_attn.out_proj",
        "input_norm": "self_attn_layer_norm",
        "mlp_norm": "final_layer_norm",
        "up": "fc1",
        "down": "fc2",
    },
    norm="layer_norm",
    rotary=False,
    position_offset=2,
    bias={"qkv": "enable_bias", "o": "enable_bias", "mlp": "enable_bias"},
    keys={"norm_eps": "layer_norm_eps", "intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    defaults={
        "layer_norm_eps": 1e-5,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "enable_bias": True,
        "ffn_dim": 3072,
    },
    reads=frozenset(["enable_bias", "do_layer_norm_before", "word_embed_proj_dim"]),
    embed_size="word_embed_proj_dim",
    only={
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
        "num_key_value_heads": (),
        "head_dim": (),
        "layer_norm_eps": (),
    },
    variants=(
        # OPT-350M
        Variant(
            when={"do_layer_norm_before": False},
            parts={
                "input_norm": None,
                "mlp_norm": None,
                "attention_sum_norm": "self_attn_layer_norm",
                "mlp_sum_norm": "final_layer_norm",
            },
            ends={"final_norm": None},
        ),
    ),
)
_MIXTRAL = replace(
    _MISTRAL,
    models="Mixtral",
    defaults={**_MISTRAL.defaults, "rms_norm_eps": 1e-5, "sliding_window": None, "rope_theta": 1e6},
    experts=ExpertLayers(layouts=MIXTRAL, count=("num_local_experts",), inner="intermediate_size"),
)
_QWEN2_MOE = replace(
    _QWEN2,
    models="Qwen1.5-MoE, Qwen2-MoE",
    bias={"qkv": "qkv_bias"},
    windows="alternate first",
    defaults={
        **_QWEN2.defaults,
        "qkv_bias": True,
        "norm_topk_prob": False,
        "num_experts_per_tok": 4,
        "num_experts": 60,
    },
    reads=_QWEN2.reads | {"qkv_bias"},
    experts=ExpertLayers(
        layouts=GATED_SHARED,
        shared="shared_expert_intermediate_size",
        normalize="norm_topk_prob",
        dense="steps",
    ),
)
_QWEN3_MOE = replace(
    _QWEN3,
    models="Qwen3-MoE",
    windows="all",
    defaults={
        **_LLAMA.defaults,
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
_OLMOE = replace(
    _LLAMA,
    models="OLMoE",
    parts={**_LLAMA.parts, **_QK_NORM},
    qk_norm="whole",
    bias={"qkv": "attention_bias", "o": "attention_bias"},
    defaults={"rms_norm_eps": 1e-5, "norm_topk_prob": False, "num_experts_per_tok": 8},
    reads=frozenset(["attention_bias"]),
    only={"clip_qkv": ()},
    experts=ExpertLayers(layouts=EXPERTS, inner="intermediate_size", normalize="norm_topk_prob"),
)
_DEEPSEEK2 = DecoderFamily(
    models="DeepSeek-V2, DeepSeek-V2-Lite",
    ends=_ENDS,
    parts={
        **_NORMS,
        **_MLP,
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
    keys=_EPS,
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

FAMILIES: Mapping[str, DecoderFamily] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "phi3": _PHI3,
    "olmo2": _OLMO2,
    "stablelm": _STABLELM,
    "phi": _PHI,
    "gpt_neox": _NEOX,
    "gpt2": _GPT2,
    "falcon": _FALCON,
    "bloom": _BLOOM,
    "mpt": _MPT,
    "opt": _OPT,
    "mixtral": _MIXTRAL,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3_moe": _QWEN3_MOE,
    "olmoe": _OLMOE,
    "deepseek_v2": _DEEPSEEK2,
    "t5": T5,
    "mt5": MT5,
    "bart": BART,
    "mbart": MBART,
    "marian": MARIAN,
    "pegasus": PEGASUS,
    "whisper": WHISPER,
}
"""``model_type`` -> row."""
