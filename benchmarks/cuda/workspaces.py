"""Products by cuBLASLt under limits of its workspace: how much time a smaller one costs.

    python benchmarks/cuda/workspaces.py --out workspaces.json

A product of few tiles is divided along its inner dimension, and its parts are added in the workspace, which counts in the memory of a session.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, queued_us, run_parts

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

SHAPES = ((1024, 768, 3072), (1024, 768, 768), (1024, 2304, 768), (128, 768, 3072), (512, 1024, 4096), (1024, 1536, 8960),
          (256, 2048, 8192), (2048, 512, 2048), (64, 1000, 2048), (4096, 320, 1280), (300, 1280, 5120), (128, 4096, 14336))  # fmt: skip
"""Rows, columns and inner size."""
LIMITS_MIB = (0, 4, 8, 16, 32)
WEIGHTS = 8
"""Products of a run, each with weights of its own."""
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-5}


def products(backend: CudaBackend, m: int, n: int, k: int, dtype: torch.dtype, limit: int) -> Any:
    """Return the program of a run."""
    b, name = GraphBuilder("products"), str(dtype).partition(".")[2]
    x = b.input("x", f"{name}[{m}, {k}]")
    for i in range(WEIGHTS):
        b.output(
            f"y{i}", b.linear(x, b.weight(f"w{i}", f"{name}[{n}, {k}]"), b.weight(f"b{i}", f"{name}[{n}]"))
        )
    program = compile_graph(b.build(), target=backend.target, policy=KernelPolicy(matmul="cublasLt"))

    def limited(plan: Any) -> Any:
        calls = (replace(c, options={**c.options, "workspace_bytes": limit}) for c in plan.calls)
        return replace(plan, calls=tuple(calls))

    entries = (replace(e, plans=tuple(map(limited, e.plans))) for e in program.entries)
    return replace(program, entries=tuple(entries))


def limits(report: Report, args: argparse.Namespace) -> Any:
    """Time every product under every limit."""
    backend, results = CudaBackend(), list[dict[str, Any]]()
    stream = torch.cuda.current_stream().cuda_stream
    for dtype in TOLERANCE:
        for m, n, k in SHAPES:
            row: dict[str, Any] = {"product": [m, n, k], "dtype": str(dtype), "us": {}, "chose": {}}
            x = torch.randn(m, k, dtype=dtype, device="cuda")
            weights = {
                f"w{i}": torch.randn(n, k, dtype=dtype, device="cuda") * k**-0.5 for i in range(WEIGHTS)
            }
            bias = torch.randn(n, dtype=dtype, device="cuda")
            arrays = {t: w.cpu().numpy() for t, w in weights.items()}
            arrays |= {f"b{i}": bias.cpu().numpy() for i in range(WEIGHTS)}
            for limit in LIMITS_MIB:
                executor = Executor(products(backend, m, n, k, dtype, limit << 20), backend)
                executor.bind(arrays)
                out = executor.run({"x": x}, stream=stream)
                us = queued_us(lambda e=executor, x=x, out=out: e.run({"x": x}, out=out, stream=stream))
                error = 0.0
                for i in range(WEIGHTS):
                    want = x.double() @ weights[f"w{i}"].double().T + bias.double()
                    got = torch.from_dlpack(out[f"y{i}"]).double()
                    error = max(error, float((got - want).abs().max() / want.abs().max()))
                report.check(error <= TOLERANCE[dtype], f"{row['product']} {dtype}, {limit} MiB: {error}")
                row["us"][limit] = round(us / WEIGHTS, 2)
                row["chose"][limit] = executor.implementations[0].partition(" ")[2]
                executor.close()
            print(row, flush=True)
            results.append(row)
    return results


PARTS = {"limits": limits}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a product is wrong."""
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), argv=argv,
        parser=arguments(__doc__, tuple(PARTS)),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
