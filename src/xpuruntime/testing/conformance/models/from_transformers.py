"""A small model of each type that transformers' AutoModel knows.

No single configuration fits every type. ``build`` tries a few (all sub-configurations small, different head sizes, only depths small, the
default) with a few sets of inputs, and uses the first that PyTorch runs.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

__all__ = ["build", "names"]

_DEPTHS: Mapping[str, Any] = dict.fromkeys(
    ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "depth"), 2
)  # fmt: skip
_WIDTHS: Mapping[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "d_model": 64, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "n_embd": 64, "n_head": 4, "num_heads": 4, "d_ff": 128, "d_kv": 16,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "image_size": 64, "embed_dim": 32, "dim": 64, "n_heads": 4,
    "hidden_dim": 128, "ffn_dim": 128, "pad_token_id": 0, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_intermediate_size": 32, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "state_size": 8, "sliding_window": 32, "embedding_size": 64, "word_embed_proj_dim": 64, "projection_dim": 32, "num_experts_per_tok": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "prediction_length": 8,
}  # fmt: skip
_HEADS: tuple[Mapping[str, Any], ...] = (
    {"num_key_value_heads": 4},
    *({"head_dim": s, "hidden_size": 4 * s, "n_embd": 4 * s, "d_model": 4 * s, "embed_dim": 4 * s, "rotary_dim": s} for s in (64, 128)),
)  # fmt: skip
"""Alternative head sizes, which the parts of a rotary embedding must add up to."""
_MAX_PARAMETERS = 70_000_000
_WHOLE = ("timm", "encoder-decoder", "rag", "musicgen", "bark", "vision-text-dual-encoder", "esmfold")
"""Types composed of other types or of timm networks."""
_MORE = ("decoder_input_ids", "pixel_values", "input_ids", "input_features", "bbox", "qformer_input_ids")
_TOKENS, _SAMPLES, _FRAMES, _GRID = 24, 8000, 200, 4
_FIXED: Mapping[str, Any] = {
    "grid_thw": [1, _GRID, _GRID],
    "merge_sizes": 1,
    "spatial_shapes": [_GRID, _GRID],
}
"""Inputs that decide shapes, by image; the network has them as constants."""


def names() -> list[str]:
    """Return every type of AutoModel's table except wrappers of other types."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [
        k for k, v in MODEL_MAPPING_NAMES.items() if isinstance(v, str) and not any(w in k for w in _WHOLE)
    ]


def build(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the first configuration and set of inputs that PyTorch runs. Raises the first attempt's error if none runs."""
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    first: Exception | None = None
    for config in _configs(name):
        try:
            model = _model(config)
        except Exception as error:  # another configuration may work
            first = first or error
            continue
        for inputs in _inputs(model, batch):
            wrapper = _wrapper(model, tuple(inputs), batch)
            try:
                with torch.no_grad():
                    if wrapper(*inputs.values()):
                        return wrapper, tuple(inputs.values())
            except Exception as error:  # other inputs may work
                first = first or error
    raise first or RuntimeError("no output is a tensor of floats")


def _configs(name: str) -> Iterator[Any]:
    """Yield configurations from small to default."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    base = kind()
    sizes = {**_DEPTHS, **_WIDTHS}
    flat = {k: v for k, v in _small(base, sizes, nested=False).items() if k in base.to_dict()}
    plain = {k: v for k, v in flat.items() if k not in ("head_dim", "num_key_value_heads", "image_size")}
    tries: list[Callable[[], Any]] = [
        lambda: kind(**_small(base, sizes, nested=True)),
        lambda: kind(**flat),
        lambda: kind(**plain),
        *(partial(_with_heads, kind, base, {**sizes, **heads}) for heads in _HEADS),
        lambda: kind(**_small(base, _DEPTHS, nested=True)),
        lambda: base,
    ]
    first: Exception | None = None
    count = 0
    for attempt in tries:
        try:
            config = attempt()
        except Exception as error:  # the class rejects sizes that do not fit
            first = first or error
            continue
        count += 1
        yield config
    if first is not None and not count:
        raise first


def _with_heads(kind: Any, base: Any, sizes: Mapping[str, Any]) -> Any:
    return kind(**_small(base, sizes, nested=True))


def _small(base: Any, sizes: Mapping[str, Any], nested: bool) -> dict[str, Any]:
    """Return arguments of a configuration's class, including its sub-configurations."""
    from transformers import PretrainedConfig

    arguments: dict[str, Any] = {}
    for key, value in sizes.items():
        now = getattr(base, key, None)
        unset = now is None and hasattr(base, key) and key != "head_dim"
        if unset or (isinstance(now, int) and not isinstance(now, bool)):
            arguments[key] = value
    layers = arguments.get("num_hidden_layers", 2)
    for key in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = getattr(base, key, None)
        if isinstance(kinds, list | tuple) and kinds:
            arguments[key] = (
                list(dict.fromkeys(kinds))[:layers] if len(set(kinds)) >= layers else list(kinds[:layers])
            )
    if nested:
        for key, value in vars(base).items():
            if isinstance(value, PretrainedConfig):
                arguments[key] = type(value)(**_small(value, sizes, nested=True)).to_dict()
    return arguments


def _model(config: Any) -> Any:
    """Return a model without a cache, of at most 60 million parameters."""
    import torch
    from transformers import AutoModel

    for part in (config, *(v for v in vars(config).values() if hasattr(v, "model_type"))):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    config.return_dict = True
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    if count > _MAX_PARAMETERS:
        raise RuntimeError(f"{count:,} parameters are more than this suite supports")
    torch.manual_seed(0)
    return AutoModel.from_config(config).eval()


def _inputs(model: Any, batch: int) -> Iterator[dict[str, Any]]:
    """Yield sets of inputs: the required ones and the main one, then with the further inputs that such models take."""
    tensors = _every_input(model, batch)
    takes = inspect.signature(model.forward).parameters
    parameters = [p for p in takes.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    first = [p.name for p in parameters if p.default is p.empty and p.name not in _FIXED]
    main = model.main_input_name
    if main in takes and main not in first:
        first.insert(0, main)
    missing = [k for k in first if k not in tensors]
    if missing:
        raise RuntimeError(f"the suite has no input {missing[0]}")
    optional = [k for k in _MORE if k in takes and k in tensors and k not in first]
    for count in range(len(optional) + 1):
        for extra in itertools.combinations(optional, count):
            keys = (*first, *extra)
            for forms in itertools.product(*(tensors[k] for k in keys)):
                yield dict(zip(keys, forms, strict=True))


def _every_input(model: Any, batch: int) -> dict[str, tuple[Any, ...]]:
    """Return seeded tensors by name, in every form that models accept."""
    import torch

    config = model.config
    random = torch.Generator().manual_seed(1)

    def size(key: str, otherwise: int) -> int:
        for part in (config, getattr(config, "vision_config", None), getattr(config, "audio_config", None)):
            value = getattr(part, key, None)
            if isinstance(value, list | tuple) and value:
                value = value[0]
            if isinstance(value, int):
                return value
        return otherwise

    def draw(*shape: int) -> Any:
        return torch.randn(batch, *shape, generator=random)

    tokens = torch.randint(3, 200, (batch, _TOKENS), generator=random)
    side, channels = size("image_size", 64), size("num_channels", 3)
    sides = getattr(config, "image_size", None)
    high, wide = sides[:2] if isinstance(sides, list | tuple) and len(sides) > 1 else (side, side)
    corner = torch.randint(0, 100, (batch, _TOKENS, 2), generator=random)
    bins = size("num_mel_bins", 80)
    frames = 2 * size("max_source_positions", _FRAMES // 2)
    sound = draw(bins, frames)
    clip = draw(size("num_frames", 4), channels, side, side)
    samples = draw(_SAMPLES)
    features = [
        draw(_FRAMES, count) for count in (size("feature_projection_input_dim", 160), 128, 100, 320, bins)
    ]
    patch, past = size("patch_size", 16), size("context_length", 512)
    patches = draw(_GRID**2, size("in_channels", channels) * size("temporal_patch_size", 1) * patch**2)
    lagged = past + max(getattr(config, "lags_sequence", None) or [0])
    return {
        "input_ids": (tokens,), "decoder_input_ids": (tokens[:, :16],), "qformer_input_ids": (tokens,), "inputs": (tokens,),
        "pixel_values": (draw(channels, high, wide), clip, draw(2, channels, side, side), draw(channels, 224, 224), patches, patches.flatten(0, 1)),
        "pixel_values_videos": (clip,), "hidden_states": (patches.flatten(0, 1),), "input_values": (samples, samples[:, None], draw(size("max_length", 1024), 128)),
        "input_features": (sound, sound.transpose(1, 2).contiguous(), *features), "audio_mel": (draw(_FRAMES, size("input_feat_size", 128)),),
        "input_features_mask": (torch.ones(batch, frames, dtype=torch.bool), torch.ones(batch, _FRAMES, dtype=torch.bool)),
        "audio_mel_mask": (torch.zeros(batch, _FRAMES, dtype=torch.bool),), "query_embeds": (draw(8, size("hidden_size", 64)),),
        "bbox": (torch.cat([corner, corner + 50], dim=-1),), "pixel_attention_mask": (torch.ones(batch, _GRID**2, dtype=torch.long),),
        "past_values": (samples[:, :512, None], draw(past, size("num_input_channels", 1)), draw(lagged)), "past_observed_mask": (torch.ones(batch, lagged),),
        "past_time_features": (draw(lagged, size("num_time_features", 0)),), "prompt_pixel_values": (draw(channels, high, wide),),
        "prompt_masks": (draw(channels, high, wide),),
    }  # fmt: skip


def _wrapper(model: Any, keys: tuple[str, ...], batch: int) -> Any:
    """Return a module that takes its inputs in order and returns every float tensor."""
    import torch
    from torch.utils import _pytree as pytree

    takes = inspect.signature(model.forward).parameters
    fixed = {k: v for k, v in _FIXED.items() if k in takes and takes[k].default is inspect.Parameter.empty}

    class Outputs(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def exact(self) -> None:
            """Compute experts one by one: grouped products have no float64."""
            for module in self.modules():
                if hasattr(getattr(module, "config", None), "_experts_implementation"):
                    module.config._experts_implementation = "eager"

        def forward(self, *args: torch.Tensor) -> list[torch.Tensor]:
            """Return tensors of the model's output in order."""
            constants = {k: torch.tensor([v] * batch) for k, v in fixed.items()}
            result = self.model(**dict(zip(keys, args, strict=True)), **constants)
            values = list(result.values()) if hasattr(result, "values") else result
            return [
                t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor) and t.is_floating_point()
            ]

    return Outputs().eval()
