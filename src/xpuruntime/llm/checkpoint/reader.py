"""open_checkpoint: a language model as config, arrays by name, and tokenizer. Arrays are mapped or shared, never copied.

open_checkpoint("Qwen2.5-0.5B")            # a folder: config.json, safetensors (one file or shards), tokenizer.json; GPTQ, AWQ and fp8 are converted on access
open_checkpoint("model.gguf")              # weights are dequantized on access
open_checkpoint(transformers_model)        # shares the model's memory
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...protocols import Array
from ...storage.files import read_regular
from ...storage.tensor_files import read_safetensors
from ...types import DType, TensorSpec
from ..families.family import DecoderFamily
from .config import DecoderConfig, read_stops
from .data import Checkpoint
from .gguf_file import open_gguf
from .positions import sinusoidal_positions
from .quantized import quantized_arrays, quantized_format
from .text import open_text

__all__ = ["Checkpoint", "open_checkpoint", "read_config"]

_GENERATION = (
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bos_token_id",
    "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "min_length", "max_length", "bad_words_ids",
)  # fmt: skip
"""Words of a generation in the configs of encoder-decoders."""
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def open_checkpoint(source: Any) -> Checkpoint:
    """Open a folder, a GGUF file, or a transformers model. Raises ModelError, FormatError."""
    if isinstance(source, Checkpoint):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _from_folder(path)
        if path.suffix == ".gguf":
            return checked(open_gguf(path))
        raise ModelError(
            f"language model {os.fspath(source)}",
            "is neither a folder nor a GGUF file" if path.exists() else "does not exist",
            do="Give a folder with config.json and safetensors, or a .gguf file.",
        )
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        return _from_module(source)
    raise ModelError(
        "language model",
        "cannot be opened",
        got=type(source).__name__,
        do="Give a folder, a .gguf file or a transformers model.",
    )


def read_config(path: Path) -> DecoderConfig:
    """Read a ``config.json``. Raises ModelError."""
    facts = _json(path)
    quantized_format(facts, f"language model {path.parent}")
    return DecoderConfig.from_json(_plain(facts))


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the words about quantized weights, which ``quantized_format`` has read."""
    return {n: v for n, v in facts.items() if n != "quantization_config"}


def _from_folder(folder: Path) -> Checkpoint:
    facts, who = _json(folder / "config.json"), f"language model {folder}"
    form = quantized_format(facts, who)
    config = DecoderConfig.from_json(_plain(facts))
    generation: dict[str, Any] = {}
    if (folder / "generation_config.json").is_file():
        generation = _json(folder / "generation_config.json")
        config = replace(config, stops=tuple(dict.fromkeys((*config.stops, *_stops(generation)))))
    elif config.encoder is not None:  # older folders have these words in their config
        generation = {w: facts[w] for w in _GENERATION if w in facts}
    if (folder / _INDEX).is_file():
        shards = _json(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelError(
                f"language model {folder}", f"has no weight_map in {_INDEX}", do="Download the index again."
            )
        files = {str(k): str(v) for k, v in shards.items()}
    elif (folder / _WHOLE).is_file():
        files = dict.fromkeys(read_safetensors(folder / _WHOLE), _WHOLE)
    else:
        raise ModelError(
            f"language model {folder}",
            "has no weights",
            got=f"neither {_WHOLE} nor {_INDEX}",
            do="Save the model with safetensors.",
        )
    stored: dict[str, Array] = {}
    for file in sorted(set(files.values())):
        if Path(file).name != file:
            raise ModelError(
                f"language model {folder}",
                "names a file outside its folder",
                got=file,
                do="Do not use this checkpoint: its index leaves the folder.",
            )
        stored |= read_safetensors(folder / file)
    packed = quantized_arrays(stored, form, config.shapes(), who)
    arrays: Mapping[str, Array] = stored if packed is None else packed
    embed = f"{config.end('embed')}.weight"
    if embed not in arrays and embed.removeprefix(config.base) in arrays:
        config = replace(config, base="")  # the checkpoint of a model without its output layer
    config = with_shared(with_experts(config, arrays), arrays)
    specs, formats = (_specs(stored), {}) if packed is None else (packed.specs, packed.formats)
    as_stored = {n: f for n, f in files.items() if n in specs and n not in formats}
    if positions := computed_positions(config, arrays):
        arrays, specs, formats = {**arrays, **positions}, specs | _specs(positions), {}
    checkpoint = Checkpoint(
        folder.resolve().name, config, arrays, specs, as_stored, folder, open_text(folder), generation,
        tuple(folder / file for file in sorted(set(files.values()))), formats,
    )  # fmt: skip
    return checked(checkpoint)


def _from_module(module: Any) -> Checkpoint:
    from ...frontends.torch.importer import weights_of

    if getattr(module, "training", False):
        raise ModelError(type(module).__name__, "is in training mode", do="Call model.eval().")
    facts, who = module.config.to_dict(), f"language model {type(module).__name__}"
    form = quantized_format(facts, who)
    config = DecoderConfig.from_json(_plain(facts))
    explicit = _frequencies(module)
    if config.rotary == config.local_rotary and config.rotary.kind not in ("dynamic", "longrope"):
        rotary = replace(config.rotary, explicit=explicit)
        config = replace(config, rotary=rotary, local_rotary=rotary)
    stored = dict(weights_of(module))
    packed = quantized_arrays(stored, form, config.shapes(), who)
    arrays = stored if packed is None else {n: packed[n] for n in packed}
    embed, head = (f"{config.end(part)}.weight" for part in ("embed", "head"))
    if head not in arrays and "lm_head.weight" in arrays:
        arrays[head] = arrays.pop("lm_head.weight")  # modules may name it otherwise than checkpoints
    if config.tied and embed not in arrays and head in arrays:
        # The embedding and the output layer are one tensor, which the module may list under the latter's name.
        arrays[embed] = arrays.pop(head)
    config = with_shared(with_experts(config, arrays), arrays)
    shapes = config.shapes()
    weights = {n: a for n, a in arrays.items() if n in shapes}
    words = getattr(module, "generation_config", None)
    generation = {} if words is None else dict(words.to_dict())
    return checked(Checkpoint(type(module).__name__, config, weights, _specs(weights), generation=generation))


def with_experts(config: DecoderConfig, names: Collection[str]) -> DecoderConfig:
    """Return the config with the names of experts that a checkpoint's weights have."""
    if config.experts is None or config.row.experts is None:
        return config
    stored = config.experts.stored_as(config.row.experts, config.layer, names)
    return replace(config, experts=replace(config.experts, names=stored))


def with_shared(config: DecoderConfig, names: Collection[str]) -> DecoderConfig:
    """Return the config of an encoder-decoder with the output layer, the bias and the name of the embedding that a checkpoint's weights have."""
    if config.encoder is None:
        return config
    row, encoder = config.row, replace(config.encoder, base=config.base)
    ends = dict(row.ends)
    if "logits_bias" in ends and config.end("logits_bias") not in names:
        del ends["logits_bias"]
    config = replace(
        config,
        row=_with_embedding(replace(row, ends=ends), config.base, names),
        encoder=replace(encoder, row=_with_embedding(encoder.row, config.base, names)),
    )
    return replace(config, tied=f"{config.end('head')}.weight" not in names)


def _with_embedding(row: DecoderFamily, base: str, names: Collection[str]) -> DecoderFamily:
    """Return the row with the name that a checkpoint has for a side's embedding: its own, the common one, or the other side's."""
    candidates = (*row.synonyms[:1], *([row.ends["embed"]] if "embed" in row.ends else []), *row.synonyms[1:])
    embed = next((n for n in candidates if f"{base}{n}.weight" in names), None)
    return row if embed is None else replace(row, ends={**row.ends, "embed": embed})


def computed_positions(config: DecoderConfig, names: Collection[str]) -> dict[str, Array]:
    """Return the tables of sines and cosines that a checkpoint omits."""
    sides = [c for c in (config, config.encoder) if c is not None and c.row.sinusoidal]
    shapes = {f"{c.end('positions')}.weight": (c.max_positions, c.hidden) for c in sides}
    return {name: sinusoidal_positions(*shape) for name, shape in shapes.items() if name not in names}


def _frequencies(module: Any) -> tuple[float, ...]:
    """Return the rotary frequencies of a module: their last bits depend on the device that computed them. Empty if the module has none, or if
    a conversion rounded them to 16 bits.
    """
    inner = getattr(module, "base_model", None)
    inv_freq = getattr(getattr(inner, "rotary_emb", None), "inv_freq", None)
    if inv_freq is None or inv_freq.element_size() < 4:
        return ()
    return tuple(map(float, inv_freq.detach().cpu().flatten().tolist()))


def checked(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint after checking that every weight of its config exists in its shape. Raises ModelError."""
    who, specs = f"language model {checkpoint.name}", checkpoint.specs
    shapes = checkpoint.config.shapes()
    missing = [n for n in shapes if n not in specs]
    if missing:
        do = "Check that no shard is missing, and that config.json belongs to this model."
        others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(who, "weights are missing", got=", ".join(missing[:3]) + others, do=do)
    for name, shape in shapes.items():
        if specs[name].shape != shape:
            raise ModelError(
                who,
                f"weight {name} must have the shape {list(shape)}",
                got=specs[name],
                do="Check config.json against the checkpoint.",
            )
    encoder = checkpoint.config.encoder
    sides = (checkpoint.config, *([encoder] if encoder else []))
    layer = tuple(f"{c.layer(c.layers - 1)}." for c in sides)
    buffers = ("rotary_emb.inv_freq", *checkpoint.config.row.buffers)
    unknown = [n for n in specs if n not in shapes and n.startswith(layer) and not n.endswith(buffers)]
    if unknown:
        do = "The model has a part that this release does not support."
        raise ModelError(who, "has unknown weights", got=", ".join(unknown[:3]), do=do)
    return checkpoint


def _specs(arrays: Mapping[str, Array]) -> dict[str, TensorSpec]:
    return {n: TensorSpec(tuple(a.shape), DType.of(a.dtype)) for n, a in arrays.items()}


def _stops(data: Mapping[str, Any]) -> tuple[int, ...]:
    return read_stops(data.get("eos_token_id"))


_MAX_JSON = 64 << 20


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path, _MAX_JSON).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        do = "Give a folder with config.json and safetensors, or a .gguf file."
        who = f"language model {path.parent}"
        raise ModelError(who, f"cannot read {path.name}", got=error, do=do) from error
    if not isinstance(data, dict):
        raise ModelError(
            f"language model {path.parent}",
            f"{path.name} must hold a JSON object",
            do="Download the file again.",
        )
    return data
