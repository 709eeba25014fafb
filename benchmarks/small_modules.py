"""Small modules that no model here was chosen for, on a CPU: native compared with PyTorch eager, in one process.

    python benchmarks/small_modules.py [--modules conv softmax ...] [--threads 1] [--rounds 7] [--beside] [--keep]

A module is a function of a few tensors or a layer of torch.nn, float32 unless its name says otherwise. Both results are compared first. Then both
take turns; a time is the median of the rounds, each of which is the least of its runs. A ratio is PyTorch's time over ours, so over 1 means that we are
faster. The list is for finding cliffs: no ratio here should be far below 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from machine import facts, keep
from torch import nn, randn
from torch.nn import functional

import xpuruntime as xrt

LIMIT = 1e-4
"""Largest max|d| / max|ref| from PyTorch that counts as right; results of fewer bits are compared after rounding."""
LIMIT_NARROW = 2e-2
ROUND_SECONDS = 0.05


class Function(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any) -> Any:
        """Apply the function."""
        return self.function(*operands)


def _codes(*shape: int) -> Any:
    return torch.randint(0, 255, shape, dtype=torch.uint8)


def _summed_rows(x: Any, i: Any) -> Any:
    return torch.zeros(1000, 64).scatter_add(0, i[:, None].expand(-1, 64), x)


def _largest_rows(x: Any, i: Any) -> Any:
    return torch.zeros(1000, 64).scatter_reduce(0, i[:, None].expand(-1, 64), x, "amax", include_self=False)


def _edges() -> tuple[Any, ...]:
    return randn(5000, 64), torch.randint(0, 1000, (5000,))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "bytes to normalized floats": (lambda x: (x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25, lambda: (_codes(1, 256, 256, 3),)),
    "floats to bytes, channels last": (lambda x: (x.permute(0, 2, 3, 1) * 255).clamp(0, 255).to(torch.uint8).contiguous(), lambda: (torch.rand(1, 3, 224, 224),)),
    "bfloat16, channels last": (lambda x: x.bfloat16().permute(0, 2, 3, 1).contiguous(), lambda: (randn(1, 3, 224, 224),)),
    "argmax over classes": (lambda x: x.argmax(1), lambda: (randn(1, 21, 256, 256),)),
    "softmax over classes": (lambda x: x.softmax(1), lambda: (randn(1, 21, 256, 256),)),
    "normalize over channels": (lambda x: functional.normalize(x, dim=1), lambda: (randn(1, 21, 256, 256),)),
    "softmax of rows of 4": (lambda x: x.softmax(-1), lambda: (randn(100000, 4),)),
    "sum of rows of 4": (lambda x: x.sum(-1), lambda: (randn(100000, 4),)),
    "maximum of rows of 3": (lambda x: x.amax(-1), lambda: (randn(100000, 3),)),
    "maximum of rows of 3, bfloat16": (lambda x: x.amax(-1), lambda: (randn(100000, 3).bfloat16(),)),
    "layer norm of rows of 8": (lambda x: functional.layer_norm(x, (8,)), lambda: (randn(50000, 8),)),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (randn(64, 4096),)),
    "topk": (lambda x: x.topk(5).values, lambda: (randn(64, 4096),)),
    "sort": (lambda x: x.sort(-1).values, lambda: (randn(64, 4096),)),
    "bilinear x2": (lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"), lambda: (randn(1, 3, 256, 256),)),
    "bicubic x2": (lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic"), lambda: (randn(1, 3, 256, 256),)),
    "nearest x2": (lambda x: functional.interpolate(x, scale_factor=2.0), lambda: (randn(1, 64, 64, 64),)),
    "grid_sample": (lambda x, g: functional.grid_sample(x, g, align_corners=False), lambda: (randn(1, 3, 256, 256), torch.rand(1, 128, 128, 2) * 2 - 1)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), lambda: (randn(1, 64, 64, 64),)),
    "unfold": (lambda x: functional.unfold(x, 3), lambda: (randn(1, 16, 64, 64),)),
    "fold": (lambda x: functional.fold(x, (64, 64), 3, padding=1), lambda: (randn(1, 144, 4096),)),
    "roll": (lambda x: x.roll((3, 5), (2, 3)), lambda: (randn(1, 3, 256, 256),)),
    "flip": (lambda x: x.flip(-1), lambda: (randn(1, 3, 256, 256),)),
    "tril": (lambda x: x.tril(), lambda: (randn(512, 512),)),
    "columns by index": (lambda x, i: x[:, i], lambda: (randn(64, 4096), torch.randint(0, 4096, (1000,)))),
    "stack, last": (lambda x, y: torch.stack([x, y], -1), lambda: (randn(64, 4096), randn(64, 4096))),
    "cat, last": (lambda x, y: torch.cat([x, y], -1), lambda: (randn(100000, 3), randn(100000, 1))),
    "one-hot": (lambda x: functional.one_hot((x > 0).long() + 2, 5), lambda: (randn(50000),)),
    "cdist": (lambda x, y: torch.cdist(x, y), lambda: (randn(200, 64), randn(300, 64))),
    "masked fill": (lambda x: x.masked_fill(x > 0, -1e9), lambda: (randn(64, 4096),)),
    "matrix by vector": (lambda x, y: x @ y, lambda: (randn(64, 4096), randn(4096))),
    "vector by matrix": (lambda x, y: x @ y, lambda: (randn(4096), randn(4096, 64))),
    "row by transposed matrix": (lambda x, y: x @ y.T, lambda: (randn(1, 1024), randn(1024, 1024))),
    "5,000 of 3x3 by 3x1": (lambda x, y: x @ y, lambda: (randn(5000, 3, 3), randn(5000, 3, 1))),
    "1,000 of 4x4 by 4x4": (lambda x, y: x @ y, lambda: (randn(1000, 4, 4), randn(1000, 4, 4))),
    "einsum of heads": (lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), lambda: (randn(2, 8, 64, 32), randn(2, 8, 64, 32))),
    "max_pool1d": (lambda x: functional.max_pool1d(x, 3, 2), lambda: (randn(4, 128, 256),)),
    "conv1d, filters given": (lambda x, w: functional.conv1d(x, w, padding=1), lambda: (randn(1, 64, 1000), randn(64, 64, 3))),
    "conv_transpose2d, filters given": (lambda x, w: functional.conv_transpose2d(x, w, stride=2), lambda: (randn(1, 64, 32, 32), randn(64, 32, 2, 2))),
    "batch norm, statistics given": (lambda x, m, v: functional.batch_norm(x, m, v), lambda: (randn(1, 64, 64, 64), randn(64), randn(64).abs())),
    "attention": (lambda q: functional.scaled_dot_product_attention(q, q, q), lambda: (randn(2, 8, 128, 64),)),
    "rfft": (lambda x: torch.fft.rfft(x).abs(), lambda: (randn(64, 1024),)),
    "exp": (lambda x: x.exp(), lambda: (randn(64, 4096),)),
    "pow 1.7": (lambda x: x.abs() ** 1.7, lambda: (randn(64, 4096),)),
    "sin": (lambda x: x.sin(), lambda: (randn(64, 4096),)),
    "atan2": (torch.atan2, lambda: (randn(64, 4096), randn(64, 4096))),
    "fmod": (lambda x: x.fmod(1.3), lambda: (randn(64, 4096),)),
    "index_add": (lambda x, i: torch.zeros(1000, 64).index_add(0, i, x), _edges),
    "scatter_add of rows": (_summed_rows, _edges),
    "scatter maximum of rows": (_largest_rows, _edges),
    "bincount": (lambda x: torch.bincount(x, minlength=100), lambda: (torch.randint(0, 100, (50000,)),)),
    "searchsorted": (torch.searchsorted, lambda: (randn(1000).sort().values, randn(20000))),
    "median": (lambda x: x.median(-1).values, lambda: (randn(100, 101),)),
    "argsort": (lambda x: x.argsort(-1), lambda: (randn(100, 100),)),
    "transpose": (lambda x: x.t().contiguous(), lambda: (randn(1024, 1024),)),
    "and of bools": (torch.logical_and, lambda: (randn(64, 4096) > 0, randn(64, 4096) > 0)),
    "norm of rows of 3": (lambda x: x.norm(dim=-1), lambda: (randn(100000, 3),)),
    "avg_pool1d": (lambda x: functional.avg_pool1d(x, 5, 1, 2), lambda: (randn(4, 128, 256),)),
    "stft": (lambda x: torch.stft(x, 512, 128, window=torch.hann_window(512), return_complex=True).abs(), lambda: (randn(1, 16000),)),
    "int32 remainder": (lambda x: x % 7, lambda: (torch.randint(-9999, 9999, (64, 4096), dtype=torch.int32),)),
}  # fmt: skip
"""Name -> a function and its operands."""

LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "LSTM of 512 units": (lambda: nn.LSTM(512, 512, batch_first=True), lambda: (randn(1, 20, 512),)),
    "LSTM, batch 8": (lambda: nn.LSTM(128, 128, batch_first=True), lambda: (randn(8, 50, 128),)),
    "GRU": (lambda: nn.GRU(256, 256, batch_first=True), lambda: (randn(1, 50, 256),)),
    "MLP": (lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)), lambda: (randn(1, 20),)),
    "MLP, batch 4,096": (lambda: nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)), lambda: (randn(4096, 20),)),
    "linear, one output": (lambda: nn.Linear(1000, 1), lambda: (randn(500, 1000),)),
    "linear, 3 rows": (lambda: nn.Linear(1024, 1024), lambda: (randn(3, 1024),)),
    "conv, 8 groups of 8": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=8), lambda: (randn(1, 64, 56, 56),)),
    "conv, 32 groups of 4": (lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32), lambda: (randn(1, 128, 28, 28),)),
    "conv, depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), lambda: (randn(1, 32, 112, 112),)),
    "conv, first of a network": (lambda: nn.Conv2d(3, 32, 3, 2, 1), lambda: (randn(1, 3, 224, 224),)),
    "conv, dilated": (lambda: nn.Conv2d(64, 64, 3, padding=4, dilation=4), lambda: (randn(1, 64, 64, 64),)),
    "conv, one channel": (lambda: nn.Conv2d(1, 16, 5, padding=2), lambda: (randn(1, 1, 128, 128),)),
    "conv, padded before": (lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(16, 32, 3, 2)), lambda: (randn(1, 16, 112, 112),)),
    "conv3d": (lambda: nn.Conv3d(16, 16, 3, padding=1), lambda: (randn(1, 16, 16, 32, 32),)),
    "transposed conv 4, stride 2": (lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), lambda: (randn(1, 64, 32, 32),)),
    "transposed conv 2, stride 2": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), lambda: (randn(1, 64, 32, 32),)),
    "attention layer": (lambda: nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), lambda: (randn(2, 64, 128),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10000, 64), lambda: (torch.randint(0, 10000, (64, 20)),)),
    "GroupNorm": (lambda: nn.GroupNorm(32, 320), lambda: (randn(1, 320, 32, 32),)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(5), lambda: (randn(1, 64, 28, 28),)),
    "GELU": (nn.GELU, lambda: (randn(128, 3072),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), lambda: (randn(1, 64, 112, 112),)),
    "Bilinear": (lambda: nn.Bilinear(32, 32, 16), lambda: (randn(64, 32), randn(64, 32))),
}  # fmt: skip
"""Name -> a layer and its operands."""


def built(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the module of a name with seeded weights, and its operands."""
    torch.manual_seed(0)
    if name in LAYERS:
        layer, operands = LAYERS[name]
        return layer().eval(), operands()
    function, operands = FUNCTIONS[name]
    return Function(function).eval(), operands()


def difference(got: Any, want: Any) -> float:
    """Return max|d| / max|ref|."""
    a, b = (torch.as_tensor(v).detach().double().numpy() for v in (got, want))
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max() / max(1e-30, np.abs(b).max()))


def least(run: Callable[[], Any]) -> float:
    """Return the least seconds of the runs of a round, at least three."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < ROUND_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measured(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return the row of a module."""
    module, operands = built(name)
    policy = {"version": 1, "execution": {"caching": False}}
    try:
        session = xrt.InferenceSession(
            module, example_inputs=operands, engine="native", threads=threads, policy=policy
        )
    except xrt.XpuError as error:
        return {"module": name, "refused": str(error)[:200]}
    with session, torch.inference_mode():
        feeds = dict(zip([i.name for i in session.get_inputs()], operands, strict=True))
        want = module(*operands)
        want = want[0] if isinstance(want, tuple) else want
        error = difference(session.run(None, feeds)[0], want)
        limit = LIMIT if want.dtype in (torch.float32, torch.int64, torch.int32) else LIMIT_NARROW
        runs = {"native": lambda: session.run(None, feeds), "torch": lambda: module(*operands)}
        times: dict[str, list[float]] = {n: [] for n in runs}
        for turn in range(rounds):
            for n in list(runs)[:: 1 if turn % 2 else -1]:
                times[n].append(least(runs[n]))
    us = {n: round(statistics.median(t) * 1e6, 1) for n, t in times.items()}
    row = {"module": name, "threads": threads, "error": error, "right": error <= limit, "us": us}
    return row | {"ratio": round(us["torch"] / us["native"], 2)}


def main() -> int:
    """Measure and print; exit with 1 if one of our results is wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--modules", nargs="*", default=[], help="parts of names; all without")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beside", action="store_true", help="keep times though other work runs")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/small_modules.json")
    options = parser.parse_args()
    names = [n for n in (*FUNCTIONS, *LAYERS) if not options.modules or any(m in n for m in options.modules)]
    if not names:
        parser.error(f"no module has one of {options.modules} in its name")
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"machine": facts("torch", "numpy")}
    rows = []
    for name in names:
        row = measured(name, options.threads, options.rounds)
        rows.append(row)
        text = (
            row.get("refused")
            or f"{row['us']['native']:9.1f} us, torch {row['us']['torch']:9.1f}: {row['ratio']:.2f}"
        )
        print(f"{name:32} {text}{'' if row.get('right', True) else '  WRONG'}", flush=True)
    result["rows"] = rows
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    if ratios:
        result["geometric_mean"] = round(float(np.exp(np.mean(np.log(ratios)))), 2)
        print(f"geometric mean of {len(ratios)} ratios: {result['geometric_mean']}; least {min(ratios)}")
    if options.keep:
        print("wrote", keep("small_modules", result, beside=options.beside))
    return 0 if all(r.get("right", True) for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
