"""Certificates of ResNet, BERT, GPT-2 and a block of Qwen2: bitwise equal under the exact policy, bounded without it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from support.certified_networks import EXACT, NETWORKS, build

import xpuruntime.pytorch as xrt_torch

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_bit_differs_under_the_exact_policy(name: str, dtype: torch.dtype, device: str) -> None:
    module, example = build(name, "small", dtype)
    certificate = xrt_torch.certify(module, example, EXACT, device=device, samples=3, name=name)
    assert certificate.equal, str(certificate)
    assert certificate.first == "", str(certificate)
    assert len(certificate.modules) > 5
    assert "x the time without it" in str(certificate)


@pytest.mark.sampled(0)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NETWORKS)
def test_without_the_policy_the_stated_bound_holds_on_other_inputs(name: str, device: str) -> None:
    module, example = build(name, "small", torch.float32)
    stated = xrt_torch.certify(module, example, device=device, samples=10, name=name)
    others = xrt_torch.certify(module, example, device=device, samples=100, seed=1, name=name)
    for a, b in zip(stated.outputs, others.outputs, strict=True):
        assert b.relative <= a.bound, f"{b} is over {a}"
        assert a.bound < (1e-4 if device == "cpu" else 1e-2)  # convolutions of PyTorch on CUDA use TF32


def test_another_kernel_on_one_side_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training side computes layer norm by a decomposition in place of the kernel."""
    from xpuruntime.pytorch import certificate as module

    real = module._with_hooks

    def other_kernel(net: torch.nn.Module, *arguments: object) -> object:
        plain = torch.nn.functional.layer_norm

        def decomposed(
            x: torch.Tensor, shape: object, weight: torch.Tensor, bias: torch.Tensor, eps: float
        ) -> torch.Tensor:
            centered = x - x.mean(-1, keepdim=True)
            return centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias

        monkeypatch.setattr(torch.nn.functional, "layer_norm", decomposed)
        try:
            return real(net, *arguments)
        finally:
            monkeypatch.setattr(torch.nn.functional, "layer_norm", plain)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.LayerNorm(33), torch.nn.Linear(33, 5)).eval()
    x = torch.randn(7, 16)
    assert xrt_torch.certify(net, x, EXACT).first == ""
    monkeypatch.setattr(module, "_with_hooks", other_kernel)
    assert xrt_torch.certify(net, x, EXACT).first == "1"
