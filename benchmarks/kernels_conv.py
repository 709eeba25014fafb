"""Every convolution of well-known nets, one by one: our kernels, oneDNN's (as PyTorch carries it), and the machine's peak.

    python benchmarks/kernels_conv.py [--nets resnet50 mobilenet_v2] [--dtype float32] [--threads 1] [--json] [--keep]

Both take channels-last operands, filters packed beforehand, a bias and a ReLU; times are the least of many runs, taken in turn. The peak is
that of independent fused multiply-adds in registers. Threads of ours spin between calls, so that no wake-up is measured. oneDNN's times
hold PyTorch's own call, which is measured by itself (``call_ms``) and is most of what the smallest ones take.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from machine import facts, keep
from support.one_kernel import Prepared, Weight, build_kernel, channels_last, prepare

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.kernels.cpu.conv.generated import KERNELS
from xpuruntime.testing.conformance.seeded import networks as models

NETS = ("resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121")
NOTHING = ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1)  # a convolution that is all call
SECONDS = 0.15  # of runs of each contender and shape

DRIVER = r"""
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>
typedef void (*Kernel)(void *const *, const void *, int64_t, int64_t, void *);
// The least of the times of `runs` runs in seconds, tasks split evenly over threads that spin.
extern "C" double least(Kernel kernel, void *const *args, int64_t tasks, void *const *scratch, int threads, double seconds) {
    std::atomic<int64_t> round{0}, done{0};
    std::atomic<bool> stop{false};
    auto share = [&](int t) { kernel(args, nullptr, tasks * t / threads, tasks * (t + 1) / threads, scratch[t]); };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; t++) others.emplace_back([&, t] {
        for (int64_t seen = 0;;) {
            while (round.load() == seen) if (stop.load()) return;
            seen++, share(t), done++;
        }
    });
    typedef std::chrono::steady_clock Clock;
    auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
    double best = 1e9;
    const auto start = Clock::now();
    for (int i = 0; i < 5 || since(start) < seconds; i++) {
        const auto t = Clock::now();
        done = 0, round++, share(0);
        while (done.load() < threads - 1) {}
        const double took = since(t);
        if (took < best) best = took;
    }
    stop = true;
    for (auto &o : others) o.join();
    return best;
}
"""

# %(before)s sets registers up, %(chains)s is what is counted.
_CHAINS = """
#include <chrono>
#include <cstdint>
extern "C" double chains(long n) {
    %(before)s
    auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < n; i++) asm volatile(%(chains)s);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
"""
_TILE_CHAINS = _CHAINS % {
    "before": "alignas(64) uint8_t sizes[64] = {1};"
    " for (int i = 0; i < 8; i++) sizes[16 + 2 * i] = 64, sizes[48 + i] = 16;"
    ' asm volatile("ldtilecfg %0" : : "m"(sizes));',
    "chains": "".join(f'"tdpbf16ps %%tmm{6 + i % 2},%%tmm{4 + i // 2},%%tmm{i}\\n"' for i in range(4))
    + ':::"memory"',
}


class Shape(NamedTuple):
    """One convolution: sizes of the input and the filters, and how they meet."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def out(self) -> tuple[int, ...]:
        """The result's shape."""
        space = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True)
        return (self.x[0], self.w[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in space))

    @property
    def flops(self) -> int:
        """Multiplications and additions; those that meet padding count."""
        return int(2 * np.prod(self.out) * np.prod(self.w[1:]))

    def __str__(self) -> str:
        kernel = "x".join(map(str, self.w[2:]))
        depth = " depthwise" if self.groups > 1 else ""
        return f"{self.x[1]}x{self.x[2]}x{self.x[3]} to {self.w[0]}, {kernel}/{self.stride[0]}{depth}"


def convolutions(net: str) -> Counter[Shape]:
    """How often a net computes each convolution, for one image."""
    module, inputs = models.build(net, "full")
    counts: Counter[Shape] = Counter()

    def hook(conv: Any, given: Any, _: Any) -> None:
        weight = tuple(conv.weight.shape)
        counts[
            Shape(tuple(given[0].shape), weight, conv.stride, conv.padding, conv.dilation, conv.groups)
        ] += 1

    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_hook(hook)
    with torch.inference_mode():
        module(*inputs)
    return counts


@functools.cache
def built(shape: Shape, dtype: Any) -> tuple[Any, list[Any]]:
    """Our preferred kernel, compiled, and its operands."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s, np.float32).astype(dtype) for s in (shape.x, shape.w, shape.w[:1]))
    attrs = {
        "stride": list(shape.stride),
        "padding": list(shape.padding),
        "dilation": list(shape.dilation),
        "groups": shape.groups,
        "act": "relu",
    }
    operands = [x, Weight(w), Weight(b), None]
    layouts = {0: channels_last(shape.x)}, {0: channels_last(shape.out)}
    for kernel in KERNELS:
        try:
            return build_kernel(
                kernel, "fused_convolution", operands, cpu_target(), *layouts, **attrs
            ), operands
        except AssertionError:
            continue
    raise LookupError(str(shape))


def ours(shape: Shape, dtype: Any, threads: int, driver: Any) -> Callable[[], float]:
    """The least time of our preferred kernel."""
    ready = prepare(*built(shape, dtype), threads=threads)
    return lambda: time_job(driver, ready, threads)


def time_job(driver: Any, ready: Prepared, threads: int) -> float:
    """Seconds of the quickest run."""
    (job,) = ready.jobs
    scratch = (ctypes.c_void_p * threads)(*[s.ctypes.data for s in job.scratch[:threads]])
    seconds: float = driver.least(
        job.function, job.args, ctypes.c_int64(job.tasks), scratch, threads, ctypes.c_double(SECONDS)
    )
    return seconds


def onednn(shape: Shape, dtype: Any, threads: int) -> Callable[[], float]:
    """The same of oneDNN, filters reordered as it likes."""
    torch.set_num_threads(threads)
    kind = torch.bfloat16 if dtype == ml_dtypes.bfloat16 else torch.float32
    x = torch.randn(shape.x, dtype=kind).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(shape.w, dtype=kind), torch.randn(shape.w[0], dtype=kind)
    where = [list(v) for v in (shape.padding, shape.stride, shape.dilation)]
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
        weight.to_mkldnn(), *where, shape.groups, list(shape.x)
    )
    run = torch.ops.mkldnn._convolution_pointwise

    def least() -> float:
        best, start = 1e9, perf_counter()
        with torch.inference_mode():
            while perf_counter() - start < SECONDS:
                t = perf_counter()
                run(x, packed, bias, *where, shape.groups, "relu", [], None)
                best = min(best, perf_counter() - t)
        return best

    return least


def build(text: str, *flags: str) -> Any:
    """A shared library of a C++ text."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "driver.cpp", Path(folder) / "driver.so"
        source.write_text(text)
        command = [os.environ.get("CXX", "g++"), "-O2", "-std=c++17", "-fPIC", "-shared", *flags, str(source)]
        subprocess.run([*command, "-o", str(library), "-pthread"], check=True)
        return ctypes.CDLL(str(library))


def peak(dtype: Any) -> float:
    """GFLOP/s of one thread: independent chains of the instruction that products are made of."""
    level = cpu_target().isa
    if dtype == ml_dtypes.bfloat16 and "amx-bf16" in level.features:
        return _rate(_TILE_CHAINS, level.march_flags, 16 * 16 * 32 * 2 * 4)
    pairs = dtype == ml_dtypes.bfloat16 and "avx512bf16" in level.features
    register = {64: "zmm", 32: "ymm"}.get(level.vector_bytes)
    if register is None:
        return float("nan")
    chains = "".join(
        f'"{"vdpbf16ps" if pairs else "vfmadd231ps"} %%{register}15,%%{register}14,%%{register}{i}\\n"'
        for i in range(12)
    )
    names = ", ".join(f'"xmm{i}"' for i in range(16))
    zeros = "".join(f'"vpxor %%ymm{i},%%ymm{i},%%ymm{i}\\n"' for i in range(16))
    text = _CHAINS % {"before": f"asm volatile({zeros}:::{names});", "chains": f"{chains}:::{names}"}
    return _rate(text, level.march_flags, 12 * level.vector_bytes // 4 * 2 * (2 if pairs else 1))


def _rate(text: str, flags: tuple[str, ...], flops: int) -> float:
    library = build(text, *flags)
    library.chains.restype = ctypes.c_double
    count = 1_000_000
    seconds = min(library.chains(ctypes.c_long(count)) for _ in range(10))
    return float(count * flops / seconds / 1e9)


def measure(net: str, dtype: Any, threads: int, driver: Any) -> dict[str, Any]:
    """Each convolution's times in milliseconds, and the sums over the net."""
    rows = []
    for shape, count in convolutions(net).items():
        contenders = {"ours": ours(shape, dtype, threads, driver), "onednn": onednn(shape, dtype, threads)}
        best = dict.fromkeys(contenders, 1e9)
        for _ in range(3):
            for name, run in contenders.items():
                best[name] = min(best[name], run())
        row = {"shape": str(shape), "count": count, "mflop": round(shape.flops / 1e6, 1)}
        rows.append(row | {f"{n}_ms": round(t * 1e3, 4) for n, t in best.items()})
    total = {n: round(sum(r[f"{n}_ms"] * r["count"] for r in rows), 3) for n in ("ours", "onednn")}
    return {
        "net": net,
        "convolutions": rows,
        "gflop": round(sum(r["mflop"] * r["count"] for r in rows) / 1e3, 3),
        "total_ms": total,
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/kernels_conv_DTYPE_THREADS.json"
    )
    options = parser.parse_args()
    dtype = ml_dtypes.bfloat16 if options.dtype == "bfloat16" else np.float32
    driver = build(DRIVER)
    driver.least.restype = ctypes.c_double
    result: dict[str, Any] = {
        "machine": facts("torch", "numpy"),
        "dtype": options.dtype,
        "threads": options.threads,
    }
    result["peak_gflops"] = round(peak(dtype) * options.threads, 1)
    result["call_ms"] = round(onednn(Shape(*NOTHING), dtype, options.threads)() * 1e3, 4)
    result["nets"] = [measure(net, dtype, options.threads, driver) for net in options.nets]
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    if options.keep:
        print(keep(f"kernels_conv_{options.dtype}_{options.threads}", result))


def show(result: dict[str, Any]) -> None:
    """As text."""
    limit = result["peak_gflops"]
    print(
        f"{result['dtype']}, {result['threads']} threads, peak {limit} GFLOP/s; others used {result['machine']['busy']:.0%}"
    )
    print(f"PyTorch's call of oneDNN takes {result['call_ms']} ms of each of its times")
    for net in result["nets"]:
        print(f"\n{net['net']}")
        for r in net["convolutions"]:
            speed = r["mflop"] / r["ours_ms"]
            print(
                f"  {r['count']:2} x {r['shape']:42} {r['ours_ms']:8.3f} ms {speed:7.1f} GFLOP/s {speed / limit:4.0%}"
                f"   oneDNN {r['onednn_ms']:8.3f} ms, ours takes {r['ours_ms'] / r['onednn_ms']:.2f} of it"
            )
        t = net["total_ms"]
        print(
            f"  all: ours {t['ours']:.2f} ms ({net['gflop'] / t['ours'] * 1e3 / limit:.0%} of peak), oneDNN {t['onednn']:.2f} ms: {t['ours'] / t['onednn']:.2f}"
        )


if __name__ == "__main__":
    main()
