"""Attention of a chunk of tokens over a KV cache, with the mask that a ``Generator`` computes: our kernels in alternation, and PyTorch's.

    python benchmarks/cuda/attention_chunks.py [--out FILE]

A chunk of N tokens is at the last of the positions that the cache holds (``full``), or at the first (``first``): most keys are masked there. The result is
compared with float64 at two heads. The kernels are ``flash_decode``, ``flash_v2`` without WGMMA, and ``flash_v2`` with it, each where it supports the sizes.
It needs the installed package and torch with CUDA.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

import paths  # noqa: F401
import torch
from attention_sizes import by_turns, captured
from gpu_report import Report, run_parts

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import XpuError
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.cuda.attention import flash
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

TOLERANCE = 8e-3
"""Largest max|d| / max|ref|: one rounding of the result."""
LAYERS = 16
THREADS = 12


class Chunk(NamedTuple):
    """Queries are [batch, heads, new, d], keys [batch, kv_heads, capacity, d]."""

    batch: int
    heads: int
    kv_heads: int
    new: int
    capacity: int
    d: int
    place: str = "full"

    def __str__(self) -> str:
        return f"b{self.batch} h{self.heads}/{self.kv_heads} {self.new} of {self.capacity} d{self.d} {self.place}"

    @property
    def start(self) -> int:
        """The position of the first token."""
        return 0 if self.place == "first" else self.capacity - self.new


CHUNKS = tuple(
    Chunk(*sizes, place)
    for place in ("full", "first")
    for sizes in (
        (1, 12, 2, 16, 1088, 128), (1, 12, 2, 10, 1088, 128), (1, 32, 8, 16, 1088, 64), (1, 32, 8, 32, 1088, 128), (1, 32, 8, 16, 4096, 128),
        (1, 12, 2, 64, 1088, 128), (1, 12, 2, 128, 1088, 128), (1, 32, 8, 128, 1088, 128), (1, 9, 3, 16, 2048, 64), (1, 9, 3, 128, 2048, 64),
        (1, 12, 2, 128, 4096, 128), (4, 12, 2, 128, 1088, 128), (1, 8, 8, 100, 850, 32), (8, 8, 8, 100, 850, 32),
    )
)  # fmt: skip
WAYS: dict[str, tuple[str, bool]] = {
    "decode": ("flash_decode", False),
    "flash": ("flash_v2", False),
    "hopper": ("flash_v2", True),
}
"""Way -> the kernel, and whether it uses WGMMA."""


def graph_of(c: Chunk, layers: int) -> Graph:
    """A row of nodes; ``first`` and ``y`` are the results of the first and the last."""
    b = GraphBuilder("layers")
    q = b.input("q", f"bfloat16{[c.batch, c.heads, c.new, c.d]}")
    k, v = (b.input(n, f"bfloat16{[c.batch, c.kv_heads, c.capacity, c.d]}") for n in "kv")
    mask = b.input("mask", f"bool{[c.batch, 1, c.new, c.capacity]}")
    for i in range(layers):
        q = b.call("attention", q, k, v, mask)
        if i == 0:
            b.output("first", q)
    b.output("y", q)
    return b.build()


def executors_of(
    hopper: bool, ways: Sequence[str], backend: CudaBackend
) -> dict[tuple[Chunk, str], Executor]:
    """Return the executors of ways with or without WGMMA for the chunks that they support, made side by side."""

    def opened(case: tuple[Chunk, str]) -> Executor | None:
        c, way = case
        try:
            policy = KernelPolicy(attention=WAYS[way][0])
            program = compile_graph(graph_of(c, LAYERS), target=backend.target, policy=policy, passes=3)
        except XpuError:
            return None
        ran = {x.kernel for e in program.entries for p in e.plans for x in p.calls}
        if f"attention/{WAYS[way][0]}" not in ran:
            return None
        executor = Executor(program, backend)
        executor.bind({})
        return executor

    cases = [(c, w) for c in CHUNKS for w in ways]
    with (
        mock.patch.object(flash, "wants_hopper", return_value=hopper),
        ThreadPoolExecutor(THREADS) as pool,
    ):
        return {case: e for case, e in zip(cases, pool.map(opened, cases), strict=True) if e is not None}


def default_of(c: Chunk, target: Any) -> str:
    """Return the way that is taken by default."""
    program = compile_graph(graph_of(c, 2), target=target, passes=3)
    calls = [
        x for e in program.entries for p in e.plans for x in p.calls if x.kernel.startswith("attention/")
    ]
    if calls[0].kernel != "attention/flash_v2":
        return "decode" if calls[0].kernel == "attention/flash_decode" else calls[0].kernel
    return "hopper" if calls[0].options["block"][0] == 256 else "flash"


def operands_of(c: Chunk) -> dict[str, torch.Tensor]:
    """Return queries, keys, values and the mask."""
    shapes = {"q": (c.batch, c.heads, c.new, c.d), "k": (c.batch, c.kv_heads, c.capacity, c.d)}
    shapes["v"] = shapes["k"]
    operands = {n: torch.randn(s, device="cuda", dtype=torch.bfloat16) for n, s in shapes.items()}
    rows = c.start + torch.arange(c.new, device="cuda")[:, None]
    mask = torch.arange(c.capacity, device="cuda")[None] <= rows
    return operands | {"mask": mask.expand(c.batch, 1, -1, -1).contiguous()}


def error_of(inputs: dict[str, torch.Tensor], y: torch.Tensor) -> float:
    """max|d| / max|ref| against float64 at the first head of the first batch and the last of the last."""
    q, k, v, mask = inputs.values()
    worst = 0.0
    for batch, head in ((0, 0), (q.shape[0] - 1, q.shape[1] - 1)):
        at = head * k.shape[1] // q.shape[1]
        scores = q[batch, head].double() @ k[batch, at].double().T * q.shape[-1] ** -0.5
        want = scores.masked_fill(~mask[batch, 0], -torch.inf).softmax(-1) @ v[batch, at].double()
        worst = max(worst, float((y[batch, head].double() - want).abs().max() / want.abs().max()))
    return worst


def peer_of(inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """Return PyTorch's attention by its own choice of backend, LAYERS times in a CUDA graph."""
    q, k, v, mask = inputs.values()
    grouped = q.shape[1] != k.shape[1]

    def work() -> torch.Tensor:
        x = q
        for _ in range(LAYERS):
            x = torch.nn.functional.scaled_dot_product_attention(x, k, v, attn_mask=mask, enable_gqa=grouped)
        return x

    return captured(work)


def chunks(report: Report, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every chunk by every way."""
    backend, rows = CudaBackend(), []
    torch.zeros(1, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    executors = executors_of(False, ("decode", "flash"), backend) | executors_of(True, ("hopper",), backend)
    with ThreadPoolExecutor(THREADS) as pool:
        defaults = dict(zip(CHUNKS, pool.map(lambda c: default_of(c, backend.target), CHUNKS), strict=True))
    for c in CHUNKS:
        inputs, works, errors = operands_of(c), dict[str, Callable[[], Any]](), {}
        for way in WAYS:
            if (executor := executors.get((c, way))) is None:
                continue
            out = executor.run(inputs, stream=stream)
            torch.cuda.synchronize()
            errors[way] = round(error_of(inputs, torch.from_dlpack(out["first"])), 5)
            works[way] = functools.partial(executor.run, inputs, out=out, stream=stream)
        works["torch"] = peer_of(inputs)
        us = {n: round(statistics.median(t), 2) for n, t in by_turns(works, LAYERS).items()}
        row = {"case": str(c), "default": defaults[c], "us": us, "error": errors}
        print(row, flush=True)
        rows.append(row)
        report.check(all(e <= TOLERANCE for e in errors.values()), f"{c}: right")
    return rows


PARTS = {"chunks": chunks}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a result is wrong."""
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
