"""Rounding once, wrapping, casting: against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.ir import interp
from xpuruntime.ir.interp.numbers import to
from xpuruntime.types import DType

NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16")


def table(dtype: DType) -> list[float]:
    """Every finite value of a type of at most 16 bits, in order."""
    bits = np.arange(1 << dtype.bits, dtype=np.uint32).astype(np.uint16 if dtype.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        values = bits.view(dtype.numpy).astype(np.float64)
    return sorted(set(values[np.isfinite(values)].tolist()))


TABLES = {d: table(DType(d)) for d in NARROW}


def nearest(x: float, values: list[float]) -> set[float]:
    """The representable values at the smallest exact distance; two where x is halfway."""
    import bisect

    i = bisect.bisect_left(values, x)
    near = values[max(i - 1, 0) : i + 1]
    best = min(abs(Fraction(x) - Fraction(v)) for v in near)
    return {v for v in near if abs(Fraction(x) - Fraction(v)) == best}


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
def test_rounds_once(name: str, data: st.DataObject) -> None:
    """Also next to halfway points, where rounding through float32 is wrong."""
    values = TABLES[name]
    i = data.draw(st.integers(0, len(values) - 2))
    middle = (values[i] + values[i + 1]) / 2
    x = data.draw(
        st.sampled_from([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
        | st.floats(values[0], values[-1])
    )
    (got,) = to(np.array([x]), DType(name)).astype(np.float64).tolist()
    choices = nearest(float(x), values)
    assert got in choices
    if len(choices) == 2:  # half to even: the last bit is 0
        bits = (
            np.array([got]).astype(DType(name).numpy).view(np.uint16 if DType(name).bits == 16 else np.uint8)
        )
        assert not bits[0] & 1 or got == 0


def test_beyond_the_range() -> None:
    x = np.array([1e40, -1e40, np.inf, np.nan])
    assert to(x, DType.BFLOAT16).astype(float).tolist()[:3] == [np.inf, -np.inf, np.inf]
    assert to(x, DType.FLOAT32).tolist()[:3] == [np.inf, -np.inf, np.inf]
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert to(np.array([largest * 1.001]), DType.BFLOAT16).astype(float)[0] == largest


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([d for d in DType if d.is_integer]))
def test_integers_wrap(value: int, dtype: DType) -> None:
    (got,) = to(np.array([value]), dtype).astype(object).tolist()
    bits = value % (1 << dtype.bits)
    want = bits - (1 << dtype.bits) if dtype.is_signed and bits >> (dtype.bits - 1) else bits
    assert int(got) == want


@pytest.mark.parametrize(
    ("x", "dtype", "want"),
    [
        ([1.9, -1.9, 0.5, -0.5], "int32", [1, -1, 0, 0]),
        ([-1.5, 300.0], "uint8", [255, 44]),
        ([2.0**63, 2.0**64 - 2048], "uint64", [2**63, 2**64 - 2048]),
        ([np.nan, 3e10], "int64", [-(2**63), 30_000_000_000]),
        ([0.0, -0.0, np.nan, 0.1], "bool", [False, False, True, True]),
        ([7.9, -9.0, 16.0, -7.5], "int4", [7, 7, 0, -7]),
        ([7.9, -1.0, 16.0], "uint4", [7, 15, 0]),
    ],
)
def test_floats_to_integers(x: list[float], dtype: str, want: list[Any]) -> None:
    (got,) = interp.apply("cast", np.array(x), dtype=dtype)
    assert got.astype(object).tolist() == want


@pytest.mark.parametrize(
    ("dtype", "saturate", "want"),
    [
        ("float8_e4m3fn", True, [448.0, -448.0, 448.0]),
        ("float8_e4m3fn", False, [np.nan, np.nan, np.nan]),
        ("float8_e5m2", True, [57344.0, -57344.0, 57344.0]),
        ("float8_e5m2", False, [np.inf, -np.inf, np.inf]),
        ("float8_e4m3fnuz", True, [240.0, -240.0, 240.0]),
        ("float8_e4m3fnuz", False, [np.nan, np.nan, np.nan]),
        ("float8_e5m2fnuz", True, [57344.0, -57344.0, 57344.0]),
        ("float8_e5m2fnuz", False, [np.nan, np.nan, np.nan]),
    ],
)
def test_float8_at_its_ends(dtype: str, saturate: bool, want: list[float]) -> None:
    """The table of the ONNX specification of Cast."""
    x = np.array([1e6, -1e6, np.inf], np.float32)
    (got,) = interp.apply("cast", x, dtype=dtype, saturate=saturate)
    np.testing.assert_array_equal(got.astype(np.float64), want)
    (nan,) = interp.apply("cast", np.array([np.nan], np.float32), dtype=dtype, saturate=saturate)
    assert np.isnan(nan.astype(np.float64)[0])


@pytest.mark.parametrize(
    ("mode", "want"),
    [("up", [1, 2, 4, 4, 0.5]), ("down", [1, 1, 2, 2, 0.25]), ("nearest", [1, 2, 2, 4, 0.25])],
)
def test_powers_of_two(mode: str, want: list[float]) -> None:
    x = np.array([1, 1.5, 2.5, 3, 0.3], np.float32)
    (got,) = interp.apply("cast", x, dtype="float8_e8m0fnu", round_mode=mode)
    assert got.astype(np.float64).tolist() == want


def test_bits() -> None:
    (bits,) = interp.apply("bitcast", np.array([1.0, -0.0], np.float32), dtype="int32")
    assert bits.tolist() == [0x3F800000, -0x80000000]
    (back,) = interp.apply("bitcast", bits, dtype="float32")
    assert back.tolist() == [1.0, -0.0]
