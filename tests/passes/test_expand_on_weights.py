"""expand_on_weights: what depends on weights alone is computed when they are loaded, exactly, and costs no call of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.native import compile_native, run_native

from xpuruntime import ir
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, find_passes
from xpuruntime.policies import KernelPolicy, Rule
from xpuruntime.types import DType

RNG = np.random.default_rng(8)
ARRAYS = {
    "w": RNG.standard_normal((6, 3, 5)),
    "m": RNG.standard_normal((5, 4)),
    "k": RNG.standard_normal((4, 5)),
    "s": RNG.standard_normal(3),
    "b": RNG.standard_normal(4),
    "p": RNG.random(3) + 0.1,
}
CASES: dict[str, Callable[..., Any]] = {
    "standardized": lambda g, w, s, **_: g.batch_norm_train(w, s, s, momentum=0.0, eps=1e-6)[0],
    "batch norm": lambda g, w, s, p, **_: g.batch_norm(w, s, s, s, p, eps=1e-3),
    "layer norm": lambda g, w, **_: g.layer_norm(w, normalized_shape=[3, 5], eps=1e-5),
    "rms norm": lambda g, w, **_: g.rms_norm(w, normalized_shape=[5], eps=1e-5),
    "group norm": lambda g, w, **_: g.group_norm(w, groups=3, eps=1e-5),
    "variance": lambda g, w, **_: g.var(w, dim=[0, 2], correction=1.0),
    "mean": lambda g, w, **_: g.mean(w),
    "mean of two dims": lambda g, w, **_: g.mean(w, dim=[0, 2], keepdim=True),
    "sum": lambda g, w, **_: g.sum(w, dim=[1, 2]),
    "maximum of all": lambda g, w, **_: g.amax(w),
    "norm": lambda g, w, **_: g.vector_norm(w, dim=[1, 2], keepdim=True),
    "norm 1": lambda g, w, **_: g.vector_norm(w, ord=1.0, dim=[0]),
    "norm inf": lambda g, w, **_: g.vector_norm(w, ord=float("inf")),
    "softmax": lambda g, w, **_: g.softmax(w, dim=1),
    "square": lambda g, w, **_: g.pow(w, 2),
    "cube": lambda g, w, **_: g.pow(w, 3.0),
    "root": lambda g, p, **_: g.pow(p, 0.5),
    "reciprocal root": lambda g, p, **_: g.pow(p, -0.5),
    "reciprocal": lambda g, w, **_: g.pow(w, -1),
    "sigmoid": lambda g, w, **_: g.sigmoid(w),
    "silu": lambda g, w, **_: g.silu(w),
    "tanh": lambda g, w, **_: g.tanh(w),
    "absolute": lambda g, w, **_: g.abs(w),
    "relu": lambda g, w, **_: g.relu(w),
    "logarithm": lambda g, p, **_: g.log(p),
    "clamp": lambda g, w, **_: g.clamp(w, -0.5, 0.25),
    "clamp below": lambda g, w, **_: g.clamp(w, None, 0.125),
    "clamp to zero": lambda g, w, **_: g.clamp(w, 0.0, None),
    "minimum": lambda g, w, s, **_: g.minimum(w, g.view(s, size=[3, 1])),
    "layer": lambda g, k, m, b, **_: g.linear(k, g.permute(m, dims=[1, 0]), b),
    "layer without bias": lambda g, w, k, **_: g.linear(w, k),
    "product": lambda g, w, m, **_: g.matmul(w, m),
    "chosen part": lambda g, w, **_: g.select(w, dim=1, index=-1),
    "parts": lambda g, w, **_: g.mul(*g.split(w, sizes=[2, 4], dim=0)[:1] * 2),
    "rows": lambda g, w, **_: g.index(w, g.constant(np.array([[0, -1], [3, 3]]))),
    "filled": lambda g, **_: g.full(size=[7, 3], value=0.1, dtype=DType.FLOAT32),
}  # fmt: skip
TYPES = ("float32", "float16", "bfloat16")


def graph_of(case: str, dtype: str, arrays: dict[str, Any]) -> ir.Graph:
    """Return a graph whose output is what a case computes from weights, minus an input."""
    b = ir.GraphBuilder("g")
    weights = {n: b.weight(n, f"{dtype}{list(a.shape)}") for n, a in arrays.items()}
    value = CASES[case](b, **weights)
    x = b.input("x", f"{b.spec(value).dtype.value}[]")
    b.output("y", b.sub(value, x))
    return b.build()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_nothing_on_weights_is_left_for_a_run(case: str, dtype: str) -> None:
    arrays = {n: a.astype(DType(dtype).numpy) for n, a in ARRAYS.items()}
    graph = graph_of(case, dtype, arrays)
    own = DType.FLOAT32 if case == "filled" else DType(dtype)
    feeds = {"x": np.zeros((), own.numpy)}
    program = compile_native(graph, feeds)
    assert [c.kernel for c in program.entries[0].plans[0].calls] == ["elementwise/generated"]
    exact = graph_of(case, "float64", ARRAYS)
    expected = interp.run(
        exact,
        {"x": np.zeros((), np.float32 if case == "filled" else np.float64)},
        weights={n: a.astype(np.float64) for n, a in arrays.items()},
    )["y"]
    mine = run_native(graph, feeds, weights=arrays)["y"]
    assert mine.dtype == own.numpy
    error = np.abs(mine.astype(np.float64) - expected)
    assert (error <= 1.01 * 2.0 ** -own_bits(own) * np.maximum(np.abs(expected), 2.0**-10)).all()


def own_bits(dtype: DType) -> int:
    """Return the bits of the significand, the first one included."""
    return {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}[dtype]


@pytest.mark.parametrize("case", [c for c in CASES if c != "filled"])
def test_special_values_stay_what_they_are(case: str) -> None:
    arrays = {n: a.astype(np.float32) for n, a in ARRAYS.items()}
    arrays["w"][0, 0, :3] = np.nan, np.inf, -np.inf
    arrays["w"][1, 1, 1], arrays["w"][2] = 1e30, 0
    graph, feeds = graph_of(case, "float32", arrays), {"x": np.zeros((), np.float32)}
    wide = {n: a.astype(np.float64) for n, a in arrays.items()}
    with np.errstate(all="ignore"):
        mine = run_native(graph, feeds, weights=arrays)["y"]
        expected = interp.run(graph_of(case, "float64", arrays), {"x": np.zeros(())}, weights=wide)[
            "y"
        ].astype(np.float32)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_a_part_that_no_recipe_computes_leaves_the_rest_as_it_is() -> None:
    b = ir.GraphBuilder("g")
    w, x = b.weight("w", "float32[6, 8]"), b.input("x", "float32[6, 8]")
    b.output("y", b.mul(b.layer_norm(b.gelu(w), normalized_shape=[8]), x))
    graph = b.build()
    (step,) = find_passes(["expand_on_weights"])
    program = compile_native(graph, {"x": np.ones((6, 8), np.float32)})
    assert sorted(c.kernel for c in program.entries[0].plans[0].calls)[-1] == "norm/generated"
    assert step.run(graph, PassContext(at_load=lambda op: op != "gelu")) is graph


def test_a_kernel_that_a_policy_names_runs() -> None:
    graph = graph_of("layer norm", "float32", ARRAYS)
    policy = KernelPolicy(rules=[Rule(op="norm", use="generated")])
    program = compile_native(graph, {"x": np.zeros((), np.float32)}, policy=policy)
    assert "norm/generated" in [c.kernel for c in program.entries[0].plans[0].calls]


def test_values_of_a_run_keep_their_kernels() -> None:
    b = ir.GraphBuilder("g")
    w, x = b.weight("w", "float32[8]"), b.input("x", "float32[6, 8]")
    b.output("y", b.layer_norm(b.mul(x, w), normalized_shape=[8]))
    (step,) = find_passes(["expand_on_weights"])
    graph = b.build()
    assert step.run(graph, None) is graph


def test_a_result_much_larger_than_its_weights_is_not_kept() -> None:
    b = ir.GraphBuilder("g")
    u, v = b.weight("u", "float32[2000, 1]"), b.weight("v", "float32[1, 3000]")
    b.output("y", b.mul(b.matmul(u, v), b.input("x", "float32[]")))
    (step,) = find_passes(["expand_on_weights"])
    graph = b.build()
    assert step.run(graph, None) is graph
