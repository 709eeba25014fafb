"""A training loop with checkpoints, as a script: ``python checkpointed_training.py FOLDER STEPS [DEVICE] [MODE]``. It continues where a killed run stopped.

Modes: ``plain`` runs our kernels op by op, ``compiled`` compiles the network, ``captured`` captures the whole compiled step, and in ``libraries`` only the
demand for determinism is given, so that PyTorch's libraries compute what they are faster at. The policy is deterministic in each. ``losses.txt`` has a line per step: its number, and the loss's bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import xpuruntime.pytorch as xrt_torch

OURS = {"matmul": "generated", "conv": "generated", "norm": "generated", "pool": "generated"}
MODES = {"plain": OURS, "compiled": OURS, "captured": OURS, "libraries": {}}
"""Mode -> kernels by op family."""
POLICY = {"version": 1, "kernel": {**OURS, "rules": [{"deterministic": True}]}}
CAPTURED, COMPILED = ("captured",), ("compiled", "captured", "libraries")
Tensor = torch.Tensor


class Net(torch.nn.Module):
    """A convolution with batch norm and dropout, so that running statistics and random numbers are part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(4, 8, 3, padding=1), torch.nn.BatchNorm1d(8)
        self.drop, self.head = torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.max_pool1d(torch.relu(self.norm(self.conv(x))), 2)
        result: Tensor = self.head(self.drop(h.mean(-1)))
        return result


def batch(step: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the data of a step, which depends on its number only."""
    generator = torch.Generator().manual_seed(step)
    x, t = torch.randn(6, 4, 10, generator=generator), torch.randn(6, 3, generator=generator)
    return x.to(device), t.to(device)


def random_state(device: str) -> Tensor:
    """Return the state of the device's random numbers."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def set_random_state(device: str, state: Tensor) -> None:
    (torch.cuda.set_rng_state if device == "cuda" else torch.set_rng_state)(state)


def step_of(model: Net, optimizer: torch.optim.Optimizer, mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of one step in a mode."""
    run = torch.compile(model, backend="xpuruntime") if mode in COMPILED else model

    def step(x: Tensor, t: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(run(x), t)
        loss.backward()
        optimizer.step()
        return loss

    return xrt_torch.capture_graph(step) if mode in CAPTURED else step


def train(folder: Path, steps: int, device: str = "cpu", mode: str = "plain") -> None:
    """Train to a number of steps, with a checkpoint after each of them."""
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, capturable=device == "cuda")
    checkpoint, first = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        set_random_state(device, state["random"].cpu())
    policy = {"version": 1, "kernel": {**MODES[mode], "rules": [{"deterministic": True}]}}
    with xrt_torch.set_kernel_policy(policy), (folder / "losses.txt").open("a") as losses:
        run = step_of(model, optimizer, mode)
        for step in range(first, steps):
            loss = run(*batch(step, device))
            print(step, loss.detach().view(torch.int32).item(), file=losses, flush=True)
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random_state(device)}  # fmt: skip
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(checkpoint)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
