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


@pytest.mark.sampled(40)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_nothing_on_weights_is_left_for_a_run(case: str, dtype: str) -> None:
    arrays = {n: a.astype(DType(dtype).numpy) for n, a in ARRAYS.items()}
    graph = graph_of(case, dtype, arrays)
    own = DType(dtype)
    feeds = {"x": np.zeros((), own.numpy)}
    program = compile_native(graph, feeds)
    assert [c.kernel for c in program.entries[0].plans[0].calls] == ["elementwise/generated"]
    exact = graph_of(case, "float64", ARRAYS)
    expected = interp.run(
        exact,
        {"x": np.zeros((), np.float64)},
        weights={n: a.astype(np.float64) for n, a in arrays.items()},
    )["y"]
    mine = run_native(graph, feeds, weights=arrays)["y"]
    assert mine.dtype == own.numpy
    error = np.abs(mine.astype(np.float64) - expected)
    assert (error <= 1.01 * 2.0 ** -own_bits(own) * np.maximum(np.abs(expected), 2.0**-10)).all()


def own_bits(dtype: DType) -> int:
    """Return the bits of the significand, the first one included."""
    return {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}[dtype]


@pytest.mark.parametrize("case", CASES)
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


def calls(graph: ir.Graph, x: tuple[int, ...] = (), **options: Any) -> list[str]:
    """Return the kernels of the compiled graph, whose input has this shape."""
    program = compile_native(graph, {"x": np.zeros(x, np.float32)}, **options)
    return sorted(c.kernel for c in program.entries[0].plans[0].calls)


def minus_input(build: Callable[..., Any], **weights: str) -> ir.Graph:
    """Return a graph whose output is what ``build`` computes from weights, minus an input."""
    b = ir.GraphBuilder("g")
    value = build(b, *(b.weight(n, spec) for n, spec in weights.items()))
    b.output("y", b.sub(value, b.input("x", "float32[]")))
    return b.build()


NOT_COMPUTED: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "an op without steps": (
        lambda g, w: g.layer_norm(g.gelu(w), normalized_shape=[8]),
        {"w": "float32[6, 8]"},
    ),
    "a slice with a step": (
        lambda g, w: g.sigmoid(g.slice(w, dim=0, start=0, end=8, step=2)),
        {"w": "float32[9]"},
    ),
    "two types": (
        lambda g, w, h: g.sigmoid(g.add(w, h)),
        {"w": "float32[8]", "h": "float16[8]"},
    ),
    "a large lookup": (
        lambda g, w, i: g.sigmoid(g.index_select(w, i, dim=0)),
        {"w": "float32[40, 2048]", "i": "int64[900]"},
    ),
    "a small sum of a large product": (
        lambda g, a, c: g.vector_norm(g.mul(a, c)),
        {"a": "float32[9000, 1]", "c": "float32[1, 9000]"},
    ),
    "an outer product": (lambda g, a, c: g.matmul(a, c), {"a": "float32[9000, 1]", "c": "float32[1, 9000]"}),
    "a product that takes minutes": (
        lambda g, a, c: g.amax(g.matmul(a, c)),
        {"a": "float32[8192, 8192]", "c": "float32[8192, 8192]"},
    ),
    "a large weight": (lambda g, w: g.sigmoid(w), {"w": "float32[5000, 5000]"}),
    "a matrix and a vector": (lambda g, w, v: g.matmul(w, v), {"w": "float32[4, 5]", "v": "float32[5]"}),
    "two vectors": (lambda g, v, w: g.matmul(v, w), {"v": "float32[5]", "w": "float32[5]"}),
    "a scalar": (lambda g, w: g.softmax(w, dim=0), {"w": "float32[]"}),
    "a root": (lambda g, w: g.pow(w, 0.5), {"w": "float32[5]"}),
    "a filled value that is no weight": (
        lambda g: g.full(size=[7, 3], value=0.1, dtype=DType.FLOAT32),
        {},
    ),
}


@pytest.mark.parametrize("case", NOT_COMPUTED)
def test_what_recipes_do_not_compute_keeps_its_kernels(case: str) -> None:
    graph = minus_input(NOT_COMPUTED[case][0], **NOT_COMPUTED[case][1])
    assert calls(graph) == calls(graph, passes=["-expand_on_weights"])


@pytest.mark.parametrize("case", ["no rows", "no channels", "no elements"])
def test_empty_weights_keep_their_kernels(case: str) -> None:
    build, spec = {
        "no rows": (lambda g, w: g.group_norm(w, groups=2), "float32[0, 4, 3]"),
        "no channels": (lambda g, w: g.mean(w, dim=[1]), "float32[3, 0]"),
        "no elements": (lambda g, w: g.vector_norm(w, ord=1.0), "float32[0, 5]"),
    }[case]
    graph = minus_input(build, w=spec)
    assert calls(graph) == calls(graph, passes=["-expand_on_weights"])


@pytest.mark.parametrize(
    ("family", "build", "kernel"),
    [
        ("norm", lambda g, w: g.layer_norm(w, normalized_shape=[4]), "norm/generated"),
        ("matmul", lambda g, w: g.matmul(w, w), "matmul/generated"),
        ("reduce", lambda g, w: g.amax(w, dim=[1]), "reduce/generated"),
    ],
)
def test_a_kernel_that_a_policy_names_runs(family: str, build: Callable[..., Any], kernel: str) -> None:
    graph, policy = (
        minus_input(build, w="float32[4, 4]"),
        KernelPolicy(rules=[Rule(op=family, use="generated")]),
    )
    assert kernel not in calls(graph)
    assert kernel in calls(graph, policy=policy)


def test_values_of_a_run_keep_their_kernels() -> None:
    b = ir.GraphBuilder("g")
    w, x = b.weight("w", "float32[8]"), b.input("x", "float32[6, 8]")
    b.output("y", b.layer_norm(b.mul(x, w), normalized_shape=[8]))
    graph = b.build()
    assert calls(graph, (6, 8)) == calls(graph, (6, 8), passes=["-expand_on_weights"])


def test_a_filled_weight_of_a_layer_is_filled_once() -> None:
    b = ir.GraphBuilder("g")
    weight = b.full(size=[5, 8], value=0.5, dtype=DType.FLOAT32)
    b.output("y", b.linear(b.input("x", "float32[6, 8]"), weight))
    graph = b.build()
    assert [k for k in calls(graph, (6, 8)) if not k.startswith("matmul/")] == []
    y = run_native(graph, {"x": np.ones((6, 8), np.float32)})["y"]
    np.testing.assert_array_equal(y, np.full((6, 5), 4, np.float32))


def test_the_pass_alone_changes_nothing() -> None:
    (step,) = find_passes(["expand_on_weights"])
    graph = minus_input(lambda g, w: g.sigmoid(w), w="float32[5]")
    assert step.run(graph, None) is graph
    assert step.run(graph, PassContext(at_load=lambda graph: set(graph.weight_names))) is graph
