"""Where a training step's time goes: kernels of the device by name, and functions of the host while the first steps compile.

    python benchmarks/cuda/training_profile.py gpt2 --contender xpuruntime --out build/training_profile.json [--steps 5]
    python benchmarks/cuda/training_profile.py resnet50 --contender "xpuruntime, captured" --out build/profile.json

Networks and contenders are those of ``training.py``. The sum of kernel times over the step's wall time says how busy the device is.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from torch.profiler import ProfilerActivity, profile
from training import CONTENDERS, device_name, network, step_of, synchronize

import xpuruntime.pytorch as xrt_torch

LINES = 40
"""Kernels and functions listed."""


def first_steps(step: Callable[..., Any], batches: Sequence[Any], device: str) -> dict[str, Any]:
    """Run the first steps under Python's profiler. Return their seconds, and the functions that took longest with all they call."""
    recorder = cProfile.Profile()
    start = time.perf_counter()
    recorder.enable()
    for batch in batches:
        step(*batch)
    synchronize(device)
    recorder.disable()
    seconds = time.perf_counter() - start
    rows = sorted(pstats.Stats(recorder).stats.items(), key=lambda row: -row[1][3])  # type: ignore[attr-defined]
    functions = [
        {"function": f"{file.rpartition('/site-packages/')[2].rpartition('/site/')[2]}:{line} {name}", "calls": calls, "seconds": round(total, 2)}
        for (file, line, name), (_, calls, _, total, _) in rows
        if "xpuruntime" in file or name in ("compile", "compile_fx")
    ]  # fmt: skip
    return {"seconds": round(seconds, 1), "functions": functions[:LINES]}


def kernels(
    step: Callable[..., Any], batches: Sequence[Any], steps: int, device: str
) -> tuple[float, list[dict[str, Any]]]:
    """Return the wall milliseconds of a step, and its kernels with milliseconds and launches per step."""
    for batch in batches[:2]:
        step(*batch)
    synchronize(device)
    start = time.perf_counter()
    for i in range(steps):
        step(*batches[i % len(batches)])
    synchronize(device)
    wall = (time.perf_counter() - start) / steps * 1e3
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as recorded:
        for i in range(steps):
            step(*batches[i % len(batches)])
        synchronize(device)
    rows = [
        {"kernel": e.key[:160], "ms": round(time_us / steps / 1e3, 4), "launches": round(e.count / steps, 2)}
        for e in recorded.key_averages()
        if (time_us := e.self_device_time_total if device == "cuda" else e.self_cpu_time_total)
    ]
    return wall, sorted(rows, key=lambda row: -row["ms"])


def profiled(report: Report, args: argparse.Namespace, part: str) -> dict[str, Any]:
    """Profile the named contenders one after another."""
    found: dict[str, Any] = {}
    for name in args.contender or ["xpuruntime"]:
        contender = CONTENDERS[name]
        net, dtype, batches = network(part, args.small, args.device)
        with xrt_torch.set_kernel_policy(**contender.policy):
            step = step_of(net, contender.run(net), dtype, args.device)
            step = xrt_torch.capture_graph(step) if contender.captured else step
            opened = first_steps(step, batches, args.device)
            wall, rows = kernels(step, batches, args.steps, args.device)
        busy = sum(row["ms"] for row in rows)
        report.check(bool(rows), f"{part}, {name}: the profiler recorded {len(rows)} kernels")
        print(
            f"   {part}, {name}: first steps {opened['seconds']} s; a step {wall:.2f} ms, its kernels {busy:.2f} ms"
        )
        for entry in opened["functions"][:12]:
            print(f"      {entry['seconds']:9.2f} s  {entry['calls']:6}  {entry['function']}")
        for row in rows[:22]:
            print(f"      {row['ms']:9.4f} ms {row['launches']:6}  {row['kernel'][:110]}", flush=True)
        found[name] = {"first_steps": opened, "wall_ms": round(wall, 3), "busy_ms": round(busy, 3), "kernels": rows[:LINES]}  # fmt: skip
        del net, step
        torch.compiler.reset()
    return found


def gpt2(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """GPT-2 small, 8 x 1,024 tokens, bfloat16 by autocast, AdamW."""
    return profiled(report, args, "gpt2")


def resnet50(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """ResNet-50, 128 images, float16 by autocast, AdamW."""
    return profiled(report, args, "resnet50")


PARTS = {"gpt2": gpt2, "resnet50": resnet50}


def options() -> argparse.ArgumentParser:
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="repeatable")
    parser.add_argument("--steps", type=int, default=5, help="that are recorded")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    packages = ("torch", "triton")
    return run_parts(__doc__, PARTS, gpu=device_name, packages=packages, argv=argv, parser=options())


if __name__ == "__main__":
    sys.exit(main())
