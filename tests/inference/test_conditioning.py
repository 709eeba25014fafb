from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.inference.self_check.conditioning import MARGIN, WIDEST, sensitivity, widened

X = {"x": np.array([1.0, 2.0, -3.0], np.float32), "n": np.array([1, 2], np.int64)}
ULP = 2.0**-23


def test_a_tame_function_moves_by_about_its_inputs_last_bit() -> None:
    def run(feeds):
        return [feeds["x"] * 2]

    moved = sensitivity(run, ["y"], X, run(X))["y"]
    assert 0 < moved <= 2 * ULP


def test_a_difference_of_near_equals_amplifies() -> None:
    """(x + 1000) - 1000 keeps three digits fewer: the classic cancellation, seen as a thousandfold shift."""

    def run(feeds):
        wide = feeds["x"].astype(np.float64)
        return [(wide - wide.astype(np.float32).round(3)) + 1e-6 * wide]

    assert sensitivity(run, ["y"], X, run(X))["y"] > 100 * ULP


def test_integers_alone_cannot_be_nudged() -> None:
    feeds = {"n": X["n"]}
    assert sensitivity(lambda _: pytest.fail("was run"), ["y"], feeds, [np.ones(1)]) == {"y": 0.0}


def test_inputs_of_the_caller_stay_as_they_are() -> None:
    before = X["x"].copy()
    sensitivity(lambda f: [f["x"]], ["y"], X, [X["x"]])
    assert np.array_equal(before, X["x"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_float_keeps_its_dtype(dtype) -> None:
    seen = []

    def run(feeds):
        seen.append(feeds["x"])
        return [feeds["x"]]

    x = np.linspace(-1, 1, 7).astype(dtype)
    sensitivity(run, ["y"], {"x": x}, [x])
    assert all(s.dtype == dtype and (s != x).all() for s in seen)


def test_tolerances_widen_within_bounds() -> None:
    limits = widened(5e-5, {"tame": 1e-7, "wild": 1e-3, "hopeless": 0.5})
    assert limits == {
        "tame": 5e-5,
        "wild": pytest.approx(MARGIN * 1e-3),
        "hopeless": pytest.approx(WIDEST * 5e-5),
    }
