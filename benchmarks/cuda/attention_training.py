"""Attention forward and backward on CUDA: our kernel next to PyTorch's backends (flash, cuDNN, memory-efficient), at sizes of training.

    python benchmarks/cuda/attention_training.py [--out FILE] [--limit SECONDS] [--small]

Each contender is one CUDA graph of forward and backward, replayed in alternation, so that the host's time is left out. Before that, its result and
its gradients are compared with float64 at one key head. It needs the installed package (its C++ core) and torch with CUDA.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import paths  # noqa: F401
import torch
from attention_gradients import HALF_UNIT, Case, attend, gradients, rms
from gpu_report import Report, arguments, run_parts
from torch.nn.attention import SDPBackend, sdpa_kernel

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch import ops

ROUNDS, ROUND_US = 9, 4000.0
OURS = "xpuruntime flash_v2"
BACKENDS = {
    "torch flash": SDPBackend.FLASH_ATTENTION,
    "torch cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SIZES: tuple[tuple[Case, str], ...] = (
    (Case(8, 12, 12, 1024, 1024, 64, 64, True), "bfloat16"),  # GPT-2 small
    (Case(4, 32, 8, 2048, 2048, 128, 128, True), "bfloat16"),  # Llama 3
    (Case(1, 12, 2, 4096, 4096, 128, 128, True), "bfloat16"),  # Qwen2.5-1.5B
    (Case(32, 12, 12, 512, 512, 64, 64), "float16"),  # BERT
    (Case(64, 12, 12, 197, 197, 64, 64), "bfloat16"),  # ViT
    (Case(4, 16, 16, 4096, 4096, 128, 128), "bfloat16"),
    (Case(4, 16, 16, 4096, 4096, 128, 128, True), "bfloat16"),
    (Case(1, 16, 16, 16384, 16384, 64, 64, True), "bfloat16"),
)
SMALL: tuple[tuple[Case, str], ...] = ((Case(1, 4, 2, 128, 128, 64, 64, True), "bfloat16"),)


def flops(case: Case) -> int:
    """Operations of the seven products that define forward and backward, without masked scores; kernels that compute again do more."""
    products = 7 * case.batch * case.heads * case.queries * case.keys * case.d * 2
    return products // (2 if case.causal else 1)


def ours(case: Case) -> Callable[..., torch.Tensor]:
    """Return our op of a case under the policy."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with xrt_torch.set_kernel_policy(
            {"version": 1, "kernel": {"rules": [{"op": "attention", "use": "flash_v2"}]}}
        ):
            return ops.attention(q, k, v, case.causal, None, case.heads != case.kv_heads)

    return run


def theirs(case: Case, backend: SDPBackend) -> Callable[..., torch.Tensor]:
    """Return PyTorch's operator on one backend. One that lacks grouped heads gets the keys repeated."""
    plain, repeats = attend(case, None), case.heads // case.kv_heads
    alone = attend(case._replace(kv_heads=case.heads), None)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            if repeats > 1 and backend is SDPBackend.EFFICIENT_ATTENTION:
                return alone(q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1))
            return plain(q, k, v)

    return run


def errors_of(case: Case, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[float]:
    """Return the errors of the result and the gradients from float64, relative to their typical value, at the last key head of the last batch."""
    q, k, v, grad = operands
    group = case.heads // case.kv_heads
    heads, key = slice(case.heads - group, case.heads), slice(case.kv_heads - 1, case.kv_heads)
    part = case._replace(batch=1, heads=group, kv_heads=1)
    cut = [t[-1:, s].double() for t, s in ((q, heads), (k, key), (v, key), (grad, heads))]
    true = gradients(attend(part, None), cut[:3], cut[3])
    own = [t[-1:, s] for t, s in zip(results, (heads, heads, key, key), strict=True)]
    return [rms(a - t) / max(rms(t), 1e-30) for a, t in zip(own, true, strict=True)]


def captured(run: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """Return forward and backward as one CUDA graph."""
    *leaves, grad = operands
    leaves = [t.detach().requires_grad_() for t in leaves]

    def step() -> Any:
        return torch.autograd.grad(run(*leaves), leaves, grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def by_turns(works: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return microseconds of each contender, in alternation. The first round is a warm-up."""
    times: dict[str, list[float]] = {n: [] for n in works}
    for turn in range(-1, ROUNDS):
        for name, work in works.items():
            repeats = 3 if turn < 1 else max(1, min(50, int(ROUND_US / statistics.median(times[name]))))
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work()
            begin.record()
            for _ in range(repeats):
                work()
            end.record()
            end.synchronize()
            if turn >= 0:
                times[name].append(begin.elapsed_time(end) / repeats * 1e3)
    return times


def compared(report: Report, case: Case, kind: str) -> dict[str, Any]:
    """Return errors and times of every contender at one size."""
    dtype = getattr(torch, kind)
    operands = case.operands(dtype, "cuda")
    runs = {OURS: ours(case)} | {n: theirs(case, b) for n, b in BACKENDS.items()}
    errors: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    works: dict[str, Callable[[], Any]] = {}
    for name, run in runs.items():
        try:
            errors[name] = errors_of(case, operands, gradients(run, operands[:3], operands[3]))
            works[name] = captured(run, operands)
        except RuntimeError as error:
            if name == OURS:
                raise
            missing[name] = str(error)[:300]
    for at, what in enumerate(("result", "gradient of q", "gradient of k", "gradient of v")):
        worst = max((e[at] for n, e in errors.items() if n != OURS), default=0.0)
        bound = max(2 * worst, HALF_UNIT[dtype])
        report.check(
            errors[OURS][at] <= bound, f"{case} {kind}: {what} {errors[OURS][at]:.2e}, at most {bound:.2e}"
        )
    times = by_turns(works)
    middle = {n: statistics.median(t) for n, t in times.items()}
    best = min((t for n, t in middle.items() if n != OURS), default=None)
    for name, us in middle.items():
        print(f"   {case} {kind}  {name:22} {us:10.1f} us {flops(case) / us / 1e6:7.1f} TFLOP/s", flush=True)
    return {
        "case": str(case), "dtype": kind, "us": {n: round(t, 2) for n, t in middle.items()},
        "from_to_us": {n: [round(min(t), 2), round(max(t), 2)] for n, t in times.items()},
        "tflops": {n: round(flops(case) / t / 1e6, 1) for n, t in middle.items()}, "error": errors, "missing": missing,
        "over_best": None if best is None else round(middle[OURS] / best, 3),
    }  # fmt: skip


def sizes(report: Report, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every size until the time is up."""
    begin, rows = time.time(), []
    for case, kind in SMALL if args.small else SIZES:
        if time.time() - begin > args.limit:
            rows.append({"case": str(case), "skipped": "out of time"})
            continue
        try:
            rows.append(compared(report, case, kind))
        except Exception as error:
            report.check(False, f"{case} {kind}: {type(error).__name__}: {str(error)[:400]}")
    report.bound(
        "attention forward and backward: at most twice the error of PyTorch's backends", not report.failures
    )
    return rows


PARTS = {"sizes": sizes}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--limit", type=float, default=90, help="seconds after which no further size begins")
    parser.add_argument("--small", action="store_true", help="one tiny size, to try the script")
    return run_parts(
        __doc__,
        PARTS,
        gpu=lambda: torch.cuda.get_device_name(0),
        packages=("torch",),
        argv=argv,
        parser=parser,
    )


if __name__ == "__main__":
    sys.exit(main())
