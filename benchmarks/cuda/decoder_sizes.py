"""Language models of published sizes on CUDA by the native engine: the time of a token, next to PyTorch and to the time of reading the weights.

    python benchmarks/cuda/decoder_sizes.py --out benchmarks/results/cuda_decoder_sizes.json [--device cuda:0] [MODEL ...] [--min-mib 4 13]

The compiler is not tuned for these sizes. Weights are seeded, in bfloat16. The prompt fills the context, and its last logits, ours and PyTorch's, are
compared with float32 and the same weights. Then one token is timed: ours, and a CUDA graph of PyTorch's (StaticCache), in turns. ``share`` is a
fraction of the copy rate of the same run: the bytes that a token must read (weights and cache, without an untied embedding table) per second.
``--min-mib`` also times a token with these bounds for one row on tensor cores (``gemv_mma_min_bytes``).
Needs torch and transformers. ``--device cpu --layers 2`` tests the script itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import paths  # noqa: F401
import torch
from decoder_breakdown import observed, print_timeline
from decoders import in_bfloat16, peers, prefill_errors, token_of
from gpu_report import Report, arguments, run_parts
from models import milliseconds, prepare

from xpuruntime.kernels.cuda.crossovers import crossovers_of
from xpuruntime.kernels.cuda.matmul import gemv_mma
from xpuruntime.llm import Generator

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Sizes of a published model, from its config.

    more:    other fields of the config.
    context: number of tokens before the timed one.
    batch:   number of texts.
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
    "Qwen2.5-1.5B": Size("qwen2", 1536, 8960, 28, 12, 2, 151936),
    "Qwen2.5-1.5B, 4 texts": Size("qwen2", 1536, 8960, 28, 12, 2, 151936, batch=4),
    "SmolLM2-135M, 8 texts": Size("llama", 576, 1536, 30, 9, 3, 49152, batch=8),
    **{
        f"Llama-3.2-1B, {texts} texts": Size("llama", 2048, 8192, 16, 32, 8, 128256, batch=texts, more={"tie_word_embeddings": True, "rope_parameters": LLAMA3})
        for texts in (2, 8, 16)
    },
}  # fmt: skip


def model_of(size: Size, device: str, layers: int) -> Any:
    """Return the model with seeded weights. Biases and norms are random as well."""
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
    """Return the minimum number of bytes that a token reads."""
    looked_up = 0 if size.more["tie_word_embeddings"] else model.get_input_embeddings().weight.numel()
    cache = (
        2 * (layers or size.layers) * size.context * size.kv_heads * (size.hidden // size.heads) * size.batch
    )
    return 2 * (sum(p.numel() for p in model.parameters()) - looked_up + cache)


def copy_rate(device: str) -> float:
    """Return the bytes per second that a copy of half a GiB reads and writes."""
    source = torch.empty(2**28, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), device, 0.2) * 1e3


def with_bound(size: Size, model: Any, device: str, least: int) -> Generator:
    """Return a generator that multiplies one row on tensor cores for weights of at least so many MiB."""

    def crossovers(target: Any) -> Any:
        return replace(crossovers_of(target), gemv_mma_min_bytes=least << 20)

    # The key of a stored program does not know the bound.
    policy = {"version": 1, "execution": {"caching": False}}
    with mock.patch.object(gemv_mma, "crossovers_of", crossovers):
        return Generator(
            model, capacity=size.context + 64, dtype="bfloat16", buckets=(64,), device=device, policy=policy
        )


def bounds(size: Size, model: Any, args: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds of a token for each bound of ``--min-mib``, in turns."""
    with ExitStack() as stack:
        runs = {}
        for least in args.min_mib:
            generator = stack.enter_context(with_bound(size, model, args.device, least))
            runs[f"{least} MiB"] = token_of(generator, size.context, args.device)
        names = list(runs)
        rounds = [
            {n: milliseconds(runs[n], args.device, 0.1) for n in names[:: 1 if turn % 2 else -1]}
            for turn in range(6)
        ]
        return {n: round(statistics.median(r[n] for r in rounds), 4) for n in names}


def measured(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    """Return the part that measures a size."""

    def part(report: Report, args: argparse.Namespace) -> Any:
        size, device = SIZES[name], args.device
        results: dict[str, Any] = {"context": size.context, "batch": size.batch}
        rate = copy_rate(device)
        model = model_of(size, device, args.layers)
        needed = bytes_of(model, size, args.layers)
        tokens = np.random.default_rng(1).integers(0, size.vocab, size.context)
        generator = Generator(
            model.cpu(), capacity=size.context + 64, batch=size.batch, dtype="bfloat16", buckets=(size.context,), device=device
        )  # fmt: skip
        with generator as ours:
            first = ours.steps.read([tokens.tolist()] * size.batch)[0].astype(np.float64)
            runs: dict[str, Callable[[], Any]] = {"native": token_of(ours, size.context, device, size.batch)}
            if args.min_mib and size.batch == 1:
                results["decode_ms_by_bound"] = bounds(size, model, args)
            model.to(device)
            with torch.inference_mode():
                input_ids = torch.from_numpy(tokens[None]).to(device)
                results["prefill"] = prefill_errors(report, model, input_ids, first)
                others = peers(model, tokens, args, results, size.batch)
                runs |= {n: r for n, r in others.items() if n != "eager"}
                rounds = [{n: milliseconds(run, device, 0.1) for n, run in runs.items()} for _ in range(3)]
                results["decode_ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
                results["timeline"] = {
                    "token": observed(ours, size.context, size.batch),
                    "prefill": observed(ours, 0, size.batch, size.context),
                }
                results["prefill_ms"] = {
                    "native": round(
                        milliseconds(lambda: ours.steps.read([tokens.tolist()] * size.batch), device, 0.1), 3
                    ),
                    "eager": round(
                        milliseconds(
                            lambda: model(input_ids.expand(size.batch, -1), logits_to_keep=1), device, 0.1
                        ),
                        3,
                    ),
                }
        results["share"] = round(needed / results["decode_ms"]["native"] * 1e3 / rate, 3)
        for timeline in results["timeline"].values():
            print_timeline(timeline)
        print(f"   { {k: v for k, v in results.items() if k != 'timeline'} }", flush=True)
        for other, ms in results["decode_ms"].items():
            if other != "native":
                report.bound(
                    f"{name}: a token's time over {other}'s",
                    round(results["decode_ms"]["native"] / ms, 3),
                    at_most=1.0,
                )
        return results

    part.__doc__ = f"{name}: prefill beside float32, a token's time."
    return part


PARTS = {name: measured(name) for name in SIZES}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--min-mib", type=int, nargs="*", default=[])
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
        __doc__, PARTS, packages=("torch", "transformers"), argv=argv, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
