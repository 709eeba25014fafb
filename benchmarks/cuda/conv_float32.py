"""Convolutions in float32 on CUDA: each tile and split of ``conv/implicit_gemm``, next to ``conv/cudnn`` and PyTorch. ``kernels/cuda/matmul/fma.py`` takes its constants from here.

    python benchmarks/cuda/conv_float32.py --out benchmarks/results/cuda_conv_float32.json [--cases "16x224x14x14 896 k1 s1 p0 g1 gelu,..."]

A case is the input, the filters, the kernel, stride, padding, groups and the activation. Ours are device times of one launch, by CUPTI, the shortest of
four equal convolutions. PyTorch's are a quarter of a CUDA graph of the same four, with channels first, as its networks have them. TF32 is off.
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
COPIES = 4
ACTS = {
    "none": torch.nn.Identity,
    "relu": torch.nn.ReLU,
    "gelu": torch.nn.GELU,
    "silu": torch.nn.SiLU,
    "sigmoid": torch.nn.Sigmoid,
}
SPLITS = (1, 2, 4, 8, 16)


class Copies(torch.nn.Module):
    """Equal convolutions of one input, with weights of their own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        shape, filters, *numbers, act = text.split()
        self.shape = [int(x) for x in shape.split("x")]
        kernel, stride, padding, groups = (int(n[1:]) for n in numbers)
        kind = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[len(self.shape) - 3]
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(kind(self.shape[1], int(filters), kernel, stride, padding, groups=groups), ACTS[act]())
            for _ in range(COPIES)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Return the result of each."""
        return [layer(x) for layer in self.layers]


def configs(m: int, n: int, k: int, groups: int) -> list[FmaConfig]:
    """Return the configurations that are worth a measurement."""
    return [
        FmaConfig(tile, splits)
        for tile in CONFIGS
        for splits in SPLITS
        if tile.blocks(m, n) * tile.rows * tile.columns <= 3 * max(m, 16) * max(n, 16)
        and (splits == 1 or (k >= 64 * splits and tile.blocks(m, n) * groups * splits <= 800))
    ]


def measured(text: str, lock: Path | None) -> dict[str, Any]:
    """Return the times of a case."""
    os.environ["XPU_CACHE_MODE"] = "off"
    torch.manual_seed(0)
    model, sizes = Copies(text).eval(), list[tuple[int, int, int, int]]()
    x = torch.randn(*model.shape)

    def opened(config: FmaConfig | None, kernel: str = "implicit_gemm") -> Any:
        def choice(m: int, n: int, k: int, groups: int, target: Any) -> FmaConfig:
            sizes.append((m, n, k, groups))
            return config or fma_config(m, n, k, groups, target)

        with mock.patch.object(generated, "fma_config", choice):
            return xrt.InferenceSession(
                model, device="cuda:0", engine="native", example_inputs=(x,), kernel_policy={"conv": kernel}
            )

    sessions = {"ours": opened(None), "cudnn": opened(None, "cudnn")}
    for config in configs(*sizes[0]):
        t = config.tile
        sessions[f"{t.rows}x{t.columns} split {config.splits}"] = opened(config)
    chosen = fma_config(*sizes[0], cuda_target("cuda:sm_90a"))
    row: dict[str, Any] = {
        "sizes": sizes[0],
        "chosen": f"{chosen.tile.rows}x{chosen.tile.columns} split {chosen.splits}",
        "us": {},
    }
    with alone(lock):
        model, given = model.cuda(), x.cuda()
        replay = _graph(model, (given,))
        row["torch"] = round(queued_us(replay, 10, 3) / COPIES, 2)
        want = model.double()(given.double())
        for name, session in sessions.items():
            with session:
                outputs = list(session.run({session.input_info[0].name: x.numpy()}).values())
                (evidence,) = session.receipt().evidence.values()
                rows = [r for r in evidence.rows if "conv" in r.op]
                row["us"][name] = round(min(sum(s.time_us for s in r.seen) for r in rows), 2)
                row.setdefault("kernels", {})[name] = (
                    rows[0].kernel[:90] if name in ("ours", "cudnn") else rows[0].kernel.partition(":")[0]
                )
                y = torch.from_numpy(outputs[0]).cuda().double()
                error = float((y - want[0]).norm() / want[0].norm())
                if not error <= 2e-6:
                    row["error"] = f"{name} is wrong: {error:.3g}"
    row["kernels"] = {k: v for k, v in row["kernels"].items() if k in ("ours", "cudnn")}
    return row


def note(row: Any) -> str:
    """Return what is printed of a case: PyTorch's time, cuDNN's, ours, and the fastest configurations."""
    best = sorted((us, name) for name, us in row["us"].items() if " split " in name)[:4]
    return f"torch {row['torch']} cudnn {row['us']['cudnn']} ours {row['us']['ours']} ({row['chosen']}) best {best}"


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, __file__, measured, CASES, note=note))
