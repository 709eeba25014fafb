"""A rule ``deterministic`` also holds for convolutions of PyTorch's library: cuDNN's setting while they run, and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch import ops, programs
from xpuruntime.pytorch.compiled import xpuruntime_backend
from xpuruntime.pytorch.deterministic import library_obeys
from xpuruntime.pytorch.numbered_policies import numbered_policy

EXACT = {"version": 1, "kernel": {"rules": [{"deterministic": True}]}}
PLAIN = {"version": 1, "kernel": {"conv": "generated"}}


def setting() -> bool:
    return bool(torch._C._get_cudnn_deterministic())


def test_overlapping_blocks_keep_the_setting_until_the_last_one_ends() -> None:
    with xrt_torch.set_kernel_policy(EXACT):
        numbered = numbered_policy()
    first, second = library_obeys(numbered), library_obeys(numbered)
    assert not setting()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as another thread does that began earlier
    assert setting()
    second.__exit__(None, None, None)
    assert not setting()


@pytest.mark.parametrize("before", [False, True])
def test_the_setting_of_the_program_returns_after_an_error(before: bool) -> None:
    with xrt_torch.set_kernel_policy(EXACT):
        numbered = numbered_policy()

    def failing() -> None:
        with library_obeys(numbered):
            assert setting()
            raise RuntimeError("planned")

    torch._C._set_cudnn_deterministic(before)
    try:
        with pytest.raises(RuntimeError, match="planned"):
            failing()
        assert setting() is before
    finally:
        torch._C._set_cudnn_deterministic(False)


@pytest.mark.parametrize(("policy", "wanted"), [(EXACT, True), (PLAIN, False)])
def test_an_op_without_a_program_runs_under_it(
    policy: dict[str, Any], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = torch.convolution

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(setting())
        return real(*args, **kwargs)

    def no_program(call: programs.FormulaCall) -> None:
        """Stand for a device without a program of the op."""

    monkeypatch.setattr("xpuruntime.pytorch.ops.library.run", no_program)
    monkeypatch.setattr(torch, "convolution", watched)
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    with xrt_torch.set_kernel_policy(policy):
        ops.convolution(x, w)
    assert seen == [wanted]
    assert not setting()


@pytest.mark.parametrize(("policy", "wanted"), [(EXACT, True), (PLAIN, False)])
def test_a_compiled_graph_runs_under_it(
    policy: dict[str, Any], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpuruntime.pytorch.compiled import region

    seen: list[bool] = []
    real = region.FxRegion.forward

    def watched(self: Any, *args: Any) -> Any:
        seen.append(setting())
        return real(self, *args)

    monkeypatch.setattr(region.FxRegion, "forward", watched)
    torch.compiler.reset()
    x = torch.randn(4, 8, requires_grad=True)
    with xrt_torch.set_kernel_policy(policy):
        torch.compile(lambda x: (x * 2).exp(), backend=xpuruntime_backend)(x).sum().backward()
    assert set(seen) == {wanted}
    assert len(seen) >= 2  # forward and backward
