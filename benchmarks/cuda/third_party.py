"""Models of the transformers library that nothing here was built around, on a device by the native engine beside PyTorch: right, and how fast.

    python benchmarks/cuda/third_party.py --out benchmarks/results/cuda_third_party.json [--device cpu --size small] [--dtypes float32,float16] [MODEL ...]

Weights are random (seeded), sizes those of each family's base model (``small``: a few layers of few channels). Errors are rms(d) / rms(ref) from
the same weights in float64, and the largest beside it; times are of one input, queued behind one another, beside PyTorch eager and a CUDA graph of it in the same run.
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
class Stranger:
    """A family: class and configuration of transformers, changes that make it small, and its inputs.

    inputs: name -> shape; ``ids`` and what ends in ``mask`` are whole numbers. output: attribute of what it gives back.
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
STRANGERS = {
    "gpt2": Stranger("GPT2Model", "GPT2Config", TEXT, {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "opt": Stranger("OPTModel", "OPTConfig", TEXT, {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "distilbert": Stranger("DistilBertModel", "DistilBertConfig", TEXT, {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "roberta": Stranger("RobertaModel", "RobertaConfig", TEXT, THIN),
    "electra": Stranger("ElectraModel", "ElectraConfig", TEXT, THIN | {"embedding_size": 32}),
    "albert": Stranger("AlbertModel", "AlbertConfig", TEXT, THIN | {"embedding_size": 32}, {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "t5 encoder": Stranger("T5EncoderModel", "T5Config", TEXT, {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128}),
    "modernbert": Stranger("ModernBertModel", "ModernBertConfig", TEXT, THIN, {"attn_implementation": "sdpa"}),
    "gemma": Stranger("GemmaModel", "GemmaConfig", TEXT, THIN | {"head_dim": 16, "num_key_value_heads": 1}, {"num_hidden_layers": 4, "vocab_size": 32000}),
    "mistral": Stranger("MistralModel", "MistralConfig", TEXT, THIN | {"num_key_value_heads": 2}, {"hidden_size": 2048, "num_hidden_layers": 6, "intermediate_size": 7168, "num_attention_heads": 16}),
    "phi": Stranger("PhiModel", "PhiConfig", TEXT, THIN, {"num_hidden_layers": 6}),
    "dinov2": Stranger("Dinov2Model", "Dinov2Config", IMAGE, THIN | {"image_size": 56}),
    "deit": Stranger("DeiTModel", "DeiTConfig", IMAGE, THIN),
    "beit": Stranger("BeitModel", "BeitConfig", IMAGE, THIN),
    "swin": Stranger("SwinModel", "SwinConfig", IMAGE, {"embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 3, 6]}),
    "convnext": Stranger("ConvNextModel", "ConvNextConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}),
    "convnextv2": Stranger("ConvNextV2Model", "ConvNextV2Config", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}),
    "regnet": Stranger("RegNetModel", "RegNetConfig", IMAGE, {"embedding_size": 16, "hidden_sizes": [32, 48, 64, 96], "depths": [1, 1, 2, 1], "groups_width": 16}),
    "mobilevit": Stranger("MobileViTModel", "MobileViTConfig", {"pixel_values": (1, 3, 256, 256)}, {"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 160]}),
    "segformer": Stranger("SegformerModel", "SegformerConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "poolformer": Stranger("PoolFormerModel", "PoolFormerConfig", IMAGE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "levit": Stranger("LevitModel", "LevitConfig", IMAGE),
    "efficientnet": Stranger("EfficientNetModel", "EfficientNetConfig", IMAGE, {"width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640}, {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}),
    "clip vision": Stranger("CLIPVisionModel", "CLIPVisionConfig", IMAGE, THIN),
    "clip text": Stranger("CLIPTextModel", "CLIPTextConfig", {"input_ids": (1, 77)}, THIN),
    "siglip vision": Stranger("SiglipVisionModel", "SiglipVisionConfig", IMAGE, THIN),
    "wav2vec2": Stranger("Wav2Vec2Model", "Wav2Vec2Config", {"input_values": (1, 16000)}, THIN | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16}, {"layerdrop": 0.0}),
    "whisper encoder": Stranger("WhisperEncoder", "WhisperConfig", {"input_features": (1, 80, 3000)}, {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}, {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}),
    "mamba": Stranger("MambaModel", "MambaConfig", {"input_ids": (1, 16)}, {"hidden_size": 64, "num_hidden_layers": 2}, {"num_hidden_layers": 2, "hidden_size": 256}),
}  # fmt: skip


class Tensor(torch.nn.Module):
    """A model that takes its inputs in order and gives back one tensor."""

    def __init__(self, model: Any, names: Sequence[str], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, tuple(names), output

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """The output that is compared."""
        found: torch.Tensor = getattr(self.model(**dict(zip(self.names, given, strict=True))), self.output)
        return found


def made(one: Stranger, size: str) -> Tensor:
    """The model in evaluation mode, of seeded weights that are nowhere zero."""
    import transformers

    changes = one.usual | (one.small if size == "small" else {})
    attention = changes.pop("attn_implementation", None)
    config = getattr(transformers, one.config, None) or getattr(transformers.models, one.config)
    kept = config(**changes)
    if attention:
        kept._attn_implementation = attention
    torch.manual_seed(0)
    kind = getattr(transformers, one.model, None)
    if kind is None:  # not in the package's front row
        from transformers.models.whisper import modeling_whisper

        kind = getattr(modeling_whisper, one.model)
    model = kind(kept).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) * 0.02)
    return Tensor(model, list(one.inputs), one.output)


def given(one: Stranger, model: Tensor) -> list[torch.Tensor]:
    """Seeded inputs on the host."""
    random = torch.Generator().manual_seed(1)
    size = getattr(model.model.config, "image_size", None)
    found = []
    for name, shape in one.inputs.items():
        if name.endswith("ids"):
            found.append(torch.randint(5, 500, shape, generator=random))
        else:
            side = shape if name != "pixel_values" or not isinstance(size, int) else (*shape[:2], size, size)
            found.append(torch.randn(side, generator=random))
    return found


def as_dtype(values: Sequence[torch.Tensor], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """On a device, floats of a dtype."""
    return [v.to(device, dtype) if v.is_floating_point() else v.to(device) for v in values]


def judge(one: Stranger, dtype: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Error and time of one model in one precision."""
    model = made(one, asked.size)
    inputs, kind = given(one, model), getattr(torch, dtype)
    with torch.inference_mode():
        want = model.to(asked.device).double()(*as_dtype(inputs, asked.device, torch.float64)).cpu().numpy()
    model = made(one, asked.size)
    policy = None if dtype == "float32" else xrt.ExecutionPolicy(precision=dtype)
    started = time.perf_counter()
    with (
        xrt.InferenceSession(
            model, device=asked.device, engine="native", example_inputs=tuple(inputs), exec_policy=policy
        ) as ours,
        torch.inference_mode(),
    ):
        row: dict[str, Any] = {"open_s": round(time.perf_counter() - started, 1)}
        names = [i.name for i in ours.input_info]
        there = dict(zip(names, as_dtype(inputs, asked.device, torch.float32), strict=True))
        got = next(iter(ours.run(there).values())).double().cpu().numpy()
        model = model.to(asked.device, kind)
        narrow = as_dtype(inputs, asked.device, kind)
        theirs = model(*narrow).double().cpu().numpy()
        row["error"] = {"ours": rms(got, want), "torch": rms(theirs, want)}
        row["largest error"] = {"ours": far(got, want), "torch": far(theirs, want)}
        runs: dict[str, Callable[[], Any]] = {
            "native": lambda: ours.run(there),
            "eager": lambda: model(*narrow),
        }
        if asked.device != "cpu":
            try:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    model(*narrow)
                runs["cuda graph"] = graph.replay
            except Exception as error:
                row["no cuda graph"] = f"{type(error).__name__}: {error}"[:120]
        rounds = [{n: milliseconds(run, asked.device, 0.1) for n, run in runs.items()} for _ in range(2)]
    row["ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
    return row


def part(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    """Judges one model in every precision that was asked for."""

    def run(report: Report, asked: argparse.Namespace) -> Any:
        found = {}
        for dtype in asked.dtypes:
            row = found[dtype] = judge(STRANGERS[name], dtype, asked)
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
        return found

    run.__doc__ = STRANGERS[name].model
    return run


def dtypes(text: str) -> list[str]:
    """Names of dtypes, as the command line has them. Raises ArgumentTypeError for one that no session keeps its values in."""
    names = text.split(",")
    if unknown := [n for n in names if n not in ("float32", "float16", "bfloat16")]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of float32, float16, bfloat16")
    return names


PARTS = {name: part(name) for name in STRANGERS}


def main(given: Sequence[str] | None = None) -> int:
    """1 when a model is wrong or does not run."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--dtypes", default="float32,float16", type=dtypes, metavar="A,B")
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), given=given, parser=parser, before=prepare,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
