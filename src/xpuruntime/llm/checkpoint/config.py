"""DecoderConfig: a decoder of the Llama and Qwen2 families, read from a checkpoint's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ...types import DType
from ..rotary import Rotary

__all__ = ["FAMILIES", "DecoderConfig", "read_stops"]

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True, "out_bias": False},
}
"""Defaults of each ``model_type``, for keys that its config lacks."""

_MAX_LAYERS, _MAX_HEADS, _MAX_WIDTH, _MAX_WORDS = 4096, 1 << 16, 1 << 24, (1 << 31) - 1
"""Limits far above every known decoder. A larger value means that the file is damaged."""
_DTYPES = {"float32": DType.FLOAT32, "bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a decoder: RMSNorm, rotary positions, grouped heads, gated SiLU.

    qkv_bias, out_bias, mlp_bias: which linear layers have a bias. tied: the output layer is the embedding.
    stops: tokens that end a text. dtype: the checkpoint's element type.
    """

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float
    rotary: Rotary
    max_positions: int
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    stops: tuple[int, ...] = ()
    dtype: DType = DType.FLOAT32

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecoderConfig:
        """Read the content of ``config.json`` (``PretrainedConfig.to_dict()`` returns the same). Raises ModelError for features that are
        not implemented, and for values of a wrong type or out of range.
        """
        try:
            return cls._from(data)
        except (AttributeError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            cause = f"{type(error).__name__}: {error}"[:200]
            raise ModelError("language model", "has a config that cannot be read", got=cause) from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> DecoderConfig:
        family = str(data.get("model_type", ""))
        if family not in FAMILIES:
            do = f"Supported families: {', '.join(FAMILIES)}."
            raise ModelError("language model", "has an unsupported model family", got=repr(family), do=do)
        facts = {**data, **FAMILIES[family]}
        _refuse(facts)
        heads, hidden = (
            _size(facts, "num_attention_heads", _MAX_HEADS),
            _size(facts, "hidden_size", _MAX_WIDTH),
        )
        bias = bool(facts.get("attention_bias", False))
        stops = facts.get("eos_token_id")
        dtype = str(facts.get("dtype") or facts.get("torch_dtype") or "float32").removeprefix("torch.")
        kv_heads = _size(facts, "num_key_value_heads", heads, heads)
        if heads % kv_heads:
            raise _wrong("num_key_value_heads", kv_heads, f"a divisor of {heads}")
        eps = facts.get("rms_norm_eps", 1e-6)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise _wrong("rms_norm_eps", eps, "a number from 0 to 1")
        return cls(
            family=family,
            vocab=_size(facts, "vocab_size", _MAX_WORDS),
            hidden=hidden,
            layers=_size(facts, "num_hidden_layers", _MAX_LAYERS),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_size(facts, "head_dim", _MAX_WIDTH, hidden // heads),
            inner=_size(facts, "intermediate_size", _MAX_WIDTH),
            eps=float(eps),
            rotary=Rotary.from_json(facts),
            max_positions=_size(facts, "max_position_embeddings", _MAX_WORDS, 2048),
            qkv_bias=bias,
            out_bias=bool(facts.get("out_bias", bias)),
            mlp_bias=bool(facts.get("mlp_bias", False)),
            tied=bool(facts.get("tie_word_embeddings", False)),
            stops=read_stops(stops),
            dtype=_DTYPES.get(dtype, DType.FLOAT32),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by its name in a checkpoint."""
        q, kv, h, inner = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.inner
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (h,)}
        linears = [
            ("self_attn.q_proj", q, h, self.qkv_bias),
            ("self_attn.k_proj", kv, h, self.qkv_bias),
            ("self_attn.v_proj", kv, h, self.qkv_bias),
            ("self_attn.o_proj", h, q, self.out_bias),
            ("mlp.gate_proj", inner, h, self.mlp_bias),
            ("mlp.up_proj", inner, h, self.mlp_bias),
            ("mlp.down_proj", h, inner, self.mlp_bias),
        ]
        for name, rows, columns, bias in linears:
            layer[f"{name}.weight"] = (rows, columns)
            if bias:
                layer[f"{name}.bias"] = (rows,)
        layer["post_attention_layernorm.weight"] = (h,)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, h)}
        for i in range(self.layers):
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (h,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, h)
        return shapes


def read_stops(stops: Any) -> tuple[int, ...]:
    """Return the tokens that end a text: none, one or several. Raises ModelError."""
    tokens = () if stops is None else tuple(stops) if isinstance(stops, list | tuple) else (stops,)
    for stop in tokens:
        if isinstance(stop, bool) or not isinstance(stop, int) or not -1 <= stop <= _MAX_WORDS:
            raise _wrong("eos_token_id", stop, "tokens")
    return tokens


def _size(facts: Mapping[str, Any], name: str, maximum: int, otherwise: int | None = None) -> int:
    """Return the integer under a key, from 1 to ``maximum``; ``otherwise`` if it is absent or null."""
    value = facts.get(name)
    if value is None:
        value = otherwise
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise _wrong(name, value, f"a whole number from 1 to {maximum}")
    return value


def _wrong(name: str, value: Any, requirement: str) -> ModelError:
    do = "Fetch the checkpoint's config.json again."
    return ModelError(
        "language model", f"has a {name} that is not {requirement}", got=repr(value)[:80], do=do
    )


def _refuse(facts: Mapping[str, Any]) -> None:
    """Raise ModelError for features that change results and are not implemented."""
    layer_types = set(facts.get("layer_types") or ()) - {"full_attention"}
    sliding = facts.get("sliding_window") and facts.get("use_sliding_window", facts["model_type"] != "qwen2")
    unsupported = {
        "hidden_act": facts.get("hidden_act", "silu") not in ("silu", "swish"),
        "sliding_window": bool(sliding),
        "layer_types": bool(layer_types) and facts.get("use_sliding_window", True),
        "quantization_config": bool(facts.get("quantization_config")),
    }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            raise ModelError(
                "language model",
                f"has an unsupported {name}",
                got=str(facts.get(name))[:80],
                do="Use a checkpoint with full attention, SiLU and unquantized weights.",
            )
