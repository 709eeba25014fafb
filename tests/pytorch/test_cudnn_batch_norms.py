"""cudnn_batch_norms: batch norms of a joint graph become cuDNN's where it computes them. The graphs are traced with tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from xpuruntime.pytorch.compiled.cudnn_batch_norms import cudnn_batch_norms

_ATEN = torch.ops.aten


def norm(grad: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
    y, own, root, new_mean, new_variance = _ATEN._native_batch_norm_legit_functional(
        x, weight, bias, mean, variance, True, 0.1, 1e-5
    )
    mask = [True, True, True]
    return (
        y,
        new_mean,
        new_variance,
        *_ATEN.native_batch_norm_backward(grad, x, weight, mean, variance, own, root, True, 1e-5, mask),
    )


def traced(dtype: torch.dtype, channels_last: bool) -> torch.fx.GraphModule:
    with FakeTensorMode():
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = [
            torch.empty(2, 8, 5, 5, device="cuda", dtype=dtype).to(memory_format=layout) for _ in range(2)
        ]
        numbers = [torch.empty(8, device="cuda") for _ in range(4)]
        return make_fx(norm, tracing_mode="fake")(*images, *numbers)


def called(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function" and "norm" in str(n.target)]


def test_a_norm_and_its_gradient_become_those_of_cudnn() -> None:
    module = traced(torch.float16, channels_last=True)
    (before,) = (n for n in module.graph.nodes if n.op == "output")
    shapes = [tuple(n.meta["val"].shape) for n in before.args[0]]
    cudnn_batch_norms(module)
    module.graph.lint()
    assert called(module) == ["aten.cudnn_batch_norm.default", "aten.cudnn_batch_norm_backward.default"]
    (after,) = (n for n in module.graph.nodes if n.op == "output")
    assert [tuple(n.meta["val"].shape) for n in after.args[0]] == shapes
    forward, backward = (n for n in module.graph.nodes if "cudnn" in str(n.target))
    running = list(after.args[0][1:3])
    assert all(n.target is _ATEN.clone.default for n in running)  # the buffers themselves stay as they were
    assert list(forward.args[3:5]) == running
    assert backward.args[8].args == (forward, 3)  # what cuDNN reserved


def test_a_program_that_turns_cudnn_off_has_none() -> None:
    module = traced(torch.float16, channels_last=True)
    with torch.backends.cudnn.flags(enabled=False):
        cudnn_batch_norms(module)
    assert not any("cudnn" in name for name in called(module))


@pytest.mark.parametrize(
    ("dtype", "channels_last"), [(torch.float32, True), (torch.bfloat16, True), (torch.float16, False)]
)
def test_others_stay(dtype: torch.dtype, channels_last: bool) -> None:
    module = traced(dtype, channels_last)
    cudnn_batch_norms(module)
    assert not any("cudnn" in name for name in called(module))
