"""Special functions of PyTorch on the native engine: gamma, error and Bessel functions, and the bits of floats."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from support.torch_oracle import run_natively  # noqa: E402

import xpuruntime as xrt  # noqa: E402

special = torch.special
ODD = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 8.0, -8.0, 10.0, 1e-44, -1e-30, 1e-7, 1e30, -1e30, math.inf, -math.inf, math.nan]  # fmt: skip


FUNCTIONS = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "trigamma": lambda x: torch.polygamma(1, x),
    "erfc": torch.erfc,
    "erfcx": special.erfcx,
    "erfinv": torch.erfinv,
    "ndtri": special.ndtri,
    "log_ndtr": special.log_ndtr,
    "i0": torch.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "i1e": special.i1e,
}


def points(dtype):
    g = torch.Generator().manual_seed(3)
    x = torch.cat(
        [
            torch.tensor(ODD, dtype=torch.float64),
            torch.rand(300, generator=g, dtype=torch.float64),
            torch.randn(300, generator=g, dtype=torch.float64) * 3,
            torch.randn(100, generator=g, dtype=torch.float64) * 30,
            1 - torch.rand(50, generator=g, dtype=torch.float64) * 1e-3,
            10 ** (-30 * torch.rand(50, generator=g, dtype=torch.float64)),
        ]
    )
    return x.to(dtype)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_functions(dtype):
    x = points(getattr(torch, dtype))
    results = run_natively(list(FUNCTIONS.values()), x)
    rtol, atol = {"float32": (1e-5, 1e-6), "float64": (2e-12, 1e-13), "bfloat16": (8e-3, 1e-3)}[dtype]
    for name, function, got in zip(FUNCTIONS, FUNCTIONS.values(), results, strict=True):
        want = function(x.double()).to(x.dtype)
        if name == "trigamma":  # PyTorch has rounding errors instead of poles, and a series of few terms
            want = torch.where((x <= 0) & (x == x.trunc()) & x.isfinite(), math.inf, want)
            rtol = max(rtol, 1e-9)
        bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
        assert got.dtype == x.dtype
        assert not bad.any(), (name, x[bad][:5], got[bad][:5], want[bad][:5])


def test_special_functions_of_integers_and_of_nothing():
    x = torch.tensor([-2, 0, 1, 2, 3, 20])
    for got, want in zip(run_natively([torch.lgamma, torch.erfc], x), (x.lgamma(), x.erfc()), strict=True):
        torch.testing.assert_close(got, want)
    (got,) = run_natively([torch.digamma], torch.zeros(2, 0, 3))
    assert got.shape == (2, 0, 3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_polygamma_of_higher_orders(dtype):
    x = points(getattr(torch, dtype))
    orders = (2, 3, 4, 7, 10)
    rtol, atol = {"float32": (2e-5, 1e-4), "float64": (1e-9, 1e-9), "bfloat16": (1e-2, 1e-2)}[dtype]
    for order, got in zip(
        orders, run_natively([lambda x, n=n: torch.polygamma(n, x) for n in orders], x), strict=True
    ):
        want = torch.polygamma(order, x.double()).to(x.dtype)
        bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
        assert got.dtype == x.dtype
        assert not bad.any(), (order, x[bad][:5], got[bad][:5], want[bad][:5])
    (got,) = run_natively([lambda x: torch.polygamma(2, x)], torch.zeros(2, 0))
    assert got.shape == (2, 0)


def test_polygamma_of_high_orders_is_refused():
    with pytest.raises(xrt.XpuError, match="only orders 0 to 10 are supported, not 11"):
        run_natively([lambda x: torch.polygamma(11, x)], torch.rand(3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_signs_and_powers_of_two(dtype):
    x = torch.tensor(ODD).to(getattr(torch, dtype))
    y = x.flip(0).contiguous()
    functions = [
        lambda x, y: torch.signbit(x),
        torch.copysign,
        lambda x, y: torch.copysign(x, -0.0),
        lambda x, y: torch.copysign(x.isnan().int() + 3, y),
        lambda x, y: torch.ldexp(x, y.clamp(-3, 3).nan_to_num().int()),
    ]
    for got, function in zip(run_natively(functions, x, y), functions, strict=True):
        want = function(x, y)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(got.signbit()[~got.isnan()], want.signbit()[~want.isnan()])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_powers_of_two_out_of_range(dtype):
    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    x = [1.0, -3.0, 0.0, -0.0, 1.7, info.max, -info.max, info.tiny, info.tiny * 1.3, info.tiny * info.eps, math.inf, math.nan]  # fmt: skip
    k = [0, 1, -24, 14, 15, -149, -150, 127, 128, 276, -277, 700, 1023, 1024, -1023, -1074, -1075, 2097, -2098, 40000, -40000]  # fmt: skip
    x = torch.tensor(x, dtype=torch.float64).to(kind)[:, None]
    exponents = [
        torch.tensor(k),
        torch.tensor(k, dtype=torch.int32),
        torch.arange(-128, 128, dtype=torch.int8),
    ]
    exponents.append(
        torch.tensor([-2000.0, -3.5, 0.5, 13.0, 16.0, 130.5, math.inf, -math.inf, math.nan]).to(kind)
    )
    for other in exponents:
        (got,) = run_natively([torch.ldexp], x, other)
        want = torch.ldexp(x.expand(-1, len(other)).contiguous(), other)
        rtol, atol = (info.eps * 50, info.tiny) if other.dtype.is_floating_point else (0, 0)
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        torch.testing.assert_close(got.signbit()[~got.isnan()], want.signbit()[~want.isnan()])
    for x, other in (
        (torch.tensor([3, 0, 1]), torch.tensor([2, 200, -140])),
        (torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]).half()),
        (torch.tensor([3.0, 1e-40]), torch.tensor([0.5, 130.5], dtype=torch.float64)),
        (torch.zeros(2, 0), torch.tensor(5)),
    ):
        torch.testing.assert_close(
            run_natively([torch.ldexp], x, other)[0], torch.ldexp(x, other), equal_nan=True
        )


def delicate_points(name, kind):
    """Numbers near which a function is 0 or infinite, and huge ones."""
    steps = 10.0 ** -torch.arange(0.0, 17.0, dtype=torch.float64)
    if name == "erfinv":
        ends = [
            1 - steps,
            steps,
            torch.linspace(0, 1, 101, dtype=torch.float64),
            torch.tensor([1.5, math.nan]),
        ]
        return torch.cat([*ends, *(-x for x in ends)]).to(kind)
    if name == "lgamma":
        huge = torch.tensor([1e36, 1e37, 2.5e38, 1e300, torch.finfo(kind).max], dtype=torch.float64)
        others = torch.linspace(0.01, 9, 900, dtype=torch.float64)
        return torch.cat([1 - steps, 1 + steps, 2 - steps, 2 + steps, others, huge, -huge]).to(kind)
    near = [k + s * steps[1:] for k in (0, -1, -2, -7) for s in (1, -1)]
    return torch.cat([*near, torch.tensor([-0.9999, -0.9999998, -1.0, -0.0, -1e30])]).to(kind)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["erfinv", "lgamma", "digamma"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_functions_near_poles_and_zeros(dtype, name):
    """The relative error is bounded also where a result is small or where it changes fast."""
    kind, function = getattr(torch, dtype), FUNCTIONS[name]
    x = delicate_points(name, kind)
    (got,) = run_natively([function], x)
    want = function(x.double())
    if name == "digamma":  # PyTorch's has rounding errors near negative integers
        pairs = zip(x.tolist(), want.tolist(), strict=True)
        exact = [w if v == int(v) else float(mpmath.digamma(v)) for v, w in pairs]
        want = torch.tensor(exact, dtype=torch.float64)
    rtol = {"float32": 2e-6, "float64": 2e-14, "bfloat16": 8e-3}[dtype]
    bad = ~torch.isclose(got, want.to(kind), rtol=rtol, atol=0, equal_nan=True)
    assert not bad.any(), (x[bad][:5], got[bad][:5], want[bad][:5])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_running_log_sums(dtype):
    x = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(1)) * 40
    x[0, :3] = -math.inf
    x[1, 4, 0], x[2, 2, 1] = math.inf, math.nan
    x = x.to(getattr(torch, dtype))
    functions = [lambda x, d=d: torch.logcumsumexp(x, d) for d in (0, 1, -1)]
    for got, function in zip(run_natively(functions, x), functions, strict=True):
        torch.testing.assert_close(got, function(x), equal_nan=True)
    for empty in (torch.zeros(0, 3), torch.tensor(2.5)):
        torch.testing.assert_close(run_natively([lambda x: torch.logcumsumexp(x, 0)], empty)[0], empty)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_the_mode(dtype):
    x = torch.randint(0, 2 if dtype == "bool" else 4, (5, 9, 3), generator=torch.Generator().manual_seed(2))
    x = x.to(getattr(torch, dtype))
    functions = [lambda x, d=d, k=k: torch.mode(x, d, k) for d, k in ((1, False), (0, True), (-1, False))]
    got = run_natively(functions, x)
    for i, function in enumerate(functions):
        values, positions = function(x)
        torch.testing.assert_close(got[2 * i], values, equal_nan=True)
        torch.testing.assert_close(got[2 * i + 1], positions)


def test_the_mode_of_nan_and_of_scalars():
    # PyTorch's result depends on the order if some elements are NaN; here the NaN of a line count as different values.
    for x in (torch.full((3,), math.nan), torch.tensor(2.0)):
        got, want = run_natively([lambda x: torch.mode(x, 0)], x), torch.mode(x, 0)
        torch.testing.assert_close(got, list(want), equal_nan=True)
    assert run_natively([lambda x: torch.mode(x, 0)], torch.tensor([math.nan, 2, math.nan, 1, 2]))[0] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_powers_that_pytorch_computes_as_roots(dtype):
    """A power of 0.5 is NaN for -inf and -0 for -0, unlike that of a tensor of 0.5, and unlike that in 16 bits."""
    x = torch.tensor([-math.inf, -0.0, 4.0, math.inf, math.nan, -2.0], dtype=dtype)
    half = torch.tensor(0.5)
    functions = [lambda v: v**0.5, lambda v: v**-0.5, lambda v: v**half]
    for got, want in zip(run_natively(functions, x), [f(x) for f in functions], strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())
        assert torch.equal(got.signbit()[~got.isnan()], want.signbit()[~want.isnan()])
