"""Weights in int8: exactly what their codes and scales say, only when a policy asks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import compile_native, run_native

from xpuruntime.ir import GraphBuilder, interp


def layer(rows: int, n: int, k: int, dtype: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    b = GraphBuilder("layer")
    x = b.input("x", f"{dtype}[{rows}, {k}]")
    residual = b.input("residual", f"{dtype}[{rows}, {n}]")
    w, bias = b.weight("w", f"{dtype}[{n}, {k}]"), b.weight("bias", f"{dtype}[{n}]")
    b.output("y", b.fused_linear(x, w, bias, residual, act="silu"))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    draw = np.random.default_rng(rows + n + k)
    weights = {
        "w": draw.standard_normal((n, k)) * draw.uniform(0.1, 10, (n, 1)),
        "bias": draw.standard_normal(n),
    }
    weights["w"][0] = 0
    feeds = {"x": draw.standard_normal((rows, k)), "residual": draw.standard_normal((rows, n))}
    return (
        b.build(),
        {n: a.astype(kind) for n, a in feeds.items()},
        {n: a.astype(kind) for n, a in weights.items()},
    )


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v4", "cpu:x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 70, 33), (1, 256, 128), (5, 40, 65), (9, 70, 33), (40, 100, 64), (211, 72, 601)]
)
def test_a_layer_computes_what_its_codes_and_scales_say(
    target: str, dtype: str, rows: int, n: int, k: int
) -> None:
    graph, feeds, weights = layer(rows, n, k, dtype)
    kernels = {"matmul": "int8_weights"}
    got = run_native(graph, feeds, weights=weights, kernels=kernels, threads=2, target=target)["y"]
    wide = weights["w"].astype(np.float64)
    scale = (abs(wide).max(1, keepdims=True) / 127).astype(np.float32).astype(np.float64)
    scale[scale == 0] = 1
    codes = np.clip(np.rint(wide / scale), -127, 127)
    exact = {"w": codes * scale, "bias": weights["bias"].astype(np.float64)}
    x = {n: a.astype(np.float64) for n, a in feeds.items()}
    sums = x["x"] @ exact["w"].T + exact["bias"] + x["residual"]
    want = sums / (1 + np.exp(-sums.clip(-500)))
    limit = 1e-5 if dtype == "float32" else 1 / 256
    assert abs(got.astype(np.float64) - want).max() <= limit * abs(want).max()


def test_few_and_many_rows_share_a_weight() -> None:
    for dtype in ("float32", "bfloat16"):
        recipes = []
        for rows in (1, 9, 600):
            graph, feeds, _ = layer(rows, 70, 96, dtype)
            recipes.append(compile_native(graph, feeds, kernels={"matmul": "int8_weights"}).recipes[0])
        assert all((r.spec, r.steps) == (recipes[0].spec, recipes[0].steps) for r in recipes)


def test_only_a_policy_takes_it_and_weights_shrink_to_a_quarter() -> None:
    graph, feeds, _ = layer(1, 256, 128, "float32")
    plain = compile_native(graph, feeds)
    asked = compile_native(graph, feeds, kernels={"matmul": "int8_weights"})
    kernels = [[c.kernel for c in p.entries[0].plans[0].calls] for p in (plain, asked)]
    assert kernels == [["matmul/gemv"], ["matmul/int8_weights"]]
    sizes = [sum(r.spec.size_bytes or 0 for r in p.recipes) for p in (plain, asked)]
    assert sizes == [256 * 128 * 4 + 256 * 4, 256 * 128 + 2 * 256 * 4]


def test_results_differ_from_the_exact_ones_by_no_more_than_rounding_of_weights() -> None:
    graph, feeds, weights = layer(4, 64, 256, "float32")
    got = run_native(graph, feeds, weights=weights, kernels={"matmul": "int8_weights"})["y"]
    want = interp.run(graph, feeds, weights=weights)["y"]
    assert 0 < abs(got - want).max() < 0.02 * abs(want).max()
