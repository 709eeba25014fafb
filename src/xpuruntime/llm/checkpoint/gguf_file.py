"""open_gguf: a GGUF file as a checkpoint. Needs the ``gguf`` package, which also dequantizes its blocks to float32.

In a GGUF file the rows of a Llama's query and key projections have their rotary pairs interleaved. They are permuted to two halves, as in
safetensors checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError, UnavailableError, XpuError
from ...protocols import Array
from ...types import DType, TensorSpec
from .config import DecoderConfig
from .data import Checkpoint
from .gguf_check import check_gguf
from .text import TextCodec

__all__ = ["open_gguf"]

_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_INTERLEAVED = frozenset(["attn_q", "attn_k"])

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Mapping[str, str] = {"qwen2": _WORDS % "", "llama-bpe": _WORDS % "{1,3}"}
"""The pattern that splits text into words before byte pairs are merged, by ``tokenizer.ggml.pre``."""


def open_gguf(path: Path) -> Checkpoint:
    """Return the checkpoint of a file. Raises ModelError, UnavailableError."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UnavailableError("GGUF file", "needs the gguf package", do="pip install gguf") from error
    who = f"language model {path}"
    check_gguf(path, who)
    try:
        return _opened(path, who, GGUFReader(str(path)))
    except XpuError:
        raise
    except (
        Exception
    ) as error:  # the package raises many classes for damaged files, as do fields of unexpected types
        cause = f"{type(error).__name__}: {error}"[:200]
        raise ModelError(who, "is not a GGUF file, or damaged", got=cause) from error


def _opened(path: Path, who: str, reader: Any) -> Checkpoint:
    facts = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}

    def fact(key: str, default: Any = None) -> Any:
        return facts[key].contents() if key in facts else default

    family = str(fact("general.architecture", ""))
    arrays = _Tensors(reader.tensors, family, fact, who)
    config = _config(family, fact, arrays, who)
    return Checkpoint(path.stem, config, arrays, arrays.specs, text=_text(fact))


def _config(family: str, fact: Any, arrays: _Tensors, who: str) -> DecoderConfig:
    def size(key: str) -> int:
        value = fact(f"{family}.{key}")
        if not isinstance(value, int):
            raise ModelError(who, f"has no integer {key}", got=repr(value))
        return value

    if (
        fact(f"{family}.rope.scaling.type", "none") not in ("none", None)
        or "rope_freqs.weight" in arrays.others
    ):
        raise ModelError(who, "has an unsupported scaling of rotary positions")
    heads, hidden = size("attention.head_count"), size("embedding_length")
    data = {
        "model_type": family,
        "vocab_size": arrays.specs["model.embed_tokens.weight"].shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fact(f"{family}.attention.head_count_kv", heads),
        "head_dim": fact(f"{family}.attention.key_length", hidden // heads),
        "intermediate_size": size("feed_forward_length"),
        # The file has a float32: round 9.99999974e-06 to 1e-05, as config.json has it.
        "rms_norm_eps": float(f"{fact(f'{family}.attention.layer_norm_rms_epsilon', 1e-6):.6g}"),
        "rope_theta": fact(f"{family}.rope.freq_base", 10000.0),
        "max_position_embeddings": size("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in arrays.specs,
        "eos_token_id": fact("tokenizer.ggml.eos_token_id"),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in arrays.specs,
    }
    out = "model.layers.0.self_attn.o_proj.bias" in arrays.specs
    return replace(DecoderConfig.from_json(data), out_bias=out)


class _Tensors(Mapping[str, Array]):
    """Tensors by their names in a checkpoint, float32. Each access dequantizes the tensor."""

    def __init__(self, tensors: Any, family: str, fact: Any, who: str) -> None:
        self._tensors: dict[str, Any] = {}
        self.others: set[str] = set()
        self._heads: dict[str, int] = {}
        heads = fact(f"{family}.attention.head_count", 1)
        key_heads = fact(f"{family}.attention.head_count_kv", heads)
        for tensor in tensors:
            name, part = _name(str(tensor.name))
            if not name:
                self.others.add(str(tensor.name))
                continue
            self._tensors[name] = tensor
            if family == "llama" and part in _INTERLEAVED:
                self._heads[name] = heads if part == "attn_q" else key_heads
        if "model.embed_tokens.weight" not in self._tensors:
            raise ModelError(
                who, "contains no decoder", got=f"{len(self._tensors)} decoder tensors without an embedding"
            )
        # The format lists the innermost dim first.
        self.specs = {
            n: TensorSpec(tuple(int(d) for d in reversed(t.shape)), DType.FLOAT32)
            for n, t in self._tensors.items()
        }

    def __getitem__(self, name: str) -> Array:
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        shape = tuple(int(d) for d in self.specs[name].shape if isinstance(d, int))
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        if name in self._heads:
            heads = self._heads[name]
            pairs = array.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _name(name: str) -> tuple[str, str]:
    """Return a tensor's name in a checkpoint (empty if it has none), and its part of a layer."""
    stem, _, kind = name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{kind}", ""
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and part in _LAYER:
        return f"model.layers.{layer}.{_LAYER[part]}.{kind}", part
    return "", ""


def _text(fact: Any) -> TextCodec | None:
    """Return the tokenizer that the file describes; None for a type other than byte-pair encoding, or an unknown pre-tokenizer."""
    pre = str(fact("tokenizer.ggml.pre", ""))
    if fact("tokenizer.ggml.model") != "gpt2" or pre not in ("smollm", "gpt-2", "", *_SPLITS):
        return None
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    except ImportError:
        return None
    tokens = fact("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ", 1)) for m in fact("tokenizer.ggml.merges", [])]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    first: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    if pre in _SPLITS:
        first = [pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated")]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in _SPLITS)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    kinds = fact("tokenizer.ggml.token_type", [])
    control, user_defined = 3, 4  # the format's token types
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=False) if k == control]
    )
    tokenizer.add_tokens([AddedToken(t) for t, k in zip(tokens, kinds, strict=False) if k == user_defined])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {n: fact(f"tokenizer.ggml.{key}_token_id") for n, key in names.items()}
    facts = {n: tokens[i] for n, i in ids.items() if i is not None}
    return TextCodec(tokenizer, str(fact("tokenizer.chat_template", "")), facts)
