"""Language models of published sizes on CUDA by the native engine: how long a token takes, compared with PyTorch and with what reading the weights takes.

    python benchmarks/cuda/decoder_sizes.py --out benchmarks/results/cuda_decoder_sizes.json [--device cuda:0] [MODEL ...]

Nothing in the compiler was made for these. Weights are seeded, in bfloat16; the prompt fills the context, and its last logits are compared with those of
the same weights in float32, ours and PyTorch's. Then one token after it: ours, and a CUDA graph of PyTorch's (StaticCache), by turns. ``share`` is the
bytes that a token has to read (weights and cache, without a table of embeddings that is only looked up) over the time, over the copy rate of the
same run. Needs torch and transformers; ``--device cpu --layers 2`` tries the script itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paths  # noqa: F401
import torch
from decoder_breakdown import observed, told
from decoders import in_bfloat16, judged, peers, token_of
from gpu_report import Report, arguments, run_parts
from models import milliseconds, prepare

from xpuruntime.llm import Generator

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Of a published model. hidden, inner, layers, heads, kv_heads, vocab: as its config says; more: the rest of it. context: tokens before the one
    that is timed. batch: texts at a time.
    """

    family: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int = 1024
    batch: int = 1
    more: Mapping[str, Any] = field(default_factory=lambda: {"tie_word_embeddings": True})


SIZES = {
    "SmolLM2-135M": Size("llama", 576, 1536, 30, 9, 3, 49152),
    "Qwen2.5-0.5B": Size("qwen2", 896, 4864, 24, 14, 2, 151936),
    "TinyLlama-1.1B": Size("llama", 2048, 5632, 22, 32, 4, 32000, more={"tie_word_embeddings": False}),
    "Llama-3.2-1B": Size("llama", 2048, 8192, 16, 32, 8, 128256, more={"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "SmolLM2-1.7B": Size("llama", 2048, 8192, 24, 32, 32, 49152),
    "Qwen2.5-3B": Size("qwen2", 2048, 11008, 36, 16, 2, 151936),
    "Llama-3.2-3B": Size("llama", 3072, 8192, 28, 24, 8, 128256, more={"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "Qwen2.5-0.5B, context 8,192": Size("qwen2", 896, 4864, 24, 14, 2, 151936, context=8192),
    "Llama-3.2-1B, 8 texts": Size("llama", 2048, 8192, 16, 32, 8, 128256, batch=8, more={"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
}  # fmt: skip


def model_of(size: Size, device: str, layers: int) -> Any:
    """The model with seeded weights, biases and norms changed too."""
    import transformers

    config, kind = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[size.family]
    facts = {
        "vocab_size": size.vocab, "hidden_size": size.hidden, "intermediate_size": size.inner, "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads, "num_hidden_layers": layers or size.layers, "max_position_embeddings": 32768,
    }  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = kind(config(**facts, **size.more)).eval()
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, device=device) * 0.02)
    return in_bfloat16(model)


def bytes_of(model: Any, size: Size, layers: int) -> int:
    """What a token reads at least."""
    looked_up = 0 if size.more["tie_word_embeddings"] else model.get_input_embeddings().weight.numel()
    cache = (
        2 * (layers or size.layers) * size.context * size.kv_heads * (size.hidden // size.heads) * size.batch
    )
    return 2 * (sum(p.numel() for p in model.parameters()) - looked_up + cache)


def copy_rate(device: str) -> float:
    """Bytes read and written a second by a copy of half a GiB."""
    source = torch.empty(2**28, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), device, 0.2) * 1e3


def measured(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    """The part of a size."""

    def part(report: Report, asked: argparse.Namespace) -> Any:
        size, device = SIZES[name], asked.device
        found: dict[str, Any] = {"context": size.context, "batch": size.batch}
        rate = copy_rate(device)
        model = model_of(size, device, asked.layers)
        needed = bytes_of(model, size, asked.layers)
        tokens = np.random.default_rng(1).integers(0, size.vocab, size.context)
        made = Generator(
            model.cpu(), capacity=size.context + 64, batch=size.batch, dtype="bfloat16", buckets=(size.context,), device=device
        )  # fmt: skip
        with made as ours:
            first = ours.steps.read([tokens.tolist()] * size.batch)[0].astype(np.float64)
            runs: dict[str, Callable[[], Any]] = {"native": token_of(ours, size.context, device, size.batch)}
            model.to(device)
            with torch.inference_mode():
                given = torch.from_numpy(tokens[None]).to(device)
                found["prefill"] = judged(report, model, given, first)
                if size.batch == 1:
                    runs |= {n: r for n, r in peers(model, tokens, asked, found).items() if n != "eager"}
                rounds = [{n: milliseconds(run, device, 0.1) for n, run in runs.items()} for _ in range(3)]
                found["decode_ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
                found["timeline"] = {
                    "token": observed(ours, size.context, size.batch),
                    "prefill": observed(ours, 0, size.batch, size.context),
                }
                found["prefill_ms"] = {
                    "native": round(
                        milliseconds(lambda: ours.steps.read([tokens.tolist()] * size.batch), device, 0.1), 3
                    ),
                    "eager": round(
                        milliseconds(
                            lambda: model(given.expand(size.batch, -1), logits_to_keep=1), device, 0.1
                        ),
                        3,
                    ),
                }
        found["share"] = round(needed / found["decode_ms"]["native"] * 1e3 / rate, 3)
        for timeline in found["timeline"].values():
            told(timeline)
        print(f"   { {k: v for k, v in found.items() if k != 'timeline'} }", flush=True)
        for other, ms in found["decode_ms"].items():
            if other != "native":
                report.bound(
                    f"{name}: a token's time over {other}'s",
                    round(found["decode_ms"]["native"] / ms, 3),
                    at_most=1.0,
                )
        return found

    part.__doc__ = f"{name}: prefill beside float32, a token's time."
    return part


PARTS = {name: measured(name) for name in SIZES}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--layers",
        type=int,
        default=0,
        choices=range(1, 8),
        metavar="1..7",
        help="instead of the model's own, to try this script",
    )
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), given=argv, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
