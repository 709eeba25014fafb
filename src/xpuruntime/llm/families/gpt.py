"""GPT-2 and decoders like it: layer norms with biases, and positions of several kinds."""

from __future__ import annotations

from .biases import Alibi
from .family import UNLIMITED, DecoderFamily, Variant
from .names import ALL_BIASES, ATTENTION, ENDS, GATED_MLP, LAYER_EPS, NORMS

__all__ = ["BLOOM", "FALCON", "GPT2", "GPT_NEOX", "MPT", "OPT", "PHI", "STABLELM"]

STABLELM = DecoderFamily(
    models="StableLM",
    ends=ENDS,
    parts={**NORMS, **ATTENTION, **GATED_MLP},
    norm="layer_norm",
    bias={"qkv": "use_qkv_bias"},
    keys=LAYER_EPS,
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
PHI = DecoderFamily(
    models="Phi-1, Phi-1.5, Phi-2",
    ends={"embed": "embed_tokens", "final_norm": "final_layernorm", "head": "lm_head"},
    parts={
        **ATTENTION,
        "o": "self_attn.dense",
        "input_norm": "input_layernorm",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    norm="layer_norm",
    parallel=True,
    bias={**ALL_BIASES, "head": True},
    keys=LAYER_EPS,
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
GPT_NEOX = DecoderFamily(
    models="GPT-NeoX, Pythia",
    base="gpt_neox.",
    ends={"embed": "embed_in", "final_norm": "final_layer_norm", "head": "embed_out"},
    parts={
        **NORMS,
        "qkv": "attention.query_key_value",
        "o": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    norm="layer_norm",
    parallel=True,
    qkv_order="groups",
    bias={"qkv": "attention_bias", "o": "attention_bias", "mlp": True},
    keys={**LAYER_EPS, "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
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
GPT2 = DecoderFamily(
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
    bias=ALL_BIASES,
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
FALCON = DecoderFamily(
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
        # transformers makes such a module, whose forward fails
        Variant(when={"new_decoder_architecture": True, "parallel_attn": False}, refused="parallel_attn"),
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
BLOOM = DecoderFamily(
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
    bias=ALL_BIASES,
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
MPT = DecoderFamily(
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
OPT = DecoderFamily(
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
        **ATTENTION,
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
