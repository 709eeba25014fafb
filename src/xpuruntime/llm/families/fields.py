"""Fields of ``config.json``: which are read, which change no result. Every other field is an error, because it may change results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ModelError
from .family import DecoderFamily

__all__ = ["COMMON", "HARMLESS", "check_fields", "flattened"]

COMMON = frozenset(
    [
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "eos_token_id",
        "dtype",
        "torch_dtype",
        "hidden_act",
        "norm_eps",
    ]
)
"""Fields that are read for every family, by the builder's names."""

_ROTARY = frozenset(["rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"])

HARMLESS = frozenset(
    [
        "transformers_version",
        "architectures",
        "auto_map",
        "_name_or_path",
        "_commit_hash",
        "name_or_path",
        "tokenizer_class",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "pruned_heads",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
        "is_decoder",
        "prefix",
        "use_cache",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "return_dict_in_generate",
        "chunk_size_feed_forward",
        "initializer_range",
        "init_std",
        "initializer_factor",
        "gradient_checkpointing",
        "pretraining_tp",
        "classifier_dropout",
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "dropout",
        "activation_dropout",
        "layerdrop",
        "residual_dropout",
        "embedding_dropout",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_experts_implementation",
        "use_flash_attention_2",
        "unsloth_version",
        "unsloth_fixed",
        "bos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    ]
)
"""Bookkeeping, training, other heads, and defaults of transformers' own generation: no logit depends on them."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
}


def flattened(row: DecoderFamily, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config under the names that the row uses: those of nested objects by path, and older names as the new ones.

    Raises ModelError for a field that is given under two names with different values.
    """
    nested = {
        f"{n}.{k}": v for n in row.nested if isinstance(data.get(n), Mapping) for k, v in data[n].items()
    }
    flat = {**{k: v for k, v in data.items() if k not in row.nested}, **nested}
    for old, name in row.aliases.items():
        value = flat.pop(old, None)
        if value is not None and flat.setdefault(name, value) != value:
            got = f"{value!r} and {flat[name]!r}"
            raise ModelError(
                "language model",
                f"has an {old} that differs from {name}",
                got=got[:80],
                do="Keep one of the two in config.json.",
            )
    return flat


def check_fields(row: DecoderFamily, data: Mapping[str, Any]) -> None:
    """Raise ModelError for a field that the family does not know, and for an unsupported value. A null field is absent."""
    rows = (row, row.encoder) if row.encoder else (row,)
    read = (
        {r.key(n) for r in rows for n in COMMON}
        | {n for r in rows for n in r.reads}
        | (row.experts.reads if row.experts else frozenset())
        | {*row.equal}
        | ({row.key(n) for n in _ROTARY} | _ROTARY if row.rotary else set())
    )
    known = read | HARMLESS | row.harmless
    only = {**_ONLY, **row.only}
    for name, other in row.equal.items():
        if data.get(name) not in (None, data.get(other)):
            do = f"Supported for {data.get('model_type')}: the value of {other}, {data.get(other)!r}."
            raise ModelError("language model", f"has an unsupported {name}", got=repr(data[name])[:80], do=do)
    for name, value in data.items():
        inner = name.rpartition(".")[2]
        supported_values = only.get(name, _ONLY.get(inner))
        if supported_values is not None:
            if value is not None and not any(value == v and type(value) is type(v) for v in supported_values):
                supported = ", ".join(map(repr, supported_values)) or "only without the field"
                raise ModelError(
                    "language model",
                    f"has an unsupported {name}",
                    got=repr(value)[:80],
                    do=f"Supported for {data.get('model_type')}: {supported}.",
                )
        elif value is not None and name not in known and inner not in HARMLESS:
            raise ModelError(
                "language model",
                f"has an unknown {name} in its config, which may change results",
                got=repr(value)[:80],
                do=f"Remove the field if no result of {data.get('model_type')} depends on it.",
            )
