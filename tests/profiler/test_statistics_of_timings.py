"""The statistics against distributions whose truth is known. Every random draw has a fixed seed, so nothing here can flake."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.profiler.statistics import BLOCKS, median_interval, paired_ratio, summarize

positive = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("n", "rank"),
    # Ranks of the two-sided 95% sign-test interval, from published tables (for example Conover, table A3).
    [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (50, 18), (100, 40)],
)
def test_ranks_of_the_interval_are_those_of_the_table(n: int, rank: int) -> None:
    interval = median_interval([float(i) for i in range(1, n + 1)])
    assert (interval.low, interval.high) == (rank, n + 1 - rank)


def test_too_few_values_say_nothing() -> None:
    interval = median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.low, interval.high) == (0.0, math.inf)


@pytest.mark.parametrize("draw", ["exponential", "lognormal", "uniform"])
def test_the_interval_covers_the_true_median_as_often_as_it_says(draw: str) -> None:
    random = np.random.default_rng(7)
    truth = {"exponential": math.log(2), "lognormal": 1.0, "uniform": 0.5}[draw]
    hits = sum(median_interval(getattr(random, draw)(size=41)).holds(truth) for _ in range(2000))
    assert (
        0.94 <= hits / 2000 <= 0.985
    )  # 41 values reach 0.9717 exactly; three standard errors of 2000 draws are 0.011


@given(positive)
def test_summary_is_ordered(values: list[float]) -> None:
    s = summarize(values)
    assert s.minimum <= s.median <= max(values)
    assert s.interval.low <= s.median <= s.interval.high
    assert s.p95 in values
    assert sum(v <= s.p95 for v in values) >= 0.95 * len(values)


@given(positive, st.floats(0.01, 100))
def test_a_constant_factor_is_found_exactly(values: list[float], factor: float) -> None:
    ratio = paired_ratio([v * factor for v in values], values)
    assert ratio.value == pytest.approx(factor)


@given(positive, positive)
def test_swapping_the_two_turns_the_ratio_over(a: list[float], b: list[float]) -> None:
    n = min(len(a), len(b))
    forth, back = paired_ratio(a[:n], b[:n]), paired_ratio(b[:n], a[:n])
    if forth.blocks % 2:  # the median of an even number of ratios is a mean, which does not turn over exactly
        assert forth.value == pytest.approx(1 / back.value)
    if forth.interval.low > 0:
        assert forth.interval.low == pytest.approx(1 / back.interval.high)


def _timings(random: np.random.Generator, rounds: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Two contenders on one noisy machine: a shared slow drift, own skewed noise, now and then an outlier."""
    drift = np.exp(np.cumsum(random.normal(0, 0.01, rounds)))
    noise = random.lognormal(0, 0.05, (2, rounds)) * np.where(random.random((2, rounds)) < 0.02, 5, 1)
    return factor * drift * noise[0], drift * noise[1]


@pytest.mark.parametrize("rounds", [15, 30, 300])
def test_a_factor_of_two_is_seen(rounds: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        ratio = paired_ratio(*_timings(random, rounds, 2.0))
        assert ratio.differs()
        assert 1.8 < ratio.value < 2.2


@pytest.mark.parametrize("rounds", [6, 30, 300, 3000])
def test_equal_contenders_are_not_told_apart(rounds: int) -> None:
    random = np.random.default_rng(2)
    wins = sum(paired_ratio(*_timings(random, rounds, 1.0)).differs() for _ in range(400))
    assert wins / 400 <= 0.075  # 5% allowed, plus a little over two standard errors


def test_rounds_that_resemble_their_neighbors_do_not_make_certainty() -> None:
    """Own noise that lasts for some 30 rounds: counting every round once would cry wolf far more often than 1 in 20."""
    random = np.random.default_rng(3)

    def slow(rounds: int) -> np.ndarray:
        return np.exp(0.05 * np.repeat(random.normal(size=rounds // 30), 30))

    wins = sum(paired_ratio(slow(3000), slow(3000)).differs() for _ in range(300))
    assert wins / 300 <= 0.10


def test_blocks_are_bounded() -> None:
    assert paired_ratio(np.ones(10_000), np.ones(10_000)).blocks == BLOCKS


def test_bias_and_floor() -> None:
    random = np.random.default_rng(4)
    ratio = paired_ratio(1.03 * random.lognormal(0, 0.001, 100), random.lognormal(0, 0.001, 100))
    assert ratio.differs()
    assert not ratio.differs(floor=0.05)
    assert 0.03 <= ratio.bias < 0.032
    assert paired_ratio(np.ones(50), np.ones(50)).bias == 0


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_unpaired_values_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="two sequences of positive values"):
        paired_ratio(a, b)
