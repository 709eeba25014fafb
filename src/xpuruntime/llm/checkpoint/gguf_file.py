"""open_gguf: a GGUF file as a checkpoint. Needs the ``gguf`` package, which also dequantizes its blocks to float32.

Each weight is there in float32 and, for the formats of ``storage/blocks.py``, also as its rows of blocks.

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
from ...storage.blocks import BLOCK_FORMATS
from ...types import DType, TensorSpec
from .config import DecoderConfig
from .data import UNQUANTIZED, Checkpoint, blocks_name
from .gguf_check import check_gguf
from .gguf_names import INTERLEAVED, config_facts, gguf_name, gguf_row, part_names
from .text import TextCodec

__all__ = ["open_gguf"]

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Mapping[str, str] = {"qwen2": _WORDS % "", "llama-bpe": _WORDS % "{1,3}"}
"""The pattern that splits text into words before byte pairs are merged, by ``tokenizer.ggml.pre``."""


def open_gguf(path: Path) -> Checkpoint:
    """Return the checkpoint of a file. Raises ModelError, UnavailableError."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        do = "Run: pip install 'xpuruntime[llm]'"
        raise UnavailableError("GGUF file", "needs the gguf package", do=do) from error
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
        do = "Download the file again, or convert the model again."
        raise ModelError(who, "is not a GGUF file, or damaged", got=cause, do=do) from error


def _opened(path: Path, who: str, reader: Any) -> Checkpoint:
    facts = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}

    def fact(key: str, default: Any = None) -> Any:
        return facts[key].contents() if key in facts else default

    architecture = str(fact("general.architecture", ""))
    # The format lists the innermost dim first.
    shapes = {str(t.name): tuple(int(d) for d in reversed(t.shape)) for t in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise ModelError(
            who,
            "contains no decoder",
            got=f"{len(shapes)} tensors without an embedding",
            do="Give the file of a language model, not of a projector or an adapter.",
        )
    if "rope_freqs.weight" in shapes:
        raise ModelError(
            who,
            "has an unsupported scaling of rotary positions",
            got="rope_freqs.weight",
            do="Use the original checkpoint folder.",
        )
    config = DecoderConfig.from_json(config_facts(architecture, fact, shapes, who))
    row = gguf_row(config.row)
    if config.experts is not None and row.experts is not None:
        config = replace(config, experts=replace(config.experts, names=row.experts.layouts[-1]))
    config = _with_biases(replace(config, row=row), architecture, shapes)
    arrays = _Tensors(reader.tensors, architecture, config)
    if unknown := sorted(arrays.others):
        do = "The model has a part that this release does not support."
        raise ModelError(who, "has unknown tensors", got=", ".join(unknown[:3]), do=do)
    return Checkpoint(
        path.stem, config, arrays, arrays.specs, text=_text(fact), sources=(path,), formats=arrays.formats
    )


def _with_biases(
    config: DecoderConfig, architecture: str, shapes: Mapping[str, tuple[int, ...]]
) -> DecoderConfig:
    """Return the config with the biases that the file has: the metadata does not say it."""

    def has(*parts: str) -> bool:
        names = {p: config.row.parts[p] for p in parts if p in config.row.parts}
        return any(
            gguf_name(architecture, config.row, f"{config.layer(0)}.{name}.bias") in shapes
            for name in names.values()
        )

    return replace(
        config,
        qkv_bias=has("q", "qkv"),
        out_bias=has("o"),
        mlp_bias=has("up", "gate_up"),
        head_bias="output.bias" in shapes,
    )


_HALVES = ("attn_k_b", "attn_v_b")
"""Halves of latent attention's ``kv_b`` in newer files: [heads, rank, plain] and [heads, value, rank]."""


def _dequantized(tensor: Any) -> Array:
    """Return a tensor in float32."""
    from gguf.quants import dequantize

    shape = tuple(int(d) for d in reversed(tensor.shape))
    if tensor.tensor_type.name == "F64":  # the package has no conversion of it
        return np.asarray(tensor.data, np.float32).reshape(shape)
    return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without dims of 1."""
    return tuple(d for d in shape if d != 1)


class _Tensors(Mapping[str, Array]):
    """Tensors by their names in a checkpoint, float32; under ``blocks_name`` the rows of those in blocks, which iteration omits.

    Each access to floats dequantizes the tensor. ``formats``: the format of each tensor in the file.
    """

    def __init__(self, tensors: Any, architecture: str, config: DecoderConfig) -> None:
        self._tensors: dict[str, Any] = {}
        self.others: set[str] = set()
        self._heads: dict[str, int] = {}
        self._halves: dict[str, dict[str, Any]] = {}
        ends, layers = part_names(architecture, config.row, config.base)
        counts = {"q": config.heads, "k": config.kv_heads} if architecture in INTERLEAVED else {}
        for tensor in tensors:
            stem, _, kind = str(tensor.name).rpartition(".")
            block, _, rest = stem.partition(".")
            layer, _, part = rest.partition(".")
            if stem in ends:
                name = f"{ends[stem]}.{kind}"
            elif block == "blk" and part in _HALVES and "attn_kv_b" in layers and layer.isdecimal():
                own = layers["attn_kv_b"][0]
                self._halves.setdefault(f"{config.layer(int(layer))}.{own}.{kind}", {})[part] = tensor
                continue
            elif block == "blk" and part in layers and layer.isdecimal():
                own, role = layers[part]
                name = f"{config.layer(int(layer))}.{own}.{kind}"
                if role in counts:
                    self._heads[name] = counts[role]
            else:
                self.others.add(str(tensor.name))
                continue
            self._tensors[name] = tensor
        needed = config.shapes()
        self._halves = {n: t for n, t in self._halves.items() if len(t) == len(_HALVES)}
        shapes = {n: tuple(int(d) for d in reversed(t.shape)) for n, t in self._tensors.items()}
        # Writers drop dims of 1.
        self.specs = {
            n: TensorSpec(needed[n] if squeezed(needed.get(n, ())) == squeezed(s) else s, DType.FLOAT32)
            for n, s in shapes.items()
        }
        self.specs |= {n: TensorSpec(needed[n], DType.FLOAT32) for n in self._halves if n in needed}
        self.formats = {n: str(t.tensor_type.name) for n, t in self._tensors.items()}
        self._raw = {blocks_name(n): n for n, f in self.formats.items() if f in BLOCK_FORMATS}
        halves = {n: t[_HALVES[0]].tensor_type.name for n, t in self._halves.items()}
        self.formats |= {n: f if f in UNQUANTIZED else f"halves in {f}" for n, f in halves.items()}

    def __getitem__(self, name: str) -> Array:
        own = self._raw.get(name, name)
        shape = tuple(int(d) for d in self.specs[own].shape if isinstance(d, int))
        if name in self._raw:
            return self._in_halves(own, np.asarray(self._tensors[own].data).reshape(*shape[:-1], -1))
        if name in self._halves:
            keys, values = (_dequantized(self._halves[name][part]) for part in _HALVES)
            return np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(shape)
        return self._in_halves(name, _dequantized(self._tensors[name]).reshape(shape))

    def _in_halves(self, name: str, rows: Array) -> Array:
        """Return the rows of queries or keys with their rotary pairs as two halves."""
        if name not in self._heads:
            return rows
        heads = self._heads[name]
        pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.specs or name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


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
