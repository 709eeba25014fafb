"""Matrix products and attention of real models on this CPU: our kernels, oneDNN's, and torch's, in GFLOP/s.

    python benchmarks/kernels_gemm.py [--threads 1 2] [--dtype float32 bfloat16] [--seconds 0.2]

The best of many short runs, alternating between the contenders, so that a busy neighbor disturbs all of them alike. Peak: FMAs of
one core in registers, measured in the same process (bfloat16: twice that where the machine has vdpbf16ps). ``GB/s`` is the weight's
size by time: with one row that is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.program.program import CompiledProgram
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


@functools.cache
def linear_program(name: str, dtype: str, kernel: str = "") -> CompiledProgram:
    """A linear layer with bias; ``kernel``: a policy's word. Raises LookupError where another one would serve."""
    m, n, k = LINEAR[name]
    b = GraphBuilder("linear")
    x, w = b.input("x", f"{dtype}[{m}, {k}]"), b.weight("w", f"{dtype}[{n}, {k}]")
    b.output("y", b.linear(x, w, b.weight("b", f"{dtype}[{n}]")))
    program = compile_graph(b.build(), policy=KernelPolicy(matmul=kernel) if kernel else None, passes=0)
    kernels = {c.kernel for c in program.entries[0].plans[0].calls}
    if kernel and f"matmul/{kernel}" not in kernels:
        raise LookupError(f"wanted {kernel}, got {kernels}")
    return program


@functools.cache
def attention_program(name: str, dtype: str) -> CompiledProgram:
    """Softmax attention of queries, keys and values that are inputs."""
    b = GraphBuilder("attention")
    inputs = [b.input(n, f"{dtype}{list(s)}") for n, s in attention_shapes(name).items()]
    b.output("y", b.attention(*inputs, causal=ATTENTION[name][5]))
    return compile_graph(b.build(), passes=0)


def attention_shapes(name: str) -> dict[str, tuple[int, ...]]:
    heads, key_heads, queries, keys, size, _ = ATTENTION[name]
    return {
        "q": (1, heads, queries, size),
        "k": (1, key_heads, keys, size),
        "v": (1, key_heads, keys, size),
    }


def ours(
    program: CompiledProgram, feeds: dict[str, Any], weights: dict[str, Any], threads: int
) -> Callable[[], object]:
    executor = Executor(program, threads=threads)
    executor.bind(weights)
    arrays = list(feeds.values())
    out = executor.run_arrays(arrays)
    return lambda: executor.run_arrays(arrays, out=out)


def best(runs: dict[str, Callable[[], object]], seconds: float, threads: int = 1) -> dict[str, float]:
    """The least time of each, in rounds of about two milliseconds. Of one thread its own time counts, which no neighbor stretches."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    counts = {}
    for name, run in runs.items():
        run()
        begun = clock()
        run()
        counts[name] = max(1, round(2e-3 / max(clock() - begun, 1e-6)))
    best_seconds = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            begun = clock()
            for _ in range(counts[name]):
                run()
            best_seconds[name] = min(best_seconds[name], (clock() - begun) / counts[name])
    return best_seconds


def line(name: str, seconds: dict[str, float], flops: float, weight: float, peak: float) -> None:
    columns = [f"{who} {s * 1e6:9.1f} us {flops / s / 1e9:6.0f} GFLOP/s" for who, s in seconds.items()]
    own, others = seconds["ours"], [s for who, s in seconds.items() if who != "ours"]
    share = f"{flops / own / 1e9 / peak:4.0%} of peak" + (
        f", {weight / own / 1e9:5.1f} GB/s" if weight else ""
    )
    print(f"{name:28s} {' | '.join(columns)} | {share}, {min(others) / own:.2f} x the best other", flush=True)


def peak_of(dtype: str, threads: int) -> float:
    """GFLOP/s of a product whose operands stay in the first cache."""
    b = GraphBuilder("peak")
    b.output("y", b.linear(b.input("x", f"{dtype}[48, 256]"), b.weight("w", f"{dtype}[64, 256]"), None))
    program = compile_graph(b.build(), policy=KernelPolicy(matmul="generated"), passes=0)
    run = ours(program, {"x": random((48, 256), dtype)}, {"w": random((64, 256), dtype)}, 1)
    return threads * 2 * 48 * 256 * 64 / best({"peak": run}, 0.5)["peak"] / 1e9


def linear(name: str, dtype: str, threads: int, seconds: float) -> dict[str, float]:
    """Seconds of ours, oneDNN's where this machine has it, and torch's."""
    import torch

    m, n, k = LINEAR[name]
    x, weights = random((m, k), dtype), {"w": random((n, k), dtype), "b": random((n,), dtype)}
    module = torch.nn.Linear(k, n).to(getattr(torch, dtype))
    inputs = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))
    runs: dict[str, Callable[[], object]] = {
        "ours": ours(linear_program(name, dtype), {"x": x}, weights, threads)
    }
    with contextlib.suppress(LookupError):
        runs["oneDNN"] = ours(linear_program(name, dtype, "onednn"), {"x": x}, weights, threads)
    with torch.inference_mode():
        runs["torch"] = lambda: module(inputs)
        return best(runs, seconds, threads)


def attention(name: str, dtype: str, threads: int, seconds: float) -> dict[str, float]:
    """Seconds of ours and torch's."""
    import torch

    heads, key_heads, *_, causal = ATTENTION[name]
    feeds = {n: random(s, dtype) for n, s in attention_shapes(name).items()}
    inputs = [torch.from_numpy(a.astype(np.float32)).to(getattr(torch, dtype)) for a in feeds.values()]
    with torch.inference_mode():
        runs: dict[str, Callable[[], object]] = {
            "ours": ours(attention_program(name, dtype), feeds, {}, threads),
            "torch": lambda: torch.nn.functional.scaled_dot_product_attention(
                *inputs, is_causal=causal, enable_gqa=heads != key_heads
            ),
        }
        return best(runs, seconds, threads)


def flops_of_linear(name: str) -> int:
    m, n, k = LINEAR[name]
    return 2 * m * n * k


def flops_of_attention(name: str) -> float:
    heads, _, queries, keys, size, causal = ATTENTION[name]
    return 4 * heads * queries * keys * size / (2 if causal else 1)


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
                _, n, k = LINEAR[name]
                weight = n * k * (4 if dtype == "float32" else 2)
                line(name, linear(name, dtype, threads, args.seconds), flops_of_linear(name), weight, peak)
            for name in ATTENTION:
                best_seconds = attention(name, dtype, threads, args.seconds)
                line(f"attention {name}", best_seconds, flops_of_attention(name), 0, peak)


if __name__ == "__main__":
    main()
