"""Rows in 8 bits times weights in 8 bits with a scale per output: exactly what the codes of both say, for every level and number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.test_expert_kernels import layers
from kernels.test_int4_by_int8 import LEVELS, LIMITS, far
from kernels.test_int4_weights import layer
from support.native import compile_native, run_native

from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime.weights.recipes import STEPS

KERNELS = {"matmul": "int8_by_int8"}
GROUP = 32
"""Inputs of a row that share a scale."""
SHAPES = [(1, 1, 1), (1, 70, 33), (2, 300, 31), (5, 40, 65), (6, 64, 64), (7, 3, 1000), (47, 100, 64), (49, 20, 96), (70, 72, 129)]  # fmt: skip


def weight_codes(w: Any) -> tuple[Any, Any]:
    """Return the integers of a weight [outputs, inputs], and the scale of each output."""
    scale = STEPS["scale_int8"]([w], {"dim": 0})
    return STEPS["quantize_int8"]([w], {"dim": 0}).astype(np.int64), scale.astype(np.float64)


def row_codes(x: Any) -> tuple[Any, Any]:
    """Return the integers of rows as [rows, groups, GROUP], and the scales [rows, groups]: of each group, the largest magnitude is 127."""
    groups = np.pad(x, [(0, 0), (0, -x.shape[1] % GROUP)]).astype(np.float32).reshape(len(x), -1, GROUP)
    most = abs(groups).max(-1)
    inverse = np.divide(127, most, out=np.zeros_like(most), where=most >= 2.0**-120)
    return np.rint(groups * inverse[..., None]).astype(np.int64), (most / 127).astype(np.float64)


def integer_product(x: Any, w: Any) -> Any:
    """Return the product of rows [rows, k] and a weight [n, k]: int64 sums of groups, then scales in float64."""
    codes, scales = row_codes(x)
    weight, factors = weight_codes(w)
    weight = np.pad(weight, [(0, 0), (0, -x.shape[1] % GROUP)]).reshape(len(w), -1, GROUP)
    sums = np.einsum("rgi,ngi->rng", codes, weight)
    return (sums * scales[:, None]).sum(-1) * factors


def plain(rows: int, n: int, k: int) -> Any:
    """Return the graph of a linear layer without bias."""
    b = GraphBuilder("plain")
    b.output("y", b.linear(b.input("x", f"float32[{rows}, {k}]"), b.weight("w", f"float32[{n}, {k}]")))
    return b.build()


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
@pytest.mark.parametrize("target", LEVELS)
def test_a_layer_computes_what_the_integers_say(rows: int, n: int, k: int, dtype: str, target: str) -> None:
    graph, feeds, weights = layer(rows, n, k, dtype)
    got = run_native(graph, feeds, weights=weights, kernels=KERNELS, threads=2, split=3, target=target)["y"]
    added = feeds["residual"].astype(np.float64) + weights["bias"].astype(np.float64)
    want = silu(integer_product(feeds["x"], weights["w"]) + added)
    assert far(got, want) <= LIMITS[dtype]


@pytest.mark.parametrize("target", LEVELS)
def test_every_number_of_rows(target: str) -> None:
    """A tile of rows, its tail, and tasks of 48 rows."""
    x = np.random.default_rng(0).standard_normal((70, 96)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((37, 96)).astype(np.float32)
    want = integer_product(x, w)
    for rows in (*range(1, 14), 47, 48, 49, 70):
        got = run_native(plain(rows, 37, 96), {"x": x[:rows]}, weights={"w": w}, kernels=KERNELS, target=target)["y"]  # fmt: skip
        assert far(got, want[:rows]) <= 1e-6


def test_results_are_near_those_of_float_rows() -> None:
    graph, feeds, weights = layer(9, 64, 256, "float32")
    got, floats = (
        run_native(graph, feeds, weights=weights, kernels={"matmul": word})["y"]
        for word in ("int8_by_int8", "int8_weights")
    )
    assert 1e-3 < far(got, floats) < 0.02  # eight bits, not more and not fewer


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("rows", [1, 7])
def test_the_weights_are_those_of_float_rows(rows: int, target: str) -> None:
    """Rows that are codes already lose nothing, so that only the weights could differ."""
    draw = np.random.default_rng(rows)
    x = draw.integers(-127, 128, (rows, 100)).astype(np.float32)
    x[:, ::GROUP] = 127
    weights = {"w": draw.standard_normal((70, 100)).astype(np.float32)}
    got, floats = (
        run_native(plain(rows, 70, 100), {"x": x}, weights=weights, kernels={"matmul": word}, target=target)[
            "y"
        ]
        for word in ("int8_by_int8", "int8_weights")
    )
    assert far(got, floats) <= 1e-6


@pytest.mark.parametrize("target", LEVELS)
def test_the_largest_codes_of_both_sides(target: str) -> None:
    """All products of a row have the same sign: sums of pairs are the largest that there are."""
    k, n = 4096, 20
    w = np.repeat(np.array([[-2.0], [2.0]], np.float32), n // 2, 0) * np.ones((1, k), np.float32)
    x = np.ones((3, k), np.float32) * np.array([[1], [-1], [3]], np.float32)
    got = run_native(plain(3, n, k), {"x": x}, weights={"w": w}, kernels=KERNELS, target=target)["y"]
    assert np.allclose(got, x.astype(np.float64) @ w.T.astype(np.float64), rtol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 6, 16, 48])
@pytest.mark.parametrize("target", LEVELS)
def test_normed_and_gated_layers(rows: int, target: str) -> None:
    graph, feeds, weights = layer(rows, 140, 100, "float32", "norm_linear")
    got = run_native(graph, feeds, weights=weights, kernels=KERNELS, split=3, target=target)["y"]
    x = feeds["x"].astype(np.float64)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weights["scale"]
    sums = integer_product(normed.astype(np.float32), weights["w"]) + weights["bias"]
    want = silu(sums[:, :70]) * sums[:, 70:]
    # A value between two codes may round to either.
    assert far(got, want) <= 5e-3
    assert np.median(abs(got - want)) <= 1e-5 * abs(want).max()


@pytest.mark.parametrize("target", LEVELS)
def test_rows_with_infinities_are_nan_and_others_are_not(target: str) -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((9, 96)).astype(np.float32), draw.standard_normal((40, 96)).astype(np.float32)
    w[3] = 0
    x[1, 5], x[2, 50], x[3, 95] = np.inf, -np.inf, np.nan
    x[4], x[5] = 0, 1e-42
    x[6] *= 1e30
    x[7] *= 1e-30
    got = run_native(plain(9, 40, 96), {"x": x}, weights={"w": w}, kernels=KERNELS, target=target)["y"]
    assert np.isnan(got[1:4]).all()
    rest = [0, 4, 5, 6, 7, 8]
    want = integer_product(x[rest], w)
    assert not want[1:3].any()  # rows of zeros, and below the range of scales
    for row, expected in zip(rest, want, strict=True):
        assert abs(got[row] - expected).max() <= 1e-6 * abs(expected).max()


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e38, 1e-42])
def test_weights_of_any_size_are_as_with_float_rows(value: float, target: str) -> None:
    """An output with an infinity or NaN among its weights has no number; the others are as ever."""
    draw = np.random.default_rng(0)
    weights = {"w": draw.standard_normal((20, 64)).astype(np.float32)}
    weights["w"][7, 5] = value
    feeds = {"x": draw.standard_normal((3, 64)).astype(np.float32)}
    got, floats = (
        run_native(plain(3, 20, 64), feeds, weights=weights, kernels={"matmul": word}, target=target)["y"]
        for word in ("int8_by_int8", "int8_weights")
    )
    assert np.array_equal(np.isfinite(got), np.isfinite(floats))
    others = np.arange(20) != 7
    assert far(got[:, others], floats[:, others]) < 0.02


@pytest.mark.parametrize(("rows", "n", "k"), [(0, 8, 40), (3, 0, 40), (3, 8, 0)])
def test_nothing_to_sum(rows: int, n: int, k: int) -> None:
    feeds, weights = {"x": np.ones((rows, k), np.float32)}, {"w": np.ones((n, k), np.float32)}
    got = run_native(plain(rows, n, k), feeds, weights=weights, kernels=KERNELS)["y"]
    assert np.array_equal(got, np.zeros((rows, n), np.float32))


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    graph, feeds, weights = layer(50, 70, 160, "float32")
    together = run_native(graph, feeds, weights=weights, kernels=KERNELS)["y"]
    for first, rows in ((0, 1), (7, 1), (11, 2), (20, 5), (40, 10), (3, 17)):
        part = {name: a[first : first + rows] for name, a in feeds.items()}
        alone = layer(rows, 70, 160, "float32")[0]
        got = run_native(alone, part, weights=weights, kernels=KERNELS)["y"]
        assert np.array_equal(got, together[first : first + rows])


@pytest.mark.parametrize("rows", [1, 60])
def test_only_a_policy_takes_it_and_weights_shrink_to_a_quarter(rows: int) -> None:
    graph, feeds, _ = layer(rows, 256, 128, "float32")
    policy = KernelPolicy(weights="int8", activations="int8")
    plans = [compile_native(graph, feeds), compile_native(graph, feeds, policy=policy)]
    kernels = [{c.kernel for c in p.entries[0].plans[0].calls} for p in plans]
    assert kernels == [{"matmul/gemv" if rows == 1 else "matmul/generated"}, {"matmul/int8_by_int8"}]
    assert sum(r.spec.size_bytes or 0 for r in plans[1].recipes) == 256 * 128 + 2 * 256 * 4


def test_experts_keep_their_type() -> None:
    """As with weights: int8 alone."""
    graph, feeds, known = layers("float32")
    policy = KernelPolicy(weights="int8", activations="int8")
    calls = compile_native(graph, feeds, policy=policy).entries[0].plans[0].calls
    assert not {c.kernel for c in calls} & {"matmul/int8_by_int8", "matmul/int8_weights"}
    got = run_native(graph, feeds, weights=known, policy=policy)
    for name, want in interp.run(graph, feeds, weights=known).items():
        assert far(got[name], want) <= 1e-5
