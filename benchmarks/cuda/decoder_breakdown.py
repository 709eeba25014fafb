"""Breakdown of the time of one token on CUDA, and times with other tile configurations. ``kernels/cuda/matmul/gemv.py`` takes its constants from here.

    python benchmarks/cuda/decoder_breakdown.py --out benchmarks/results/cuda_decoder_breakdown.json [--layers 8] [--size full] [--weights "stored, Q4_K"] [PART ...]

``--weights``: a value of ``kernel.weights``; for ``stored``, followed by a block format (``"stored, Q4_K"``), whose blocks are random. Default: ``model``.

Parts: ``timeline`` (CUPTI's record of every launch of a token: its run time, and the time from the previous launch's end to its own end), ``cuts``
(a token's time with other tile configurations of its products, one product after another, each starting from the best so far), ``attention`` (a
token's time, and attention's launches, with other tile configurations of attention) and ``chunks`` (every launch of 1,024 tokens, as a text's first
chunk and as a later one, and of chunks of 128 and 16). The sizes are those of Qwen2.5-1.5B, by default with eight
layers, whose weights exceed the L2 cache. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any
from unittest import mock

import numpy as np
import paths  # noqa: F401
import torch
from decoders import in_bfloat16, in_blocks, qwen, sizes_of, token_of
from gpu_report import Report, arguments, run_parts
from models import milliseconds, prepare

from xpuruntime.kernels.cuda.attention import decode, decode_append
from xpuruntime.kernels.cuda.matmul import gemv
from xpuruntime.kernels.cuda.matmul.gemv import GemvTileConfig
from xpuruntime.llm import Generator
from xpuruntime.llm.build import first_name, prefill_name
from xpuruntime.runtime import Executor

CONTEXT = 1024
FIELDS = "columns, warps that share a row, blocks, steps of loads under way, blocks of a multiprocessor"
Choice = tuple[int, int, int, int, int]
CHOICES: dict[str, tuple[tuple[int, int, bool], tuple[Choice, ...]]] = {
    "gate and up": ((8960, 1536, True), ((2, 1, 1120, 3, 4), (2, 1, 560, 3, 4), (4, 1, 560, 3, 3), (2, 1, 1120, 6, 3), (2, 3, 8960, 2, 12), (4, 3, 4480, 2, 10))),
    "down": ((1536, 8960, False), ((2, 7, 768, 5, 4), (1, 5, 1536, 7, 6), (2, 7, 384, 5, 4), (4, 7, 384, 5, 2), (2, 5, 768, 7, 3), (4, 7, 384, 3, 3))),
    "queries, keys, values": ((2048, 1536, False), ((1, 1, 256, 6, 4), (2, 3, 1024, 2, 8), (2, 6, 1024, 1, 8))),
    "output": ((1536, 1536, False), ((1, 1, 192, 6, 4), (2, 3, 768, 2, 8), (1, 3, 1536, 2, 12))),
    "logits": ((151936, 1536, False), ((2, 1, 1187, 3, 4), (2, 1, 2374, 3, 4), (2, 1, 9496, 3, 4), (4, 1, 4748, 3, 3), (1, 1, 18992, 6, 4))),
}  # fmt: skip
"""Product -> its key (n, k, gated) and the tile configurations to try, in the order of ``FIELDS``."""


def cut_of(n: int, gated: bool, choice: Choice) -> GemvTileConfig:
    """Return the tile configuration of a choice."""
    columns, split, blocks, ahead, min_rows = choice
    groups = 8 if split == 1 else 1
    items = -(-n // (columns // (1 + gated)))
    return GemvTileConfig(columns, split, groups, ahead, max(1, round(items / (blocks * groups))), min_rows)


def generator_with(
    args: argparse.Namespace, model: Any, configs: dict[tuple[int, int, bool], GemvTileConfig]
) -> Generator:
    """Return a generator that uses ``configs`` for its products, and the default for all others."""
    usual = gemv.gemv_tile_config

    def cut(m: int, n: int, k: int, dtype: Any, gated: bool = False) -> GemvTileConfig:
        return (
            configs.get((n, k, gated), usual(m, n, k, dtype, gated))
            if m == 1
            else usual(m, n, k, dtype, gated)
        )

    # The key of a stored program does not know ``configs``.
    policy = {
        "version": 1,
        "kernel": {"weights": args.weights.partition(", ")[0]},
        "execution": {"caching": False},
    }
    with mock.patch.object(gemv, "gemv_tile_config", cut):
        return Generator(
            model, capacity=CONTEXT + 64, dtype="bfloat16", buckets=(64,), device=args.device, policy=policy
        )


def build_model(args: argparse.Namespace) -> Any:
    """Return the model, on the host; with ``--weights`` of a format of blocks, its checkpoint."""
    model = in_bfloat16(qwen(sizes_of(args), args.device, num_hidden_layers=args.layers)).cpu()
    _, _, blocks = args.weights.partition(", ")
    return in_blocks(model, blocks) if blocks else model


def token_us(
    args: argparse.Namespace, model: Any, configs: dict[tuple[int, int, bool], GemvTileConfig]
) -> float:
    """Return the microseconds of a token at a context of 1,024."""
    with generator_with(args, model, configs) as generator:
        return milliseconds(token_of(generator, CONTEXT, args.device), args.device, 0.15) * 1e3


def cuts(report: Report, args: argparse.Namespace) -> Any:
    """Measure a token's time with other tile configurations of its products."""
    model = build_model(args)
    configs: dict[tuple[int, int, bool], GemvTileConfig] = {}
    results: dict[str, Any] = {"layers": args.layers, "fields": FIELDS, "as it is": token_us(args, model, {})}
    print(f"   as it is: {results['as it is']:.1f} us", flush=True)
    for product, (key, choices) in CHOICES.items():
        times: dict[Choice, float] = {}
        for choice in choices:
            times[choice] = token_us(args, model, {**configs, key: cut_of(key[0], key[2], choice)})
            print(f"   {product} {choice}: {times[choice]:.1f} us", flush=True)
        best = min(times, key=times.__getitem__)
        configs[key] = cut_of(key[0], key[2], best)
        results[product] = {"us": {str(c): round(t, 1) for c, t in times.items()}, "best": best}
    results["best"] = token_us(args, model, configs)
    print(
        f"   best of all: {results['best']:.1f} us with { {k: astuple(c) for k, c in configs.items()} }",
        flush=True,
    )
    return results


def observed(generator: Generator, context: int = CONTEXT, batch: int = 1, length: int = 1) -> dict[str, Any]:
    """Return the launches of one step, by kernel: median run time, and median time from the previous launch's end to its own end, in microseconds.

    The step computes one token, or ``length`` tokens, of each of ``batch`` texts.
    """
    executor = generator.decode if length == 1 else generator.prefill[length]
    positions = np.broadcast_to(np.arange(length) + (context if length == 1 else 0), (batch, length)).copy()
    return launches(executor, [np.full((batch, length), 5), positions, np.arange(1, batch + 1) * length - 1])


def launches(executor: Executor, step: list[Any]) -> dict[str, Any]:
    """Return the launches of one run of an entry point, as ``observed`` does."""
    for _ in range(3):
        executor.run_arrays(step)
    spans = sorted(
        (s for calls in executor.observe(step).calls.values() for s in calls), key=lambda s: s.start_us
    )
    rows: dict[str, list[tuple[float, float]]] = {}
    end = 0.0
    for s in spans:
        turn = s.start_us + s.time_us - end
        end = max(end, s.start_us + s.time_us)
        rows.setdefault(
            f"{s.name.rpartition('_')[0]} {s.grid[0]} of {s.block[0]}, {s.registers} registers", []
        ).append((s.time_us, turn))
    result: dict[str, Any] = {"launches": len(spans), "us": round(end, 1), "kernels": {}}
    for name, times in rows.items():
        ran, turns = (statistics.median(t) for t in zip(*times, strict=True))
        result["kernels"][name] = {
            "launches": len(times),
            "ran_us": round(ran, 2),
            "turn_us": round(turns, 2),
        }
    return result


def timeline(report: Report, args: argparse.Namespace) -> Any:
    """Measure every launch of a token."""
    with generator_with(args, build_model(args), {}) as generator:
        result = {"layers": args.layers, **observed(generator)}
    print_timeline(result)
    return result


def chunks(report: Report, args: argparse.Namespace) -> Any:
    """Measure every launch of a chunk of 1,024 tokens that begins a text, and of chunks that read the cache."""
    longest = CONTEXT if args.size == "full" else 256
    results = {}
    with Generator(
        build_model(args),
        capacity=longest + 64,
        dtype="bfloat16",
        buckets=(16, 128, longest),
        device=args.device,
    ) as generator:
        for name in (first_name(longest), *(prefill_name(n) for n in (longest, 128, 16))):
            length = int(name.rpartition("_")[2])
            step = [np.full((1, length), 5), np.arange(length)[None], np.array([length - 1])]
            results[name] = launches(generator.steps.executor(name), step)
            print_timeline(results[name])
    return {"layers": args.layers, **results}


def print_timeline(result: dict[str, Any]) -> None:
    """Print the launches that ``observed`` returned."""
    for name, times in result["kernels"].items():
        print(
            f"   {times['launches']:3} x {times['turn_us']:7.2f} us (ran {times['ran_us']:7.2f})  {name}",
            flush=True,
        )
    print(f"   {result['launches']} launches in {result['us']:.1f} us", flush=True)


WAYS: dict[str, Callable[[decode.DecodeTileConfig, int], decode.DecodeTileConfig]] = {
    "parts in memory": lambda cut, keys: cut,
    "clusters, a tile at a time": lambda cut, keys: replace(decode.clustered(cut, keys), tiles_per_step=1),
    "clusters, two tiles": lambda cut, keys: decode.clustered(cut, keys),
    "clusters of 4, two tiles": lambda cut, keys: decode.clustered(cut, keys, 4),
}
"""Tile configurations of attention, derived from the default: split results combined in global memory or in a cluster; tiles of 16 keys per warp step."""


def attention(report: Report, args: argparse.Namespace) -> Any:
    """Measure a token's time with other tile configurations of attention."""
    model, results = build_model(args), {}
    for way, cut in WAYS.items():
        with (
            mock.patch.object(
                decode_append,
                "append_tile_config",
                lambda s, t, cut=cut: cut(decode.decode_tile_config(s, t, 128), s.keys),
            ),
            generator_with(args, model, {}) as generator,
        ):
            us = milliseconds(token_of(generator, CONTEXT, args.device), args.device, 0.1) * 1e3
            name, times = next((n, t) for n, t in observed(generator)["kernels"].items() if "rope" in n)
        results[way] = {"token_us": round(us, 1), "kernel": name, **times}
        print(
            f"   {way}: {us:.1f} us, {times['turn_us']} us a layer (ran {times['ran_us']}) {name}", flush=True
        )
    return {"layers": args.layers, "ways": results}


PARTS = {"timeline": timeline, "cuts": cuts, "attention": attention, "chunks": chunks}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a part fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument(
        "--weights", default="model", help='a word of kernel.weights; "stored, Q4_K": random blocks'
    )
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), argv=argv, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
