"""Rows of BART and its relatives: encoder-decoders with tables of positions. mBART, Marian, Pegasus and Whisper differ in a few fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .family import DecoderFamily, Variant

__all__ = ["BART", "MARIAN", "MBART", "PEGASUS", "WHISPER"]

_SIDE_KEYS = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
}
_FEED_FORWARD = {"up": "fc1", "down": "fc2"}
_CROSS_NAMES = {"cross_sum_norm": "encoder_attn_layer_norm"}


def _attention(name: str, prefix: str = "") -> dict[str, str]:
    return {
        **{f"{prefix}{part}": f"{name}.{part}_proj" for part in "qkv"},
        f"{prefix}o": f"{name}.out_proj",
    }


_SELF = {**_attention("self_attn"), **_FEED_FORWARD}
_CROSS = _attention("encoder_attn", "cross_")
_BEFORE = {"input_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"}
_AFTER = {"attention_sum_norm": "self_attn_layer_norm", "mlp_sum_norm": "final_layer_norm"}


def _keys(side: str) -> dict[str, str]:
    return {
        "hidden_size": "d_model",
        "hidden_act": "activation_function",
        **{name: f"{side}_{key}" for name, key in _SIDE_KEYS.items()},
    }


def _ends(side: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: f"{side}.{name}" for part, name in names.items()}


_TABLES = {"positions": "embed_positions", "embed_norm": "layernorm_embedding"}
_SCALED = (Variant(when={"scale_embedding": True}, changes={"embed_scale": "sqrt"}),)
_EMBEDDINGS = ("encoder.embed_tokens", "decoder.embed_tokens")
_ENCODER = DecoderFamily(
    models="",
    synonyms=_EMBEDDINGS,
    ends={"embed": "shared", **_ends("encoder", _TABLES)},
    layers="encoder.layers",
    parts={**_SELF, **_AFTER},
    norm="layer_norm",
    rotary=False,
    position_offset=2,
    bias={"qkv": True, "o": True, "mlp": True},
    keys=_keys("encoder"),
    defaults={
        "norm_eps": 1e-5,
        "activation_function": "gelu",
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
    reads=frozenset(["scale_embedding"]),
    variants=_SCALED,
)
BART = replace(
    _ENCODER,
    models="BART",
    ends={
        "embed": "shared",
        **_ends("decoder", _TABLES),
        "head": "lm_head",
        "logits_bias": "final_logits_bias",
    },
    layers="decoder.layers",
    parts={**_SELF, **_CROSS, **_AFTER, **_CROSS_NAMES},
    keys=_keys("decoder"),
    only={
        "is_encoder_decoder": (True,),
        "norm_eps": (),
        "num_key_value_heads": (),
        "head_dim": (),
        "add_bias_logits": (False,),
    },
    # transformers reads none of them: what they say follows from the model_type.
    harmless=frozenset(
        [
            "_num_labels",
            "add_final_layer_norm",
            "classif_dropout",
            "decoder_layerdrop",
            "encoder_layerdrop",
            "extra_pos_embeddings",
            "force_bos_token_to_be_generated",
            "normalize_before",
            "normalize_embedding",
            "num_hidden_layers",
            "output_past",
            "static_position_embeddings",
        ]
    ),
    synonyms=_EMBEDDINGS[::-1],
    encoder=_ENCODER,
)


def _before(row: DecoderFamily, side: str, ends: Mapping[str, str]) -> DecoderFamily:
    """Return a side with norms before its blocks, and one after its last layer."""
    cross = {**_CROSS, "cross_norm": "encoder_attn_layer_norm"} if side == "decoder" else {}
    parts = {**_SELF, **cross, **_BEFORE}
    return replace(row, parts=parts, ends={**ends, "final_norm": f"{side}.layer_norm"})


MBART = replace(
    _before(BART, "decoder", BART.ends),
    models="mBART",
    encoder=_before(_ENCODER, "encoder", _ENCODER.ends),
)


def _without(ends: Mapping[str, str], part: str) -> dict[str, str]:
    return {k: v for k, v in ends.items() if k != part}


_SINUSOIDAL_ENCODER = replace(
    _ENCODER, ends=_without(_ENCODER.ends, "embed_norm"), position_offset=0, sinusoidal=True
)
MARIAN = replace(
    BART,
    models="Marian (OPUS-MT)",
    ends=_without(BART.ends, "embed_norm"),
    position_offset=0,
    sinusoidal=True,
    equal={"decoder_vocab_size": "vocab_size"},
    only={**BART.only, "share_encoder_decoder_embeddings": (True,)},
    encoder=_SINUSOIDAL_ENCODER,
)
PEGASUS = replace(
    _before(MARIAN, "decoder", MARIAN.ends),
    models="Pegasus",
    equal={},
    only=BART.only,
    encoder=_before(_SINUSOIDAL_ENCODER, "encoder", _SINUSOIDAL_ENCODER.ends),
)
_WHISPER_BIAS = {"qkv": True, "k": False, "o": True, "mlp": True}
WHISPER = replace(
    _before(
        BART,
        "decoder",
        {"embed": "decoder.embed_tokens", "positions": "decoder.embed_positions", "head": "proj_out"},
    ),
    models="Whisper",
    position_offset=0,
    bias=_WHISPER_BIAS,
    keys={**BART.keys, "max_position_embeddings": "max_target_positions"},
    defaults={
        **BART.defaults,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    },
    reads=frozenset(["num_mel_bins"]),
    only={
        **BART.only,
        "max_position_embeddings": (),
        "use_weighted_layer_sum": (False,),
    },
    harmless=BART.harmless
    | {
        "apply_spec_augment",
        "classifier_proj_size",
        "forced_decoder_ids",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        "median_filter_width",
        "scale_embedding",
    },
    synonyms=(),
    variants=(),
    encoder=replace(
        _before(
            _ENCODER,
            "encoder",
            {"conv1": "encoder.conv1", "conv2": "encoder.conv2", "positions": "encoder.embed_positions"},
        ),
        position_offset=0,
        bias=_WHISPER_BIAS,
        keys={**_ENCODER.keys, "max_position_embeddings": "max_source_positions"},
        defaults={**_ENCODER.defaults, "num_mel_bins": 80, "max_source_positions": 1500},
        features="num_mel_bins",
        synonyms=(),
        reads=frozenset(),
        variants=(),
    ),
)
