"""Measure errors and times of transformers models that this project was not developed with: the native engine next to PyTorch.

    python benchmarks/cuda/third_party.py --out benchmarks/results/cuda_third_party.json [--device cpu --size small] [--dtypes float32,float16] [MODEL ...]

Weights are random (seeded). Sizes are those of each family's base model; ``small`` has a few layers of few channels. The reference is the
same model in float64. The report has rms(d) / rms(ref) and the largest error. Times are of one input; runs are queued without waiting. PyTorch
eager and its CUDA graph are timed in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from models import far, milliseconds, prepare, rms

import xpuruntime as xrt


@dataclass(frozen=True)
class ModelFamily:
    """A model family: its transformers classes, the changes of size ``small``, and its inputs.

    inputs: name -> shape. Inputs whose name ends in ``ids`` are integers. output: the compared attribute of the model's output.
    small: configuration of the small size. usual: configuration of both sizes.
    """

    model: str
    config: str
    inputs: dict[str, tuple[int, ...]]
    small: dict[str, Any] = field(default_factory=dict)
    usual: dict[str, Any] = field(default_factory=dict)
    output: str = "last_hidden_state"


IMAGE = {"pixel_values": (1, 3, 224, 224)}
TEXT = {"input_ids": (1, 128)}
THIN = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
FAMILIES = {
    "gpt2": ModelFamily("GPT2Model", "GPT2Config", TEXT, {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "opt": ModelFamily("OPTModel", "OPTConfig", TEXT, {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "distilbert": ModelFamily("DistilBertModel", "DistilBertConfig", TEXT, {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "roberta": ModelFamily("RobertaModel", "RobertaConfig", TEXT, THIN),
    "electra": ModelFamily("ElectraModel", "ElectraConfig", TEXT, THIN | {"embedding_size": 32}),
    "albert": ModelFamily("AlbertModel", "AlbertConfig", TEXT, THIN | {"embedding_size": 32}, {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "t5 encoder": ModelFamily("T5EncoderModel", "T5Config", TEXT, {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128}),
    "modernbert": ModelFamily("ModernBertModel", "ModernBertConfig", TEXT, THIN, {"attn_implementation": "sdpa"}),
    "gemma": ModelFamily("GemmaModel", "GemmaConfig", TEXT, THIN | {"head_dim": 16, "num_key_value_heads": 1}, {"num_hidden_layers": 4, "vocab_size": 32000}),
    "mistral": ModelFamily("MistralModel", "MistralConfig", TEXT, THIN | {"num_key_value_heads": 2}, {"hidden_size": 2048, "num_hidden_layers": 6, "intermediate_size": 7168, "num_attention_heads": 16}),
    "phi": ModelFamily("PhiModel", "PhiConfig", TEXT, THIN, {"num_hidden_layers": 6}),
    "dinov2": ModelFamily("Dinov2Model", "Dinov2Config", IMAGE, THIN | {"image_size": 56}),
    "deit": ModelFamily("DeiTModel", "DeiTConfig", IMAGE, THIN),
    "beit": ModelFamily("BeitModel", "BeitConfig", IMAGE, THIN),
    "swin": ModelFamily("SwinModel", "SwinConfig", IMAGE, {"embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 3, 6]}),
    "convnext": ModelFamily("ConvNextModel", "ConvNextConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}),
    "convnextv2": ModelFamily("ConvNextV2Model", "ConvNextV2Config", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}),
    "regnet": ModelFamily("RegNetModel", "RegNetConfig", IMAGE, {"embedding_size": 16, "hidden_sizes": [32, 48, 64, 96], "depths": [1, 1, 2, 1], "groups_width": 16}),
    "mobilevit": ModelFamily("MobileViTModel", "MobileViTConfig", {"pixel_values": (1, 3, 256, 256)}, {"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 160]}),
    "segformer": ModelFamily("SegformerModel", "SegformerConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "poolformer": ModelFamily("PoolFormerModel", "PoolFormerConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "levit": ModelFamily("LevitModel", "LevitConfig", IMAGE),
    "efficientnet": ModelFamily("EfficientNetModel", "EfficientNetConfig", IMAGE, {"width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640}, {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}),
    "clip vision": ModelFamily("CLIPVisionModel", "CLIPVisionConfig", IMAGE, THIN),
    "clip text": ModelFamily("CLIPTextModel", "CLIPTextConfig", {"input_ids": (1, 77)}, THIN),
    "siglip vision": ModelFamily("SiglipVisionModel", "SiglipVisionConfig", IMAGE, THIN),
    "wav2vec2": ModelFamily("Wav2Vec2Model", "Wav2Vec2Config", {"input_values": (1, 16000)}, THIN | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16}, {"layerdrop": 0.0}),
    "hubert": ModelFamily("HubertModel", "HubertConfig", {"input_values": (1, 16000)}, THIN | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16}, {"layerdrop": 0.0}),
    "whisper encoder": ModelFamily("WhisperEncoder", "WhisperConfig", {"input_features": (1, 80, 3000)}, {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}, {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}),
    "mamba": ModelFamily("MambaModel", "MambaConfig", {"input_ids": (1, 16)}, {"hidden_size": 64, "num_hidden_layers": 2}, {"num_hidden_layers": 2, "hidden_size": 256}),
}  # fmt: skip


class Tensor(torch.nn.Module):
    """A model with positional inputs and one output tensor."""

    def __init__(self, model: Any, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, tuple(names), output

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the compared output."""
        output: torch.Tensor = getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.output)
        return output


def build_model(family: ModelFamily, size: str) -> Tensor:
    """Return the model in evaluation mode. Its seeded weights have no zeros."""
    import transformers

    changes = family.usual | (family.small if size == "small" else {})
    attention = changes.pop("attn_implementation", None)
    config = getattr(transformers, family.config, None) or getattr(transformers.models, family.config)
    model_config = config(**changes)
    if attention:
        model_config._attn_implementation = attention
    torch.manual_seed(0)
    kind = getattr(transformers, family.model, None)
    if kind is None:  # not exported by the package itself
        from transformers.models.whisper import modeling_whisper

        kind = getattr(modeling_whisper, family.model)
    model = kind(model_config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) * 0.02)
    return Tensor(model, list(family.inputs), family.output)


def make_inputs(family: ModelFamily, model: Tensor) -> list[torch.Tensor]:
    """Return seeded inputs on the host."""
    random = torch.Generator().manual_seed(1)
    size = getattr(model.model.config, "image_size", None)
    inputs = []
    for name, shape in family.inputs.items():
        if name.endswith("ids"):
            inputs.append(torch.randint(5, 500, shape, generator=random))
        else:
            side = shape if name != "pixel_values" or not isinstance(size, int) else (*shape[:2], size, size)
            inputs.append(torch.randn(side, generator=random))
    return inputs


def as_dtype(values: Sequence[torch.Tensor], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the values on a device, floats cast to a dtype."""
    return [v.to(device, dtype) if v.is_floating_point() else v.to(device) for v in values]


def measure(family: ModelFamily, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return errors and times of one model in one precision."""
    model = build_model(family, args.size)
    inputs, kind = make_inputs(family, model), getattr(torch, dtype)
    with torch.inference_mode():
        expected = model.to(args.device).double()(*as_dtype(inputs, args.device, torch.float64)).cpu().numpy()
    model = build_model(family, args.size)
    policy = None if dtype == "float32" else xrt.ExecutionPolicy(precision=dtype)
    started = time.perf_counter()
    with (
        xrt.InferenceSession(
            model, device=args.device, engine="native", example_inputs=tuple(inputs), exec_policy=policy
        ) as session,
        torch.inference_mode(),
    ):
        row: dict[str, Any] = {"open_s": round(time.perf_counter() - started, 1)}
        names = [i.name for i in session.input_info]
        device_inputs = dict(zip(names, as_dtype(inputs, args.device, torch.float32), strict=True))
        native_output = next(iter(session.run(device_inputs).values())).double().cpu().numpy()
        model = model.to(args.device, kind)
        cast_inputs = as_dtype(inputs, args.device, kind)
        torch_output = model(*cast_inputs).double().cpu().numpy()
        row["error"] = {"ours": rms(native_output, expected), "torch": rms(torch_output, expected)}
        row["largest error"] = {"ours": far(native_output, expected), "torch": far(torch_output, expected)}
        runs: dict[str, Callable[[], Any]] = {
            "native": lambda: session.run(device_inputs),
            "eager": lambda: model(*cast_inputs),
        }
        if args.device != "cpu":
            try:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    model(*cast_inputs)
                runs["cuda graph"] = graph.replay
            except Exception as error:
                row["no cuda graph"] = f"{type(error).__name__}: {error}"[:120]
        rounds = [{n: milliseconds(run, args.device, 0.1) for n, run in runs.items()} for _ in range(2)]
    row["ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
    return row


def part(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    """Return the part that measures one model in every requested precision."""

    def run(report: Report, args: argparse.Namespace) -> Any:
        rows = {}
        for dtype in args.dtypes:
            row = rows[dtype] = measure(FAMILIES[name], dtype, args)
            error, largest = row["error"], row["largest error"]
            least = 1e-5 if dtype == "float32" else 0.0
            report.bound(
                f"{name} {dtype}: from float64", error["ours"], at_most=max(least, 1.25 * error["torch"])
            )
            report.bound(
                f"{name} {dtype}: at most", largest["ours"], at_most=max(least, 2 * largest["torch"])
            )
            others = {n: t for n, t in row["ms"].items() if n != "native"}
            report.bound(f"{name} {dtype}: time over the fastest of {', '.join(others)}", round(row["ms"]["native"] / min(others.values()), 3), at_most=1.0, required=False)  # fmt: skip
        return rows

    run.__doc__ = FAMILIES[name].model
    return run


def dtypes(text: str) -> list[str]:
    """Parse ``--dtypes``. Raises ArgumentTypeError for a dtype that sessions do not support as precision."""
    names = text.split(",")
    if unknown := [n for n in names if n not in ("float32", "float16", "bfloat16")]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of float32, float16, bfloat16")
    return names


PARTS = {name: part(name) for name in FAMILIES}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a model is wrong or fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--dtypes", default="float32,float16", type=dtypes, metavar="A,B")
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), argv=argv, parser=parser, before=prepare,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
