"""A training step: GPT-2 small in bfloat16 and ResNet-50 in float16, against PyTorch eager, torch.compile and Liger kernels, in one run.

    python benchmarks/cuda/training.py --out benchmarks/results/cuda_training.json [--steps 20] [--rounds 6] [--with max-autotune] [PART ...]
    python benchmarks/cuda/training.py --device cpu --small        # tries the script: tiny sizes, no statement about times

Each contender trains the same network on the same batches in a process of its own; the losses of its first steps must agree with eager's.
Processes start and compile side by side, except those that choose kernels by measuring them. All stay alive, and rounds of them alternate; a
contender's time is the median over its rounds. Memory is the peak that PyTorch's allocator reports over the last of the first steps, which include
the capture of a graph, since a graph's own memory does not count later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from gpu_report import Report, arguments, run_parts
from torch import Tensor, nn

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch.capture.step import CapturedStep
from xpuruntime.pytorch.compiled import compiled_graphs

TOLERANCE = 0.02
"""Bound on the relative gap of a loss from eager's: 16-bit steps of different kernels."""
FIRST_STEPS = 8
GOALS = {"gpt2": (1.1, 0.8), "resnet50": (1.0, None)}
"""Part -> goals: at least this many times as fast as the best other contender, at most this share of torch.compile's peak memory."""


# ── networks ──


class CausalBlock(nn.Module):
    """A block of GPT-2."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(size, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with a tied head and its loss; sizes of the small one are 12 layers, 12 heads, 768, 1,024 positions, 50,257 words."""

    def __init__(self, layers: int, heads: int, size: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, size), nn.Embedding(length, size)
        self.blocks = nn.ModuleList(CausalBlock(size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.loss(self.norm(x), targets)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(x, self.words.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, size: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, size, 1, bias=False), nn.BatchNorm2d(size), nn.ReLU(inplace=True),
            nn.Conv2d(size, size, 3, stride, 1, bias=False), nn.BatchNorm2d(size), nn.ReLU(inplace=True),
            nn.Conv2d(size, 4 * size, 1, bias=False), nn.BatchNorm2d(4 * size),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * size:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * size, 1, stride, bias=False), nn.BatchNorm2d(4 * size)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 and its loss (He et al., 2015; the stride is in the 3x3 convolution)."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )  # fmt: skip
        layers: list[nn.Module] = []
        inputs = 64
        for stage, depth in enumerate(depths):
            for i in range(depth):
                layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not i else 1))
                inputs = 256 << stage
        self.layers = nn.Sequential(*layers)
        self.classes = nn.Linear(inputs, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.classes(self.layers(self.stem(images)).mean((2, 3)))
        return F.cross_entropy(logits.float(), labels)


def network(part: str, small: bool, device: str) -> tuple[nn.Module, torch.dtype, list[tuple[Tensor, ...]]]:
    """Return a part's network, its precision and its batches, the same in every process."""
    torch.manual_seed(0)
    if part == "gpt2":
        layers, heads, size, length, words = (2, 4, 64, 32, 301) if small else (12, 12, 768, 1024, 50257)
        net: nn.Module = Gpt2(layers, heads, size, length, words).to(device)
        shape = (2 if small else 8, length)
        batches = [
            tuple(torch.randint(0, words, shape).to(device) for _ in range(2)) for _ in range(FIRST_STEPS)
        ]
        return net, torch.bfloat16, batches
    rows, side = (4, 32) if small else (128, 224)
    net = ResNet50((1, 1, 1, 1) if small else (3, 4, 6, 3)).to(device)
    images = [torch.randn(rows, 3, side, side).to(device) for _ in range(FIRST_STEPS)]
    # The host has no convolutions of float16.
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    return net, dtype, [(x, torch.randint(0, 1000, (rows,)).to(device)) for x in images]


# ── contenders ──


def liger(net: nn.Module) -> nn.Module:
    """Give GPT-2 Liger's layer norms and its fused head and loss."""
    from liger_kernel.transformers import (  # type: ignore[import-not-found]
        LigerFusedLinearCrossEntropyLoss,
        LigerLayerNorm,
    )

    assert isinstance(net, Gpt2)
    for module in list(net.modules()):
        for name, norm in list(module.named_children()):
            if isinstance(norm, nn.LayerNorm):
                fused = LigerLayerNorm(norm.normalized_shape[0], eps=norm.eps).to(norm.weight.device)
                fused.load_state_dict(norm.state_dict())
                setattr(module, name, fused)
    head = LigerFusedLinearCrossEntropyLoss()

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        low = torch.get_autocast_dtype(x.device.type)
        return head(net.words.weight.to(low), x.to(low).flatten(0, 1), targets.flatten())  # type: ignore[no-any-return]

    net.loss = loss  # type: ignore[method-assign]
    return net


def ours(net: nn.Module) -> Callable[..., Tensor]:
    return torch.compile(net, backend="xpuruntime")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Contender:
    """How a network is called.

    captured: the whole step is a CUDA graph. policy: kernels by op family. only: the part that it takes part in, or all. extra: it runs only
    when ``--with`` names it. needs: a package.
    """

    run: Callable[[nn.Module], Callable[..., Tensor]]
    captured: bool = False
    policy: dict[str, str] = field(default_factory=dict)
    only: str = ""
    extra: str = ""
    needs: str = ""

    def takes_part(self, part: str, args: argparse.Namespace) -> bool:
        if self.captured and args.device == "cpu":
            return False
        return (
            self.only in ("", part)
            and self.extra in ("", *args.extra)
            and (not self.needs or find_spec(self.needs) is not None)
        )


CONTENDERS: dict[str, Contender] = {
    "eager": Contender(lambda m: m),
    "eager, captured": Contender(lambda m: m, captured=True),
    "torch.compile": Contender(lambda m: torch.compile(m)),
    "torch.compile max-autotune": Contender(lambda m: torch.compile(m, mode="max-autotune"), extra="max-autotune"),
    "liger": Contender(liger, only="gpt2", needs="liger_kernel"),
    "liger, torch.compile": Contender(lambda m: torch.compile(liger(m)), only="gpt2", needs="liger_kernel"),
    "xpuruntime": Contender(ours),
    "xpuruntime, captured": Contender(ours, captured=True),
    "xpuruntime, flash_v2": Contender(ours, policy={"attention": "flash_v2"}, only="gpt2"),
    "xpuruntime, flash_v2, captured": Contender(ours, captured=True, policy={"attention": "flash_v2"}, only="gpt2"),
}  # fmt: skip


def step_of(
    net: nn.Module, run: Callable[..., Tensor], dtype: torch.dtype, device: str
) -> Callable[..., Tensor]:
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=True, capturable=device == "cuda")

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=dtype):
            loss = run(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def alone(part: str, name: str, args: argparse.Namespace) -> None:
    """Train one contender in this process: print the facts of its first steps, then the milliseconds of a step for each line of stdin."""
    contender, device = CONTENDERS[name], args.device
    start = time.perf_counter()
    net, dtype, batches = network(part, args.small, device)
    with ExitStack() as scope:
        if contender.policy:
            scope.enter_context(xrt_torch.set_kernel_policy(**contender.policy))
        step = step_of(net, contender.run(net), dtype, device)
        step = xrt_torch.capture_graph(step) if contender.captured else step
        losses, peaks = [], []
        for batch in batches:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            losses.append(float(step(*batch).detach()))
            peaks.append(torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0)
        facts: dict[str, Any] = {"losses": losses, "first_steps_s": round(time.perf_counter() - start, 1)}
        if device == "cuda":
            facts["peak_mib"] = round(max(peaks[FIRST_STEPS // 2 :]), 1)
        if isinstance(step, CapturedStep):
            last = step.report[-1]
            facts |= {"captured": last.captured, "obstacles": [str(o) for o in last.obstacles]}
        facts["graphs"] = [g.to_json() | {"left": sorted(set(g.left.values()))} for g in compiled_graphs()]
        print(json.dumps(facts), flush=True)
        for _ in sys.stdin:
            synchronize(device)
            start = time.perf_counter()
            for i in range(args.steps):
                step(*batches[i % len(batches)])
            synchronize(device)
            print(json.dumps((time.perf_counter() - start) / args.steps * 1e3), flush=True)


@dataclass
class Running:
    """A contender's process. ``facts`` holds what it said of its first steps, or ``error``."""

    process: subprocess.Popen[str]
    errors: IO[str]
    facts: dict[str, Any] = field(default_factory=dict)

    def read(self) -> Any:
        """Return the next answer, or note the error of a process that ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        self.facts["error"] = said[-1][:500] if said else f"it ended with {self.process.wait()}"
        return None

    def round(self) -> None:
        """Have it run one round."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # a process that ended: read() has the reason
            print(file=self.process.stdin, flush=True)
        figure = self.read()
        if figure is not None:
            self.facts.setdefault("rounds_ms", []).append(round(figure, 3))


@contextmanager
def started(part: str, name: str, args: argparse.Namespace) -> Iterator[Running]:
    """Start a contender's process."""
    command = [
        sys.executable,
        __file__,
        part,
        "--contender",
        name,
        "--steps",
        str(args.steps),
        "--device",
        args.device,
    ]
    command += ["--small"] if args.small else []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        )
        try:
            yield Running(process, errors)
        finally:
            assert process.stdin is not None
            process.kill()
            process.communicate()


def compared(report: Report, args: argparse.Namespace, part: str) -> dict[str, Any]:
    """Measure every contender in rounds that alternate, and compare losses, times and memory."""
    names = [n for n, c in CONTENDERS.items() if c.takes_part(part, args) and n in (args.only or CONTENDERS)]
    with ExitStack() as scope:
        running: dict[str, Running] = {}
        for measuring in (False, True):
            group = [n for n in names if bool(CONTENDERS[n].extra) == measuring]
            running |= {n: scope.enter_context(started(part, n, args)) for n in group}
            for name in group:
                running[name].facts |= running[name].read() or {}
                print(
                    f"   {name:34} ready after {running[name].facts.get('first_steps_s', '-')} s", flush=True
                )
        for _ in range(args.rounds):
            for each in running.values():
                if "error" not in each.facts:
                    each.round()
    figures = {n: r.facts for n, r in running.items()}
    reference = figures["eager"].get("losses", [])
    for name, entry in figures.items():
        if "error" in entry:
            report.check(False, f"{part}, {name}: {entry['error']}")
            continue
        pairs = zip(entry["losses"], reference, strict=True)
        entry["loss_gap"] = max(abs(a - b) / abs(b) for a, b in pairs)
        entry["median_ms"] = round(statistics.median(entry["rounds_ms"]), 3)
        report.check(entry["loss_gap"] <= TOLERANCE, f"{part}, {name}: losses within {TOLERANCE} of eager's")
        print(f"   {name:34} {entry['median_ms']:9} ms {entry.get('peak_mib', '-'):>9} MiB", flush=True)
    if args.device == "cuda":
        goals(report, part, {n: e for n, e in figures.items() if "error" not in e})
    return figures


def goals(report: Report, part: str, figures: dict[str, Any]) -> None:
    """Compare our best contender with the goals."""
    mine = {n: e for n, e in figures.items() if n.startswith("xpuruntime")}
    others = [e["median_ms"] for n, e in figures.items() if n not in mine]
    if not mine or not others:
        return
    faster, smaller = GOALS[part]
    rival = figures.get("torch.compile")
    shares = {n: m["peak_mib"] / rival["peak_mib"] for n, m in mine.items()} if smaller and rival else {}
    small = [n for n in mine if n in shares and shares[n] <= smaller]
    best = min(small or mine, key=lambda n: mine[n]["median_ms"])  # one contender has to meet both goals
    report.bound(
        f"{part}: the best other time over that of {best}", min(others) / mine[best]["median_ms"],
        at_least=faster, unit="x", required=False,
    )  # fmt: skip
    if best in shares:
        report.bound(
            f"{part}: peak memory of {best} over torch.compile's",
            shares[best],
            at_most=smaller,
            required=False,
        )


def gpt2(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """GPT-2 small, 8 x 1,024 tokens, bfloat16 by autocast, AdamW."""
    return compared(report, args, "gpt2")


def resnet50(report: Report, args: argparse.Namespace) -> dict[str, Any]:
    """ResNet-50, 128 images, float16 by autocast, AdamW."""
    return compared(report, args, "resnet50")


PARTS = {"gpt2": gpt2, "resnet50": resnet50}


def options() -> argparse.ArgumentParser:
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=6, help="of each contender")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument(
        "--only", action="append", choices=CONTENDERS, help="these contenders; eager is needed. Repeatable"
    )
    parser.add_argument("--contender", choices=CONTENDERS, help="run this one alone; for the script itself")
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        metavar="max-autotune",
        help="contenders that compile for minutes",
    )
    return parser


def device_name() -> str:
    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    request = options().parse_args(argv)
    if request.contender:
        alone(request.parts[0], request.contender, request)
        return 0
    packages = ("torch", "triton", "liger_kernel", "nvidia-cudnn-cu12", "nvidia-cublas-cu12")
    return run_parts(__doc__, PARTS, gpu=device_name, packages=packages, argv=argv, parser=options())


if __name__ == "__main__":
    sys.exit(main())
