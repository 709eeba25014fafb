"""DecoderConfig: one decoder, read from a checkpoint's ``config.json`` by its family's row of ``FAMILIES``."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...errors import ModelError
from ...types import DType
from ..families.biases import DistanceBuckets
from ..families.family import ACTIVATIONS, DecoderFamily, rotary_share
from ..families.fields import check_fields, flattened
from ..families.table import FAMILIES
from ..rotary import Rotary
from .experts import ExpertSizes
from .latent import LatentSizes
from .windows import layer_windows

__all__ = ["DecoderConfig", "read_stops"]

_MAX_LAYERS, _MAX_HEADS, _MAX_WIDTH, _MAX_WORDS = 4096, 1 << 16, 1 << 24, (1 << 31) - 1
"""Limits far above every known decoder. A larger value means that the file is damaged."""
_MAX_BUCKETS = 2048
FEED_FORWARD = ("gate", "up", "gate_up", "down")
BLOCK_NORMS = (
    *("input_norm", "post_attention_norm", "attention_sum_norm"),
    *("cross_norm", "cross_sum_norm", "mlp_norm", "post_mlp_norm", "mlp_sum_norm"),
)
_DTYPES = {"float32": DType.FLOAT32, "bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a decoder.

    row:         what the family has, after variants.
    base:        prefix of weight names.
    rotary, local_rotary: rotary positions of layers without and with a window; None without rotary positions.
    embed:       size of embeddings.
    rotary_dim:  elements of a head that are rotated.
    windows:     keys that a query of each layer may see, its own included; 0: all before it.
    scale:       scale of attention scores. activation: a key of ``ACTIVATIONS``.
    slopes:      of each head by which scores fall with the distance of a key; empty without ALiBi.
    buckets:     of distances, for learned biases of scores; None without.
    encoder:     the encoder of an encoder-decoder; None without. start: the token that its decoder's texts begin with.
    features:    features of a frame of audio, which an encoder reads; 0 if it reads tokens.
    clip:        largest absolute value of queries, keys and values; 0: any.
    attention_softcap, logits_softcap: c in c * tanh(x / c); 0: none.
    qkv_bias, out_bias, mlp_bias, head_bias: which linear layers have a bias. tied: the output layer is the embedding.
    latent:      sizes of latent attention; None without. ``head_dim`` is then that of queries.
    experts:     the mixture of experts; None without.
    stops: tokens that end a text. dtype: the checkpoint's element type.
    ranks: devices that the decoder is divided over. ``heads``, ``kv_heads`` and ``inner`` are then those of one of them.
    direct: whether these devices write to each other's memory.
    """

    family: str
    vocab: int
    hidden: int
    embed: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float
    rotary: Rotary
    max_positions: int
    row: DecoderFamily = field(compare=False, repr=False)
    base: str
    local_rotary: Rotary
    rotary_dim: int
    windows: tuple[int, ...]
    scale: float
    activation: str
    slopes: tuple[float, ...] = ()
    buckets: DistanceBuckets | None = None
    encoder: DecoderConfig | None = None
    start: int | None = None
    features: int = 0
    clip: float = 0.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied: bool = False
    latent: LatentSizes | None = None
    experts: ExpertSizes | None = None
    stops: tuple[int, ...] = ()
    dtype: DType = DType.FLOAT32
    ranks: int = 1
    direct: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecoderConfig:
        """Read the content of ``config.json`` (``PretrainedConfig.to_dict()`` returns the same). Raises ModelError for a family or a field
        that is not supported, and for values of a wrong type or out of range.
        """
        try:
            return cls._from(data)
        except (AttributeError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            cause = f"{type(error).__name__}: {error}"[:200]
            raise ModelError(
                "language model",
                "has a config that cannot be read",
                got=cause,
                do="Check config.json, or download the checkpoint again.",
            ) from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> DecoderConfig:
        family = str(data.get("model_type", ""))
        if family not in FAMILIES:
            do = f"Supported families: {', '.join(FAMILIES)}."
            got, recurrent = repr(family)[:80], _recurrent_layers(data)
            if recurrent:
                got += f", whose layers {recurrent} are linear attention, with a state instead of keys and values"
                do = f"Generate with transformers; InferenceSession computes one forward pass of the module. {do}"
            raise ModelError("language model", "has an unsupported model_type", got=got, do=do)
        data = flattened(FAMILIES[family], data)
        check_fields(FAMILIES[family], data)
        return cls._of(FAMILIES[family], family, data)

    @classmethod
    def _of(
        cls, row: DecoderFamily, family: str, data: Mapping[str, Any], encodes: bool = False
    ) -> DecoderConfig:
        row, facts = row.resolved({**row.defaults, **data})
        heads = _size(row, facts, "num_attention_heads", _MAX_HEADS)
        hidden = _size(row, facts, "hidden_size", _MAX_WIDTH)
        kv_heads = _size(row, facts, "num_key_value_heads", heads, heads)
        if heads % kv_heads:
            raise _wrong(row.key("num_key_value_heads"), kv_heads, f"a divisor of {heads}")
        latent = LatentSizes.of(facts, partial(_size, row, facts)) if row.latent else None
        head_dim = (
            latent.head if latent else _size(row, facts, "head_dim", _MAX_WIDTH, max(hidden // heads, 1))
        )
        layers = _size(row, facts, "num_hidden_layers", _MAX_LAYERS)
        positions = _size(row, facts, "max_position_embeddings", _MAX_WORDS, 2048)
        rotary = local = Rotary()
        if row.rotary:
            longest = {"max_position_embeddings": positions}
            rotary, local = Rotary.of_layers(facts | longest, row.key("rope_theta"))
        dtype = str(facts.get("dtype") or facts.get("torch_dtype") or "float32").removeprefix("torch.")
        return cls(
            family=family,
            vocab=_size(row, facts, "vocab_size", _MAX_WORDS),
            hidden=hidden,
            embed=_size(row, facts, row.embed_size, _MAX_WIDTH, hidden) if row.embed_size else hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=_size(
                row, facts, "intermediate_size", _MAX_WIDTH, 4 * hidden if row.inner_default else None
            ),
            eps=_number(row, facts, "norm_eps", 0, 1),
            rotary=rotary,
            max_positions=positions,
            row=row,
            base=row.base,
            local_rotary=local,
            rotary_dim=latent.rotated if latent else _rotary_dim(row, facts, head_dim),
            windows=layer_windows(row, facts, layers),
            scale=_number(row, facts, "query_pre_attn_scalar", 0, _MAX_WIDTH, head_dim) ** -0.5
            * (rotary.scores if latent else 1.0),
            activation=_activation(row, facts),
            slopes=tuple(map(float, row.alibi.slopes(heads))) if row.alibi else (),
            clip=_number(row, facts, row.clip, 0, math.inf, 0.0) if row.clip else 0.0,
            attention_softcap=_number(row, facts, "attn_logit_softcapping", 0, math.inf, 0.0),
            logits_softcap=_number(row, facts, "final_logit_softcapping", 0, math.inf, 0.0),
            qkv_bias=_bias(row, facts, "qkv"),
            out_bias=_bias(row, facts, "o"),
            mlp_bias=_bias(row, facts, "mlp"),
            head_bias=_bias(row, facts, "head"),
            latent=latent,
            experts=ExpertSizes.of(row.experts, facts, layers, partial(_size, row, facts))
            if row.experts
            else None,
            buckets=_buckets(row, facts, encodes) if "relative_bias" in row.parts else None,
            encoder=cls._of(row.encoder, family, data, encodes=True) if row.encoder else None,
            start=_token(facts, "decoder_start_token_id") if row.encoder else None,
            features=_size(row, facts, row.features, _MAX_WIDTH) if row.features else 0,
            tied=bool(facts.get("tie_word_embeddings", False)),
            stops=read_stops(facts.get("eos_token_id")),
            dtype=_DTYPES.get(dtype, DType.FLOAT32),
        )

    def layer(self, index: int) -> str:
        """Return the prefix of a layer's names, without the final dot."""
        return f"{self.base}{self.row.layers}.{index}"

    def end(self, part: str) -> str:
        """Return the name of a weight outside of layers."""
        name = self.row.ends[part]
        return name if part in ("head", "logits_bias") else self.base + name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by its name in a checkpoint."""
        shapes: dict[str, tuple[int, ...]] = {}
        if "embed" in self.row.ends:
            shapes[f"{self.end('embed')}.weight"] = (self.vocab, self.embed)
        for part, channels in (("conv1", self.features), ("conv2", self.hidden)):
            if part in self.row.ends:
                shapes |= _named(self.end(part), (self.hidden, channels, 3), (self.hidden,))
        if "embed_norm" in self.row.ends:
            shapes |= self._norm(self.end("embed_norm"), self.hidden)
        if self.projects:
            shapes[f"{self.end('project_in')}.weight"] = (self.hidden, self.embed)
            shapes[f"{self.end('project_out')}.weight"] = (self.embed, self.hidden)
        if "positions" in self.row.ends:
            rows = self.max_positions + self.row.position_offset
            shapes[f"{self.end('positions')}.weight"] = (rows, self.hidden)
        dense = self._layer(FEED_FORWARD)
        sparse = self._layer(()) | self.experts.shapes(self.hidden) if self.experts else {}
        for i in range(self.layers):
            layer = sparse if self.sparse(i) else dense
            shapes |= {f"{self.layer(i)}.{name}": shape for name, shape in layer.items()}
        if self.buckets is not None:
            shapes[f"{self.layer(0)}.{self.row.parts['relative_bias']}.weight"] = (
                self.buckets.count,
                self.heads,
            )
        if self.encoder is not None:
            shapes |= self.encoder.shapes()
        if "final_norm" in self.row.ends:
            shapes |= self._norm(self.end("final_norm"), self.hidden)
        if "logits_bias" in self.row.ends:
            shapes[self.end("logits_bias")] = (1, self.vocab)
        if "head" not in self.row.ends:
            return shapes
        words = self.vocab // self.ranks if self.splits_vocab else self.vocab
        head = _named(self.end("head"), (words, self.embed), (words,) if self.head_bias else None)
        if self.tied and not self.splits_vocab:
            del head[f"{self.end('head')}.weight"]
        return shapes | head

    @property
    def projects(self) -> bool:
        """Return whether layers connect embeddings with the hidden size."""
        return self.embed != self.hidden

    @property
    def splits_vocab(self) -> bool:
        """Return whether the output layer is divided over the ranks. It is then a weight of its own."""
        return self.ranks > 1 and self.vocab % self.ranks == 0 and "head" in self.row.ends

    def sparse(self, index: int) -> bool:
        """Return whether a layer has experts."""
        return self.experts is not None and self.experts.sparse[index]

    def _layer(self, feed_forward: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer by name, with the linear layers ``feed_forward`` of its feed-forward layer."""
        parts = self.row.parts
        layer: dict[str, tuple[int, ...]] = {}
        for part, (rows, columns, bias) in self._linears().items():
            if part in parts and (part not in FEED_FORWARD or part in feed_forward):
                shape = (columns, rows) if self.row.transposed else (rows, columns)
                layer |= _named(parts[part], shape, (rows,) if bias else None)
        for part, size in self._norms().items():
            if part in parts and part in ("q_norm", "k_norm") and self.row.qk_norm == "each":
                heads = self.heads if part == "q_norm" else self.kv_heads
                layer |= {f"{parts[part]}.{head}.weight": (size,) for head in range(heads)}
            elif part in parts:
                layer |= self._norm(parts[part], size)
        return layer

    def _linears(self) -> dict[str, tuple[int, int, bool]]:
        """Return (outputs, inputs, bias) of each linear layer."""
        latent = self.latent.linears(self.hidden, self.heads, self.out_bias) if self.latent else {}
        q, kv, h, inner = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.inner
        keys_bias = self.qkv_bias and self.row.bias.get("k", True) is True
        return {
            "q": (q, h, self.qkv_bias),
            "k": (kv, h, keys_bias),
            "v": (kv, h, self.qkv_bias),
            "qkv": (q + 2 * kv, h, self.qkv_bias),
            "o": (h, q, self.out_bias),
            "cross_q": (q, h, self.qkv_bias),
            "cross_k": (kv, h, keys_bias),
            "cross_v": (kv, h, self.qkv_bias),
            "cross_o": (h, q, self.out_bias),
            "gate": (inner, h, self.mlp_bias),
            "up": (inner, h, self.mlp_bias),
            "gate_up": (2 * inner, h, self.mlp_bias),
            "down": (h, inner, self.mlp_bias),
            **latent,
        }

    def _norms(self) -> dict[str, int]:
        whole = self.row.qk_norm == "whole"
        return {
            **dict.fromkeys(BLOCK_NORMS, self.hidden),
            "q_norm": self.head_dim * (self.heads if whole else 1),
            "k_norm": self.head_dim * (self.kv_heads if whole else 1),
            **(self.latent.norms if self.latent else {}),
        }

    def _norm(self, name: str, size: int) -> dict[str, tuple[int, ...]]:
        return _named(name, (size,), (size,) if self.row.norms_have_bias else None)


def _named(name: str, weight: tuple[int, ...], bias: tuple[int, ...] | None) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": weight, **({f"{name}.bias": bias} if bias else {})}


def read_stops(stops: Any, name: str = "eos_token_id") -> tuple[int, ...]:
    """Return the tokens under a key: none, one or several. Raises ModelError."""
    tokens = () if stops is None else tuple(stops) if isinstance(stops, list | tuple) else (stops,)
    for stop in tokens:
        if isinstance(stop, bool) or not isinstance(stop, int) or not -1 <= stop <= _MAX_WORDS:
            raise _wrong(name, stop, "tokens")
    return tokens


def _bias(row: DecoderFamily, facts: Mapping[str, Any], part: str) -> bool:
    rule = row.bias.get(part, False)
    value = facts.get(rule, False) if isinstance(rule, str) else rule
    if value is not None and not isinstance(value, bool):
        raise _wrong(str(rule), value, "true or false")
    return bool(value)


def _activation(row: DecoderFamily, facts: Mapping[str, Any]) -> str:
    name = row.key("hidden_act")
    value = facts.get(name, "silu")
    if not isinstance(value, str) or value not in ACTIVATIONS:
        do = f"Supported: {', '.join(ACTIVATIONS)}."
        raise ModelError("language model", f"has an unsupported {name}", got=repr(value)[:80], do=do)
    return value


def _buckets(row: DecoderFamily, facts: Mapping[str, Any], encodes: bool) -> DistanceBuckets:
    count = _size(row, facts, "relative_attention_num_buckets", _MAX_BUCKETS)
    longest = _size(row, facts, "relative_attention_max_distance", _MAX_BUCKETS)
    if count % 4 or longest <= count // 2:
        requirement = f"a multiple of 4 below twice the relative_attention_max_distance of {longest}"
        raise _wrong("relative_attention_num_buckets", count, requirement)
    return DistanceBuckets(count, longest, both=encodes)


def _token(facts: Mapping[str, Any], name: str) -> int | None:
    """Return the token under a key, the first of a list; None if it is absent."""
    return next(iter(read_stops(facts.get(name), name)), None)


def _rotary_dim(row: DecoderFamily, facts: Mapping[str, Any], head_dim: int) -> int:
    if not row.rotary:
        return 0
    share = rotary_share(row, facts)
    size = int(head_dim * share)
    if not 0 < share <= 1 or size < 2 or size % 2:
        raise _wrong(row.key("partial_rotary_factor"), share, f"a share of {head_dim} that is even")
    return size


def _number(
    row: DecoderFamily,
    facts: Mapping[str, Any],
    name: str,
    low: float,
    high: float,
    otherwise: float | None = None,
) -> float:
    """Return the number under a key, from ``low`` to below ``high``; ``otherwise`` if it is null, and it may be absent then."""
    name = row.key(name)
    value = facts.get(name)
    if value is None:
        value = otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
        raise _wrong(name, value, f"a number from {low} to {high}")
    return float(value)


def _size(
    row: DecoderFamily, facts: Mapping[str, Any], name: str, maximum: int, otherwise: int | None = None
) -> int:
    """Return the integer under a key, from 1 to ``maximum``; ``otherwise`` if it is absent or null."""
    name = row.key(name)
    value = facts.get(name)
    if value is None:
        value = otherwise
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise _wrong(name, value, f"a whole number from 1 to {maximum}")
    return value


def _recurrent_layers(data: Mapping[str, Any]) -> str:
    """Return the numbers of the first layers with linear attention, as text; empty without them."""
    text = data.get("text_config")
    kinds = (text if isinstance(text, Mapping) else data).get("layer_types")
    if not isinstance(kinds, list | tuple):
        return ""
    layers = [str(i) for i, kind in enumerate(kinds) if kind == "linear_attention"]
    return ", ".join([*layers[:4], *(["..."] if len(layers) > 4 else [])])


def _wrong(name: str, value: Any, requirement: str) -> ModelError:
    do = "Fetch the checkpoint's config.json again."
    return ModelError(
        "language model", f"has a {name} that is not {requirement}", got=repr(value)[:80], do=do
    )
