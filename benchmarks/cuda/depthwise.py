"""Depthwise convolutions by our kernel, by cuDNN's engines and by PyTorch: errors, and times within captured graphs, in turns.

    python benchmarks/cuda/depthwise.py --out benchmarks/results/cuda_depthwise.json [--tiles] [--limit 60]

Sizes are those of MobileNetV2, EfficientNet-B0 and ConvNeXt-T. ``--tiles`` also measures tiles other
than the default; the defaults in ``kernels/cuda/conv/depthwise.py`` come from it. A row has the microseconds of one convolution and the error
against float64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import ml_dtypes
import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, queued_us, run_parts
from models import prepare

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import XpuError
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.conv import depthwise as conv_depthwise
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor

SIZES = (  # images, channels, side, kernel
    (1, 32, 112, 3), (1, 144, 56, 3), (1, 240, 28, 5), (1, 480, 14, 5), (1, 1152, 7, 5), (1, 96, 56, 7), (1, 384, 14, 7), (1, 768, 7, 7),
    (32, 32, 112, 3), (32, 144, 56, 3), (32, 240, 28, 5), (32, 1152, 7, 5), (32, 96, 56, 7), (32, 768, 7, 7),
)  # fmt: skip
FEW, MANY = 4, 20
"""Lengths of two chains. The difference of their times excludes the launch of the program."""
TILES = ((2, 4), (1, 4), (1, 2), (1, 1), (2, 2), (1, 8))


def program_of(size: tuple[int, ...], dtype: str, word: str, chain: int) -> Any:
    """Compile a chain of convolutions with bias."""
    n, c, side, k = size
    b = GraphBuilder("depthwise")
    y = b.input("x", f"{dtype}[{n}, {c}, {side}, {side}]")
    for i in range(chain):
        w, bias = b.weight(f"w{i}", f"{dtype}[{c}, 1, {k}, {k}]"), b.weight(f"b{i}", f"{dtype}[{c}]")
        y = b.call("convolution", y, w, bias, stride=[1, 1], padding=[k // 2] * 2, dilation=[1, 1], groups=c)
    b.output("y", y)
    return compile_graph(b.build(), target="cuda", policy=KernelPolicy(conv=word))


def measure(size: tuple[int, ...], dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one size. Return its row."""
    n, c, side, k = size
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    x = torch.randn(n, c, side, side, device="cuda").to(kind)
    weights = {f"w{i}": (torch.randn(c, 1, k, k, device="cuda") / k).to(kind) for i in range(MANY)}
    weights |= {f"b{i}": torch.randn(c, device="cuda").to(kind) for i in range(MANY)}
    fixed = {name: numpy_of(t) for name, t in weights.items()}
    stream = torch.cuda.current_stream().cuda_stream

    def chain(of: Any, count: int, wide: bool = False) -> Any:
        for i in range(count):
            w, b = (t.double() if wide else t for t in (weights[f"w{i}"], weights[f"b{i}"]))
            of = torch.nn.functional.conv2d(of, w, b, 1, k // 2, 1, c)
        return of

    want = chain(x.double(), FEW, wide=True)
    works: dict[str, list[Callable[[], Any]]] = {}
    row: dict[str, Any] = {"error": {}}
    keep_alive: list[Any] = []
    ways = {"depthwise": None} | ({f"{t}": t for t in TILES} if args.tiles else {})
    usual = conv_depthwise._tile
    for word, tile in [*ways.items(), ("cudnn", None), ("implicit_gemm", None)]:
        with mock.patch.object(conv_depthwise, "_tile", (lambda s, w, t=tile: t) if tile else usual):
            try:
                programs = [
                    program_of(size, dtype, "depthwise" if tile else word, count) for count in (FEW, MANY)
                ]
                executors = [Executor(program, "cuda:0") for program in programs]
            except XpuError as error:
                row.setdefault("missing", {})[word] = str(error)[:200]
                continue
        keep_alive += executors
        for executor, count in zip(executors, (FEW, MANY), strict=True):
            executor.bind({name: v for name, v in fixed.items() if int(name[1:]) < count})
            out = executor.run({"x": x}, stream=stream)
            if count == FEW:
                y = torch.from_dlpack(out["y"]).double()
                row["error"][word] = float((y - want).abs().max() / want.abs().max())
            works.setdefault(word, []).append(lambda e=executor, o=out: e.run({"x": x}, out=o, stream=stream))
    for word, memory in (("torch, channels last", torch.channels_last), ("torch", torch.contiguous_format)):
        there = x.contiguous(memory_format=memory)
        chain(there, 1)
        torch.cuda.synchronize()
        for count in (FEW, MANY):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                keep_alive.append(chain(there, count))
            works.setdefault(word, []).append(graph.replay)
    turns = [
        {w: [queued_us(run, each=10, rounds=3) for run in pair] for w, pair in works.items()}
        for _ in range(3)
    ]
    row["us"] = {
        w: round(statistics.median((t[w][1] - t[w][0]) / (MANY - FEW) for t in turns), 2) for w in works
    }
    for one in keep_alive:
        if isinstance(one, Executor):
            one.close()
    return row


def numpy_of(tensor: torch.Tensor) -> Any:
    """Copy to the host; bfloat16 becomes ml_dtypes.bfloat16."""
    host = tensor.cpu()
    if host.element_size() > 2:
        return host.numpy()
    return (
        host.view(torch.int16)
        .numpy()
        .view(
            getattr(ml_dtypes, str(host.dtype).removeprefix("torch."))
            if host.dtype is torch.bfloat16
            else "float16"
        )
    )


def sizes(report: Report, args: argparse.Namespace) -> Any:
    """Measure every size in float16, and some in float32 and bfloat16."""
    rows, start = {}, time.perf_counter()
    for dtype in ("float16", "float32", "bfloat16"):
        for size in SIZES if dtype == "float16" else SIZES[2:12:4]:
            if time.perf_counter() - start > args.limit:
                break
            name = f"{dtype} n{size[0]} c{size[1]} {size[2]}x{size[2]} k{size[3]}"
            row = rows[name] = measure(size, dtype, args)
            print(f"  {name}: {row['us']} {row.get('missing', '')}", flush=True)
            limit = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
            report.check(row["error"]["depthwise"] <= limit, f"{name}: {row['error']} from float64")
            peers = min(t for w, t in row["us"].items() if "torch" in w)
            report.bound(f"{name}: time over PyTorch's", round(row["us"]["depthwise"] / peers, 3), at_most=1.0, required=False)  # fmt: skip
    return rows


PARTS = {"sizes": sizes}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--tiles", action="store_true", help="other tiles, too")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds after which no further size begins"
    )
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), argv=argv, parser=parser, before=prepare
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
