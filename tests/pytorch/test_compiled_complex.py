"""torch.compile(backend="xpuruntime") of modules that compute with complex tensors: gradients and results are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def rotary(x: Any) -> Any:
    """As Llama's own code rotates: backward reads the conjugated rotations."""
    angles = torch.outer(torch.arange(3).float(), torch.tensor([1.0, 0.3]))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2, 2)) * turns).flatten()


def spectral(x: Any) -> Any:
    spectrum = torch.fft.rfft(x.view(4, 6))
    out = torch.zeros_like(spectrum)
    out[:, :2] = spectrum[:, :2] * (0.5 - 2j)
    return torch.fft.irfft(out, n=6).flatten()


def between(x: Any) -> Any:
    """A complex value that is read before and after an operator that only PyTorch has."""
    z = torch.view_as_complex(x.view(2, 3, 2, 2)) * torch.complex(torch.ones(2), torch.arange(2.0))
    return torch.view_as_real(z * torch.special.i0(x.view(2, 3, 2, 2)[..., 0].abs()) * z).flatten()


def parts(x: Any) -> Any:
    z = torch.complex(x[:12], x[12:])
    return torch.cat([z.abs(), (z * z.conj()).real, z.angle(), (z / (z + 2j)).imag])


@pytest.mark.parametrize("function", [rotary, spectral, between, parts])
def test_gradients_and_results(function: Any, device: str) -> None:
    if device != "cpu":
        pytest.skip("its constants are on the host")
    torch.compiler.reset()
    x = torch.randn(24, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(function, backend="xpuruntime")
    found = []
    for run in (function, compiled):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        (y * torch.linspace(0.5, 1.5, y.numel())).sum().backward()
        found.append((y.detach(), leaf.grad))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-5)
