"""Whole networks on CUDA, native engine next to PyTorch on the same device: errors against float64, and times.

    python benchmarks/cuda/models.py --out benchmarks/results/cuda_models.json [--compile] [--device cuda:0] [--size full] [PART ...]

Parts: ``accuracy`` (ResNet-18 and -50 in float32 without TF32, and in float16 and bfloat16, over 20 inputs) and ``images`` (ResNet-50 in
float16, images per second compared with PyTorch eager, a CUDA graph of it and, with ``--compile``, torch.compile). Outputs are checked before anything is
timed. Needs torch. On a machine without a GPU, ``--device cpu --size small`` tests the script itself. Language models: ``decoders.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts

import xpuruntime as xrt
from xpuruntime.testing.conformance.seeded import networks as models


def wait(device: str) -> None:
    """Synchronize the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], Any], device: str, seconds: float = 0.5) -> float:
    """Return the median milliseconds of a run over rounds. A round queues several runs back to back."""
    for _ in range(5):
        run()
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    times = max(3, min(50, int(0.05 / (time.perf_counter() - start))))
    seconds_per_run: list[float] = []
    while sum(seconds_per_run) * times < seconds:
        start = time.perf_counter()
        for _ in range(times):
            run()
        wait(device)
        seconds_per_run.append((time.perf_counter() - start) / times)
    return statistics.median(seconds_per_run) * 1e3


def far(got: Any, want: np.ndarray[Any, Any]) -> float:
    """Return max|d| / max|ref|."""
    return float(np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max())


def rms(got: Any, want: np.ndarray[Any, Any]) -> float:
    """Return rms(d) / rms(ref). For 16-bit results the mean error is more stable than the largest."""
    return float(np.sqrt(np.square(np.asarray(got, np.float64) - want).mean() / np.square(want).mean()))


def session(module: Any, x: torch.Tensor, device: str, precision: str) -> tuple[xrt.InferenceSession, str]:
    """Return a native session on float32 inputs, and the name of its input."""
    policy = None if precision == "float32" else xrt.ExecutionPolicy(precision=precision)
    native = xrt.InferenceSession(
        module, device=device, engine="native", example_inputs=(x,), exec_policy=policy
    )
    return native, native.input_info[0].name


def accuracy(args: argparse.Namespace) -> Any:
    """Measure errors against float64, ours and PyTorch's on the same device."""
    results: dict[str, Any] = {}
    for name in ("resnet18", "resnet50"):
        module, _ = models.build(name, args.size)
        images = torch.from_numpy(models.inputs(name, 20, size=args.size)["image"])
        with torch.inference_mode():
            want = module.to(args.device).double()(images.to(args.device).double()).cpu().numpy()
            theirs = {}
            for dtype in ("float32", "float16", "bfloat16"):
                kind = getattr(torch, dtype)
                there = module.to(kind)
                theirs[dtype] = far(there(images.to(args.device, kind)).double().cpu().numpy(), want)
        module, _ = models.build(name, args.size)
        for dtype, other in theirs.items():
            native, entry = session(module, images[:1], args.device, dtype)
            with native:
                ours = np.concatenate(
                    [next(iter(native.run({entry: i[None].numpy()}).values())) for i in images]
                )
            same = bool((np.argsort(ours)[:, -5:] == np.argsort(want)[:, -5:]).all())
            error = far(ours, want)
            limit = 1e-5 if dtype == "float32" else 1.25 * other
            row = {"ours": error, "torch": other, "ok": error <= limit, "same_top5": same}
            results[f"{name} {dtype}"] = row
            print(f"   {name} {dtype}: {row}", flush=True)
    return results


def images(args: argparse.Namespace) -> Any:
    """Measure ResNet-50 in float16."""
    results: dict[str, Any] = {}
    for batch in (1, 32, 256) if args.size == "full" else (1, 4):
        row = results[f"batch {batch}"] = _batch(args, batch)
        print(f"   batch {batch}: {row}", flush=True)
    return results


def _batch(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    module, _ = models.build("resnet50", args.size)
    shape = models.inputs("resnet50", 1, size=args.size)["image"].shape
    x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
    started = time.perf_counter()
    native, entry = session(module, x, args.device, "float16")
    took = time.perf_counter() - started
    half = module.to(args.device).half().to(memory_format=torch.channels_last)
    device_x = x.to(args.device)
    image = device_x.half().to(memory_format=torch.channels_last)
    with native, torch.inference_mode():
        got = next(iter(native.run({entry: device_x}).values()))
        error = far(got.double().cpu().numpy(), half(image).double().cpu().numpy())
        runs: dict[str, Callable[[], Any]] = {
            "native": lambda: native.run({entry: device_x}),
            "eager": lambda: half(image),
        }
        if args.device != "cpu":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                half(image)
            runs["cuda graph"] = graph.replay
        if args.compile:
            compiled = torch.compile(half, mode="reduce-overhead")
            runs["torch.compile"] = lambda: compiled(image)
        rounds = [{n: milliseconds(run, args.device, 0.2) for n, run in runs.items()} for _ in range(3)]
        native.run({entry: x.numpy()})
        kernels = sorted({r.kernel.partition(":")[0] for r in native.receipt().evidence["r0"].rows})
    ms = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
    return {
        "ms": ms,
        "images_per_s": round(batch / ms["native"] * 1e3),
        "from_torch": error,
        "ok": error < 2e-2,
        "open_s": round(took, 1),
        "kernels": kernels,
    }


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "accuracy": accuracy,
    "images": images,
}


IMAGES_MS = {"batch 1": 0.45}
IMAGES_PER_S = {"batch 256": 22_000}


def report_limits(report: Report, name: str, results: Any) -> None:
    """Add the results of a part to the table of checks."""
    rows = {k: v for k, v in results.items() if isinstance(v, dict) and "ok" in v}
    for what, row in rows.items():
        if name == "images":
            ms = row["ms"]
            report.check(row["ok"], f"ResNet-50 float16 {what}: {row['from_torch']:.1e} from torch")
            for peer in ("eager", "cuda graph", "torch.compile"):
                if peer in ms:
                    ratio = round(ms["native"] / ms[peer], 3)
                    report.bound(
                        f"ResNet-50 float16 {what}: time over {peer}'s", ratio, at_most=1.0, required=False
                    )
            if what in IMAGES_MS:
                report.bound(f"ResNet-50 float16 {what}", ms["native"], at_most=IMAGES_MS[what], unit="ms")
            if what in IMAGES_PER_S:
                report.bound(
                    f"ResNet-50 float16 {what}",
                    row["images_per_s"],
                    at_least=IMAGES_PER_S[what],
                    unit="images/s",
                )
        else:
            limit = 1e-5 if "float32" in what else 1.25 * row["torch"]
            report.bound(f"{name}, {what}: from float64", row["ours"], at_most=limit)


def _part(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    def run(report: Report, args: argparse.Namespace) -> Any:
        results = PARTS[name](args)
        report_limits(report, name, results)
        return results

    run.__doc__ = PARTS[name].__doc__
    return run


def prepare(args: argparse.Namespace) -> None:
    """Disable TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--compile", action="store_true", help="torch.compile, too: a minute each")
    return run_parts(
        __doc__, {name: _part(name) for name in PARTS}, packages=("torch", "transformers"), argv=argv, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
