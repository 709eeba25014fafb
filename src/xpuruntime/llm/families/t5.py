"""Rows of T5 and mT5: encoder-decoders with learned biases by distances instead of positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .family import UNLIMITED, DecoderFamily, Variant

__all__ = ["MT5", "T5"]

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu_new", "silu": "silu"}


def _attention(layer: int, name: str, prefix: str = "") -> dict[str, str]:
    return {f"{prefix}{part}": f"layer.{layer}.{name}.{part}" for part in "qkvo"}


def _feed_forward(layer: int) -> dict[str, str]:
    prefix = f"layer.{layer}.DenseReluDense"
    return {"mlp_norm": f"layer.{layer}.layer_norm", "up": f"{prefix}.wi", "down": f"{prefix}.wo"}


def _variants(layer: int) -> tuple[Variant, ...]:
    """Return the kinds of feed-forward layers. ``gelu`` is exact without a gate, and the tanh form with one."""
    prefix = f"layer.{layer}.DenseReluDense"
    plain = {a: (a, False) for a in _ACTIVATIONS}
    gated = {f"gated-{kind}": (activation, True) for kind, activation in _ACTIVATIONS.items()}
    kinds = (
        Variant(when={"feed_forward_proj": kind}, defaults={"dense_act_fn": activation, "is_gated_act": gate})
        for kind, (activation, gate) in {**plain, **gated}.items()
    )
    gate = {"gate": f"{prefix}.wi_0", "up": f"{prefix}.wi_1"}
    return (*kinds, Variant(when={"is_gated_act": True}, parts=gate))


_SELF: Mapping[str, str] = {
    "input_norm": "layer.0.layer_norm",
    **_attention(0, "SelfAttention"),
    "relative_bias": "layer.0.SelfAttention.relative_attention_bias",
}
_EMBEDDINGS = ("encoder.embed_tokens", "decoder.embed_tokens")
_ENCODER = DecoderFamily(
    models="",
    synonyms=_EMBEDDINGS,
    base="",
    ends={"embed": "shared", "final_norm": "encoder.final_layer_norm"},
    layers="encoder.block",
    parts={**_SELF, **_feed_forward(1)},
    rotary=False,
    keys={
        "norm_eps": "layer_norm_epsilon",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "hidden_act": "dense_act_fn",
    },
    defaults={
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "max_position_embeddings": UNLIMITED,
        "query_pre_attn_scalar": 1,
    },
    reads=frozenset(["relative_attention_num_buckets", "relative_attention_max_distance", "is_gated_act"]),
    variants=_variants(1),
)
# An output layer of its own is one that the checkpoint has, whatever the config says.
_TIED = Variant(when={}, facts={"tie_word_embeddings": True})
_SCALED = {"output_scale": "rsqrt"}
MT5 = replace(
    _ENCODER,
    models="mT5",
    ends={"embed": "shared", "final_norm": "decoder.final_layer_norm", "head": "lm_head"},
    layers="decoder.block",
    parts={
        **_SELF,
        "cross_norm": "layer.1.layer_norm",
        **_attention(1, "EncDecAttention", "cross_"),
        **_feed_forward(2),
    },
    keys={**_ENCODER.keys, "num_hidden_layers": "num_decoder_layers"},
    defaults={**_ENCODER.defaults, "feed_forward_proj": "gated-gelu"},
    only={
        "is_encoder_decoder": (True,),
        "feed_forward_proj": (*_ACTIVATIONS, *(f"gated-{a}" for a in _ACTIVATIONS)),
        "num_key_value_heads": (),
        "max_position_embeddings": (),
    },
    harmless=frozenset(["dropout_rate", "n_positions", "output_past"]),
    synonyms=_EMBEDDINGS[::-1],
    otherwise={"num_decoder_layers": "num_layers"},
    buffers=("EncDecAttention.relative_attention_bias.weight",),
    encoder=replace(_ENCODER, defaults={**_ENCODER.defaults, "feed_forward_proj": "gated-gelu"}),
    variants=(*_variants(2), _TIED),
)
T5 = replace(
    MT5,
    models="T5, T5 v1.1, Flan-T5",
    defaults=_ENCODER.defaults,
    reads=_ENCODER.reads | {"scale_decoder_outputs"},
    encoder=_ENCODER,
    variants=(
        *_variants(2),
        Variant(when={"scale_decoder_outputs": True}, changes=_SCALED),
        *(
            Variant(when={"scale_decoder_outputs": None, "tie_word_embeddings": tied}, changes=_SCALED)
            for tied in (True, None)
        ),
        _TIED,
    ),
)
