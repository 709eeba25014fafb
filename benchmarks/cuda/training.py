"""A training step on CUDA: GPT-2 small in bfloat16 and ResNet-50 in float16, against PyTorch eager and torch.compile, in one run.

    python benchmarks/cuda/training.py --out build/training.json [--steps 20] [--small] [--with max-autotune] [PART ...]

Each contender trains the same network on the same batches in a process of its own, twice in turn; the losses must agree. Times are medians of
rounds; memory is the peak that PyTorch's allocator reports over one step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from gpu_report import Report, arguments, run_parts

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch import ops
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

    fused_head, low = False, torch.bfloat16

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        if self.fused_head:
            weight = self.words.weight.to(x.dtype if x.dtype is not torch.float32 else self.low)
            return ops.linear_cross_entropy(self.norm(x).to(weight.dtype), weight, targets)
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


COMPILED: dict[str, Callable[[torch.nn.Module], Callable[..., torch.Tensor]]] = {
    "eager": lambda m: m,
    "torch.compile": lambda m: torch.compile(m),
    "torch.compile max-autotune": lambda m: torch.compile(m, mode="max-autotune"),
    "xpuruntime": lambda m: torch.compile(m, backend="xpuruntime"),
    "eager, captured": lambda m: m,
    "xpuruntime, captured": lambda m: torch.compile(m, backend="xpuruntime"),
    "xpuruntime, captured, fused head": lambda m: torch.compile(m, backend="xpuruntime"),
}
"""Contender -> how the network is called."""


def contender(name: str, net: torch.nn.Module, dtype: torch.dtype) -> Contender:
    """Return a contender for a network of its own."""
    if "fused head" in name:
        assert isinstance(net, Gpt2)
        net.fused_head = True
    step = step_of(net, COMPILED[name](net), dtype)
    return Contender(name, xrt_torch.capture_graph(step) if "captured" in name else step)


def measure(each: Contender, batches: list[tuple[torch.Tensor, ...]], steps: int) -> None:
    """Run the first steps, whose losses are compared, then time rounds."""
    start = time.perf_counter()
    each.losses = [float(each.step(*b).detach()) for b in batches]
    each.facts["first_steps_s"] = round(time.perf_counter() - start, 2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    each.step(*batches[0])
    torch.cuda.synchronize()
    each.peak_bytes = torch.cuda.max_memory_allocated()
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(steps):
            each.step(*batches[i % len(batches)])
        torch.cuda.synchronize()
        each.rounds.append((time.perf_counter() - start) / steps * 1e3)


def gpt2(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """GPT-2 small, 8 x 1,024 tokens, bfloat16 by autocast, AdamW."""
    return compared(report, args, "gpt2")


def resnet50(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """ResNet-50, 128 images, float16 by autocast, AdamW."""
    return compared(report, args, "resnet50")


def network(part: str, small: bool) -> tuple[torch.nn.Module, torch.dtype, list[tuple[torch.Tensor, ...]]]:
    """Return a part's network, its precision and its batches, the same in every process."""
    torch.manual_seed(0)
    if part == "gpt2":
        layers, heads, size, length, words = (2, 4, 64, 32, 100) if small else (12, 12, 768, 1024, 50257)
        net: torch.nn.Module = Gpt2(layers, heads, size, length, words).cuda()
        shape = (2 if small else 8, length)
        batches = [tuple(torch.randint(0, words, shape, device="cuda") for _ in range(2)) for _ in range(8)]
        return net, torch.bfloat16, batches
    rows, side = (4, 64) if small else (128, 224)
    net = ImageLoss().cuda()
    images = [torch.randn(rows, 3, side, side, device="cuda") for _ in range(8)]
    return net, torch.float16, [(x, torch.randint(0, 1000, (rows,), device="cuda")) for x in images]


def compared(report: Report, args: argparse.Namespace, part: str) -> dict[str, Any]:
    """Measure every contender in a process of its own, twice in turn: PyTorch's compiler counts compilations per code, not per network."""
    names = [n for n in COMPILED if "max-autotune" not in n or "max-autotune" in args.extra]
    names = [n for n in names if part == "gpt2" or "fused head" not in n]
    figures: dict[str, Any] = {}
    for name in names * 2:
        entry = in_a_process(part, name, args)
        if (before := figures.get(name)) is not None and "error" not in before and "error" not in entry:
            entry["rounds_ms"] = before["rounds_ms"] + entry["rounds_ms"]
        figures[name] = entry
    reference = figures["eager"]["losses"]
    for name, entry in figures.items():
        if "error" in entry:
            report.check(False, f"{name}: {entry['error']}")
            continue
        losses = entry.pop("losses") if name != "eager" else reference
        entry["loss_gap"] = max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))
        entry["median_ms"] = round(statistics.median(entry["rounds_ms"]), 3)
        report.check(entry["loss_gap"] <= TOLERANCE, f"{name}: losses within {TOLERANCE}")
        print(f"   {name:34} {entry['median_ms']:9} ms {entry['peak_mib']:9} MiB", flush=True)
    return figures


def in_a_process(part: str, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one contender, measured in a process of its own."""
    command = [sys.executable, __file__, part, "--contender", name, "--steps", str(args.steps)]
    done = subprocess.run(
        [*command, *(["--small"] if args.small else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:500] if done.stderr.strip() else "no output"}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def alone(part: str, name: str, args: argparse.Namespace) -> None:
    """Measure one contender in this process and print its figures as JSON."""
    net, dtype, batches = network(part, args.small)
    each = contender(name, net, dtype)
    measure(each, batches, args.steps)
    figures: dict[str, Any] = {
        "losses": each.losses,
        "rounds_ms": [round(r, 3) for r in each.rounds],
        "peak_mib": round(each.peak_bytes / 2**20, 1),
        **each.facts,
    }
    if isinstance(each.step, CapturedStep):
        last = each.step.report[-1]
        figures |= {"captured": last.captured, "obstacles": [str(o) for o in last.obstacles]}
    if graphs := compiled_graphs():
        figures["graphs"] = [
            {"phase": g.phase, "regions": g.regions, "taken": g.taken, "left": sorted(set(g.left.values()))}
            for g in graphs
        ]
    print(json.dumps(figures))


PARTS = {"gpt2": gpt2, "resnet50": resnet50}


def options() -> argparse.ArgumentParser:
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--contender", choices=COMPILED, help="measure this one alone, and print JSON")
    parser.add_argument("--with", dest="extra", action="append", default=[], help="max-autotune")
    return parser


if __name__ == "__main__":
    asked = options().parse_args()
    if asked.contender:
        alone(asked.parts[0], asked.contender, asked)
        sys.exit()
    sys.exit(
        run_parts(
            __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), parser=options()
        )
    )
