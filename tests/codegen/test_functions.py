"""The prelude's functions against long doubles: units in the last place, at every level, as scalars and as vectors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime.codegen.cpp.target import cpu_target

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+bf16")
PARTS = frozenset({"exp", "log", "erf", "trig", "inverse", "softplus"})
Reference = Callable[[Any], Any]
# name: reference in long double (exact to about 1e-19), most units in the last place
FUNCTIONS: dict[str, tuple[Reference, float]] = {
    "exp": (np.exp, 1.0),
    "exp2": (np.exp2, 1.0),
    "expm1": (np.expm1, 2.0),
    "tanh": (np.tanh, 2.6),
    "sinh": (np.sinh, 2.6),
    "cosh": (np.cosh, 3.0),
    "log": (np.log, 1.0),
    "log2": (np.log2, 1.6),
    "log10": (np.log10, 2.0),
    "log1p": (np.log1p, 1.6),
    "asinh": (np.arcsinh, 2.0),
    "acosh": (np.arccosh, 2.0),
    "atanh": (np.arctanh, 2.0),
    "sin": (np.sin, 2.2),
    "cos": (np.cos, 2.2),
    "tan": (np.tan, 3.5),
    "asin": (np.arcsin, 3.0),
    "acos": (np.arccos, 3.0),
    "atan": (np.arctan, 2.5),
    "sqrt": (np.sqrt, 0.5),
    "rint": (np.rint, 0.0),
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "trunc": (np.trunc, 0.0),
    "erf": (np.vectorize(lambda x: np.longdouble(math.erf(float(x)))), 3.5),
}
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-30,
    -1e-30,
    1e-40,
    88.0,
    89.0,
    -87.5,
    -104.0,
    0.5,
    -0.5,
    3e38,
    2.0**31,
    12345.678,
)


def points(dtype: Any, near: bool) -> Any:
    """Angles beyond 1e4 are left to their own test: long doubles do not reduce them exactly everywhere."""
    rng = np.random.default_rng(0)
    parts = [
        np.array(SPECIAL),
        rng.normal(size=700) * 3,
        rng.uniform(-1, 1, 700),
        rng.uniform(-100, 100, 300),
    ]
    if not near:
        parts += [np.exp(rng.uniform(-60, 60, 300)), -np.exp(rng.uniform(-60, 60, 300))]
    flat = np.concatenate(parts).astype(dtype)
    return flat[~(np.isfinite(flat) & (np.abs(flat) > 1e4))] if near else flat


@pytest.fixture(scope="module", params=LEVELS)
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All functions of one level, as vectors (``_v``) and scalars (``_s``)."""
    target = cpu_target(request.param)
    texts = {}
    for kind, letter, size in (("float", "f", 4), ("double", "d", 8)):
        n = target.isa.lanes(size)
        head = f'extern "C" void KERNEL(const {kind} *x, {kind} *y, int64_t n) {{'
        for name in FUNCTIONS:
            texts[f"{name}_v{letter}"] = (
                f"{head} for (int64_t i = 0; i < n; i += {n}) {{ const int64_t k = n - i < {n} ? n - i : {n};"
                f" store<{n}>(y + i, {name}(load<{n}>(x + i, k)), k); }} }}"
            )
            texts[f"{name}_s{letter}"] = f"{head} for (int64_t i = 0; i < n; ++i) y[i] = {name}(x[i]); }}"
    file = Path(tmp_path_factory.mktemp("functions")) / "functions.so"
    file.write_bytes(target.assemble(texts, PARTS).data)
    return ctypes.CDLL(str(file))


@pytest.mark.sampled(50)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_units_in_the_last_place(functions: ctypes.CDLL, name: str, dtype: Any) -> None:
    reference, limit = FUNCTIONS[name]
    x = points(dtype, near=name in ("sin", "cos", "tan"))
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble))
        want = exact.astype(dtype)
    for form in "vs":
        y = np.empty_like(x)
        function = getattr(functions, f"{name}_{form}{'f' if dtype is np.float32 else 'd'}")
        function(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
        assert np.array_equal(np.isnan(y), np.isnan(want)), x[np.isnan(y) != np.isnan(want)]
        ends = np.isinf(want) | np.isinf(y)
        assert np.array_equal(y[ends], want[ends]), x[ends]
        live = np.isfinite(want) & np.isfinite(y)
        units = np.abs(y[live].astype(np.longdouble) - exact[live]) / np.spacing(np.abs(want[live])).astype(
            np.longdouble
        )
        assert units.max() <= limit, (form, float(units.max()), x[live][units.argmax()])
        zero = want == 0
        assert np.array_equal(np.signbit(y[zero]), np.signbit(want[zero])), x[zero]


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        # sin and cos of large angles, to 17 digits (made with 400 digits)
        ("sin", 1e22, -0.85220084976718880177), ("cos", 1e22, 0.5232147853951389455),
        ("sin", 1.7976931348623157e308, 0.0049619547891840612), ("cos", 1.7976931348623157e308, -0.99998768942655993746),
        ("sin", 2.0**53, -0.84892596481465499956), ("tan", 1e15, -1.672414782127583043),
    ],
)  # fmt: skip
def test_large_angles(functions: ctypes.CDLL, name: str, x: float, want: float) -> None:
    given, found = np.array([x, -x]), np.empty(2)
    getattr(functions, f"{name}_vd")(
        given.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(2)
    )
    sign = 1.0 if name == "cos" else -1.0
    assert np.allclose(found, [want, sign * want], rtol=1e-14, atol=0), found
