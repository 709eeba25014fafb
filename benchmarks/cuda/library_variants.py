"""Gain of library variants on CUDA: algorithms of cuBLASLt and configurations of cuDNN, next to each library's own choice.

    python benchmarks/cuda/library_variants.py --out benchmarks/results/cuda_library_variants.json [resnet50] [products] [handles]

Every kernel of each distinct call is measured inside the model in alternating rounds, as ``xpu tune`` does. Then three programs run in other
rounds: with the default kernels, with the fastest kernels, and with the fastest of kernels and variants. ``handles`` measures what a handle of
cuDNN costs: the threads that build plans keep up to eight of them.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, name_of_device, queued_us, run_parts

import xpuruntime as xrt
from xpuruntime.inference.native.engine import machine_facts, recorded_lock
from xpuruntime.inference.native.model import sized_model
from xpuruntime.inference.tuning.samples import collected, measured_round, medians
from xpuruntime.inference.tuning.tunable import KernelVariant, TunableProgram, call_of, measured_words
from xpuruntime.policies.fields.pins import parted
from xpuruntime.profiler.statistics import paired_ratio
from xpuruntime.runtime.device import open_library
from xpuruntime.testing.conformance.seeded import networks as models

ROUNDS = 9
MOST_ERROR = {"float32": 1e-4, "float16": 2e-2}
"""Maximum difference between the outputs with variants and with the default kernels, relative to the largest value."""


class Products(torch.nn.Module):
    """The linear layers of an encoder layer of BERT, each on an input of the model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results of all layers."""
        return self.qkv(x), self.out(x), torch.nn.functional.gelu(self.up(x)), self.down(wide)


def _words(tunable: TunableProgram, us: Mapping[str, Mapping[str, float]], variants: bool) -> dict[str, str]:
    """Return the fastest kernel of each call. variants: of libraries compete, too."""
    words = {}
    for key, able in tunable.lock.alternatives.items():
        times = us.get(call_of(key), {})
        measured = [w for w in measured_words(able, times) if variants or not parted(w)[1]]
        words[key] = min(measured, key=times.__getitem__) if measured else tunable.lock.kernels[key]
    return words


def _run_us(variant: KernelVariant, device: str) -> float:
    """Return the microseconds of a run on device tensors."""
    names = [s.name for s in variant.executor.entry.inputs]
    tensors = {n: torch.from_numpy(a).to(device) for n, a in zip(names, variant.arrays, strict=True)}
    if device != "cpu":
        if variant.executor.run_tensors(tensors) is None:
            raise RuntimeError("the program does not run on tensors in one call")
        return queued_us(lambda: variant.executor.run_tensors(tensors), rounds=3)
    began = time.perf_counter()
    variant.executor.run_arrays(variant.arrays)
    return (time.perf_counter() - began) * 1e6


def compared(
    report: Report,
    name: str,
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dtype: str,
    device: str,
) -> dict[str, Any]:
    """Measure the kernels of a model's calls, and the three programs."""
    began = time.perf_counter()
    policy = xrt.ExecutionPolicy(precision="model" if dtype == "float32" else dtype, self_check="off")
    with (
        xrt.InferenceSession(module, device=device, engine="native", example_inputs=inputs, exec_policy=policy) as session,
        ExitStack() as stack,
    ):  # fmt: skip
        model = session.executable_model
        ((executor, request),) = session.executable.executors()
        tunable = TunableProgram(
            lambda words: recorded_lock(model, request, {}, words), sized_model(model, {}).weights,
            request.device, executor.threads, store=request.store,
        )  # fmt: skip
        opened = [tunable.open(str(v), tunable.words(v)) for v in range(tunable.variants)]
        for variant in opened:
            stack.callback(variant.close)
        us = medians(collected(measured_round(opened, i, KernelVariant.call_times) for i in range(ROUNDS)))
        chosen = {
            "default": dict(tunable.lock.kernels),
            "kernels": _words(tunable, us, False),
            "variants": _words(tunable, us, True),
        }
        sides = {side: tunable.open(side, words) for side, words in chosen.items()}
        for side in sides.values():
            stack.callback(side.close)
        rows: dict[str, list[float]] = {side: [] for side in sides}
        for i in range(ROUNDS):
            for side in (list(sides), list(reversed(sides)))[i % 2]:
                rows[side].append(_run_us(sides[side], device))
        outputs = {n: s.executor.run_arrays(s.arrays) for n, s in sides.items()}
        error = max(
            float(abs(a.astype("f8") - b.astype("f8")).max() / abs(b.astype("f8")).max())
            for a, b in zip(outputs["variants"], outputs["default"], strict=True)
        )
        nodes = tunable.nodes()
        keys = [k for k in dict.fromkeys(tunable.keys) if k]
        sums = {s: sum(us.get(call_of(k), {}).get(w[k], 0.0) for k in keys) for s, w in chosen.items()}
        ratios = {s: paired_ratio(rows["default"], rows[s]) for s in ("kernels", "variants")}
        beyond = paired_ratio(rows["kernels"], rows["variants"])
        calls = {
            call: {"op": nodes[call][0], "nodes": len(nodes[call][1]), "default": tunable.default[call]}
            | {"us": {w: round(t, 2) for w, t in sorted(us.get(call, {}).items(), key=lambda x: x[1])}}
            for call, words in tunable.kernels.items()
            if len(words) > 1
        }
        row = {
            "run_us": {s: round(statistics.median(r), 2) for s, r in rows.items()},
            "sum_of_calls_us": {s: round(t, 1) for s, t in sums.items()},
            "default_over": {s: [round(x, 4) for x in (r.value, r.interval.low, r.interval.high)] for s, r in ratios.items()},
            "kernels_over_variants": [round(x, 4) for x in (beyond.value, beyond.interval.low, beyond.interval.high)],
            "calls_with_variants": sum(any(parted(w)[1] for w in us.get(c, {})) for c in tunable.kernels),
            "calls_that_take_one": len({call_of(k) for k, w in chosen["variants"].items() if parted(w)[1]}),
            "refused": sum(map(len, tunable.refused.values())),
            "programs": tunable.variants, "error": error, "seconds": round(time.perf_counter() - began, 1), "calls": calls,
        }  # fmt: skip
    report.check(error <= MOST_ERROR[dtype], f"{name}: the outputs agree with the default's: {error:.2g}")
    print(f"   {name}: " + str({k: v for k, v in row.items() if k != "calls"}), flush=True)
    return row


def _row(report: Report, name: str, *args: Any) -> dict[str, Any]:
    """Return ``compared``, or its error: the other rows do not depend on it."""
    try:
        return compared(report, name, *args)
    except xrt.XpuError as error:
        report.check(False, f"{name}: {error}")
        return {"error": str(error)}


def resnet50(report: Report, args: argparse.Namespace) -> Any:
    """ResNet-50."""
    rows = {}
    for dtype in ("float16", "float32"):
        for batch in args.batches:
            module, _ = models.build("resnet50", args.size)
            shape = models.inputs("resnet50", 1, size=args.size)["image"].shape
            x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
            name = f"{dtype}, batch {batch}"
            rows[name] = _row(report, name, module, (x,), dtype, args.device)
    return rows


def products(report: Report, args: argparse.Namespace) -> Any:
    """Linear layers of BERT base and large."""
    rows = {}
    for dtype in ("float16", "float32"):
        for width in (768, 1024):
            for count in args.rows:
                x, wide = torch.randn(count, width), torch.randn(count, 4 * width)
                name = f"{dtype}, width {width}, {count} rows"
                rows[name] = _row(report, name, Products(width).eval(), (x, wide), dtype, args.device)
    return rows


def handles(report: Report, args: argparse.Namespace) -> Any:
    """Memory and time of eight handles of cuDNN."""
    torch.zeros(1, device=args.device)  # the context
    library = ctypes.CDLL(open_library("cudnn").path)

    def free() -> int:
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    rows, opened = [], []
    for _ in range(8):
        before, began = free(), time.perf_counter()
        handle = ctypes.c_void_p()
        report.check(library.cudnnCreate(ctypes.byref(handle)) == 0, "cudnnCreate")
        took = time.perf_counter() - began
        opened.append(handle)
        rows.append({"create_ms": round(took * 1e3, 2), "device_bytes": before - free()})
    before, destroyed = free(), []
    for handle in opened[1:]:
        began = time.perf_counter()
        report.check(library.cudnnDestroy(handle) == 0, "cudnnDestroy")
        destroyed.append(round((time.perf_counter() - began) * 1e3, 2))
    with Path(f"/proc/{os.getpid()}/status").open(encoding="ascii") as file:
        threads = next(line.split()[1] for line in file if line.startswith("Threads"))
    row = {"handles": rows, "destroy_ms": destroyed, "freed_bytes": free() - before, "threads": threads}
    print(f"   {row}", flush=True)
    return row


PARTS: dict[str, Callable[[Report, argparse.Namespace], Any]] = {
    "handles": handles,
    "resnet50": resnet50,
    "products": products,
}


def main() -> int:
    """Return 1 if a program with variants gives other results."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 512, 4096])
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    facts = machine_facts(xrt.DeviceId.parse(args.device)) if args.device != "cpu" else {}
    print(facts, flush=True)
    return run_parts(__doc__, PARTS, packages=("torch",), parser=parser, gpu=name_of_device)


if __name__ == "__main__":
    sys.exit(main())
