"""Convolutions in float32 on CUDA: each tile and split of ``conv/implicit_gemm``, next to ``conv/cudnn`` and PyTorch. ``kernels/cuda/matmul/fma.py`` takes its constants from here.

    python benchmarks/cuda/conv_float32.py --out benchmarks/results/cuda_conv_float32.json [--cases "16x224x14x14 896 k1 s1 p0 g1 gelu,..."]

A case is the input, the filters, the kernel, stride, padding, groups and the activation. Ours are by CUPTI, from the previous launch's end to
its own, the shortest of three runs. PyTorch's are half of a CUDA graph of two, with channels first, as its networks have them. TF32 is off.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import paths  # noqa: F401
import torch
from gpu_report import queued_us
from side_by_side import run_cases
from suite import _graph, alone

import xpuruntime as xrt
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.kernels.cuda.conv import generated
from xpuruntime.kernels.cuda.matmul import fma
from xpuruntime.kernels.cuda.matmul.fma import CONFIGS, FmaConfig, fma_config

CASES = (
    "16x224x14x14 896 k1 s1 p0 g1 gelu", "16x896x14x14 224 k1 s1 p0 g1 none", "16x448x7x7 1792 k1 s1 p0 g1 gelu", "16x48x56x56 192 k1 s1 p0 g1 gelu",
    "16x192x56x56 48 k1 s1 p0 g1 none", "16x64x112x112 256 k1 s1 p0 g1 gelu", "16x256x14x14 2048 k1 s1 p0 g1 gelu", "1x48x75x75 192 k3 s1 p1 g1 silu",
    "1x256x10x10 1536 k1 s1 p0 g1 silu", "1x1536x10x10 256 k1 s1 p0 g1 none", "1x1536x1x1 64 k1 s1 p0 g1 silu", "1x768x1x1 768 k1 s1 p0 g1 sigmoid",
    "1x1024x14x14 512 k1 s1 p0 g1 none", "1x128x14x14 128 k3 s1 p1 g1 none", "1x256x8x8 256 k3 s1 p1 g1 silu", "1x16x128x128 32 k3 s1 p1 g1 silu",
    "1x320x14x14 320 k3 s1 p1 g20 relu", "1x64x112x112 64 k3 s2 p1 g4 relu", "16x3x224x224 40 k4 s4 p0 g1 none", "16x3x224x224 768 k16 s16 p0 g1 none",
    "1x512x3199 512 k3 s2 p0 g1 gelu", "1x768x49 768 k128 s1 p64 g16 none", "1x1x16000 512 k10 s5 p0 g1 none", "1x64x16x56x56 64 k3 s1 p1 g1 relu",
    "1x512x2x7x7 512 k3 s1 p1 g1 relu", "1x128x8x28x28 128 k3 s1 p1 g1 relu", "1x64x56x56 64 k3 s1 p1 g1 relu", "1x512x7x7 512 k3 s1 p1 g1 relu",
    "16x64x56x56 64 k3 s1 p1 g1 relu", "16x256x14x14 256 k3 s1 p1 g1 relu", "16x1024x1x1 64 k1 s1 p0 g1 silu", "1x96x56x56 96 k3 s1 p1 g1 relu",
    "16x768x14x14 3072 k1 s1 p0 g1 gelu", "16x96x56x56 384 k1 s1 p0 g1 gelu",
)  # fmt: skip
ACTS = {
    "none": torch.nn.Identity,
    "relu": torch.nn.ReLU,
    "gelu": torch.nn.GELU,
    "silu": torch.nn.SiLU,
    "sigmoid": torch.nn.Sigmoid,
}
SPLITS = (1, 2, 4, 8, 16)
MOST_ERROR = 1e-4
"""From float64, relative to the largest value."""
MOST = 10
"""Configurations of a case: those with the shortest estimates, at most three of a tile."""


class Copies(torch.nn.Module):
    """Equal convolutions of one input, with weights of their own."""

    def __init__(self, text: str, count: int) -> None:
        super().__init__()
        shape, filters, *numbers, act = text.split()
        self.shape = [int(x) for x in shape.split("x")]
        kernel, stride, padding, groups = (int(n[1:]) for n in numbers)
        kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[len(self.shape) - 3]
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(kind(self.shape[1], int(filters), kernel, stride, padding, groups=groups), ACTS[act]())
            for _ in range(count)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Return the result of each."""
        return [layer(x) for layer in self.layers]


def configs(m: int, n: int, k: int, groups: int) -> list[FmaConfig]:
    """Return the configurations that are worth a measurement; the default is the first."""
    target = cuda_target("cuda:h100-sxm")
    every = [
        FmaConfig(tile, splits)
        for tile in CONFIGS
        for splits in SPLITS
        if splits == 1 or (k >= 64 * splits and tile.blocks(m, n) * groups * splits <= 1200)
    ]
    every.sort(key=lambda c: fma._cycles(c, m, n, -(-k // 16), groups, 132, 232448))
    chosen = [fma_config(m, n, k, groups, target)]
    for c in every:
        if c not in chosen and sum(c.tile == other.tile for other in chosen) < 3 and len(chosen) < MOST:
            chosen.append(c)
    return chosen


def _turns(session: Any, x: Any, family: str = "conv/") -> list[tuple[float, Any]]:
    """Return the shortest microseconds of each call of a family from the previous launch's end to its own, and its last launch."""
    given = x.numpy() if isinstance(x, torch.Tensor) else x
    session.run({session.input_info[0].name: given})
    executor = session._executable._last
    rows: dict[int, tuple[float, Any]] = {}
    for attempt in range(4):
        end, spans = 0.0, executor.observe([given]).calls
        for at, own in sorted(spans.items(), key=lambda i: i[1][0].start_us):
            last = max(s.start_us + s.time_us for s in own)
            us = last - max(end, own[0].start_us if attempt == 0 else end)
            end = max(end, last)
            if executor.plan.calls[at].kernel.startswith(family) and attempt:
                rows[at] = min(rows.get(at, (us, own[-1])), (us, own[-1]), key=lambda r: r[0])
    return [rows[at] for at in sorted(rows)]


def largest_error(session: Any, model: torch.nn.Module, x: torch.Tensor) -> float:
    """Return the largest max|d| / max|ref| of the session's outputs from the module's in float64."""
    ours = session.run({session.input_info[0].name: x.cpu().numpy()}).values()
    wants = [y.cpu().numpy() for y in model.to("cuda", torch.float64)(x.double())]
    return max(float(abs(y - want).max() / abs(want).max()) for y, want in zip(ours, wants, strict=True))


def measured(text: str, lock: Path | None) -> dict[str, Any]:
    """Return the times of a case."""
    os.environ["XPU_CACHE_MODE"] = "off"
    torch.manual_seed(0)
    model = Copies(text, 2).eval()
    x = torch.randn(*model.shape)
    sizes, seen, usual = list[tuple[int, int, int, int]](), dict[str, int](), generated.fma_call

    def opened(model: Any, kernel: str) -> Any:
        policy = xrt.KernelPolicy(conv=kernel)
        return xrt.InferenceSession(
            model, device="cuda:0", engine="native", example_inputs=(x,), kernel_policy=policy
        )

    def choice(call: Any, s: Any, packed_k: int, target: Any) -> Any:
        sizes.append((s.pixels, s.filters, s.taps * s.channels, s.groups))
        options = configs(*sizes[0])
        at = seen.setdefault(call.node.outputs[0].name, len(seen))
        return usual(call, s, packed_k, target, options[at % len(options)])

    with mock.patch.object(generated, "fma_call", choice):
        opened(model, "implicit_gemm").close()
        options = configs(*sizes[0])
        seen.clear()
        many = Copies(text, len(options)).eval()
        ours = opened(many, "implicit_gemm")
    cudnn = opened(model, "cudnn")
    row: dict[str, Any] = {"sizes": sizes[0], "us": {}}
    with alone(lock), ours, cudnn:
        model, given = model.cuda(), x.cuda()
        row["largest error"] = worst = largest_error(ours, many, given)
        if not worst <= MOST_ERROR:
            return row | {"error": f"a result is {worst:.2g} from float64"}
        row["torch"] = round(queued_us(_graph(model, (given,)), 20, 3) / 2, 2)
        row["us"]["cudnn"] = round(min(us for us, _ in _turns(cudnn, x)), 2)
        for option, (us, span) in zip(options, _turns(ours, x), strict=True):
            t = option.tile
            if (t.blocks(*sizes[0][:2]), option.splits, t.threads) != (
                span.grid[0],
                span.grid[1],
                span.block[0],
            ):
                return row | {"error": f"{option} is not what ran: {span}"}
            row["us"][f"{t.rows}x{t.columns} split {option.splits}"] = round(us, 2)
        (evidence,) = cudnn.receipt(times=False).evidence.values()
        row["cudnn"] = next(r.kernel for r in evidence.rows if r.kernel.startswith("conv"))[:100]
    row["ours"] = next(us for name, us in row["us"].items() if " split " in name)
    return row


def note(row: Any) -> str:
    """Return what is printed of a case: PyTorch's time, cuDNN's, ours, and the fastest configurations."""
    best = sorted((us, name) for name, us in row["us"].items() if " split " in name)[:4]
    return f"torch {row['torch']} cudnn {row['us']['cudnn']} ours {row['ours']} best {best}"


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, __file__, measured, CASES, note=note))
