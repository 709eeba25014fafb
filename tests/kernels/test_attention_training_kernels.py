"""Attention in training on CPUs: the kernels' results and gradients against the interpreter, in every layout, level and dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, compile_native, run_native

from xpuruntime.ir import Graph, GraphBuilder

LEVELS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
DTYPES = ("float32", "float64", "bfloat16", "float16")
rng = np.random.default_rng(23)


def build(
    q: tuple[int, ...], k: tuple[int, ...], dv: int, dtype: str, mask: Any, turned: bool, **attrs: Any
) -> tuple[Graph, dict[str, Any]]:
    """Forward and backward as one graph. turned: heads are inside positions, as a projection of all heads writes them."""
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    b = GraphBuilder("training")
    feeds: dict[str, Any] = {}
    names = []
    for name, shape in (("q", q), ("k", k), ("v", (*k[:3], dv)), ("grad", (*q[:3], dv))):
        stored = (shape[0], shape[2], shape[1], shape[3]) if turned else shape
        feeds[name] = rng.standard_normal(stored).astype(own)
        value = b.input(name, f"{dtype}{list(stored)}")
        names.append(b.permute(value, dims=[0, 2, 1, 3]) if turned else value)
    *operands, grad = names
    masks = []
    if mask is not None:
        feeds["mask"] = mask
        masks = [b.input("mask", f"{mask.dtype.name}{list(mask.shape)}")]
    y, lse = b.attention_train(*operands, *masks, **attrs)
    for i, value in enumerate((y, lse, *b.attention_backward(grad, *operands, y, lse, *masks, **attrs))):
        b.output(f"result{i}", value)
    return b.build(), feeds


def judge(
    q: tuple[int, ...], k: tuple[int, ...], dv: int, dtype: str = "float32", *, mask: Any = None, kernel: str = "flash", target: str = "cpu",
    turned: bool = False, change: Any = None, **attrs: Any,
) -> list[Any]:  # fmt: skip
    graph, feeds = build(q, k, dv, dtype, mask, turned, **attrs)
    if change is not None:
        change(feeds)
    results = check(graph, feeds, passes=["decompose"], split=3, target=target, kernels={"attention": kernel})
    return [results[f"result{i}"] for i in range(5)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_grouped_heads_and_causality(kernel: str, dtype: str) -> None:
    judge((2, 6, 33, 16), (2, 2, 150, 16), 24, dtype, kernel=kernel, causal=True, causal_offset=3)
    judge((1, 2, 5, 8), (1, 2, 7, 8), 8, dtype, kernel=kernel)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", LEVELS)
def test_levels(target: str) -> None:
    judge((2, 4, 37, 20), (2, 2, 101, 20), 20, target=target, mask=rng.random((2, 1, 37, 101)) < 0.5)
    judge((1, 4, 1, 32), (1, 1, 700, 32), 32, target=target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "dtype"), [
    ((2, 1, 1, 100), "bool"), ((4, 9, 100), "float64"), ((4, 1, 100), "float32"), ((2, 4, 9, 1), "bool"), ((9, 100), "bfloat16"),
])  # fmt: skip
def test_masks_broadcast(shape: tuple[int, ...], dtype: str) -> None:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    mask = rng.random(shape) < 0.6 if dtype == "bool" else rng.standard_normal(shape).astype(own)
    judge((2, 4, 9, 16), (2, 2, 100, 16), 16, mask=mask, scale=0.3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "attrs", [{"causal": True}, {"causal": True, "causal_offset": -20}, {"scale": -0.4}], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_inside_positions_and_long_blocks(dtype: str, attrs: dict[str, Any]) -> None:
    judge((1, 4, 203, 33), (1, 2, 130, 33), 17, dtype, turned=True, **attrs)


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_queries_that_see_no_key_are_zero_and_have_zero_gradients(kernel: str) -> None:
    y, lse, grad_q, *others = judge(
        (1, 2, 9, 8), (1, 2, 5, 8), 8, kernel=kernel, causal=True, causal_offset=-4
    )
    assert np.all(lse[:, :, :4] == -np.inf)
    assert not y[:, :, :4].any()
    assert not grad_q[:, :, :4].any()
    assert all(np.isfinite(g).all() for g in others)


def test_a_query_that_sees_one_key_has_a_gradient_of_exactly_zero() -> None:
    graph, feeds = build((2, 3, 40, 130), (2, 3, 1, 130), 130, "float32", None, False)
    results = run_native(graph, feeds, passes=["decompose"], kernels={"attention": "flash"})
    assert results["result4"].any()
    assert not results["result2"].any()
    assert not results["result3"].any()


@pytest.mark.parametrize("q", [(0, 4, 9, 8), (2, 4, 0, 8)])
@pytest.mark.parametrize("keys", [5, 0])
def test_empty_sizes_give_zeros(q: tuple[int, ...], keys: int) -> None:
    for result in judge(q, (q[0], 2, keys, 8), 8)[2:]:
        assert not result.any()


def test_nan_stays_in_its_head() -> None:
    def spoil(feeds: dict[str, Any]) -> None:
        feeds["k"][0, 0, 30, 0] = np.nan

    y, lse, grad_q, grad_k, grad_v = judge((1, 2, 5, 8), (1, 2, 70, 8), 8, change=spoil)
    for result in (y, lse, grad_q, grad_k, grad_v):
        assert np.isnan(result[0, 0]).all()
        assert np.isfinite(result[0, 1]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 7, 200])
def test_training_has_the_bits_of_inference(queries: int, dtype: str, kernel: str) -> None:
    """One key head, so that many keys are split over tasks."""
    graph, feeds = build((1, 2, queries, 32), (1, 1, 900, 32), 32, dtype, None, False)
    b = GraphBuilder("inference")
    b.output("y", b.attention(*(b.input(n, f"{dtype}{list(feeds[n].shape)}") for n in "qkv")))
    options: dict[str, Any] = {"passes": ["decompose"], "kernels": {"attention": kernel}}
    ours = check(graph, feeds, **options)["result0"]
    plain = check(b.build(), {n: feeds[n] for n in "qkv"}, **options)["y"]
    assert ours.tobytes() == plain.tobytes()


def test_memory_does_not_grow_with_the_square_of_the_sequence() -> None:
    def held(length: int) -> int:
        shape = (1, 2, length, 64)
        graph, feeds = build(shape, shape, 64, "float32", None, False)
        plan = (
            compile_native(graph, feeds, passes=["decompose"], kernels={"attention": "flash"})
            .entries[0]
            .plans[0]
        )
        calls = [c for c in plan.calls if c.kernel == "attention/flash"]
        assert len(calls) == 4
        return plan.arena_bytes + max(c.scratch_bytes for c in calls)

    assert held(4096) <= 4.1 * held(1024)
