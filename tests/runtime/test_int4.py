"""Numbers for weights of four bits: near, nearer than the widest grid, and exact where a grid was there before."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from xpuruntime.runtime.weights.int4 import fitted, int4_groups, int4_values

draw = np.random.default_rng(5)


def kept(w: np.ndarray[Any, Any], group: int = 32) -> np.ndarray[Any, Any]:
    return int4_values(int4_groups(w, group), group)


def widest(w: np.ndarray[Any, Any], group: int) -> np.ndarray[Any, Any]:
    """From the least value of a group to its largest, in fifteen exact steps."""
    parts = w.reshape(w.shape[0], -1, group)
    low, high = parts.min(-1, keepdims=True), parts.max(-1, keepdims=True)
    step = (high - low) / 15
    return (low + np.rint((parts - low) / step) * step).reshape(w.shape)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("kind", ["normal", "uniform", "laplace"])
def test_less_is_lost_than_with_the_widest_grid(group: int, kind: str) -> None:
    shapes = {
        "normal": draw.standard_normal,
        "uniform": draw.random,
        "laplace": lambda s: draw.laplace(size=s),
    }
    w = shapes[kind]((64, 256)).astype(np.float32)
    ours, plain = (float(((x - w) ** 2).mean()) for x in (kept(w, group), widest(w, group)))
    assert ours < 0.92 * plain


def test_what_lay_on_a_grid_is_found_again() -> None:
    """Codes, scales and lows as a checkpoint of four bits has them; both ends of each grid are in use."""
    scale = draw.uniform(0.001, 0.1, (40, 4, 1)).astype(ml_dtypes.bfloat16).astype(np.float32)
    low = (-scale * draw.uniform(0, 15, scale.shape)).astype(ml_dtypes.bfloat16).astype(np.float32)
    codes = draw.integers(0, 16, (40, 4, 32))
    codes[..., 0], codes[..., 1] = 0, 15
    w = (low + scale * codes).astype(np.float32).reshape(40, 128)
    assert abs(kept(w) - w).max() <= 2**-7 * scale.max()
    again = kept(kept(w))
    assert abs(again - kept(w)).max() <= 2**-7 * scale.max()


def test_scales_that_are_no_bfloat16_cost_little() -> None:
    """As in GGUF's Q4_1: scale and low in float16."""
    scale, low = draw.uniform(0.001, 0.1, (40, 4, 1)), -draw.uniform(0, 1, (40, 4, 1))
    codes = draw.integers(0, 16, (40, 4, 32))
    codes[..., 0], codes[..., 1] = 0, 15
    w = (low + scale * codes).astype(np.float32).reshape(40, 128)
    error = ((kept(w) - w) ** 2).reshape(40, 4, 32).mean(-1) / scale[..., 0] ** 2
    assert error.mean() < 0.1 / 12  # a tenth of what rounding to codes costs


@pytest.mark.parametrize("value", [0.0, 3.25, -0.1])
def test_groups_of_one_value_are_that_value(value: float) -> None:
    w = np.full((3, 64), value, np.float32)
    assert abs(kept(w) - w).max() <= abs(value) * 2**-8


@given(arrays(np.float32, (4, 64), elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False)))
def test_never_further_than_the_widest_grid_can_be(w: np.ndarray[Any, Any]) -> None:
    """Half a step of a fifteenth of what the group spans, and what bfloat16 takes; in the root of the mean square."""
    parts = w.reshape(4, 2, 32).astype(np.float64)
    off = kept(w).reshape(4, 2, 32).astype(np.float64) - parts
    span, largest = parts.max(-1) - parts.min(-1), abs(parts).max(-1)
    assert (np.sqrt((off**2).mean(-1)) <= span / 30 + (span + largest) * 2**-7 + 1e-30).all()


def test_rows_do_not_see_each_other_and_types_do_not_matter() -> None:
    w = draw.standard_normal((300, 1024)).astype(ml_dtypes.bfloat16)
    whole = int4_groups(w, 32)
    assert whole.shape == (300, 32, 20)
    assert whole.dtype == np.int8
    assert (whole == int4_groups(w.astype(np.float32), 32)).all()
    for row in (0, 255, 256, 299):
        assert (int4_groups(w[row : row + 1], 32) == whole[row]).all()


@pytest.mark.parametrize("steps", [1, 3, 7, 11, 13, 15])
@pytest.mark.parametrize("group", [32, 128])
def test_a_grid_of_any_number_of_steps_is_found_again(steps: int, group: int) -> None:
    """As in checkpoints that were quantized before, also after their weights were rounded to bfloat16."""
    draw = np.random.default_rng(steps)
    codes = draw.integers(0, steps + 1, (50, group))
    codes[:, :2] = 0, steps
    scale, zero = draw.uniform(0.01, 0.1, (50, 1)), draw.integers(0, 9, (50, 1))
    exact = (scale * (codes - zero)).astype(np.float32)
    for weight in (exact, exact.astype(ml_dtypes.bfloat16).astype(np.float32)):
        found, step, low = fitted(weight)
        values = low[:, None] + step[:, None] * found
        # What is left is the rounding of scale and low; a value beside the grid would be up to half a step off.
        assert (abs(values - exact) <= 0.12 * scale).all(), (abs(values - exact) / scale).max()
