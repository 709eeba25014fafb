"""Names of tensors and metadata in GGUF files, and how they differ from a family's row of ``FAMILIES``.

Converters store fused projections as queries, keys, values, every matrix as [outputs, inputs], and norm weights with their offset added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import ModelError
from ..families.experts import ExpertLayers
from ..families.family import DecoderFamily
from ..families.table import FAMILIES

__all__ = ["ARCHITECTURES", "INTERLEAVED", "config_facts", "gguf_name", "gguf_row", "part_names"]

ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "stablelm": "stablelm",
    "phi2": "phi",
    "gptneox": "gpt_neox",
    "gpt2": "gpt2",
    "falcon": "falcon",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "olmoe": "olmoe",
    "deepseek2": "deepseek_v2",
}
"""``general.architecture`` -> ``model_type``."""
_WITH_EXPERTS = {"llama": "mixtral"}
"""``general.architecture`` -> ``model_type``, where a file has experts."""
INTERLEAVED = frozenset(["llama"])
"""Architectures whose rotary pairs are next to each other in the rows of queries and keys."""

_ENDS = {"embed": "token_embd", "positions": "position_embd", "final_norm": "output_norm", "head": "output"}
_PARTS = {
    "input_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_a": "attn_q_a",
    "q_a_norm": "attn_q_a_norm",
    "q_b": "attn_q_b",
    "kv_a": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm",
    "kv_b": "attn_kv_b",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "gate_up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
}
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "falcon": {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"},
}
"""Architecture -> name in a checkpoint -> name in a file, where the part alone does not say it."""
_EXPERTS = {
    "router": "ffn_gate_inp.weight",
    "gate": "ffn_gate_exps.weight",
    "up": "ffn_up_exps.weight",
    "down": "ffn_down_exps.weight",
    "shared_gate": "ffn_gate_shexp.weight",
    "shared_up": "ffn_up_shexp.weight",
    "shared_down": "ffn_down_shexp.weight",
    "shared_scale": "ffn_gate_inp_shexp.weight",
}
"""Part of a mixture of experts -> its name in a layer, which the builder uses, too."""


def gguf_row(row: DecoderFamily) -> DecoderFamily:
    """Return the row of a family for the tensors of a GGUF file."""
    experts = row.experts
    if experts is not None:
        parts = {"gate", "up"} | experts.layouts[-1].keys() - {"gate_up"}
        experts = replace(experts, layouts=({p: n for p, n in _EXPERTS.items() if p in parts},))
    return replace(row, norm_offset=0.0, qkv_order="parts", transposed=False, experts=experts)


def part_names(
    architecture: str, row: DecoderFamily, base: str
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return names of a file -> names of a checkpoint: those around the layers, and (name, part) in a layer."""
    ends = {
        _ENDS[part]: name if part == "head" else base + name
        for part, name in row.ends.items()
        if part in _ENDS
    }
    renamed = _RENAMED.get(architecture, {})
    layer = {renamed.get(name, _PARTS[part]): (name, part) for part, name in row.parts.items()}
    for part, name in (row.experts.layouts[-1] if row.experts else {}).items():
        stem = name.removesuffix(".weight")
        layer[stem] = (stem, part)
    return ends, layer


def gguf_name(architecture: str, row: DecoderFamily, name: str) -> str:
    """Return a tensor's name in a file from its name in a checkpoint."""
    ends, layer = part_names(architecture, row, row.base)
    stem, _, kind = name.rpartition(".")
    for there, here in ends.items():
        if stem == here:
            return f"{there}.{kind}"
    index, _, part = stem.removeprefix(f"{row.base}{row.layers}.").partition(".")
    there = next(there for there, (here, _) in layer.items() if here == part)
    return f"blk.{index}.{there}.{kind}"


# ── metadata ──

Fact = Callable[..., Any]


def config_facts(architecture: str, fact: Fact, tensors: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Return the fields of ``config.json`` from a file's metadata and the shapes of its tensors. Raises ModelError."""
    if architecture not in ARCHITECTURES:
        do = f"Supported architectures: {', '.join(ARCHITECTURES)}."
        raise ModelError(who, "has an unsupported general.architecture", got=repr(architecture)[:80], do=do)
    experts = fact(f"{architecture}.expert_count", 0)
    model_type = ARCHITECTURES[architecture]
    if experts:
        model_type = _WITH_EXPERTS.get(architecture, model_type)
    family = FAMILIES[model_type]
    if bool(experts) != (family.experts is not None):
        raise ModelError(
            who,
            f"has an unsupported number of experts for {architecture}",
            got=experts,
            do="Convert the model from its original checkpoint.",
        )

    def own(key: str, default: Any = None) -> Any:
        return fact(f"{architecture}.{key}", default)

    def size(key: str) -> int:
        value = own(key)
        if not isinstance(value, int):
            raise ModelError(
                who,
                f"has no integer {key}",
                got=repr(value),
                do="Convert the file again with a current llama.cpp.",
            )
        return value

    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim = own("attention.key_length", hidden // heads)
    data = {
        "vocab_size": tensors["token_embd.weight"][0],
        "hidden_size": hidden,
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "intermediate_size": size("feed_forward_length"),
        "norm_eps": _epsilon(own),
        "max_position_embeddings": size("context_length"),
    }
    named: dict[str, Any] = {family.key(k): v for k, v in data.items()}
    if family.latent:
        named |= _latent(own, size)
    elif "head_dim" not in family.only:
        named["head_dim"] = head_dim
    if (
        not family.latent
        and "num_key_value_heads" not in family.only
        and family.key("num_key_value_heads") == "num_key_value_heads"
    ):
        named["num_key_value_heads"] = own("attention.head_count_kv", heads)
    named |= _rotary(family, own, head_dim, who) if family.rotary else {}
    for name, key in _OPTIONAL.items():
        if name in family.reads and own(key) is not None:
            named[name] = own(key)
    named |= _experts(architecture, family.experts, own, named, tensors, who) if family.experts else {}
    if architecture in _SPECIAL:
        named |= _SPECIAL[architecture](own, tensors)
    return {
        **named,
        "model_type": model_type,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": fact("tokenizer.ggml.eos_token_id"),
    }


_OPTIONAL = {
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
}
"""Field -> key, after the architecture."""


def _epsilon(own: Fact) -> float:
    value = own("attention.layer_norm_rms_epsilon", own("attention.layer_norm_epsilon", 1e-6))
    # The file has a float32: round 9.99999974e-06 to 1e-05, as config.json has it.
    return float(f"{value:.6g}")


def _rotary(family: DecoderFamily, own: Fact, head_dim: int, who: str) -> dict[str, Any]:
    kind = own("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn", None):
        raise ModelError(
            who,
            "has an unsupported scaling of rotary positions",
            got=kind,
            do="Use the original checkpoint folder.",
        )
    base = own("rope.freq_base", family.defaults.get("rope_theta", 10000.0))
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if kind == "linear":
        parameters |= {"rope_type": "linear", "factor": own("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        parameters |= _yarn(own, who)
    if family.latent:
        return {"rope_parameters": parameters}
    dims = own("rope.dimension_count", head_dim)
    if dims != head_dim:
        parameters["partial_rotary_factor"] = dims / head_dim
    if "rope_local_base_freq" not in family.reads:
        return {"rope_parameters": parameters, family.key("partial_rotary_factor"): dims / head_dim}
    local = own("rope.freq_base_swa", family.defaults["rope_local_base_freq"])
    return {"rope_scaling": parameters, "rope_theta": base, "rope_local_base_freq": local}


def _yarn(own: Fact, who: str) -> dict[str, Any]:
    for name in ("yarn_ext_factor", "yarn_attn_factor", "attn_factor"):
        if own(f"rope.scaling.{name}", 1.0) != 1:
            raise ModelError(
                who,
                f"has an unsupported rope.scaling.{name}",
                got=own(f"rope.scaling.{name}"),
                do="Use the original checkpoint folder.",
            )
    multiplier = own("rope.scaling.yarn_log_multiplier")  # 0.1 mscale_all_dim; DeepSeek's mscale is the same
    parameters = {
        "rope_type": "yarn",
        "factor": own("rope.scaling.factor"),
        "original_max_position_embeddings": own("rope.scaling.original_context_length"),
        "beta_fast": own("rope.scaling.yarn_beta_fast"),
        "beta_slow": own("rope.scaling.yarn_beta_slow"),
        **(dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier) if multiplier else {}),
    }
    return {k: v for k, v in parameters.items() if v is not None}


def _latent(own: Fact, size: Callable[[str], int]) -> dict[str, Any]:
    rotated, ends = size("rope.dimension_count"), ("attention.key_length", "attention.value_length")
    # Newer files have the sizes of one key head for all queries there, and those of the heads under these names.
    head, value = (own(f"{end}_mla", own(end)) for end in ends)
    return {
        "q_lora_rank": own("attention.q_lora_rank"),
        "kv_lora_rank": size("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": head - rotated,
        "v_head_dim": value,
    }


_NORMALIZED = frozenset(["qwen3moe"])
"""Architectures whose chosen scores are divided by their sum if a file does not say it."""


_SOFTMAX = 1
"""The number of softmax in ``expert_gating_func``."""


def _experts(
    architecture: str,
    spec: ExpertLayers,
    own: Fact,
    named: Mapping[str, Any],
    tensors: Mapping[str, Any],
    who: str,
) -> dict[str, Any]:
    layers = range(named["num_hidden_layers"])
    data = {
        spec.count[0]: own("expert_count"),
        "num_experts_per_tok": own("expert_used_count"),
        spec.inner: own("expert_feed_forward_length", named["intermediate_size"]),
        "mlp_only_layers": [i for i in layers if f"blk.{i}.ffn_gate_exps.weight" not in tensors],
        "decoder_sparse_step": 1,
        "first_k_dense_replace": own("leading_dense_block_count", 0),
        spec.shared_times: own("expert_shared_count", 0),
        spec.scale: own("expert_weights_scale", 1.0),
    }
    if spec.groups:
        groups, chosen, method = spec.groups
        data |= {groups: own("expert_group_count"), chosen: own("expert_group_used_count")}
        data[method] = "group_limited_greedy" if (data[groups] or 1) > 1 else "greedy"
    if own("expert_gating_func", _SOFTMAX) != _SOFTMAX:
        raise ModelError(
            who,
            "has an unsupported expert_gating_func",
            got=own("expert_gating_func"),
            do="Use the original checkpoint folder.",
        )
    if spec.normalize is False and own("expert_weights_norm", False):
        raise ModelError(
            who, "has an unsupported expert_weights_norm", got=True, do="Use the original checkpoint folder."
        )
    if spec.shared:
        data[spec.shared] = own("expert_shared_feed_forward_length")
    if isinstance(spec.normalize, str):
        data[spec.normalize] = bool(own("expert_weights_norm", architecture in _NORMALIZED))
    return {k: v for k, v in data.items() if k in spec.reads | {spec.inner}}


def _gemma(largest: int) -> Callable[[Fact, Mapping[str, Any]], dict[str, Any]]:
    """Return the rule of the attention scale, which files omit: the largest model divides by the width of a head's share."""

    def rule(own: Fact, tensors: Mapping[str, Any]) -> dict[str, Any]:
        heads, hidden = own("attention.head_count"), own("embedding_length")
        scale = own("attention.scale")
        if scale:
            return {"query_pre_attn_scalar": float(scale) ** -2}
        share = hidden // heads
        return {
            "query_pre_attn_scalar": share
            if own("block_count") == largest
            else own("attention.key_length", share)
        }

    return rule


def _falcon(own: Fact, tensors: Mapping[str, Any]) -> dict[str, Any]:
    heads = own("attention.head_count")
    key_heads = own("attention.head_count_kv", heads)
    norms = 2 if "blk.0.attn_norm_2.weight" in tensors else 1
    return {"new_decoder_architecture": True, "num_kv_heads": key_heads, "num_ln_in_parallel_attn": norms}


_SPECIAL: Mapping[str, Callable[[Fact, Mapping[str, Any]], dict[str, Any]]] = {
    "gemma2": _gemma(46),
    "gemma3": _gemma(62),
    "falcon": _falcon,
}
