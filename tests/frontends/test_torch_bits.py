"""Neighbors and parts of floats, common divisors, and histograms of the range of their content, on the native engine against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import run_natively, same  # noqa: E402


def same_bits(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        assert torch.equal(got.signbit()[~got.isnan()], want.signbit()[~want.isnan()])


def floats(dtype: str) -> Any:
    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    odd = [0.0, -0.0, 1.0, -1.0, 0.5, 1.999, 3.0, -8.0, info.max, -info.max, info.tiny, -info.tiny, math.inf, -math.inf, math.nan]  # fmt: skip
    odd += [info.tiny * info.eps, -info.tiny * info.eps, info.tiny * 0.4, info.tiny * 1.3, 1e-3, 65504.0]
    return torch.tensor(odd, dtype=torch.float64).to(kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_parts_of_floats(dtype: str) -> None:
    x = floats(dtype)
    mantissa, exponent = run_natively([torch.frexp], x)
    want = torch.frexp(x.float() if x.element_size() == 2 else x)
    same_bits(mantissa, want.mantissa.to(x.dtype))
    same_bits(exponent, want.exponent)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_neighbors_of_floats(dtype: str) -> None:
    x = floats(dtype)
    y = x[:, None].contiguous()
    (got,) = run_natively([torch.nextafter], x, y)
    same_bits(got, torch.nextafter(*(v.contiguous() for v in torch.broadcast_tensors(x, y))))


@pytest.mark.parametrize("towards", [math.inf, -math.inf, 0.0, -0.0, 1.0, math.nan])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_neighbors_of_every_float_of_16_bits(dtype: str, towards: float) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    y = torch.full_like(x, towards)
    (got,) = run_natively([torch.nextafter], x, y)
    same_bits(got, torch.nextafter(x, y))


@pytest.mark.parametrize("kind", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"])
def test_casts_to_floats_of_8_bits(kind: str) -> None:
    """Values beyond the largest become infinity or NaN, or saturate, as in PyTorch."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    narrow = getattr(torch, f"float8_{kind}")
    (got,) = run_natively([lambda x: x.to(narrow).to(torch.bfloat16)], x)
    same_bits(got, x.to(narrow).to(torch.bfloat16))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_common_divisors(dtype: str) -> None:
    kind = getattr(torch, dtype)
    info = torch.iinfo(kind)
    values = [0, 1, 2, 6, 12, 35, 89, 55, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
    values += [-1, -6, -35] if info.min else []
    fibonacci = [1, 1]
    while fibonacci[-1] + fibonacci[-2] <= info.max:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    x = torch.tensor([*values, *fibonacci[-3:]], dtype=kind)
    y = x[:, None].contiguous()
    divisor, multiple, of_nothing = run_natively(
        [torch.gcd, torch.lcm, lambda x, y: torch.gcd(x[:0], y[:, :0])], x, y
    )
    same_bits(divisor, torch.gcd(x, y))
    rest = x != info.min  # PyTorch divides the least number by -1, which ends the process
    same_bits(multiple[rest][:, rest], torch.lcm(x[rest], y[rest]))
    assert of_nothing.shape == (len(x), 0)


def test_common_divisors_of_two_types() -> None:
    x, y = torch.tensor([12, 18, -7], dtype=torch.int8), torch.tensor([[2**40 * 3], [0]])
    for got, want in zip(
        run_natively([torch.gcd, torch.lcm], x, y), (torch.gcd(x, y), torch.lcm(x, y)), strict=True
    ):
        same_bits(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_histograms_of_the_range_of_the_content(dtype: str) -> None:
    kind = getattr(torch, dtype)
    functions = [lambda x: torch.histc(x, 7), lambda x: torch.histc(x, 4, 2, 2)]
    for x in (
        torch.randn(5, 60),
        torch.full((6,), 2.5),
        torch.tensor([-3.0]),
        torch.tensor(1.5),
        torch.zeros(0),
    ):
        x = x.to(kind)
        for got, function in zip(run_natively(functions, x), functions, strict=True):
            same_bits(got, function(x))
    x = torch.tensor([1.0, math.nan, 2.0], dtype=kind)  # PyTorch raises
    (got,) = run_natively([lambda x: torch.histc(x, 3)], x)
    assert got.isnan().all()


@pytest.mark.parametrize("to", ["uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64"])  # fmt: skip
@pytest.mark.parametrize(
    "dtype", ["uint8", "float16", "bfloat16", "int16", "float32", "int32", "float64", "int64"]
)
def test_views_in_another_type(dtype: str, to: str) -> None:
    x = torch.randint(0, 256, (3, 5, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = x.view(getattr(torch, dtype))
    kind = getattr(torch, to)
    (got,) = run_natively([lambda x: x.view(kind)], x)
    want = x.view(kind)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    is_nan = want.isnan()
    assert torch.equal(got.isnan(), is_nan)
    assert torch.equal(got[~is_nan], want[~is_nan])


def test_views_of_nothing_and_of_any_size() -> None:
    same(lambda x: x.view(torch.uint8), torch.randn(3, 0))
    same(lambda x: x.view(torch.float64), torch.randn(0, 4))
    n = torch.export.Dim("n", min=2)
    same(lambda x: x.view(torch.uint8), torch.randn(3, 5), dynamic_shapes=({1: n},), others=[(torch.randn(3, 8),)])  # fmt: skip
    same(lambda x: x.view(torch.float64), torch.randn(3, 4), dynamic_shapes=({0: n},), others=[(torch.randn(7, 4),)])  # fmt: skip
