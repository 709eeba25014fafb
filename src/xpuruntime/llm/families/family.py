"""DecoderFamily: what the decoders of one ``model_type`` have, as a row of a table. The builder and the readers contain no family's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import ModelError
from .biases import Alibi
from .experts import ExpertLayers

__all__ = ["ACTIVATIONS", "UNLIMITED", "DecoderFamily", "Variant", "rotary_share"]

ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "silu": ("silu", {}),
    "swish": ("silu", {}),
    "gelu": ("gelu", {}),
    "gelu_new": ("gelu", {"approximate": "tanh"}),
    "gelu_fast": ("gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
}
"""Activation in a config -> op and its attributes."""

UNLIMITED = 1 << 20
"""Positions of families that limit none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A change of a row where a config has given values.

    when:     field -> value; all must be equal.
    parts, ends: parts and ends that are added or renamed; None removes one.
    facts:    fields that are overridden. defaults: values of absent fields. Later variants see both.
    changes:  other fields of the row.
    refused:  the field of ``when`` whose value is not supported together with the others.
    """

    when: Mapping[str, Any]
    parts: Mapping[str, str | None] = field(default_factory=dict)
    ends: Mapping[str, str | None] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """One row.

    models:     names that users know, for the docs.
    base:       prefix of all names but the output layer's. Some checkpoints omit it.
    ends:       names of ``embed``, ``embed_norm``, ``positions``, ``final_norm``, ``project_in`` and ``project_out`` (layers between embeddings of another size
                and the hidden size), without base; and of ``head``, with it.
                ``logits_bias`` is added to the logits.
    layers:     name of the list of layers.
    parts:      names in a layer. A part that is absent is not computed.
                Norms: ``input_norm``, ``mlp_norm`` before and ``post_attention_norm``, ``post_mlp_norm`` after a block, ``attention_sum_norm``,
                ``mlp_sum_norm`` after the residual sum; ``q_norm``, ``k_norm``.
                Latent attention: ``q``, or ``q_a``, ``q_a_norm``, ``q_b``; ``kv_a``, ``kv_a_norm``, ``kv_b``; ``o``.
                Attention over an encoder's output: ``cross_q``, ``cross_k``, ``cross_v``, ``cross_o``; ``cross_norm`` before it, and
                ``cross_sum_norm`` after the residual sum.
                ``relative_bias``: the first layer's table of learned biases by buckets of distances, for all layers.
                Linear layers: ``q``, ``k``, ``v`` or ``qkv``; ``o``; ``gate`` and ``up`` or ``gate_up``, or ``up`` alone; ``down``.
    norm:       op of the norms: ``rms_norm``, or ``layer_norm`` with a bias.
    norm_bias:  layer norms have a bias.
    norm_offset: number that is added to the weights of norms.
    qk_norm:    ``head`` (one norm per head, of one weight), ``each`` (of each head's own weight) or ``whole`` (over all heads); empty without.
    latent_eps: epsilon of the norms ``q_a_norm`` and ``kv_a_norm``.
    interleaved: rotary pairs are next to each other instead of in two halves.
    parallel:   attention and feed-forward layers read the same input. Without ``mlp_norm`` they share a norm.
    rotary:     rotary positions. Without, ``positions`` is a table, or ``alibi`` says how scores fall with the distance of a key.
    position_offset: first row of the table of positions.
    sinusoidal: the table of positions is one of sines and cosines, which checkpoints may omit.
    features:   field of the number of features of an encoder that reads frames of audio; ``conv1`` and ``conv2`` of ``ends`` embed them.
    qkv_order:  rows of ``qkv``: ``parts`` (queries, keys, values), or ``groups`` (a key head's queries, its key, its value; then the next).
    transposed: weights of linear layers are stored as [inputs, outputs].
    clip:       field of the largest absolute value of queries, keys and values.
    bias:       ``qkv``, ``o``, ``mlp``, ``head`` -> True, or the field that says it.
    windows:    layers that have the window where ``layer_types`` is not given: ``none``, ``all``, ``alternate``, ``periodic``, ``last``.
    embed_size: field of the embeddings' size, if it may differ from the hidden size.
    embed_scale: scale of embeddings: ``sqrt`` of the hidden size, or none.
    output_scale: scale of the last layer's output: ``rsqrt`` of the hidden size, or none.
    inner_default: without a size the feed-forward layer has four times the hidden size.
    aliases:    older name of a field -> its name.
    nested:     fields whose value is an object. Its fields are read as ``FIELD.NAME``.
    keys:       the builder's name of a field -> the family's.
    defaults:   values of absent fields, as transformers has them.
    reads:      fields that change results and are read, in addition to the common ones.
    only:       fields that change results -> the values that are supported.
    equal:      fields that must have the value of another field.
    harmless:   fields that change no result.
    buffers:    ends of names that checkpoints contain and nothing reads.
    synonyms:   names of the embedding, without base, that precede (the first) or follow (the others) that of ``ends`` if a checkpoint has them.
    otherwise:  fields that have the value of another one if they are absent.
    encoder:    the encoder, whose output the decoder attends to; None without.
    experts:    the mixture of experts; None without. Layers without experts have ``gate``, ``up`` and ``down``.
    variants:   changes by fields.
    """

    models: str
    base: str = "model."
    ends: Mapping[str, str]
    layers: str = "layers"
    parts: Mapping[str, str]
    norm: str = "rms_norm"
    norm_bias: bool = True
    norm_offset: float = 0.0
    qk_norm: str = ""
    latent_eps: float = 1e-6
    interleaved: bool = False
    parallel: bool = False
    rotary: bool = True
    alibi: Alibi | None = None
    position_offset: int = 0
    sinusoidal: bool = False
    features: str = ""
    qkv_order: str = "parts"
    transposed: bool = False
    clip: str = ""
    bias: Mapping[str, bool | str] = field(default_factory=dict)
    windows: str = "none"
    embed_size: str = ""
    embed_scale: str = ""
    output_scale: str = ""
    inner_default: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    equal: Mapping[str, str] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    buffers: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    otherwise: Mapping[str, str] = field(default_factory=dict)
    encoder: DecoderFamily | None = None
    experts: ExpertLayers | None = None
    variants: tuple[Variant, ...] = ()

    def key(self, name: str) -> str:
        """Return the family's name of a field."""
        return self.keys.get(name, name)

    def resolved(self, facts: Mapping[str, Any]) -> tuple[DecoderFamily, dict[str, Any]]:
        """Return the row and the fields of one config, after all variants. Raise ModelError for values that are not supported together."""
        facts = {**facts, **{k: facts.get(v) for k, v in self.otherwise.items() if facts.get(k) is None}}
        row, changed = self, dict(facts)
        for variant in self.variants:
            if all(changed.get(k) == v for k, v in variant.when.items()):
                if variant.refused:
                    others = ", ".join(f"{k}={v!r}" for k, v in variant.when.items() if k != variant.refused)
                    raise ModelError(
                        "language model",
                        f"has an unsupported {variant.refused} for {others}",
                        got=repr(variant.when[variant.refused]),
                        do="Check config.json against the checkpoint.",
                    )
                parts, ends = _merged(row.parts, variant.parts), _merged(row.ends, variant.ends)
                row = replace(row, parts=parts, ends=ends, **variant.changes)
                absent = {k: v for k, v in variant.defaults.items() if changed.get(k) is None}
                changed |= {**absent, **variant.facts}
        return row, changed

    @property
    def latent(self) -> bool:
        """Return whether attention has a compressed cache."""
        return "kv_a" in self.parts

    @property
    def norms_have_bias(self) -> bool:
        """Return whether norms have a bias."""
        return self.norm == "layer_norm" and self.norm_bias

    @property
    def gated(self) -> bool:
        """Return whether the feed-forward layer has a gate."""
        return "gate" in self.parts or "gate_up" in self.parts


def _merged(names: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {k: v for k, v in {**names, **changes}.items() if v is not None}


def rotary_share(row: DecoderFamily, facts: Mapping[str, Any]) -> float:
    """Return the share of a head that is rotated."""
    parameters = facts.get("rope_parameters") or {}
    nested = [p for p in parameters.values() if isinstance(p, dict)]
    for source in (*nested, parameters, facts.get("rope_scaling") or {}):
        if "partial_rotary_factor" in source:
            return float(source["partial_rotary_factor"])
    return float(facts.get(row.key("partial_rotary_factor"), 1.0))
