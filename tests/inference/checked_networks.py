"""Ten small networks of different kinds, as ONNX files, whose weights hide nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.frontends.torch import import_torch

__all__ = ["NETWORKS", "module_of", "write"]


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.b(torch.relu(self.a(x))))


class _Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.cat([x, torch.tanh(self.a(x))], 1))


class _Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(12, 24), nn.Linear(12, 24), nn.Linear(24, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(1, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(1, 6, 16))


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.across, self.along = nn.LayerNorm(10), nn.Linear(6, 6), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.along(nn.functional.gelu(x + y))


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 8), nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).mean(1))


_IMAGE, _ROWS = (1, 4, 8, 8), (3, 12)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (lambda: nn.Sequential(_Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6)), _IMAGE),
    "dense": (_Dense, _IMAGE),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU6(), nn.Conv2d(4, 6, 1), nn.AvgPool2d(2)),
        _IMAGE,
    ),
    "decoder": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 3, 2, 2), nn.Sigmoid()), _IMAGE),
    "normed": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.ELU(), nn.MaxPool2d(2)), _IMAGE),
    "perceptron": (lambda: nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), _ROWS),
    "gated": (_Gate, _ROWS),
    "attention": (_Attention, (1, 6, 16)),
    "mixer": (_Mixer, (2, 6, 10)),
    "embedding": (_Embedding, (2, 5)),
}  # fmt: skip


def module_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network in eval mode, and inputs for it."""
    make, shape = NETWORKS[name]
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    module = make().eval()
    inputs = torch.randint(0, 7, shape) if name == "embedding" else torch.randn(shape)
    torch.random.set_rng_state(state)
    return module, inputs


def write(name: str, folder: Path) -> Path:
    """The network as an ONNX file."""
    module, inputs = module_of(name)
    graph, weights = import_torch(module, inputs, model_name=name)
    data: Any = to_onnx(graph, weights)
    path = folder / f"{name}.onnx"
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    return path
