"""Attention in training on a device: results and gradients near float64, the same bits each time, the bits of sessions, and kernels by policy.

    python tests/gpu/attention_gradients.py --out benchmarks/results/cuda_attention_gradients.json [--device cpu] [PART ...]

Errors are compared with those of PyTorch's operator in the same dtype. ``--device cpu`` runs the same checks on the kernel ``flash`` of processors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gpu_report import Report, arguments, run_parts

import xpuruntime.pytorch as xrt_torch
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.pytorch import ops
from xpuruntime.runtime import Executor

HALF_UNIT = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-24}
"""Half a unit in the last place of 1: errors below that of a typical value are those of rounding the result."""


class Case(NamedTuple):
    """Sizes of q [batch, heads, queries, d] and of k and v [batch, kv_heads, keys, d or dv]. mask: ``bool`` (one query sees nothing) or ``float``."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    causal: bool = False
    mask: str = ""

    def __str__(self) -> str:
        kind = "causal" if self.causal else (self.mask and f"{self.mask} mask") or "no mask"
        return f"b{self.batch} h{self.heads}/{self.kv_heads} q{self.queries} k{self.keys} d{self.d}/{self.dv} {kind}"

    def operands(self, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Return q, k, v and the gradient of the result."""
        generator = torch.Generator().manual_seed(0)
        shapes = (
            (self.batch, self.heads, self.queries, self.d),
            (self.batch, self.kv_heads, self.keys, self.d),
            (self.batch, self.kv_heads, self.keys, self.dv),
            (self.batch, self.heads, self.queries, self.dv),
        )
        return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]

    def mask_of(self, device: str) -> torch.Tensor | None:
        """Return the mask [queries, keys], or None."""
        query, key = torch.arange(self.queries)[:, None], torch.arange(self.keys)
        if self.mask == "bool":
            return (((query * 7 + key * 3) % 5 < 3) & (query != 1)).to(device)
        return ((key * 5 + query * 3) % 8 / 4 - 1.0).to(device) if self.mask else None


CASES = (
    Case(2, 4, 4, 256, 256, 64, 64), Case(2, 4, 4, 256, 256, 64, 64, True), Case(1, 8, 2, 1024, 1024, 128, 128, True), Case(1, 4, 4, 1023, 1025, 128, 128),
    Case(1, 6, 2, 333, 777, 64, 64, True), Case(1, 2, 1, 777, 333, 80, 40, True), Case(1, 2, 2, 65, 63, 36, 36), Case(1, 2, 2, 1, 1, 64, 64),
    Case(1, 4, 2, 130, 200, 64, 64, mask="bool"), Case(1, 2, 2, 130, 200, 32, 32, mask="float"), Case(3, 12, 12, 1024, 1024, 64, 64, True),
)  # fmt: skip
WORDS = {"cuda": ("flash_v2", torch.bfloat16, torch.float16), "cpu": ("flash", torch.bfloat16, torch.float32)}


def gradients(
    run: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor], grad: torch.Tensor
) -> list[torch.Tensor]:
    """Return the result and the gradients of q, k and v."""
    leaves = [t.detach().requires_grad_() for t in operands]
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def attend(case: Case, mask: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    """Return PyTorch's operator of a case."""
    grouped = case.heads != case.kv_heads

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        fitting = mask.to(q.dtype) if mask is not None and mask.dtype is not torch.bool else mask
        return F.scaled_dot_product_attention(q, k, v, fitting, is_causal=case.causal, enable_gqa=grouped)

    return run


def rms(value: torch.Tensor) -> float:
    """Return the root of the mean square."""
    return float(value.double().square().mean().sqrt()) if value.numel() else 0.0


def right(report: Report, args: argparse.Namespace) -> Any:
    """Results and gradients near float64, at most twice PyTorch's error, with the same bits each time."""
    word, *dtypes = WORDS[args.device]
    rows = []
    for case in CASES:
        for dtype in dtypes:
            *operands, grad = case.operands(dtype, args.device)
            mask = case.mask_of(args.device)
            theirs = attend(case, mask)
            true = gradients(theirs, [t.double() for t in operands], grad.double())
            other = gradients(theirs, operands, grad)

            def ours(
                q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case = case, mask: Any = mask
            ) -> torch.Tensor:
                return ops.attention(q, k, v, case.causal, None, case.heads != case.kv_heads, mask)

            rule = {"op": "attention", "use": word}
            policy = {"version": 1, "kernel": {"rules": [rule]}}
            with xrt_torch.set_kernel_policy(policy):
                mine, again = (gradients(ours, operands, grad) for _ in range(2))
            who = f"{case} {str(dtype).removeprefix('torch.')}"
            report.check(all(map(torch.equal, mine, again)), f"{who}: two runs have the same bits")
            errors = {}
            for name, a, b, t in zip(("y", "q", "k", "v"), mine, other, true, strict=True):
                bound = max(2 * rms(b - t), HALF_UNIT[dtype] * rms(t))
                errors[name] = [rms(a - t), rms(b - t)]
                report.check(rms(a - t) <= bound, f"{who}: {name} {rms(a - t):.2e}, at most {bound:.2e}")
            rows.append({"case": who, "errors": errors})
    report.bound("attention in training: at most twice PyTorch's error, equal bits", not report.failures)
    return rows


def sessions(report: Report, args: argparse.Namespace) -> Any:
    """The forward pass of training has the bits of a session's attention with the same kernel."""
    word, *dtypes = WORDS[args.device]
    for case in (c for c in CASES if not c.mask):
        for dtype in dtypes:
            q, k, v, _ = case.operands(dtype, args.device)
            kind = str(dtype).removeprefix("torch.")
            b = GraphBuilder("attention")
            names = [b.input(n, f"{kind}{list(t.shape)}") for n, t in zip("qkv", (q, k, v), strict=True)]
            b.output("y", b.attention(*names, causal=case.causal))
            program = compile_graph(b.build(), target=args.device, policy=KernelPolicy(attention=word))
            executor = Executor(program, "cuda:0" if args.device == "cuda" else "cpu")
            executor.bind({})
            (y,) = executor.run_tensors({"q": q, "k": k, "v": v}).values()
            with xrt_torch.set_kernel_policy(attention=word):
                mine = ops.attention(q, k, v, case.causal, None, case.heads != case.kv_heads)
            report.check(torch.equal(mine, y), f"{case} {kind}: training and inference have the same bits")
    report.bound("attention in training has the bits of a session", not report.failures)


def launched(work: Callable[[], Any], device: str) -> set[str]:
    """Return the names of the kernels that the profiler saw; on a processor none."""
    if device == "cpu":
        work()
        return set()
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return {event.key for event in seen.key_averages()}


def policies(report: Report, args: argparse.Namespace) -> Any:
    """A policy swaps exactly the kernels of attention, forward and backward: in the record, and on the device."""
    word, dtype, _ = WORDS[args.device]
    case = CASES[1]
    *operands, grad = case.operands(dtype, args.device)
    found: dict[str, Any] = {}
    for name in (word, "naive"):
        with xrt_torch.set_kernel_policy(attention=name), xrt_torch.record() as record:
            seen = launched(lambda: gradients(lambda *x: ops.attention(*x, case.causal), operands, grad), args.device)  # fmt: skip
        forward, backward = (record.kernels(p) for p in ("train_forward", "train_backward"))
        found[name] = {"forward": forward, "backward": backward, "launched": sorted(seen)}
        kernels = {k.partition(":")[0] for k in forward}
        report.check(kernels == {f"attention/{name}"}, f"{name}: forward runs {kernels}")
        kernels = {k.partition(":")[0] for k in backward}
        report.check((f"attention/{word}" in kernels) is (name == word), f"{name}: backward runs {kernels}")
        symbols = {k.partition(": ")[2].partition(" ")[0] for k in (*forward, *backward) if "attention/" in k}
        if args.device == "cuda":
            missing = {s for s in symbols if not any(s in kernel for kernel in seen)}
            report.check(
                not missing, f"{name}: the profiler saw {sorted(symbols)}; missing {sorted(missing)}"
            )
    report.bound("a policy swaps the kernels of attention in training", not report.failures)
    return found


def memory(report: Report, args: argparse.Namespace) -> Any:
    """A long sequence takes memory linear in its length: the scores alone would be 32 GiB in bfloat16."""
    if args.device == "cpu":
        return None
    case = Case(1, 16, 16, 32768, 32768, 64, 64, True)
    *operands, grad = case.operands(torch.bfloat16, args.device)
    before, _ = torch.cuda.mem_get_info()
    with xrt_torch.set_kernel_policy(attention="flash_v2"):
        mine = gradients(lambda *x: ops.attention(*x, case.causal), operands, grad)
    torch.cuda.synchronize()
    used = before - torch.cuda.mem_get_info()[0]
    report.check(all(bool(t.isfinite().all()) for t in mine), "a long sequence has finite gradients")
    report.bound("memory of attention, 32,768 positions", used / 2**20, at_most=2048, unit="MiB")
    return {"bytes": int(np.int64(used))}


PARTS = {"right": right, "sessions": sessions, "policies": policies, "memory": memory}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", choices=WORDS, default="cuda")
    return run_parts(
        __doc__,
        PARTS,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        packages=("torch",),
        argv=argv,
        parser=parser,
    )


if __name__ == "__main__":
    sys.exit(main())
