"""Compare attention kernels at many sizes: cuDNN's and ours in captured programs, in alternation, and PyTorch's in CUDA graphs.

    python benchmarks/cuda/attention_sizes.py [--out FILE] [--limit SECONDS]

A program is a chain of equal nodes, so that the time per node excludes launches by the host. The first node's result is compared with float64
at two heads. Several threads compile and load all programs before the measurement. It needs the installed package (its C++ core) and torch with
CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

TOLERANCE = {"bfloat16": 8e-3, "float16": 1e-3}
"""Largest max|d| / max|ref|: one rounding of the result."""

ROUNDS, ROUND_US = 9, 2000.0
THREADS = 12


class Sizes(NamedTuple):
    """Sizes of an attention. Queries are [batch, heads, positions, d], keys [batch, kv_heads, positions, d]. ``peer``: also time PyTorch."""

    batch: int
    heads: int
    kv_heads: int
    positions: int
    d: int
    causal: bool
    peer: bool = True
    dtype: str = "bfloat16"

    @property
    def flops(self) -> int:
        """Number of operations, without masked scores."""
        return 4 * self.batch * self.heads * self.positions**2 * self.d // (2 if self.causal else 1)

    @property
    def layers(self) -> int:
        """Number of nodes, chosen such that a run takes about half a millisecond."""
        return max(4, min(32, int(500 / (4 + self.flops / 4e8))))

    @property
    def kernels(self) -> tuple[str, str]:
        """Kernels to compare. Heads of more than 128 elements use our kernel ``naive``."""
        return "cudnn", "flash_v2" if self.d <= 128 else "naive"

    def __str__(self) -> str:
        kind = "causal" if self.causal else "no mask"
        return f"b{self.batch} h{self.heads}/{self.kv_heads} s{self.positions} d{self.d} {kind} {self.dtype}"


def grid() -> list[Sizes]:
    """Return sizes of decoders' prefill, encoders and image models. The most important come first."""
    sizes = [Sizes(1, 12, 2, n, 128, True) for n in (1024, 256, 4096)]
    sizes += [Sizes(1, 32, 8, n, 128, True) for n in (1024, 256, 4096)]
    sizes += [
        Sizes(8, 12, 12, 512, 64, False),
        Sizes(1, 12, 12, 512, 64, False),
        Sizes(1, 12, 12, 128, 64, False),
    ]
    sizes += [
        Sizes(8, 12, 12, 197, 64, False),
        Sizes(32, 12, 12, 197, 64, False),
        Sizes(1, 12, 12, 197, 64, False),
    ]
    sizes += [Sizes(4, 16, 16, 4096, 128, causal) for causal in (True, False)]
    sizes += [
        Sizes(1, 16, 16, 1024, 64, True),
        Sizes(4, 16, 16, 4096, 64, True),
        Sizes(1, 16, 16, 1024, 128, False),
    ]
    sizes += [
        Sizes(1, 8, 8, 1024, 64, False),
        Sizes(1, 4, 4, 2048, 128, False),
        Sizes(1, 4, 4, 4096, 128, True),
        Sizes(1, 12, 12, 577, 64, False),
    ]
    sizes += [Sizes(1, 12, 2, n, 128, True, False) for n in (128, 512, 2048, 8192)]
    sizes += [Sizes(1, 32, 8, n, 128, True, False) for n in (128, 512, 2048, 8192)]
    sizes += [
        Sizes(8, 12, 12, 128, 64, False, False),
        Sizes(32, 12, 12, 128, 64, False),
        Sizes(1, 20, 20, 1500, 64, False),
    ]
    sizes += [
        Sizes(2, 10, 10, 4096, 64, False),
        Sizes(1, 32, 8, 2048, 64, True),
        Sizes(1, 32, 8, 512, 64, True, False),
    ]
    sizes += [Sizes(4, 32, 8, n, 128, True, False) for n in (512, 2048)]
    sizes += [Sizes(8, 12, 2, n, 128, True, False) for n in (128, 256, 512, 1024)]
    sizes += [Sizes(1, 16, 16, n, 64, True, False) for n in (256, 512, 2048, 4096)]
    sizes += [Sizes(1, 16, 16, n, 128, False, False) for n in (256, 512, 2048)]
    sizes += [
        Sizes(8, 16, 16, 257, 64, False, False),
        Sizes(1, 32, 32, 1024, 80, True),
        Sizes(1, 32, 32, 1024, 96, True, False),
    ]
    sizes += [Sizes(1, 8, 1, n, 256, True) for n in (256, 1024)]
    sizes += [
        Sizes(1, 32, 8, 1024, 128, True, False, "float16"),
        Sizes(8, 12, 12, 512, 64, False, False, "float16"),
    ]
    return sizes  # fmt: skip


def tensors(s: Sizes) -> list[torch.Tensor]:
    """Queries, keys, values."""
    shapes = [(s.batch, h, s.positions, s.d) for h in (s.heads, s.kv_heads, s.kv_heads)]
    return [torch.randn(shape, device="cuda", dtype=getattr(torch, s.dtype)) for shape in shapes]


def graph_of(s: Sizes, layers: int) -> Graph:
    """A row of nodes; ``first`` and ``y`` are the results of the first and the last."""
    b = GraphBuilder("layers")
    q, k, v = (
        b.input(n, f"{s.dtype}{[s.batch, h, s.positions, s.d]}")
        for n, h in zip("qkv", (s.heads, s.kv_heads, s.kv_heads), strict=True)
    )
    for i in range(layers):
        q = b.call("attention", q, k, v, causal=s.causal)
        if i == 0:
            b.output("first", q)
    b.output("y", q)
    return b.build()


def default_of(s: Sizes) -> str:
    """The kernel that is taken where no policy names one."""
    program = compile_graph(graph_of(s, 2), target="cuda:0", passes=3)
    (kernel,) = {c.kernel for e in program.entries for p in e.plans for c in p.calls}
    return kernel.partition("/")[2]


def executor_of(s: Sizes, kernel: str, backend: CudaBackend) -> Executor:
    """``layers`` nodes on one kernel, loaded."""
    graph, policy = graph_of(s, s.layers), KernelPolicy(attention=kernel)
    program = compile_graph(graph, target=backend.target, policy=policy, passes=3)
    ran = {c.kernel for e in program.entries for p in e.plans for c in p.calls}
    if f"attention/{kernel}" not in ran:
        raise RuntimeError(f"{s}: {kernel} was asked for, {', '.join(sorted(ran))} computes it")
    executor = Executor(program, backend)
    executor.bind({})
    return executor


PEERS = {
    "torch cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
    "torch flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
}


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of PyTorch's work."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def peer_of(s: Sizes, name: str) -> Callable[[], Any]:
    """PyTorch's, as many in a row in a CUDA graph."""
    q, k, v = tensors(s)

    def work() -> torch.Tensor:
        x = q
        with torch.nn.attention.sdpa_kernel(PEERS[name]):
            for _ in range(s.layers):
                x = torch.nn.functional.scaled_dot_product_attention(
                    x, k, v, is_causal=s.causal, enable_gqa=s.heads != s.kv_heads
                )
        return x

    return captured(work)


def error_of(s: Sizes, inputs: Sequence[torch.Tensor], y: torch.Tensor) -> float:
    """max|d| / max|ref| against float64 at the first head of the first batch and the last of the last."""
    worst = 0.0
    for batch, head in ((0, 0), (s.batch - 1, s.heads - 1)):
        at = head * s.kv_heads // s.heads
        q, k, v = (x[batch, h].double() for x, h in zip(inputs, (head, at, at), strict=True))
        scores = q @ k.T * s.d**-0.5
        if s.causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -torch.inf)
        want = scores.softmax(-1) @ v
        worst = max(worst, float((y[batch, head].double() - want).abs().max() / want.abs().max()))
    return worst


def by_turns(works: dict[str, Callable[[], Any]], layers: int) -> dict[str, list[float]]:
    """Microseconds of one layer, of each by turns."""
    times: dict[str, list[float]] = {n: [] for n in works}
    for rounds in range(-1, ROUNDS):
        for name, work in works.items():
            repeats = (
                2
                if rounds < 0
                else max(1, min(20, int(ROUND_US / (statistics.median(times[name]) * layers))))
            )
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work()
            begin.record()
            for _ in range(repeats):
                work()
            end.record()
            end.synchronize()
            if rounds == 0:
                times[name].clear()
            times[name].append(begin.elapsed_time(end) / repeats / layers * 1e3)
    return times


def measured(s: Sizes, executors: dict[str, Executor], default: str) -> dict[str, Any]:
    """Both kernels right and timed, with PyTorch's for comparison."""
    operands = tensors(s)
    inputs = dict(zip("qkv", operands, strict=True))
    stream = torch.cuda.current_stream().cuda_stream
    works: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for kernel, executor in executors.items():
        executor.run(inputs, stream=stream)
        out = executor.run(inputs, stream=stream)
        torch.cuda.synchronize()
        errors[kernel] = error_of(s, operands, torch.from_dlpack(out["first"]))
        works[kernel] = lambda run=executor.run, out=out: run(inputs, out=out, stream=stream)
    missing = {}
    for name in PEERS if s.peer else ():
        try:
            works[name] = peer_of(s, name)
        except RuntimeError as error:
            missing[name] = str(error)[:200]
    times = by_turns(works, s.layers)
    middle = {n: statistics.median(t) for n, t in times.items()}
    chose = [x for x in executors["cudnn"].implementations if x]
    return {
        "case": str(s), "sizes": s._asdict(), "layers": s.layers, "chose": chose[:1], "default": default, "error": errors,
        "ok": all(e <= TOLERANCE[s.dtype] for e in errors.values()),
        "us": {n: round(t, 2) for n, t in middle.items()},
        "from_to_us": {n: [round(min(t), 2), round(max(t), 2)] for n, t in times.items()},
        "tflops": {n: round(s.flops / t / 1e6, 1) for n, t in middle.items()},
        "ours_over_cudnn": round(middle[s.kernels[1]] / middle["cudnn"], 3), **({"missing": missing} if missing else {}),
    }  # fmt: skip


def sizes(report: Report, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every size of the grid until the time is up."""
    begin, backend, rows = time.time(), CudaBackend(), list[dict[str, Any]]()
    cases = grid()
    torch.zeros(1, device="cuda")
    with ThreadPoolExecutor(THREADS) as pool:
        executors: dict[Sizes, dict[str, Future[Executor]]] = {
            s: {w: pool.submit(executor_of, s, w, backend) for w in s.kernels} for s in cases
        }
        defaults = {s: pool.submit(default_of, s) for s in cases}
        while not all(f.done() for row in executors.values() for f in row.values()):
            if time.time() - begin > args.limit * 0.6:
                for future in (f for row in executors.values() for f in row.values()):
                    future.cancel()
                break
            time.sleep(0.1)
    print(f"   made in {time.time() - begin:.1f} s", flush=True)
    for s, futures in executors.items():
        if time.time() - begin > args.limit or any(f.cancelled() for f in futures.values()):
            rows.append({"case": str(s), "skipped": "out of time"})
            continue
        try:
            row = measured(s, {w: f.result() for w, f in futures.items()}, defaults[s].result())
            report.check(
                row["default"] != "cudnn" or row["ours_over_cudnn"] > 1.02, f"{s}: the default is the faster"
            )
        except Exception as error:
            row = {"case": str(s), "ok": False, "failed": f"{type(error).__name__}: {str(error)[:400]}"}
        finally:
            for future in futures.values():
                if future.exception() is None:
                    future.result().close()
        rows.append(row)
        print(
            json.dumps({k: v for k, v in row.items() if k not in ("sizes", "from_to_us", "chose")}),
            flush=True,
        )
        if not row["ok"]:
            report.check(False, f"{s}: {row.get('failed', row.get('error'))}")
    return rows


PARTS = {"sizes": sizes}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a result is wrong or a library refuses."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--limit", type=float, default=55, help="seconds after which no further size begins")
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
