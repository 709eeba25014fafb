"""Incomplete gamma functions of PyTorch on the native engine, compared with PyTorch and, where that is inexact, with mpmath."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")
from support.torch_oracle import run_natively  # noqa: E402

nan, inf = math.nan, math.inf
BOTH = (torch.special.gammainc, torch.special.gammaincc)


def pairs() -> tuple[Any, Any]:
    g = torch.Generator().manual_seed(4)
    a = torch.exp(torch.rand(1000, generator=g, dtype=torch.float64) * 16 - 7)
    noise = torch.randn(1000, generator=g, dtype=torch.float64)
    x = torch.cat(
        [a[:400] * noise[:400].exp(), (a + noise * a.sqrt() * 3)[400:800].abs(), noise[800:].abs() * 20]
    )
    ends = torch.tensor(
        [
            [20.0, 21.0],
            [20.0, 20.99],
            [20.01, 21.0],
            [40, 20],
            [40, 65],
            [1e6, 1e6],
            [1e8, 1.0001e8],
            [1e-30, 1.0],
        ]
    )
    return torch.cat([a, ends[:, 0]]), torch.cat([x, ends[:, 1]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_incomplete_gamma_functions(dtype: str) -> None:
    a, x = (v.to(getattr(torch, dtype)) for v in pairs())
    rtol, atol = {
        "float32": (1e-5, 4e-6),
        "float64": (1e-9, 1e-9),
        "bfloat16": (8e-3, 1e-3),
        "float16": (1e-3, 1e-4),
    }[dtype]
    wide = [v.double() for v in (a, x)]
    for got, want in zip(
        run_natively(BOTH, a, x), (torch.special.gammainc(*wide), torch.special.gammaincc(*wide)), strict=True
    ):
        bad = ~torch.isclose(got, want.to(got.dtype), rtol=rtol, atol=atol, equal_nan=True)
        assert got.dtype == a.dtype
        assert not bad.any(), (a[bad][:5], x[bad][:5], got[bad][:5], want[bad][:5])


def test_all_digits() -> None:
    """Near a = 20 PyTorch has 9 digits."""
    a, x = (v[::17] for v in pairs())
    for got, bounds in zip(run_natively(BOTH, a, x), ((True, False), (False, True)), strict=True):
        for b, y, value in zip(a.tolist(), x.tolist(), got.tolist(), strict=True):
            with mpmath.workdps(40):
                exact = mpmath.gammainc(
                    b, 0 if bounds[0] else y, y if bounds[0] else mpmath.inf, regularized=True
                )
            assert abs(value - exact) < 2e-14, (b, y)


def test_small_results_keep_their_digits() -> None:
    cases = [
        (3.0, 90.0),
        (0.5, 300.0),
        (150.0, 20.0),
        (30.0, 200.0),
        (1000.0, 1400.0),
        (1000.0, 700.0),
        (2.5, 1e-8),
    ]
    a, x = (torch.tensor(v, dtype=torch.float64) for v in zip(*cases, strict=True))
    lower, upper = run_natively(BOTH, a, x)
    for i, (b, y) in enumerate(cases):
        with mpmath.workdps(40):
            exact = [mpmath.gammainc(b, 0, y, regularized=True), mpmath.gammainc(b, y, regularized=True)]
        assert float(abs(lower[i].item() / exact[0] - 1)) < 1e-12
        assert float(abs(upper[i].item() / exact[1] - 1)) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ends_and_numbers_outside(dtype: str) -> None:
    ends = torch.tensor(
        [0.0, -0.0, -1.0, 1.0, 30.0, 1e30, inf, -inf, nan, 1e-30], dtype=getattr(torch, dtype)
    )
    a = ends[:, None]
    for got, function in zip(
        run_natively(BOTH, a, ends), (torch.special.gammainc, torch.special.gammaincc), strict=True
    ):
        want = torch.where(
            a.isnan() | ends.isnan(), nan, function(a, ends)
        )  # PyTorch has numbers for some NaN
        torch.testing.assert_close(got, want, equal_nan=True)


def test_few_and_no_numbers() -> None:
    for a, x in (
        (torch.arange(1.0, 5.0)[:, None], torch.arange(0.0, 7.0)),
        (torch.tensor(2.5), torch.rand(3)),
        (torch.zeros(0, 3), torch.rand(3)),
        (torch.rand(4, 6).T[::2], torch.tensor([2.0], dtype=torch.float64)),
    ):
        for got, want in zip(run_natively(BOTH, a, x), (function(a, x) for function in BOTH), strict=True):
            torch.testing.assert_close(got, want)
