"""Language models divided over two GPUs of one host: equal to one GPU, and the time of a token next to it.

    python benchmarks/cuda/parallel.py --out benchmarks/results/cuda_parallel.json [llama qwen]

Weights are seeded. ``qwen`` has Qwen2.5-1.5B's sizes, ``llama`` Llama-3.1-8B's. Each compares the logits of a prompt and of forced steps with one GPU:
Qwen's in float32, where both must agree closely, and in bfloat16. A token is timed at a context of 1,024: queued on each device without copies, and
as ``Generator`` takes it, with its logits fetched. NVLink multicast stays off. ``--device cpu --layers 2`` tests the script itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

os.environ["NCCL_NVLS_ENABLE"] = "0"

import numpy as np
import paths  # noqa: F401
import torch
from decoder_sizes import LLAMA3, Size, model_of
from gpu_report import Report, arguments, run_parts
from several_devices import link

from xpuruntime.llm import Generator
from xpuruntime.llm.parallel import opening
from xpuruntime.runtime import DeviceBuffer
from xpuruntime.runtime.collectives.peer_boxes import reach_each_other

SIZES = {
    "llama": Size("llama", 4096, 14336, 32, 32, 8, 128256, more={"tie_word_embeddings": False, "rope_parameters": LLAMA3 | {"factor": 8.0}}),
    "qwen": Size("qwen2", 1536, 8960, 28, 12, 2, 151936),
}  # fmt: skip
CONTEXT, PROMPT, STEPS, RUNS = 1024, 64, 16, 60
FLOAT32_LIMIT, RATIO = 1e-4, 0.62
WORSE = 1.25
"""Largest error in bfloat16 of two GPUs over that of one GPU, both against float32 with the same weights."""


WAYS = {"one GPU": (1, True), "two, in kernels": (2, True), "two, by NCCL": (2, False)}
"""Name -> (GPUs, whether sums of few rows are exchanged inside of kernels)."""


def ways_here(args: argparse.Namespace, dtype: str) -> list[str]:
    """Return the ways that this machine has the GPUs for. A machine with one GPU measures the errors and the time of one."""
    available = 2 if args.device == "cpu" else torch.cuda.device_count()
    without_nccl = args.without_nccl or dtype == "float32"
    return [w for w, (ranks, direct) in WAYS.items() if ranks <= available and (direct or not without_nccl)]


def opened(model: Any, dtype: str, device: str, way: str) -> Generator:
    """Return the model on one device or more."""
    ranks, direct = WAYS[way]
    opening.reach_each_other = reach_each_other if direct else lambda _: False
    policy = {"version": 1, "execution": {"parallel": {"tensor": ranks}}}
    return Generator(
        model, capacity=CONTEXT + 64, dtype=dtype, buckets=(PROMPT,), device=device, policy=policy
    )


def logits_of(ours: Generator, vocab: int) -> np.ndarray:
    """Return the logits after a prompt and after forced steps."""
    tokens = np.random.default_rng(1).integers(0, vocab, PROMPT + STEPS).tolist()
    rows = [ours.read(tokens[:PROMPT])[0].astype(np.float64)]
    rows += [ours.step(t, PROMPT + i)[0].astype(np.float64) for i, t in enumerate(tokens[PROMPT:])]
    return np.array(rows)


def queued_ms(ours: Generator, device: str) -> float:
    """Return the median milliseconds of a token: decode runs that each rank queues on a stream of its own."""
    everyone = [ours.steps, *getattr(ours.steps, "_others", ())]
    inputs = [np.array([[5]], np.int64), np.array([[CONTEXT]], np.int64), np.arange(1, dtype=np.int64)]
    if device == "cpu":
        return stepped_ms(ours)
    streams = [torch.cuda.Stream(f"cuda:{rank}") for rank in range(len(everyone))]
    names = [s.name for s in ours.decode.entry.inputs]
    there = [
        {n: DeviceBuffer.from_numpy(a, f"cuda:{rank}") for n, a in zip(names, inputs, strict=True)}
        for rank in range(len(everyone))
    ]
    torch.cuda.synchronize()
    outs: list[Any] = [None] * len(everyone)
    times: list[float] = []

    def rank_runs(rank: int) -> None:
        stream, decode = streams[rank].cuda_stream, everyone[rank].decode
        outs[rank] = outs[rank] or decode.run(there[rank], stream=stream)
        for _ in range(RUNS):
            decode.run(there[rank], out=outs[rank], stream=stream)
        streams[rank].synchronize()

    for _ in range(5):
        start = time.perf_counter()
        if len(everyone) > 1:
            ours.steps.ranks.run(rank_runs)  # type: ignore[attr-defined]
        else:
            rank_runs(0)
        times.append((time.perf_counter() - start) / RUNS * 1e3)
    return round(statistics.median(times[1:]), 4)


def stepped_ms(ours: Generator) -> float:
    """Return the median milliseconds of a step of the generator, with its logits fetched."""
    times = []
    for i in range(10 + RUNS):
        start = time.perf_counter()
        ours.step(5, CONTEXT)
        if i >= 10:
            times.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(times), 4)


def error_of(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference over the largest logit."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def measured(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    """Return the part of a size."""

    def part(report: Report, args: argparse.Namespace) -> Any:
        size = SIZES[name]
        results: dict[str, Any] = {
            "link": link() if args.device != "cpu" else {},
            "context": CONTEXT,
            "layers": args.layers or size.layers,
        }
        began = time.perf_counter()
        model = model_of(size, args.device, args.layers).cpu()
        torch.cuda.empty_cache()
        results["model_s"] = round(time.perf_counter() - began, 1)
        exact: Any = None
        for dtype in ("float32", "bfloat16"):
            facts: dict[str, Any] = {}
            logits = {}
            for way in ways_here(args, dtype):
                began = time.perf_counter()
                with opened(model, dtype, args.device, way) as ours:
                    fact: dict[str, Any] = {"open_s": round(time.perf_counter() - began, 1)}
                    logits[way] = logits_of(ours, size.vocab)
                    fact["weight_bytes"] = ours.weights.size_bytes
                    kernels = Counter(c.kernel for c in ours.decode.plan.calls)
                    fact["exchanges"] = {k: n for k, n in kernels.items() if k.startswith("other/")}
                    fact["calls"] = kernels.total()
                    if dtype == "bfloat16":
                        fact["queued_ms"] = queued_ms(ours, args.device)
                        fact["step_ms"] = stepped_ms(ours)
                        fact["notes"] = list(ours.decode.notes)
                    facts[way] = fact
                print(f"   {dtype}, {way}: {fact}", flush=True)
                if dtype == "float32" and way == "one GPU":
                    exact = logits[way]
                fact["error"] = error = error_of(logits[way], exact)
                if way == "one GPU":
                    continue
                limit = FLOAT32_LIMIT if dtype == "float32" else WORSE * facts["one GPU"]["error"]
                report.bound(
                    f"{name}, {dtype}, {way}: logits from those of one GPU in float32", error, at_most=limit
                )
                if dtype == "bfloat16":
                    for word in ("queued_ms", "step_ms"):
                        fact[f"ratio of {word}"] = ratio = round(fact[word] / facts["one GPU"][word], 3)
                        required = (name, way, args.layers) == ("llama", "two, in kernels", 0)
                        report.bound(
                            f"{name}, {way}: {word} over one GPU's", ratio, at_most=RATIO, required=required
                        )
            results[dtype] = facts
        return results

    part.__doc__ = f"{name}: logits, and the time of a token"
    return part


PARTS = {name: measured(name) for name in SIZES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0", help="the first device; cpu tries the script")
    parser.add_argument("--without-nccl", action="store_true", help="leave out sums by NCCL")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the model's")

    def gpu() -> str:
        count = min(torch.cuda.device_count(), 2) if torch.cuda.is_available() else 0
        return f"{count} x {torch.cuda.get_device_name(0)}" if count else "none"

    return run_parts(__doc__, PARTS, gpu=gpu, packages=("torch", "transformers"), argv=argv, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
