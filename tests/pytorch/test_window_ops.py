"""Convolutions, pools and batch norm in training against PyTorch's own, and PyTorch's functions that a policy sends to them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.training_cases import WINDOW_CASES, OpCase, assert_near_float64, gradients, named, rms

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch import ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FAMILIES = {"conv": "generated", "norm": "generated", "pool": "generated"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(**named(WINDOW_CASES))
def test_values_and_gradients_are_as_near_to_float64_as_those_of_pytorch(
    case: OpCase, dtype: torch.dtype, device: str
) -> None:
    assert_near_float64(case, dtype, device)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(**named(WINDOW_CASES))
def test_numerical_gradients_of_first_and_second_order(case: OpCase, device: str) -> None:
    operands = case.operands(torch.float64, device)
    varying = (
        1e-9 if device == "cuda" else 0.0
    )  # cuDNN, which computes gradients of gradients, adds in another order each time
    assert torch.autograd.gradcheck(case.run, operands, fast_mode=True, nondet_tol=varying)
    assert torch.autograd.gradgradcheck(case.run, operands, fast_mode=True, nondet_tol=varying)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(**named(WINDOW_CASES))
def test_operands_that_are_not_contiguous(case: OpCase, device: str) -> None:
    operands = case.operands(torch.float32, device)
    spread = [torch.stack((t.detach(), t.detach()), -1)[..., 0].requires_grad_() for t in operands]
    grad = torch.randn_like(case.run(*operands))
    for mine, other in zip(
        gradients(case.run, spread, grad), gradients(case.run, operands, grad), strict=True
    ):
        assert torch.equal(mine, other)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(**named(WINDOW_CASES))
def test_torch_compile_keeps_an_op_whole(case: OpCase, device: str) -> None:
    torch.compiler.reset()
    operands = case.operands(torch.float32, device)
    grad = torch.randn_like(case.run(*operands))
    compiled = torch.compile(case.run, backend="aot_eager", fullgraph=True)
    for mine, other in zip(
        gradients(compiled, operands, grad), gradients(case.run, operands, grad), strict=True
    ):
        assert torch.allclose(mine, other, atol=1e-6)


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.Conv2d(8, 8, 3, stride=2, groups=2), torch.nn.AvgPool2d(2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
    )  # fmt: skip


def step(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    y = model(x)
    (y * torch.arange(8, device=x.device)).sum().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


def test_modules_follow_a_policy_and_keep_their_running_statistics(device: str) -> None:
    eager = net().to(device)
    mine, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    x = torch.randn(4, 3, 12, 12, device=device)
    theirs, true = step(eager, x), step(exact, x.double())
    with xrt_torch.set_kernel_policy(**FAMILIES), xrt_torch.record() as record:
        ours = step(mine, x)
    assert record.ops("train_forward") == [
        "convolution", "batch_norm", "max_pool", "convolution", "avg_pool", "avg_pool",
    ]  # fmt: skip
    assert record.fallbacks == {}
    assert any(k.startswith("conv/") for k in record.kernels("train_backward"))
    for a, b, t in zip(ours, theirs, true, strict=True):
        assert rms(a - t) <= max(4 * rms(b - t), 2**-22 * rms(t))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        a, b = getattr(mine[1], name), getattr(eager[1], name)
        assert torch.allclose(a, b, rtol=1e-5), name
    exact.eval(), mine.eval()
    with xrt_torch.set_kernel_policy(**FAMILIES), xrt_torch.record() as record:
        ours = step(mine, x)
    assert record.ops("train_forward")[1] == "batch_norm_inference"
    exact[1].load_state_dict(mine[1].state_dict())
    for a, t in zip(ours, step(exact, x.double()), strict=True):
        assert torch.allclose(a, t.float(), rtol=1e-4, atol=1e-4)


def test_channels_last_gives_the_same_values(device: str) -> None:
    model = net().to(device)
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 12, 12, device=device)
    with xrt_torch.set_kernel_policy(**FAMILIES):
        plain, other = step(model, x), step(twin, x.to(memory_format=torch.channels_last))
    for a, b in zip(plain, other, strict=True):
        assert torch.equal(a, b)


CALLS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "convolution": (
        lambda x, w: ops.convolution(x, w, padding=1),
        lambda x, w: F.conv2d(x, w, padding=1),
    ),
    "max_pool": (lambda x, w: ops.max_pool(x, [3, 3], 2, 1), lambda x, w: F.max_pool2d(x, 3, 2, 1)),
    "avg_pool": (lambda x, w: ops.avg_pool(x, [3, 3], 2, 1), lambda x, w: F.avg_pool2d(x, 3, 2, 1)),
    "batch_norm": (
        lambda x, w: ops.batch_norm(x, None, None, training=True),
        lambda x, w: F.batch_norm(x, None, None, training=True),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_nan_and_inf_spread_as_in_pytorch(name: str, device: str) -> None:
    x = torch.randn(2, 3, 6, 6, device=device)
    x[0, 1, 2, 3], x[1, 0, 0, 0] = float("nan"), float("inf")
    weight = torch.randn(4, 3, 3, 3, device=device)
    results = []
    for run in CALLS[name]:
        operand = x.clone().requires_grad_()
        y = run(operand, weight)
        (grad,) = torch.autograd.grad(y, operand, torch.ones_like(y).cumsum(-1))
        results.append((y, grad))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


@pytest.mark.parametrize("name", ["convolution", "max_pool", "avg_pool"])
def test_a_batch_of_no_samples(name: str, device: str) -> None:
    results = []
    for run in CALLS[name]:
        x = torch.randn(0, 3, 6, 6, device=device, requires_grad=True)
        weight = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
        y = run(x, weight)
        y.sum().backward()
        results.append([y, x.grad, weight.grad])
    for mine, theirs in zip(*results, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.shape == theirs.shape and torch.equal(mine, theirs))


def test_the_first_of_equal_elements_has_the_gradient_as_in_pytorch(device: str) -> None:
    results = []
    for run in CALLS["max_pool"]:
        x = torch.zeros(1, 2, 6, 6, device=device, requires_grad=True)
        y = run(x, None)
        y.backward(torch.arange(y.numel(), device=device, dtype=y.dtype).view(y.shape))
        results.append(x.grad)
    assert torch.equal(*results)


def test_calls_that_stay_with_pytorch_have_a_reason(device: str) -> None:
    x = torch.randn(2, 3, 7, 7, device=device)
    with xrt_torch.set_kernel_policy(pool="generated"), xrt_torch.record() as record:
        F.adaptive_avg_pool2d(x, 3)
        F.max_pool2d(x, 2, return_indices=True)
        torch.vmap(lambda v: F.avg_pool2d(v, 2))(x)
    assert record.ops() == ["max_pool"]
    assert record.fallbacks == {
        "adaptive_avg_pool2d (pool)": "no op of this package takes these arguments",
        "avg_pool2d (pool)": "a transform of torch.func is active",
    }


def test_indices_of_maxima_are_those_of_pytorch(device: str) -> None:
    x = torch.randn(2, 3, 8, 9, device=device)
    y, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    with xrt_torch.set_kernel_policy(pool="generated"):
        mine, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    assert torch.equal(mine, y)
    assert torch.equal(places, indices)
