"""Matrix products and attention of real models on this CPU: our kernels, oneDNN's, and torch's, in GFLOP/s.

    python benchmarks/kernels_gemm.py [--threads 1 2] [--dtype float32 bfloat16] [--seconds 0.2]

The best of many short runs, alternating between the contenders, so that a busy neighbour disturbs all of them alike. Peak: FMAs of
one core in registers, measured in the same process (bfloat16: twice that where the machine has vdpbf16ps). ``GB/s`` is the weight's
size by time: with one row that is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor

LINEAR = {  # name: (rows, outputs, inputs)
    "ResNet-50 fc": (1, 1000, 2048),
    "Qwen2.5-1.5B up, decode": (1, 8960, 1536),
    "Qwen2.5-1.5B down, decode": (1, 1536, 8960),
    "Qwen2.5-1.5B up, 4 rows": (4, 8960, 1536),
    "BERT qkv": (128, 768, 768),
    "BERT up": (128, 3072, 768),
    "BERT down": (128, 768, 3072),
    "ViT qkv": (197, 2304, 768),
    "Qwen2.5-0.5B up, prefill": (512, 4864, 896),
    "Qwen2.5-0.5B down, prefill": (512, 896, 4864),
}
ATTENTION = {  # name: (heads, key heads, queries, keys, size, causal)
    "BERT": (12, 12, 128, 128, 64, False),
    "ViT": (12, 12, 197, 197, 64, False),
    "Qwen2.5-0.5B prefill": (14, 2, 512, 512, 64, True),
    "Qwen2.5-1.5B decode": (12, 2, 1, 2048, 128, False),
}


def random(shape: Sequence[int], dtype: str) -> Any:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return values.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def ours(
    graph: Any, feeds: dict[str, Any], weights: dict[str, Any], threads: int, kernels: dict[str, str]
) -> Callable[[], object]:
    program = compile_graph(graph, policy=KernelPolicy(**kernels), passes=0)
    wanted = {k: v for k, v in kernels.items() if v != "gemv"}
    got = {c.kernel for c in program.entries[0].plans[0].calls}
    if any(f"{family}/{kernel}" not in got for family, kernel in wanted.items()):
        raise LookupError(f"wanted {wanted}, got {got}")
    executor = Executor(program, threads=threads)
    executor.bind(weights)
    arrays = list(feeds.values())
    out = executor.run_arrays(arrays)
    return lambda: executor.run_arrays(arrays, out=out)


def best(runs: dict[str, Callable[[], object]], seconds: float, threads: int = 1) -> dict[str, float]:
    """The least time of each, in rounds of about two milliseconds. Of one thread its own time counts, which no neighbour stretches."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    counts = {}
    for name, run in runs.items():
        run()
        begun = clock()
        run()
        counts[name] = max(1, round(2e-3 / max(clock() - begun, 1e-6)))
    least = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            begun = clock()
            for _ in range(counts[name]):
                run()
            least[name] = min(least[name], (clock() - begun) / counts[name])
    return least


def line(name: str, least: dict[str, float], flops: float, weight: float, peak: float) -> None:
    words = [f"{who} {s * 1e6:9.1f} us {flops / s / 1e9:6.0f} GFLOP/s" for who, s in least.items()]
    mine, others = least["ours"], [s for who, s in least.items() if who != "ours"]
    share = f"{flops / mine / 1e9 / peak:4.0%} of peak" + (
        f", {weight / mine / 1e9:5.1f} GB/s" if weight else ""
    )
    print(f"{name:28s} {' | '.join(words)} | {share}, {min(others) / mine:.2f} x the best other", flush=True)


def peak_of(dtype: str, threads: int) -> float:
    """GFLOP/s of a product whose operands stay in the first cache."""
    b = GraphBuilder("peak")
    b.output("y", b.linear(b.input("x", f"{dtype}[48, 256]"), b.weight("w", f"{dtype}[64, 256]"), None))
    run = ours(
        b.build(),
        {"x": random((48, 256), dtype)},
        {"w": random((64, 256), dtype)},
        1,
        {"matmul": "generated"},
    )
    return threads * 2 * 48 * 256 * 64 / best({"peak": run}, 0.5)["peak"] / 1e9


def linear(name: str, dtype: str, threads: int, seconds: float, peak: float) -> None:
    import torch

    m, n, k = LINEAR[name]
    b = GraphBuilder("linear")
    b.output(
        "y",
        b.linear(
            b.input("x", f"{dtype}[{m}, {k}]"),
            b.weight("w", f"{dtype}[{n}, {k}]"),
            b.weight("b", f"{dtype}[{n}]"),
        ),
    )
    graph, x = b.build(), random((m, k), dtype)
    weights = {"w": random((n, k), dtype), "b": random((n,), dtype)}
    module = torch.nn.Linear(k, n).to(getattr(torch, dtype))
    given = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))
    runs: dict[str, Callable[[], object]] = {"ours": ours(graph, {"x": x}, weights, threads, {})}
    with contextlib.suppress(LookupError):
        runs["oneDNN"] = ours(graph, {"x": x}, weights, threads, {"matmul": "onednn"})
    with torch.inference_mode():
        runs["torch"] = lambda: module(given)
        least = best(runs, seconds, threads)
    line(name, least, 2 * m * n * k, weights["w"].nbytes, peak)


def attention(name: str, dtype: str, threads: int, seconds: float, peak: float) -> None:
    import torch

    heads, key_heads, queries, keys, size, causal = ATTENTION[name]
    shapes = {
        "q": (1, heads, queries, size),
        "k": (1, key_heads, keys, size),
        "v": (1, key_heads, keys, size),
    }
    feeds = {n: random(s, dtype) for n, s in shapes.items()}
    b = GraphBuilder("attention")
    b.output("y", b.attention(*[b.input(n, f"{dtype}{list(s)}") for n, s in shapes.items()], causal=causal))
    given = [torch.from_numpy(a.astype(np.float32)).to(getattr(torch, dtype)) for a in feeds.values()]
    with torch.inference_mode():
        runs: dict[str, Callable[[], object]] = {
            "ours": ours(b.build(), feeds, {}, threads, {}),
            "torch": lambda: torch.nn.functional.scaled_dot_product_attention(
                *given, is_causal=causal, enable_gqa=heads != key_heads
            ),
        }
        least = best(runs, seconds, threads)
    line(f"attention {name}", least, 4 * heads * queries * keys * size / (2 if causal else 1), 0, peak)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    import torch

    for threads in args.threads:
        torch.set_num_threads(threads)
        for dtype in args.dtype:
            peak = peak_of(dtype, threads)
            print(f"\n{dtype}, {threads} thread{'s' * (threads > 1)}: peak {peak:.0f} GFLOP/s")
            for name in LINEAR:
                linear(name, dtype, threads, args.seconds, peak)
            for name in ATTENTION:
                attention(name, dtype, threads, args.seconds, peak)


if __name__ == "__main__":
    main()
