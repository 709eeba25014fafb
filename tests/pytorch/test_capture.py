"""capture_graph: what is captured, what cannot be, and that each call is one training step."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import InputError
from xpuruntime.pytorch.capture.obstacles import watched
from xpuruntime.pytorch.capture.signature import call_signature

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LOSS = torch.nn.functional.mse_loss


def net(device: str = "cuda", dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 8)
    ).to(device)  # fmt: skip


def batches(count: int, rows: int = 4, device: str = "cuda") -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(rows, 16, generator=generator).to(device), torch.randn(rows, 8, generator=generator).to(device))
        for _ in range(count)
    ]  # fmt: skip


def inside(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """Return a step with the optimizer inside."""

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = LOSS(model(x), t)
        loss.backward()
        optimizer.step()
        return loss

    return step


def trained(model: torch.nn.Module, step: Callable[..., torch.Tensor], data: list) -> list[float]:
    return [float(step(x, t).detach()) for x, t in data]


def test_on_the_host_a_step_runs_eagerly_and_says_why() -> None:
    model = net("cpu")
    twin = copy.deepcopy(model)
    data = batches(6, device="cpu")
    step = xrt_torch.capture_graph(inside(model, torch.optim.SGD(model.parameters(), 0.1)))
    losses = trained(model, step, data)
    assert losses == trained(twin, inside(twin, torch.optim.SGD(twin.parameters(), 0.1)), data)
    assert "has no tensor on a CUDA device" in str(step.report[-1].obstacles[0])
    assert not step.report[-1].captured


def test_a_call_with_an_argument_that_cannot_be_compared_has_no_signature() -> None:
    x = torch.zeros(2, 3)
    assert call_signature([x, {1}], "x, s") is None
    assert call_signature([x, 1], "x, s") == call_signature([x + 1, 1], "x, s")
    different = ([x, True], [x, 1.0], [x, 2], [x.t(), 1], [x.double(), 1])
    assert call_signature([x, 1], "x, s") not in [call_signature(leaves, "x, s") for leaves in different]


def test_the_block_runs_its_body() -> None:
    model, (x, t) = net("cpu"), batches(1, device="cpu")[0]
    for _ in range(3):
        with xrt_torch.autocast(bf16=True), xrt_torch.capture_graph() as region:
            loss = LOSS(model(x).float(), t)
            loss.backward()
    assert loss.isfinite()
    assert region.obstacles == ()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"step": 3}, "needs a function; got int"),
        ({"step": print, "warmup": 0}, "warmup must be at least 1; got 0"),
        ({"step": print, "max_graphs": 0}, "max_graphs must be at least 1"),
    ],
)
def test_bad_arguments_are_named_errors(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        xrt_torch.capture_graph(**arguments)  # type: ignore[call-overload]


@NEEDS_CUDA
@pytest.mark.parametrize("policy", [{}, {"matmul": "generated", "norm": "generated"}], ids=["plain", "ours"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_captured_training_equals_eager_training(policy: dict[str, str], optimizer: str) -> None:
    def made(model: torch.nn.Module) -> torch.optim.Optimizer:
        if optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return torch.optim.Adam(model.parameters(), 1e-2, capturable=True)

    model, twin = net(), net()
    data = batches(20)
    with xrt_torch.set_kernel_policy(**policy):
        eager = trained(twin, inside(twin, made(twin)), data)
        step = xrt_torch.capture_graph(inside(model, made(model)))
        captured = trained(model, step, data)
    assert step.report[-1].captured, step.report
    assert step.report[-1].replays >= 14
    assert captured == pytest.approx(eager, rel=1e-5)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    if policy:
        assert any("matmul/generated" in k for k in step.report[-1].kernels)


@NEEDS_CUDA
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_the_loop_clears_outside(set_to_none: bool) -> None:
    model, twin = net(), net()
    data = batches(12)

    def forward_backward(m: torch.nn.Module) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            loss = LOSS(m(x), t)
            loss.backward()
            return loss

        return step

    results = []
    for m, step in (
        (twin, forward_backward(twin)),
        (model, xrt_torch.capture_graph(forward_backward(model))),
    ):
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        losses = []
        for x, t in data:
            optimizer.zero_grad(set_to_none=set_to_none)
            losses.append(float(step(x, t).detach()))
            optimizer.step()
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert step.report[-1].captured


@NEEDS_CUDA
def test_gradients_accumulate_over_calls() -> None:
    model, twin = net(), net()
    x, t = batches(1)[0]

    def step_of(m: torch.nn.Module) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            loss = LOSS(m(x), t)
            loss.backward()
            return loss

        return step

    captured = xrt_torch.capture_graph(step_of(model))
    for _ in range(9):
        step_of(twin)(x, t)
        captured(x, t)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-5)


@NEEDS_CUDA
def test_new_shapes_and_learning_rates_are_captured_again_within_the_bound() -> None:
    model, twin = net(), net()
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]
    step = xrt_torch.capture_graph(inside(model, optimizers[0]), warmup=1, max_graphs=2)
    eager = inside(twin, optimizers[1])
    for rows in (4, 5, 6, 4):
        for rate in (0.1, 0.05):
            for o in optimizers:
                o.param_groups[0]["lr"] = rate
            for x, t in batches(4, rows):
                assert float(step(x, t).detach()) == pytest.approx(float(eager(x, t).detach()), rel=1e-5)
    assert sum(r.captured for r in step.report) <= 2


@NEEDS_CUDA
def test_dropout_draws_new_numbers_at_each_replay() -> None:
    model = net(dropout=0.5)
    x, _ = batches(1)[0]

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    captured = xrt_torch.capture_graph(step)
    values = {float(captured(x).detach()) for _ in range(12)}
    assert captured.report[-1].captured
    assert len(values) == 12


@NEEDS_CUDA
@pytest.mark.parametrize(("kind", "op"), [("item", "_local_scalar_dense"), ("adam", "Adam.step")])
def test_what_cannot_be_captured_runs_eagerly_with_its_source_line(kind: str, op: str) -> None:
    model = net()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if kind == "adam":
        optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        loss = inside(model, optimizer)(x, t)
        if kind == "item" and loss.item() < 0:
            raise AssertionError
        return loss

    captured = xrt_torch.capture_graph(step)
    for x, t in batches(8):
        captured(x, t)
    report = captured.report[-1]
    assert not report.captured
    assert report.eager == 7  # the first call of all is of no signature
    assert op in str(report.obstacles[0])
    if kind == "item":
        assert "test_capture.py" in report.obstacles[0].where
        assert "loss.item()" in report.obstacles[0].where


@NEEDS_CUDA
def test_a_tensor_on_the_host_is_named() -> None:
    model = net()
    captured = xrt_torch.capture_graph(lambda x, scale: model(x).sum() * scale)
    x, _ = batches(1)[0]
    for _ in range(6):
        captured(x, torch.tensor(2.0))
    assert "has a tensor on the host" in str(captured.report[-1].obstacles[0])


@NEEDS_CUDA
def test_memory_is_flat_over_many_replays() -> None:
    model = net()
    step = xrt_torch.capture_graph(inside(model, torch.optim.SGD(model.parameters(), 0.01)))
    data = batches(4)
    for x, t in data * 3:
        step(x, t)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(500):
        for x, t in data:
            step(x, t)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@NEEDS_CUDA
@pytest.mark.parametrize("set_to_none", [True, False])
def test_capturing_keeps_no_gradients_that_the_step_drops(set_to_none: bool) -> None:
    """A step that drops its gradients needs no more memory when it is captured; one that zeroes them in place goes on with the same tensors."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1024, 2048).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    train = xrt_torch.capture_graph(step)
    twin = copy.deepcopy(model)
    x, peaks, losses = torch.randn(4, 1024, device="cuda"), [], []
    for _ in range(6):
        torch.cuda.reset_peak_memory_stats()
        losses.append(float(train(x).detach()))
        peaks.append(torch.cuda.max_memory_allocated())
    assert train.report[-1].captured
    if set_to_none:
        assert peaks[4] < peaks[3] + (1 << 20)  # the weight has 8 MiB
    model, optimizer = twin, torch.optim.SGD(twin.parameters(), 0.1)
    assert losses == pytest.approx([float(step(x).detach()) for _ in range(6)], rel=1e-5)


def test_compiled_code_stays_in_use_while_a_step_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a dispatch mode of another kind PyTorch would run the module as it is, then and ever after."""
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    runs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        return lambda *inputs: (runs.append(1), graph(*inputs))[1]

    model, (x, _) = net("cpu"), batches(1, device="cpu")[0]
    compiled = torch.compile(model, backend=backend)
    compiled(x).sum().backward()
    with watched() as obstacles:
        compiled(x).sum().backward()
    compiled(x).sum().backward()
    assert (len(runs), obstacles) == (3, [])
