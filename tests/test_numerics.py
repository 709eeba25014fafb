"""The comparison: what agrees passes, what differs in value, place or kind does not, and the figures are right."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xpuruntime.numerics import TOLERANCE, compare, compare_all, tolerance_for
from xpuruntime.types import DType

ANY = hnp.arrays(
    st.one_of(hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.complex_number_dtypes(), hnp.boolean_dtypes()),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
FINITE = hnp.arrays(
    np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6).filter(lambda v: abs(v) > 1e-6)
)


@given(ANY)
def test_everything_agrees_with_itself(array: np.ndarray) -> None:
    result = compare("y", array, array.copy(), 0.0)
    assert result.ok, result
    assert (result.max_abs, result.max_rel, result.mismatched) == (0.0, 0.0, 0)
    assert result.cosine is None or result.cosine == pytest.approx(1.0)
    assert result.argmax_equal in (None, 1.0)
    json.dumps(result.to_json(), allow_nan=False)


@given(ANY, ANY)
def test_any_two_arrays_compare_without_a_crash_or_a_warning(a: np.ndarray, b: np.ndarray) -> None:
    result = compare("y", a, b, 1e-3)
    assert result.ok == (result.reason == "")
    assert result.ok or a.shape != b.shape or result.max_rel > 1e-3
    json.dumps(result.to_json(), allow_nan=False)


@given(FINITE, st.floats(1e-9, 10.0))
def test_max_rel_is_the_tolerance_that_would_pass(reference: np.ndarray, error: float) -> None:
    actual = reference.copy()
    actual[0] += error * np.abs(reference).max()
    result = compare("y", actual, reference, 0.0)
    assert not result.ok
    assert result.max_abs == pytest.approx(np.abs(actual - reference).max())
    assert result.max_rel == pytest.approx(error, rel=1e-5)
    assert compare("y", actual, reference, result.max_rel).ok
    assert not compare("y", actual, reference, result.max_rel * (1 - 1e-12)).ok


def test_one_wrong_element_among_many_is_seen() -> None:
    reference = np.ones((64, 64), np.float32)
    actual = reference.copy()
    actual[3, 5] = 1.01
    result = compare("y", actual, reference, tolerance_for(DType.FLOAT32))
    assert not result.ok
    assert result.mismatched == 1
    assert result.reason == "max|d|/max|ref| 0.01 is over 5e-05"


def test_nan_must_stand_where_nan_stands() -> None:
    nan = np.array([1.0, np.nan, 3.0])
    assert compare("y", nan, nan.copy(), 0.0).ok
    for other in (np.array([1.0, 2.0, 3.0]), np.array([np.nan, np.nan, 3.0]), np.array([np.nan, 1.0, 3.0])):
        result = compare("y", other, nan, 1e9)
        assert not result.ok
        assert "are NaN in only one of the two" in result.reason
        assert result.max_rel == math.inf


def test_infinities_must_agree_in_place_and_sign() -> None:
    inf = np.array([1.0, np.inf, -np.inf])
    assert compare("y", inf, inf.copy(), 0.0).ok
    for other in (
        np.array([1.0, np.inf, np.inf]),
        np.array([np.inf, np.inf, -np.inf]),
        np.array([1.0, 1e308, -np.inf]),
    ):
        assert "infinities differ" in compare("y", other, inf, 1e9).reason
    assert compare("y", np.array([1.5, np.inf]), np.array([1.0, np.inf]), 1.0).max_abs == 0.5


def test_far_apart_is_infinitely_far_and_no_warning() -> None:
    result = compare("y", np.array([1.7e308]), np.array([-1.7e308]), 1.0)
    assert not result.ok
    assert result.to_json()["max_abs"] == "inf"


def test_complex_with_nan_and_infinity_in_one_number() -> None:
    value = np.array([complex(np.inf, np.nan), 1 + 2j])
    assert compare("y", value, value.copy(), 0.0).ok
    assert compare("y", np.array([1 + 2j]), np.array([1 + 2.5j]), 1e-3).max_abs == 0.5


def test_empty_scalar_and_all_zero() -> None:
    assert compare("y", np.zeros((0, 3)), np.zeros((0, 3)), 0.0).ok
    assert compare("y", np.zeros((0, 3)), np.zeros((3, 0)), 0.0).reason == "shape [0, 3] is not [3, 0]"
    scalar = compare("y", np.array(1.0), np.array(1.0), 0.0)
    assert (scalar.ok, scalar.argmax_equal, scalar.elements) == (True, None, 1)
    zeros = compare("y", np.zeros(3), np.zeros(3), 0.0)
    assert (zeros.ok, zeros.cosine) == (True, None)
    beside = compare("y", np.full(3, 1e-30), np.zeros(3), 1e9)
    assert (beside.ok, beside.max_rel) == (False, math.inf)


def test_integers_compare_exactly_whatever_the_tolerance() -> None:
    a = np.array([2**62, 2**62 + 1], np.int64)
    b = np.array([2**62, 2**62 + 2], np.int64)  # equal in float64
    result = compare("y", a, b, 1.0)
    assert (result.ok, result.mismatched, result.max_rel) == (False, 1, math.inf)
    assert result.reason == "1 of 2 integers differ"
    assert not compare("y", np.array([True, False]), np.array([True, True]), 1.0).ok


def test_texts_compare_exactly() -> None:
    a, b = np.array(["ab", "c"], object), np.array(["ab", "d"], object)
    assert compare("y", a, a.copy(), 0.0).ok
    assert compare("y", a, a.astype("U2"), 0.0).ok
    assert compare("y", a, b, 1.0).mismatched == 1
    assert not compare("y", a, np.array([1.0, 2.0]), 1.0).ok


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16])
def test_narrow_floats_are_measured_in_float64(dtype: type) -> None:
    reference = np.linspace(-2, 2, 50)
    actual = reference.astype(dtype)
    result = compare("y", actual, reference, 0.0)
    assert result.max_abs == np.abs(actual.astype(np.float64) - reference).max()
    assert compare("y", actual, actual.copy(), 0.0).ok


def test_cosine_and_argmax_say_what_they_say() -> None:
    a, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    result = compare("y", a, b, 0.0)
    assert result.argmax_equal == 0.5
    assert result.cosine == pytest.approx(0.5)
    assert compare("y", -a, a, 0.0).cosine == pytest.approx(-1.0)
    assert compare("y", a * 1e300, a, 0.0).cosine == pytest.approx(1.0)


def test_the_coarsest_precision_that_took_part_decides() -> None:
    assert tolerance_for(DType.FLOAT32, DType.BFLOAT16) == TOLERANCE[DType.BFLOAT16]
    assert tolerance_for(DType.INT64) == tolerance_for() == 0.0
    order = [TOLERANCE[d] for d in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8)]
    assert order == sorted(order)


def test_tolerances_are_wider_than_the_rounding_of_their_precision_and_narrower_than_a_percent_of_it_all() -> (
    None
):
    """A matrix product computed in the precision passes; the same with one weight negated does not."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((8, 256)), random.standard_normal((256, 64)) / 16
    exact = x @ w
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16):
        rounded = x.astype(dtype.numpy).astype(np.float64) @ w.astype(dtype.numpy).astype(np.float64)
        assert compare("y", rounded.astype(dtype.numpy), exact, tolerance_for(dtype)).ok
    broken = w.copy()
    broken[7, 9] = -w[7, 9] - 1
    assert not compare("y", x @ broken, exact, tolerance_for(DType.BFLOAT16)).ok


def test_compare_all_keeps_the_model_s_order_and_wants_every_output() -> None:
    a, b = np.ones(2), np.zeros(2)
    assert [(c.name, c.ok) for c in compare_all(["p", "q"], [a, b], [a, a], 1e-5)] == [
        ("p", True),
        ("q", False),
    ]
    with pytest.raises(ValueError, match="shorter"):
        compare_all(["p", "q"], [a], [a, a], 1e-5)
