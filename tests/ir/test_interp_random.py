"""Random ops: shape, type, seed, and that the distribution is the one that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.ir import interp

N = 20_000
TOLERANCE = 5 / N**0.5  # five standard errors of a unit variance


@pytest.mark.parametrize("op", ["rand", "randn"])
def test_a_seed_repeats_none_does_not(op: str) -> None:
    draw = [interp.apply(op, size=[4, 5], dtype="float16", seed=seed)[0] for seed in (7, 7, 8, None, None)]
    assert {(d.shape, d.dtype.name) for d in draw} == {((4, 5), "float16")}
    assert np.array_equal(draw[0], draw[1])
    for other in draw[2:]:
        assert not np.array_equal(draw[0], other)
    assert not np.array_equal(draw[3], draw[4])


def test_uniform_and_normal() -> None:
    (u,) = interp.apply("rand", size=[N], low=-1.0, high=3.0, seed=0)
    assert -1 <= u.min() < -0.99
    assert 2.99 < u.max() <= 3
    assert abs(u.mean() - 1) < 2 * TOLERANCE
    (z,) = interp.apply("randn", size=[N], mean=5.0, std=2.0, seed=0)
    assert abs(z.mean() - 5) < 2 * TOLERANCE
    assert abs(z.std() - 2) < 2 * TOLERANCE


def test_permutation() -> None:
    (p,) = interp.apply("randperm", n=50, seed=1)
    assert p.dtype == np.int64
    assert sorted(p.tolist()) == list(range(50))
    assert p.tolist() != list(range(50))


def test_bernoulli_and_dropout() -> None:
    p = np.full(N, 0.3, np.float32)
    (b,) = interp.apply("bernoulli", p, seed=0)
    assert b.dtype == np.float32
    assert set(b.tolist()) == {0.0, 1.0}
    assert abs(b.mean() - 0.3) < TOLERANCE
    x = np.ones(N, np.float32)
    y, mask = interp.apply("dropout", x, p=0.25, seed=0, outputs=2)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(y, np.where(mask, np.float32(1 / 0.75), 0))
    assert abs(mask.mean() - 0.75) < TOLERANCE
    same, kept = interp.apply("dropout", x, p=0.25, train=False, outputs=2)
    assert kept.all()
    np.testing.assert_array_equal(same, x)


def test_multinomial() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7], [1.0, 1e-30, 1e-30]], np.float32))
    (drawn,) = interp.apply("multinomial", logits, samples=N, dtype="int32", seed=0)
    assert drawn.shape == (2, N)
    assert drawn.dtype == np.int32
    assert not drawn[1].any()
    np.testing.assert_allclose(np.bincount(drawn[0]) / N, [0.1, 0.2, 0.7], atol=TOLERANCE)
