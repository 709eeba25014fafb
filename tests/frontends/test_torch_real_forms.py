"""Ops of PyTorch that are written through others: hypot, the angle of real numbers, RReLU in eval mode and ``nn.Bilinear``."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import xpuruntime as xrt  # noqa: E402

nn = torch.nn
ENGINES = ("native", "onnxruntime", "openvino")
ODD = [0.0, -0.0, 1.0, -3.0, 4.0, 1e-30, 3e38, -1e25, 1e-44, math.inf, -math.inf, math.nan]


class Of(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


def both(module, tensors, engine="native"):
    """The result of an engine, and PyTorch's."""
    if engine != "native":
        pytest.importorskip(engine)
    module = module.eval() if isinstance(module, nn.Module) else Of(module).eval()
    with torch.no_grad():
        want = module(*tensors)
    policy = xrt.ExecutionPolicy(caching=False)
    with xrt.InferenceSession(
        module, example_inputs=tensors, device="cpu", engine=engine, exec_policy=policy
    ) as session:
        (got,) = session.run(list(tensors)).values()
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    return got, want


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_hypot(dtype):
    x = torch.tensor(ODD).to(getattr(torch, dtype))
    got, want = both(torch.hypot, (x[:, None].contiguous(), x))
    last = 2 * torch.finfo(want.dtype).eps
    torch.testing.assert_close(got, want, rtol=last, atol=0 if dtype == "float64" else 1e-44, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (7, 1, 3), (0, 3)])
def test_hypot_of_shapes(shape):
    torch.testing.assert_close(*both(torch.hypot, (torch.randn(shape), torch.randn(3))))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"])
def test_the_angle_of_real_numbers(dtype):
    kind = getattr(torch, dtype)
    x = torch.tensor(ODD if kind.is_floating_point else [0, 1, 7, -3 if dtype.startswith("i") else 2]).to(
        kind
    )
    torch.testing.assert_close(*both(torch.angle, (x,)), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(*both(torch.angle, (x[:0].reshape(2, 0),)))


@pytest.mark.parametrize("engine", ENGINES)
def test_rrelu_in_eval_mode(engine):
    x = torch.randn(3, 5)
    torch.testing.assert_close(*both(nn.RReLU(0.1, 0.4), (x,), engine))
    if engine == "native":
        torch.testing.assert_close(*both(nn.RReLU(), (torch.tensor(ODD),)), equal_nan=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("shape", "bias"), [((5,), True), ((3, 5), False), ((2, 3, 5), True), ((1, 5), True)]
)
def test_bilinear(engine, shape, bias):
    module = nn.Bilinear(5, 7, 4, bias=bias)
    torch.testing.assert_close(*both(module, (torch.randn(shape), torch.randn(*shape[:-1], 7)), engine))


def test_bilinear_of_nothing_and_of_nan():
    torch.testing.assert_close(*both(nn.Bilinear(5, 7, 4), (torch.randn(0, 5), torch.randn(0, 7))))
    x = torch.randn(3, 5)
    x[1, 2] = math.nan
    got, want = both(nn.Bilinear(5, 7, 4), (x, torch.randn(3, 7)))
    np.testing.assert_array_equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_rounded_quotients_of_numbers_and_by_one(dtype: torch.dtype) -> None:
    x = torch.tensor([-2.5, 0.3, 4.0, -7.1, 9.0]).mul(3).to(dtype)
    positive = x.abs() + 1

    def function(x: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
        of_numbers = [7 // positive, -2.5 // x.where(x != 0, 1), 1 // positive.sqrt()]
        return torch.stack([*of_numbers, x // 1, torch.div(x, 1, rounding_mode="trunc"), x // -1])

    got, want = both(function, (x, positive))
    assert torch.equal(got, want)
