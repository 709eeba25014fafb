"""Certificates: equal networks are equal to the bit under the exact policy, and a planted difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import InputError
from xpuruntime.pytorch.certificate import _match

EXACT = {
    "version": 1,
    "kernel": {
        "rules": [{"deterministic": True}, {"op": "matmul", "use": "generated"}],
        "attention": ["flash_v2", "flash", "naive"],
    },
    "execution": {"optimization_level": 0},
}


class Block(torch.nn.Module):
    """A transformer block with PyTorch's fused attention."""

    def __init__(self, causal: bool, groups: int = 4) -> None:
        super().__init__()
        self.causal, self.groups = causal, groups
        self.norm1, self.norm2 = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)
        self.q, self.k = torch.nn.Linear(32, 32), torch.nn.Linear(32, 8 * groups)
        self.v, self.out = torch.nn.Linear(32, 8 * groups), torch.nn.Linear(32, 32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.groups < 4
        )
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        result: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        return result


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = (torch.nn.Linear(16, 32), torch.nn.RMSNorm(32), torch.nn.SiLU(), torch.nn.Linear(32, 8))
    return torch.nn.Sequential(*layers), torch.randn(6, 16)


def convolutions() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = (
        torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU(),
    )  # fmt: skip
    return torch.nn.Sequential(*layers), torch.randn(2, 3, 16, 16)


NETWORKS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "mlp": mlp,
    "convolutions": convolutions,
    "bert block": lambda: (Block(causal=False), torch.randn(2, 7, 32)),
    "gpt block": lambda: (Block(causal=True), torch.randn(2, 7, 32)),
    "grouped block": lambda: (Block(causal=True, groups=2), torch.randn(2, 7, 32)),
}


@pytest.mark.sampled(1, group="sides")
@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_each_kernel_of_attention_is_the_same_on_both_sides(kernel: str) -> None:
    torch.manual_seed(0)
    policy = EXACT | {"kernel": {**EXACT["kernel"], "attention": kernel}}  # type: ignore[dict-item]
    net, x = Block(causal=True, groups=2), torch.randn(1, 130, 32)
    assert (certificate := xrt_torch.certify(net.eval(), x, policy)).equal, str(certificate)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_and_session_are_bitwise_equal_under_the_exact_policy(name: str, device: str) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS[name]()
    certificate = xrt_torch.certify(net.eval(), x, EXACT, device=device, samples=3, name=name)
    assert certificate.equal, str(certificate)
    assert certificate.modules
    assert certificate.first == ""
    assert "bitwise equal" in str(certificate)
    assert json.loads(json.dumps(certificate.to_json()))["equal"] is True


@pytest.mark.sampled(1, group="sides")
def test_without_the_exact_policy_the_bound_is_stated(device: str) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS["gpt block"]()
    certificate = xrt_torch.certify(net.eval(), x, None, device=device, samples=4)
    (output,) = certificate.outputs
    assert output.relative < 1e-5
    assert output.equal == (output.ulp == 0)


def test_a_planted_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another weight on one side, in the third layer."""
    from xpuruntime.pytorch import certificate as module

    torch.manual_seed(0)
    net, x = mlp()
    real = module.import_torch

    def spoiled(model: torch.nn.Module, inputs: object) -> object:
        graph, weights = real(model, inputs)
        arrays = {w.name: np.array(weights[w.name]) for w in graph.weights}
        arrays["3.weight"] = np.nextafter(arrays["3.weight"], np.float32(9))
        return type(real(model, inputs))(graph, arrays)

    monkeypatch.setattr(module, "import_torch", spoiled)
    assert xrt_torch.certify(net.eval(), x, EXACT).first == "3"


def test_matches_count_units_in_the_last_place() -> None:
    a = np.array([1.0, -1.0, 0.0, np.nan], np.float32)
    b = np.array([np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, np.nan], np.float32)
    match = _match("y", [a], [b])
    assert (match.elements, match.differing, match.ulp) == (4, 2, 1)


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(InputError, match="needs a module in eval mode"):
        xrt_torch.certify(torch.nn.Linear(2, 2).train(), torch.ones(1, 2))


def test_values_that_are_not_finite_spoil_no_figure_of_the_others() -> None:
    a = np.array([np.inf, -np.inf, np.nan, 2.0, 1.0], np.float32)
    b = np.array([np.inf, -np.inf, np.nan, 2.0, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    match = _match("y", [a], [b])
    assert (match.differing, match.ulp) == (1, 1)
    assert match.relative == pytest.approx(2.0**-23 / 2)
    on_one_side = _match("y", [a], [np.where(np.isnan(a), np.float32(0), a)])
    assert on_one_side.bound == np.inf
    assert json.loads(json.dumps(on_one_side.to_json(), allow_nan=False))["bound"] is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_units_in_the_last_place_between_values_of_other_signs(dtype: type) -> None:
    largest = np.finfo(dtype).max
    match = _match("y", [np.array([-largest], dtype)], [np.array([largest], dtype)])
    assert match.ulp == 2 * int(largest.view(f"u{largest.itemsize}"))
    assert match.relative == pytest.approx(2.0) if dtype is not np.float64 else match.relative > 1
