"""Train two small networks under a kernel policy, and plot their losses next to eager PyTorch's.

    python examples/training_kernel_policy.py [--steps 60] [--plot losses.png] [--device cuda]

``text``: a character-level GPT on text that ships with Python (the topics of ``pydoc``). ``images``: a small ResNet on generated images of
four shapes. Both train twice from the same weights on the same batches: eagerly, and under the policy. The losses must agree.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation

import xpuruntime.pytorch as xrt_torch

POLICY = {
    "version": 1,
    "kernel": {
        "matmul": ["cublasLt", "generated"],
        "norm": "generated",
        "softmax": "generated",
        "embedding": "generated",
    },
}
LENGTH, SIZE, HEADS = 48, 64, 4


class Block(torch.nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(SIZE), torch.nn.RMSNorm(SIZE)
        self.qkv, self.out = torch.nn.Linear(SIZE, 3 * SIZE), torch.nn.Linear(SIZE, SIZE)
        self.up, self.down = torch.nn.Linear(SIZE, 4 * SIZE), torch.nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGpt(torch.nn.Module):
    """Characters in, the mean loss of the next ones out."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, SIZE), torch.nn.Embedding(LENGTH, SIZE)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(SIZE, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens[:, :-1]) + self.places.weight
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), tokens[:, 1:].flatten())


class SmallResNet(torch.nn.Module):
    """Images and labels in, the mean loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 16, 3, 2, 1)
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(16, 16, 3, 1, 1) for _ in range(4))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(16) for _ in range(4))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(images))
        for a, b, m, n in zip(
            self.convs[::2], self.convs[1::2], self.norms[::2], self.norms[1::2], strict=True
        ):
            x = F.relu(x + n(b(F.relu(m(a(x))))))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def text_batches(steps: int) -> tuple[list[tuple[torch.Tensor, ...]], int]:
    """Return batches of consecutive characters, and how many different ones there are."""
    text = "".join(topics[name] for name in sorted(topics))[:200_000]
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(0, len(codes) - LENGTH - 1, (steps, 16), generator=generator)
    return [(torch.stack([codes[s : s + LENGTH + 1] for s in row]),) for row in starts.tolist()], len(letters)


def image_batches(steps: int) -> list[tuple[torch.Tensor, ...]]:
    """Return batches of noisy images: a disk, a square, a cross and a ring."""
    generator = torch.Generator().manual_seed(2)
    grid = torch.linspace(-1, 1, 24)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    radius, side = (x**2 + y**2).sqrt(), torch.maximum(x.abs(), y.abs())
    shapes = torch.stack(
        [radius < 0.6, side < 0.5, torch.minimum(x.abs(), y.abs()) < 0.2, (radius - 0.6).abs() < 0.15]
    ).float()
    batches = []
    for _ in range(steps):
        labels = torch.randint(0, 4, (32,), generator=generator)
        noise = torch.randn(32, 24, 24, generator=generator) * 0.5
        batches.append(((shapes[labels] + noise)[:, None], labels))
    return batches


def train(
    model: torch.nn.Module,
    batches: list[tuple[torch.Tensor, ...]],
    wrap: Callable[..., Callable[..., torch.Tensor]],
) -> list[float]:
    """Train and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, capturable=batches[0][0].is_cuda)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return [float(run(*batch).detach()) for batch in batches]


def compare(
    name: str, model: torch.nn.Module, batches: list[tuple[torch.Tensor, ...]]
) -> dict[str, list[float]]:
    """Train eagerly and under the policy, and print what ran."""
    twin = copy.deepcopy(model)
    eager = train(model, batches, lambda step: step)
    with xrt_torch.set_kernel_policy(POLICY), xrt_torch.record() as record:
        ours = train(twin, batches, xrt_torch.capture_graph)
    gap = max(abs(a - b) for a, b in zip(ours, eager, strict=True))
    kernels = sorted({k.partition(":")[0] for k in record.kernels()})
    print(
        f"{name}: loss {eager[0]:.3f} to {eager[-1]:.3f} eagerly, to {ours[-1]:.3f} under the policy; largest gap {gap:.1e}"
    )
    print(f"  forward:  {', '.join(sorted(set(record.ops('train_forward'))))}")
    print(f"  backward: {', '.join(sorted(set(record.ops('train_backward'))))}")
    print(f"  kernels:  {', '.join(kernels)}")
    for op, reason in sorted(record.fallbacks.items()):
        print(f"  PyTorch's own operator for {op}: {reason}")
    assert gap < 0.05 * eager[0], "the losses differ"
    return {"eager": eager, "under the policy": ours}


def plot(curves: dict[str, dict[str, list[float]]], path: str) -> None:
    """Draw the losses of each network."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.5 * len(curves), 3.2), squeeze=False)
    for axis, (name, lines) in zip(axes[0], curves.items(), strict=True):
        for style, (label, losses) in zip(("-", "--"), lines.items(), strict=True):
            axis.plot(losses, style, label=label)
        axis.set(title=name, xlabel="step", ylabel="loss")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plot", default="", metavar="FILE.png")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    texts, words = text_batches(args.steps)
    networks = {"text": (TinyGpt(words), texts), "images": (SmallResNet(), image_batches(args.steps))}
    curves = {}
    for name, (model, batches) in networks.items():
        placed = [tuple(t.to(args.device) for t in batch) for batch in batches]
        curves[name] = compare(name, model.to(args.device), placed)
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
