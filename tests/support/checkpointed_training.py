"""A training loop with checkpoints, as a script: ``python checkpointed_training.py FOLDER STEPS``. It continues where a killed run stopped.

The policy is deterministic. ``losses.txt`` has a line per step: its number, and the loss's bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import xpuruntime.pytorch as xrt_torch

POLICY = {
    "version": 1,
    "kernel": {"matmul": "generated", "conv": "generated", "norm": "generated", "pool": "generated", "rules": [{"deterministic": True}]},
}  # fmt: skip


class Net(torch.nn.Module):
    """A convolution with batch norm and dropout, so that running statistics and random numbers are part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(4, 8, 3, padding=1), torch.nn.BatchNorm1d(8)
        self.drop, self.head = torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.max_pool1d(torch.relu(self.norm(self.conv(x))), 2)
        result: torch.Tensor = self.head(self.drop(h.mean(-1)))
        return result


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data of a step, which depends on its number only."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 4, 10, generator=generator), torch.randn(6, 3, generator=generator)


def train(folder: Path, steps: int) -> None:
    """Train to a number of steps, with a checkpoint after each of them."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    checkpoint, first = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    with xrt_torch.set_kernel_policy(POLICY), (folder / "losses.txt").open("a") as losses:
        for step in range(first, steps):
            x, t = batch(step)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), t)
            loss.backward()
            optimizer.step()
            print(step, loss.detach().view(torch.int32).item(), file=losses, flush=True)
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}  # fmt: skip
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(checkpoint)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
