"""Weights in int4: exactly what their codes and scales say, only when a policy asks, an eighth of the memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import compile_native, run_native

from xpuruntime.errors import FormatError
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.program.program import RecipeStep, WeightTransformRecipe
from xpuruntime.runtime.weights.int4 import int4_groups
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.types import DType, TensorSpec

KERNELS = {32: "int4_weights", 64: "int4_weights_64", 128: "int4_weights_128"}


def layer(
    rows: int, n: int, k: int, dtype: str, op: str = "fused_linear"
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    b = GraphBuilder("layer")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    draw = np.random.default_rng(rows + n + k)
    weights = {
        "w": draw.standard_normal((n, k)) * draw.uniform(0.1, 10, (n, 1)),
        "bias": draw.standard_normal(n),
    }
    weights["w"][0] = 0
    x = b.input("x", f"{dtype}[{rows}, {k}]")
    w, bias = b.weight("w", f"{dtype}[{n}, {k}]"), b.weight("bias", f"{dtype}[{n}]")
    feeds = {"x": draw.standard_normal((rows, k))}
    if op == "norm_linear":
        weights["scale"] = draw.standard_normal(k)
        y = b.norm_linear(
            x, w, bias, None, b.weight("scale", f"{dtype}[{k}]"), act="silu", eps=1e-6, gated=True
        )
    else:
        feeds["residual"] = draw.standard_normal((rows, n))
        y = b.fused_linear(x, w, bias, b.input("residual", f"{dtype}[{rows}, {n}]"), act="silu")
    b.output("y", y)
    return (
        b.build(),
        {n: a.astype(kind) for n, a in feeds.items()},
        {n: a.astype(kind) for n, a in weights.items()},
    )


def rounded(w: np.ndarray[Any, Any], group: int) -> np.ndarray[Any, Any]:
    """What is left of a weight: the loader's choice of numbers (checked by its own tests), read byte by byte as the recipe's table says."""
    pad = -w.shape[1] % group
    wide = np.pad(w.astype(np.float32), ((0, 0), (0, pad)))
    made = int4_groups(wide, group).view(np.uint8)
    out = np.empty_like(wide)
    for row in range(wide.shape[0]):
        for at in range(0, wide.shape[1], group):
            part = made[row, at // group]
            scale, low = (np.array([part[i], part[i + 2]]).view(ml_dtypes.bfloat16)[0] for i in (-4, -3))
            codes = [part[i // 2] >> 4 * (i % 2) & 15 for i in range(group)]
            out[row, at : at + group] = np.float32(low) + np.float32(scale) * np.array(codes, np.float32)
    return out[:, : w.shape[1]]


SHAPES = [(1, 70, 33), (1, 256, 128), (5, 40, 65), (7, 64, 256), (40, 100, 64), (130, 72, 96)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("group", KERNELS)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_a_layer_computes_what_its_codes_and_scales_say(group: int, rows: int, n: int, k: int) -> None:
    graph, feeds, weights = layer(rows, n, k, "float32")
    got = run_native(graph, feeds, weights=weights, kernels={"matmul": KERNELS[group]}, threads=2)["y"]
    want = interp.run(graph, feeds, weights={**weights, "w": rounded(weights["w"], group)})["y"]
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_and_other_levels(dtype: str, target: str) -> None:
    for rows, n, k in ((1, 70, 96), (9, 40, 100), (101, 70, 333)):
        graph, feeds, weights = layer(rows, n, k, dtype)
        got = run_native(graph, feeds, weights=weights, kernels={"matmul": "int4_weights"}, target=target)[
            "y"
        ]
        exact = {**weights, "w": rounded(weights["w"], 32)}
        wide = {n: a.astype(np.float32) for n, a in (feeds | exact).items()}
        sums = wide["x"] @ wide["w"].T + wide["bias"] + wide["residual"]
        want = sums / (1 + np.exp(-sums.clip(-80)))
        assert abs(got.astype(np.float32) - want).max() <= abs(want).max() / 256


@pytest.mark.parametrize("rows", [1, 6, 16])
def test_normed_and_gated_layers(rows: int) -> None:
    graph, feeds, weights = layer(rows, 140, 96, "float32", "norm_linear")
    got = run_native(graph, feeds, weights=weights, kernels={"matmul": "int4_weights"}, split=3)["y"]
    want = interp.run(graph, feeds, weights={**weights, "w": rounded(weights["w"], 32)})["y"]
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_layers_of_many_rows_and_a_row_of_nan(dtype: str) -> None:
    """The rows of two tasks, whose codes become operands once."""
    rows, n, k = 600, 70, 96
    b = GraphBuilder("layer")
    x, w = b.input("x", f"{dtype}[{rows}, {k}]"), b.weight("w", f"{dtype}[{2 * n}, {k}]")
    b.output("y", b.norm_linear(x, w, None, None, None, act="silu", gated=True))
    draw, kind = np.random.default_rng(5), np.dtype(getattr(ml_dtypes, dtype, dtype))
    feeds, weight = {"x": draw.standard_normal((rows, k)).astype(kind)}, draw.standard_normal((2 * n, k))
    feeds["x"][500, 40] = np.nan
    got = run_native(
        b.build(), feeds, weights={"w": weight.astype(kind)}, kernels={"matmul": "int4_weights"}, split=3
    )["y"].astype(np.float64)
    sums = feeds["x"].astype(np.float64) @ rounded(weight.astype(kind), 32).T.astype(np.float64)
    want = sums[:, :n] / (1 + np.exp(-sums[:, :n])) * sums[:, n:]
    assert np.isnan(got[500]).all()
    assert not np.isnan(np.delete(got, 500, 0)).any()
    limit = 1e-5 if dtype == "float32" else 1 / 128
    assert np.nanmax(abs(got - want)) <= limit * np.nanmax(abs(want))


def test_few_and_many_rows_share_a_weight() -> None:
    for dtype in ("float32", "bfloat16"):
        recipes = []
        for rows in (1, 9, 600):
            graph, feeds, _ = layer(rows, 70, 96, dtype)
            recipes.append(compile_native(graph, feeds, kernels={"matmul": "int4_weights"}).recipes[0])
        assert all((r.spec, r.steps) == (recipes[0].spec, recipes[0].steps) for r in recipes)


def test_only_a_policy_takes_it_and_memory_shrinks() -> None:
    graph, feeds, _ = layer(1, 256, 128, "float32")
    plain = compile_native(graph, feeds)
    asked = compile_native(graph, feeds, kernels={"matmul": "int4_weights"})
    kernels = [[c.kernel for c in p.entries[0].plans[0].calls] for p in (plain, asked)]
    assert kernels == [["matmul/gemv"], ["matmul/int4_weights"]]
    sizes = [sum(r.spec.size_bytes or 0 for r in p.recipes) for p in (plain, asked)]
    assert sizes == [256 * 128 * 4 + 256 * 4, 256 * 128 // 2 + 256 * 128 // 32 * 4 + 256 * 4]


@pytest.mark.parametrize(("group", "limit"), [(32, 0.092), (64, 0.105), (128, 0.115)])
def test_the_error_of_a_layer_is_bounded_and_grows_with_the_group(group: int, limit: float) -> None:
    """Of normal weights, which have no grid."""
    graph, feeds, weights = layer(4, 64, 1024, "float32")
    weights["w"][:] = np.random.default_rng(0).standard_normal((64, 1024))
    got = run_native(graph, feeds, weights=weights, kernels={"matmul": KERNELS[group]})["y"]
    want = interp.run(graph, feeds, weights=weights)["y"]
    assert 0.02 < np.linalg.norm(got - want) / np.linalg.norm(want) < limit


def test_a_recipe_of_no_whole_groups_is_refused() -> None:
    steps = (RecipeStep("groups_int4", ("%in",), {"group": 32}),)
    recipe = WeightTransformRecipe("r", TensorSpec((2, 1, 20), DType.INT8), "w", steps)
    with pytest.raises(FormatError, match="must be a multiple of the even group size 32"):
        run_recipe(recipe, {"w": np.ones((2, 48), np.float32)})
