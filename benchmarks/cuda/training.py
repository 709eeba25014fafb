"""A training step on CUDA: GPT-2 small in bfloat16 and ResNet-50 in float16, against PyTorch eager and torch.compile, in one run.

    python benchmarks/cuda/training.py --out build/training.json [--steps 20] [--small] [--with max-autotune] [PART ...]

Each contender trains its own copy of the network on the same batches; the losses must agree before anything is timed. Times are medians of
rounds that alternate between the contenders; memory is the peak that PyTorch's allocator and our pool report over one step.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from gpu_report import Report, arguments, run_parts

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch.capture.step import CapturedStep
from xpuruntime.pytorch.compiled import compiled_graphs

TOLERANCE = 0.02  # of the loss, relative: 16-bit steps of different kernels


class CausalBlock(torch.nn.Module):
    """A block of GPT-2."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(size, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    """GPT-2 with a tied head; sizes of the small one are 12 layers, 12 heads, 768, 1,024 positions, 50,257 words."""

    def __init__(self, layers: int, heads: int, size: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.positions = torch.nn.Embedding(words, size), torch.nn.Embedding(length, size)
        self.blocks = torch.nn.ModuleList(CausalBlock(size, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class ImageLoss(torch.nn.Module):
    """ResNet-50 with its loss."""

    def __init__(self) -> None:
        super().__init__()
        import torchvision

        self.net = torchvision.models.resnet50()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(images).float(), labels)


@dataclass
class Contender:
    """One way to run a step, and what was measured of it."""

    name: str
    step: Callable[..., torch.Tensor]
    losses: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def step_of(
    net: torch.nn.Module, run: Callable[..., torch.Tensor], dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=True, capturable=True)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype):
            loss = run(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def contenders(net: torch.nn.Module, dtype: torch.dtype, extra: list[str]) -> list[Contender]:
    def twin() -> torch.nn.Module:
        return copy.deepcopy(net)

    made = []
    for name, compiled in (
        ("eager", lambda m: m),
        ("torch.compile", lambda m: torch.compile(m)),
        *([("torch.compile max-autotune", lambda m: torch.compile(m, mode="max-autotune"))] if "max-autotune" in extra else []),
        ("xpuruntime", lambda m: torch.compile(m, backend="xpuruntime")),
    ):  # fmt: skip
        own = twin()
        made.append(Contender(name, step_of(own, compiled(own), dtype)))
    own = twin()
    captured = xrt_torch.capture_graph(step_of(own, torch.compile(own, backend="xpuruntime"), dtype))
    made.append(Contender("xpuruntime, captured", captured))
    own = twin()
    made.append(Contender("eager, captured", xrt_torch.capture_graph(step_of(own, own, dtype))))
    return made


def measure(all_of: list[Contender], batches: list[tuple[torch.Tensor, ...]], steps: int) -> None:
    """Run the same first steps on each, then time rounds in turns."""
    for each in all_of:
        try:
            start = time.perf_counter()
            each.losses = [float(each.step(*b).detach()) for b in batches]
            each.facts["first_steps_s"] = round(time.perf_counter() - start, 2)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            each.step(*batches[0])
            torch.cuda.synchronize()
            each.peak_bytes = torch.cuda.max_memory_allocated()
        except Exception as error:
            traceback.print_exc()
            each.error = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    able = [c for c in all_of if not c.error]
    for _ in range(7):
        for each in able:
            each.step(*batches[0])
            torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(steps):
                each.step(*batches[i % len(batches)])
            torch.cuda.synchronize()
            each.rounds.append((time.perf_counter() - start) / steps * 1e3)


def gpt2(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """GPT-2 small, 8 x 1,024 tokens, bfloat16 by autocast, AdamW."""
    torch.manual_seed(0)
    layers, heads, size, length, words = (2, 4, 64, 32, 100) if args.small else (12, 12, 768, 1024, 50257)
    net = Gpt2(layers, heads, size, length, words).cuda()
    shape = (2 if args.small else 8, length)
    batches = [tuple(torch.randint(0, words, shape, device="cuda") for _ in range(2)) for _ in range(8)]
    return compared(report, args, net, torch.bfloat16, batches)


def resnet50(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """ResNet-50, 128 images, float16 by autocast, AdamW."""
    torch.manual_seed(0)
    rows, side = (4, 64) if args.small else (128, 224)
    batches = [
        (torch.randn(rows, 3, side, side, device="cuda"), torch.randint(0, 1000, (rows,), device="cuda"))
        for _ in range(8)
    ]
    return compared(report, args, ImageLoss().cuda(), torch.float16, batches)


def compared(
    report: Report,
    args: argparse.Namespace,
    net: torch.nn.Module,
    dtype: torch.dtype,
    batches: list[tuple[torch.Tensor, ...]],
) -> dict[str, Any]:
    """Measure every contender and return its figures."""
    # The contenders share the network's code, and PyTorch counts compilations per code.
    torch._dynamo.config.recompile_limit = 64
    all_of = contenders(net, dtype, args.extra)
    first_graph = len(compiled_graphs())
    measure(all_of, batches, args.steps)
    figures: dict[str, Any] = {}
    for each in all_of:
        figures[each.name] = entry = figures_of(each, all_of[0].losses)
        report.check(not each.error and entry["right"], f"{each.name}: {each.error or entry['loss_gap']}")
        shown = f"{entry.get('median_ms', '-'):>9} ms {entry.get('peak_mib', '-'):>9} MiB"
        print(f"   {each.name:28} {shown}", flush=True)
    return {
        "dtype": str(dtype),
        "batch": list(batches[0][0].shape),
        "contenders": figures,
        "graphs": [g.to_json() for g in compiled_graphs()[first_graph:]],
    }


def figures_of(each: Contender, reference: list[float]) -> dict[str, Any]:
    """Return the figures of one contender as plain data."""
    if each.error:
        return {"error": each.error}
    gap = max(abs(a - b) / abs(b) for a, b in zip(each.losses, reference, strict=True))
    figures: dict[str, Any] = {
        "median_ms": round(statistics.median(each.rounds), 3),
        "rounds_ms": [round(r, 3) for r in each.rounds],
        "peak_mib": round(each.peak_bytes / 2**20, 1),
        "loss_gap": gap,
        "right": gap <= TOLERANCE,
        **each.facts,
    }
    if isinstance(each.step, CapturedStep):
        last = each.step.report[-1]
        figures |= {"captured": last.captured, "obstacles": [str(o) for o in last.obstacles]}
    return figures


PARTS = {"gpt2": gpt2, "resnet50": resnet50}


def options() -> argparse.ArgumentParser:
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--with", dest="extra", action="append", default=[], help="max-autotune")
    return parser


if __name__ == "__main__":
    sys.exit(
        run_parts(
            __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), parser=options()
        )
    )
