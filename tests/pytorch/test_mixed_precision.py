"""autocast: agreement with torch.autocast, the table by op family, and gradients."""

from __future__ import annotations

import pytest
import torch

import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import PolicyError

LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8))


@pytest.mark.parametrize("word", LOW)
def test_dtypes_are_those_of_torch_autocast(word: str, net: torch.nn.Module, device: str) -> None:
    net, x = net.to(device), torch.randn(4, 16, device=device)

    def dtypes() -> list[torch.dtype]:
        y = x
        seen = []
        for layer in net:
            y = layer(y)
            seen.append(y.dtype)
        return [*seen, y.softmax(-1).dtype]

    with torch.autocast(device, dtype=LOW[word]):
        theirs = dtypes()
    with xrt_torch.autocast(**{word: True}):
        plain = dtypes()
        with xrt_torch.set_kernel_policy(matmul="generated", norm="generated", softmax="generated"):
            routed = dtypes()
    assert plain == theirs
    if device == "cuda":  # on the host, PyTorch leaves layer_norm and softmax in the operand's precision
        assert routed == theirs
    assert routed == [LOW[word], torch.float32, LOW[word], torch.float32]


def test_the_table_changes_a_family(net: torch.nn.Module) -> None:
    with xrt_torch.autocast(bf16=True, table={"norm": "low"}), xrt_torch.set_kernel_policy(norm="generated"):
        assert net[:2](torch.randn(4, 16)).dtype is torch.bfloat16
    with xrt_torch.autocast(bf16=True), xrt_torch.set_kernel_policy(norm="generated"):
        assert net[:2](torch.randn(4, 16)).dtype is torch.float32


def test_parameters_get_gradients_in_their_own_dtype(net: torch.nn.Module, device: str) -> None:
    net, x = net.to(device), torch.randn(4, 16, device=device)
    exact = torch.autograd.grad(net(x).square().mean(), net.parameters())
    with xrt_torch.autocast(bf16=True), xrt_torch.set_kernel_policy(matmul="generated", norm="generated"):
        loss = net(x).square().mean()
    for mine, true in zip(torch.autograd.grad(loss, net.parameters()), exact, strict=True):
        assert mine.dtype is torch.float32
        assert (mine - true).norm() <= 0.03 * true.norm()


def test_a_decorated_function_and_a_disabled_block() -> None:
    x = torch.randn(4, 4)
    assert xrt_torch.autocast(bf16=True)(lambda: x @ x)().dtype is torch.bfloat16
    with xrt_torch.autocast(enabled=False):
        assert (x @ x).dtype is torch.float32


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs one precision; got fp16=False, bf16=False"),
        ({"fp16": True, "bf16": True}, "needs one precision"),
        ({"fp16": True, "table": {"norms": "low"}}, "no such op family; got 'norms'"),
        ({"fp16": True, "table": {"norm": "half"}}, "no such precision for norm; got 'half'"),
    ],
)
def test_bad_arguments_are_named_errors(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        xrt_torch.autocast(**arguments)  # type: ignore[arg-type]
