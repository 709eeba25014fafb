"""Single ops (`xrt.ops`) and sessions on device tensors: errors against PyTorch, overhead of a call over its launch, memory over ten thousand calls.

    python benchmarks/cuda/dispatch.py --out benchmarks/results/cuda_dispatch.json [--device cpu] [--calls 10000] [PART ...]

Times are host times of queued bursts. The device is synchronized between bursts, the calls take turns, and the fastest of many bursts counts.
``--device cpu`` tests the script and times the same code on the host.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts

import xpuruntime as xrt
from xpuruntime import ops
from xpuruntime.ir.build import GraphBuilder

F = torch.nn.functional

BURST, ROUNDS = 100, 60
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LIMITS = {"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}  # of the largest value, against float64


def cases(
    device: str, dtype: Any
) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]:
    """Return (our op, PyTorch's op, operands) by name, in the forms of decoders and classifiers, including transposed and broadcast operands."""
    random = torch.Generator().manual_seed(11)

    def some(*shape: int) -> Any:
        return torch.randn(*shape, generator=random).to(dtype).to(device)

    q, k, v = some(2, 8, 65, 64), some(2, 2, 65, 64), some(2, 2, 65, 64)
    return {
        "matmul": (ops.matmul, torch.matmul, (some(96, 128), some(128, 72))),
        "matmul, weight transposed": (ops.matmul, torch.matmul, (some(96, 128), some(72, 128).T)),
        "matmul, odd sizes": (ops.matmul, torch.matmul, (some(33, 47), some(47, 21))),
        "matmul, one row": (ops.matmul, torch.matmul, (some(1, 512), some(256, 512).T)),
        "matmul, batches": (ops.matmul, torch.matmul, (some(3, 1, 32, 40), some(5, 40, 24))),
        "softmax": (ops.softmax, lambda x: F.softmax(x, -1), (some(64, 1000),)),
        "layer_norm": (ops.layer_norm, lambda x, w, b: F.layer_norm(x, (768,), w, b), (some(64, 768), some(768), some(768))),
        "rms_norm": (ops.rms_norm, lambda x, w: F.rms_norm(x, (768,), w, 1e-6), (some(64, 768), some(768))),
        "silu_mul": (ops.silu_mul, lambda g, u: F.silu(g) * u, (some(64, 512), some(64, 512))),
        "silu_mul, broadcast": (ops.silu_mul, lambda g, u: F.silu(g) * u, (some(64, 1).expand(64, 512), some(512))),
        "conv2d": (lambda x, w, b: ops.conv2d(x, w, b, padding=1), lambda x, w, b: F.conv2d(x, w, b, padding=1),
                   (some(2, 16, 28, 28), some(32, 16, 3, 3), some(32))),
        "conv2d, channels last": (lambda x, w: ops.conv2d(x, w, stride=2), lambda x, w: F.conv2d(x, w, stride=2),
                                  (some(2, 16, 28, 28).to(memory_format=torch.channels_last), some(32, 16, 3, 3))),
        "attention, grouped": (ops.attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (q, k, v)),
        "attention, causal": (lambda *a: ops.attention(*a, causal=True),
                              lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (q, k, v)),
        "attention, one query": (ops.attention, F.scaled_dot_product_attention,
                                 (some(1, 8, 1, 64), some(1, 8, 300, 64), some(1, 8, 300, 64))),
        "attention, heads between": (ops.attention, F.scaled_dot_product_attention,
                                     tuple(some(2, 40, 4, 64).transpose(1, 2) for _ in range(3))),
    }  # fmt: skip


def wait(device: str) -> None:
    """Synchronize the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def right(report: Report, args: argparse.Namespace) -> Any:
    """Compare every op in three dtypes with PyTorch in float64. The second call is a cache hit, on another stream."""
    errors = {}
    for dtype, kind in DTYPES.items():
        for name, (ours, theirs, operands) in cases(args.device, kind).items():
            want = theirs(*[t.double() for t in operands])
            first = ours(*operands)
            side = torch.cuda.Stream() if args.device != "cpu" else None
            if side is not None:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    second = ours(*operands)
                torch.cuda.current_stream().wait_stream(side)
            else:
                second = ours(*operands)
            wait(args.device)
            error = float((first.double() - want).abs().max() / want.abs().max())
            report.check(
                error <= LIMITS[dtype], f"{name} {dtype}: error {error:.2g}, limit {LIMITS[dtype]:.2g}"
            )
            report.check(
                torch.equal(first, second), f"{name} {dtype}: a hit on another stream gives the same bits"
            )
            errors[f"{name} {dtype}"] = error
    if args.device != "cpu" and importlib.util.find_spec("cupy") is not None:
        import cupy  # a library without DLPack's C exchange API

        x = cupy.arange(32, dtype=cupy.float32).reshape(4, 8)
        got = ops.softmax(x)
        report.check(isinstance(got, cupy.ndarray), "CuPy's arrays give CuPy's arrays")
        want = torch.softmax(torch.from_dlpack(x), -1)
        report.check(
            torch.allclose(torch.from_dlpack(got), want, atol=1e-6), "CuPy's arrays are computed right"
        )
    report.bound("xrt.ops right beside PyTorch in float64", not report.failures)
    return errors


def fastest_us(device: str, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the host's microseconds for one call of each, measured in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(3):
            call()
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            wait(device)
            begin = perf_counter_ns()
            for _ in range(BURST):
                call()
            best[name] = min(best[name], (perf_counter_ns() - begin) / BURST / 1e3)
    gc.enable()
    wait(device)
    return best


def hit(report: Report, args: argparse.Namespace) -> Any:
    """Measure a cache hit on tiny tensors, next to PyTorch's op and to the same launch by an executor that takes addresses."""
    x = torch.randn(8, 16, device=args.device)
    a, b = torch.randn(8, 16, device=args.device), torch.randn(16, 8, device=args.device)
    gate, into = torch.randn(8, 16, device=args.device), torch.empty(8, 16, device=args.device)
    executor = xrt.Executor(
        xrt.compile(softmax_graph(), target="cpu" if args.device == "cpu" else "cuda"), args.device
    )
    fixed = executor.bind(None)
    stream = None if args.device == "cpu" else torch.cuda.current_stream().cuda_stream
    where = [x.data_ptr()], [into.data_ptr()]
    times = fastest_us(
        args.device,
        {
            "launch": lambda: executor.core.run_memory(fixed, *where, stream=stream),
            "softmax, out": lambda: ops.softmax(x, out=into),
            "softmax": lambda: ops.softmax(x),
            "torch softmax": lambda: torch.softmax(x, -1),
            "silu_mul": lambda: ops.silu_mul(x, gate),
            "matmul": lambda: ops.matmul(a, b),
            "torch matmul": lambda: torch.matmul(a, b),
            "rms_norm": lambda: ops.rms_norm(x),
            "torch rms_norm": lambda: F.rms_norm(x, (16,)),
        },
    )
    wait(args.device)
    report.check(
        torch.allclose(into, torch.softmax(x, -1), atol=1e-6), "the calls that were timed were right"
    )
    report.bound("a hit from Python over its launch, the result's tensor made", times["softmax"] - times["launch"],
                at_most=4, unit="us")  # fmt: skip
    report.bound(
        "a hit of matmul beside torch.matmul",
        times["matmul"] / times["torch matmul"],
        at_most=1.5,
        required=False,
    )
    return times


def softmax_graph() -> Any:
    b: Any = GraphBuilder("softmax")
    b.output("y", b.softmax(b.input("x", "float32[8, 16]"), dim=-1))
    return b.build()


def hit_in_core(report: Report, args: argparse.Namespace) -> Any:
    """Read the time of a hit without Python (signature, lookup, run on the host) from the C++ test of the dispatcher."""
    program = Path(args.cpp, "cpp", "tests", "test_areas")
    if not program.is_file():
        return report.check(False, f"no {program}: build the C++ tests")
    command = [str(program), "--source-file=*/test_dispatcher.cpp"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    match = re.search(r"dispatcher hit (\d+) ns, of which the run (\d+) ns", process.stdout)
    report.check(process.returncode == 0, "the C++ test of the dispatcher")
    if match is None:
        return report.check(False, "the C++ test tells its times")
    report.bound("a hit in C++", int(match[1]) / 1000, at_most=1, unit="us")
    return {"hit_us": int(match[1]) / 1000, "run_us": int(match[2]) / 1000}


def chain() -> Any:
    """Return a graph of six dependent products, whose program has several launches and is captured."""
    b: Any = GraphBuilder("chain")
    y = b.input("x", "float32[16, 16]")
    for _ in range(6):
        y = b.softmax(b.matmul(y, y), dim=-1)
    b.output("y", y)
    return b.build()


def run(report: Report, args: argparse.Namespace) -> Any:
    """Measure ``run()`` of a captured program on device tensors, next to the replay of a graph with as many launches."""
    x = torch.rand(16, 16, device=args.device)
    session = xrt.InferenceSession(xrt.compile(chain(), target="cpu" if args.device == "cpu" else "cuda"), engine="native", device=args.device)  # fmt: skip
    inputs = {"x": x}
    want = x.double()
    for _ in range(6):
        want = torch.softmax(want @ want, -1)
    for _ in range(5):  # plain, captured, replayed
        got = session.run(inputs)["y"]
        wait(args.device)
        report.check(bool((got.double() - want).abs().max() < 1e-5), "the program that is timed is right")
    launches = len(session._executable._only.plan.calls)  # type: ignore[attr-defined]
    calls: dict[str, Callable[[], Any]] = {"run": lambda: session.run(inputs)["y"]}
    if args.device != "cpu":
        graph, y = torch.cuda.CUDAGraph(), torch.rand(16, device=args.device)
        with torch.cuda.graph(graph):
            for _ in range(launches):
                y.add_(1)
        calls["replay"] = graph.replay
    times = fastest_us(args.device, calls)
    if "replay" in times:
        report.bound(
            "run() of a captured program over the graph launch",
            times["run"] - times["replay"],
            at_most=8,
            unit="us",
        )
    session.close()
    return {"launches": launches, **times}


def flat(report: Report, args: argparse.Namespace) -> Any:
    """Check that ten thousand calls of ops and of a session hold no more memory at the end than after the first hundredth of them."""
    x = torch.rand(32, 64, device=args.device)
    session = xrt.InferenceSession(xrt.compile(softmax_graph(), target="cpu" if args.device == "cpu" else "cuda"), engine="native", device=args.device)  # fmt: skip
    small = x[:8, :16].contiguous()

    def live_bytes() -> int:
        wait(args.device)
        gc.collect()
        own = xrt.Device(args.device).backend.memory()["live_bytes"]
        return own + (0 if args.device == "cpu" else torch.cuda.memory_allocated())

    def some(count: int) -> None:
        for _ in range(count):
            ops.softmax(x), ops.rms_norm(x), session.run({"x": small})

    some(args.calls // 100)
    before = live_bytes()
    some(args.calls)
    grown = live_bytes() - before
    report.bound(
        f"bytes held after {args.calls} calls of ops and sessions, more than before", grown, at_most=0
    )
    session.close()
    return {"calls": args.calls, "grown": grown, **ops.counters()}


PARTS = {"right": right, "hit": hit, "hit_in_core": hit_in_core, "run": run, "flat": flat}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--calls", type=int, default=10_000)
    built = Path(os.environ.get("XPU_GPU_FOLDER", "build/gpu"), "cpp")
    parser.add_argument("--cpp", type=Path, default=built, help="the folder of the C++ build with its tests")
    device = parser.parse_args(argv).device

    def name() -> str:
        return "none (the host)" if device == "cpu" else torch.cuda.get_device_name(0)

    return run_parts(__doc__, PARTS, gpu=name, packages=("torch",), argv=argv, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
