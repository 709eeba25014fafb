"""The specification's training snippet in a loop: parameters stay as near to a float64 run as those of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch

import xpuruntime.pytorch as xrt_torch

STEPS = 200
FACTOR = 1.5  # of eager's own distance


class Net(torch.nn.Module):
    """Words, a normalized layer with attention by products, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.mix, self.down = (
            torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 8),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(torch.nn.functional.gelu(self.up(x)))
        weights = torch.softmax(h @ h.transpose(-1, -2) / 32**0.5, -1)
        result: torch.Tensor = self.down(self.mix(weights @ h) + h)
        return result


def batches(device: str, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        x, t = torch.randn(4, 6, 16, generator=generator), torch.randn(4, 6, 8, generator=generator)
        yield x.to(device, dtype), t.to(device, dtype)


def parameters_of(
    model: torch.nn.Module, forward_backward: Callable[[torch.Tensor, torch.Tensor], None], device: str
) -> Iterator[torch.Tensor]:
    """Train, and yield all parameters after each step as one vector."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, t in batches(device, next(model.parameters()).dtype):
        optimizer.zero_grad()
        forward_backward(x, t)
        optimizer.step()
        yield torch.cat([p.detach().double().flatten() for p in model.parameters()])


def distances(device: str, low: dict[str, bool], spoil: float = 1.0) -> list[float]:
    """Return, for each step, our distance from float64 over eager's."""
    torch.manual_seed(0)
    ours, criterion = Net().to(device), torch.nn.functional.mse_loss
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    if spoil != 1.0:
        ours.mix.weight.register_hook(lambda grad: grad * spoil)

    def snippet(x: torch.Tensor, t: torch.Tensor) -> None:
        with xrt_torch.autocast(**low, enabled=bool(low)), xrt_torch.capture_graph():
            y = ours(x)
            loss = criterion(y.float(), t)
            loss.backward()

    def plain(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], None]:
        def run(x: torch.Tensor, t: torch.Tensor) -> None:
            with torch.autocast(device, torch.float16, enabled=bool(low) and model is eager):
                y = model(x)
                loss = criterion(y if model is exact else y.float(), t)
            loss.backward()

        return run

    with xrt_torch.set_kernel_policy(
        attention="flash_v2",
        matmul="cublasLt",
    ):
        mine = list(parameters_of(ours, snippet, device))
    theirs, true = (list(parameters_of(m, plain(m), device)) for m in (eager, exact))
    return [
        float((a - e).norm() / (b - e).norm().clamp_min(1e-12))
        for a, b, e in zip(mine, theirs, true, strict=True)
    ]


PRECISIONS = {"cpu": {}, "cuda": {"fp16": True}}


def test_every_step_is_as_near_to_float64_as_eager(device: str) -> None:
    ratios = distances(device, PRECISIONS[device])
    assert max(ratios) <= FACTOR, f"step {ratios.index(max(ratios))}: {max(ratios)}"


def test_a_gradient_off_by_one_percent_is_seen(device: str) -> None:
    assert max(distances(device, PRECISIONS[device], spoil=1.01)) > FACTOR


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.slow
def test_ten_thousand_captured_steps_keep_the_memory_flat() -> None:
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with xrt_torch.autocast(fp16=True):
            y = model(x)
        loss = torch.nn.functional.mse_loss(y.float(), t)
        loss.backward()
        optimizer.step()
        return loss

    data = list(batches("cuda", torch.float32))[:8]
    with xrt_torch.set_kernel_policy(matmul="cublasLt", norm="generated"):
        captured = xrt_torch.capture_graph(step)
        for x, t in data:
            captured(x, t)
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        for i in range(10_000):
            loss = captured(*data[i % 8])
        torch.cuda.synchronize()
    assert captured.report[-1].replays >= 10_000
    assert loss.isfinite()
    assert (torch.cuda.memory_reserved(), torch.cuda.memory_allocated()) == before


def test_a_resumed_run_has_the_losses_of_an_undisturbed_one(device: str) -> None:
    """Under a deterministic policy a checkpoint continues bit for bit."""
    policy = {
        "version": 1,
        "kernel": {"matmul": "generated", "norm": "generated", "softmax": "generated", "rules": [{"deterministic": True}]},
    }  # fmt: skip

    def losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: list) -> list[float]:
        values = []
        for x, t in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), t)
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    data = list(batches(device, torch.float32))[:20]
    with xrt_torch.set_kernel_policy(policy):
        torch.manual_seed(0)
        model = Net().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        first = losses(model, optimizer, data[:10])
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        whole = first + losses(model, optimizer, data[10:])
        other = Net().to(device)
        again = torch.optim.AdamW(other.parameters(), 1e-3)
        other.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        assert first + losses(other, again, data[10:]) == whole
