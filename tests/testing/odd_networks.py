"""Networks that fail in the ways that a suite of foreign models must survive: a source of the suite ``models``."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

__all__ = ["build", "names"]


def names() -> list[str]:
    return ["plain", "unbuilt", "endless", "crash", "changes"]


class Changes(torch.nn.Module):
    """A network that torch.export makes another one of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x * 3


def build(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    if name == "unbuilt":
        raise ValueError("no such size")
    if name == "endless":
        time.sleep(600)
    if name == "crash":
        os.abort()
    module = Changes() if name == "changes" else torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    return module.eval(), (torch.randn(batch, 4),)
