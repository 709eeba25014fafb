"""Bessel functions, the zeta function and orthogonal polynomials of PyTorch on the native engine."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from support.torch_oracle import run_natively  # noqa: E402

import xpuruntime as xrt  # noqa: E402

special = torch.special
nan, inf = math.nan, math.inf
ODD = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 8.0, -8.0, 1e-44, 1e-30, 1e-7, 1e5, inf, -inf, nan]


def compare(functions: dict[str, Any], x: Any, rtol: float, atol: float) -> None:
    """Compare with PyTorch in float64, rounded."""
    for (name, function), got in zip(
        functions.items(), run_natively(list(functions.values()), x), strict=True
    ):
        want = function(x.double()).to(got.dtype)
        bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
        assert got.dtype == (x.dtype if x.is_floating_point() else torch.float32)
        assert got.shape == x.shape
        assert not bad.any(), (name, x[bad][:5].tolist(), got[bad][:5].tolist(), want[bad][:5].tolist())


BESSEL = {
    name: getattr(special, name)
    for name in (
        *(f"bessel_{kind}{order}" for kind in "jy" for order in (0, 1)),
        *(f"{how}modified_bessel_k{order}" for how in ("", "scaled_") for order in (0, 1)),
        "spherical_bessel_j0",
    )
}


def exactly(name: str, x: float) -> float:
    """The function with 15 digits. PyTorch's j0 and y0 have 9."""
    order = int(name[-1])
    if math.isnan(x) or (math.isinf(x) and ("k" not in name or x < 0) and "spherical" not in name):
        return nan
    if "spherical" in name:
        return 1.0 if x == 0 else 0.0 if math.isinf(x) else float(mpmath.sin(x) / x)
    if name.startswith("bessel_j"):
        return float(mpmath.besselj(order, x))
    if x <= 0:
        return nan if x < 0 else -inf if "_y" in name else inf
    if "_y" in name:
        return float(mpmath.bessely(order, x))
    if math.isinf(x):
        return 0.0
    return float(mpmath.besselk(order, x) * (mpmath.exp(x) if "scaled" in name else 1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bessel_functions(dtype: str) -> None:
    g = torch.Generator().manual_seed(3)
    drawn = torch.rand(120, generator=g, dtype=torch.float64)
    x = torch.cat(
        [torch.tensor(ODD, dtype=torch.float64), drawn[:40] * 3, drawn[40:80] * 20, drawn[80:] * 300]
    )
    x = torch.cat([x, -drawn[:20] * 30]).to(getattr(torch, dtype))
    rtol, atol = (2e-5, 2e-6) if dtype == "float32" else (5e-13, 2e-15)
    for (name, function), got in zip(BESSEL.items(), run_natively(list(BESSEL.values()), x), strict=True):
        want = torch.tensor([exactly(name, v) for v in x.tolist()], dtype=torch.float64).to(x.dtype)
        torch.testing.assert_close(
            got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
        )
        torch.testing.assert_close(
            got, function(x.double()).to(x.dtype), rtol=2e-5, atol=2e-6, equal_nan=True
        )


def test_bessel_functions_of_integers_of_few_and_of_no_numbers() -> None:
    compare(BESSEL, torch.arange(-3, 12), 2e-5, 2e-6)
    compare(BESSEL, torch.tensor(2.5), 2e-5, 2e-6)
    compare(BESSEL, torch.rand(0, 3), 0, 0)
    compare(BESSEL, torch.rand(5, 7).T[::2], 2e-5, 2e-6)


@pytest.mark.parametrize("name", ["modified_bessel_k0", "modified_bessel_k1"])
def test_small_values_keep_their_digits(name: str) -> None:
    """PyTorch's own series lose none, either; the oracle has 30 digits."""
    x = torch.linspace(0.01, 80, 97, dtype=torch.float64)
    (got,) = run_natively([getattr(special, name)], x)
    exact = torch.tensor([float(mpmath.besselk(int(name[-1]), v)) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got, exact, rtol=1e-13, atol=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zeta(dtype: str) -> None:
    kind = getattr(torch, dtype)
    s = torch.tensor([1.0, 0.5, 1.01, 1.5, 2.0, 3.0, 4.0, 7.5, 20.0, 60.0, -2.0, nan], dtype=kind)[:, None]
    q = torch.tensor(
        [0.0, -1.0, -1.5, -7.25, -100.5, 1e-3, 0.5, 1.0, 2.0, 9.5, 100.0, 1e6, nan, -inf], dtype=kind
    )
    rtol, atol = (2e-5, 1e-6) if dtype == "float32" else (1e-12, 1e-14)
    close = partial(torch.testing.assert_close, rtol=rtol, atol=atol, equal_nan=True)
    (got,) = run_natively([special.zeta], s, q)
    close(got, special.zeta(s.double(), q.double()).to(kind))
    functions = [lambda x: special.zeta(x, 1.0), lambda x: special.zeta(2.0, x), lambda x: special.zeta(3, x)]
    for mine, function in zip(run_natively(functions, q), functions, strict=True):
        close(mine, function(q.double()).to(kind))


POLYNOMIALS = [
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    *(f"{how}chebyshev_polynomial_{kind}" for how in ("", "shifted_") for kind in "tuvw"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("degree", [-1, 0, 1, 2, 5, 9])
def test_polynomials(degree: int) -> None:
    functions = {name: partial(getattr(special, name), n=degree) for name in POLYNOMIALS}
    x = torch.cat([torch.linspace(-1.5, 2, 41), torch.tensor([0.0, -0.0])])
    compare(functions, x, 1e-4, 1e-4)
    compare(functions, x.double(), 1e-12, 1e-12)
    compare(functions, torch.arange(-2, 3), 1e-5, 1e-5)
    compare(functions, x[:0], 0, 0)
    if degree > 0:  # PyTorch's laguerre_polynomial_l returns anything for NaN
        assert all(y.isnan().all() for y in run_natively(list(functions.values()), torch.tensor([nan])))


def test_degrees_that_are_refused() -> None:
    x = torch.rand(3)
    with pytest.raises(xrt.XpuError, match="only degrees up to 64 are supported, not 65"):
        run_natively([partial(special.legendre_polynomial_p, n=65)], x)
