"""Attention against the interpreter: every kernel, level and dtype; masks of every shape, causality, grouped heads, split keys."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import KernelUnavailable
from xpuruntime.ir import GraphBuilder

LEVELS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
KERNELS = ("flash", "naive")
rng = np.random.default_rng(7)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def build(
    q: tuple[int, ...], k: tuple[int, ...], dv: int, dtype: str, mask: Any, **attrs: Any
) -> tuple[Any, dict[str, Any]]:
    feeds = {
        "q": rng.standard_normal(q).astype(dtype_of(dtype)),
        "k": rng.standard_normal(k).astype(dtype_of(dtype)),
        "v": rng.standard_normal((*k[:3], dv)).astype(dtype_of(dtype)),
    }
    if mask is not None:
        feeds["mask"] = mask
    b = GraphBuilder("attention")
    names = [b.input(n, f"{a.dtype.name}{list(a.shape)}") for n, a in feeds.items()]
    b.output("y", b.attention(*names, **attrs))
    return b.build(), feeds


def judge(q: Any, k: Any, dv: int, dtype: str = "float32", mask: Any = None, change: Any = None, kernel: str = "flash",
          target: str = "cpu", **attrs: Any) -> np.ndarray[Any, Any]:  # fmt: skip
    graph, feeds = build(q, k, dv, dtype, mask, **attrs)
    if change is not None:
        change(feeds)
    return check(graph, feeds, passes="none", split=3, target=target, kernels={"attention": kernel})["y"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtypes_grouped_heads_and_causality(kernel: str, dtype: str) -> None:
    judge((2, 6, 33, 16), (2, 2, 150, 16), 24, dtype, kernel=kernel, causal=True, causal_offset=3)
    judge((1, 2, 5, 8), (1, 2, 7, 8), 8, dtype, kernel=kernel)


@pytest.mark.parametrize("target", LEVELS)
def test_levels(target: str) -> None:
    judge((2, 4, 37, 20), (2, 2, 101, 20), 20, target=target, mask=rng.random((2, 1, 37, 101)) < 0.5)
    judge((1, 4, 1, 32), (1, 1, 700, 32), 32, target=target)


MASKS = [
    ((2, 1, 1, 100), "bool"),
    ((2, 1, 9, 100), "bool"),
    ((100,), "float32"),
    ((4, 9, 100), "float64"),
    ((4, 1, 100), "float32"),
    ((2, 4, 9, 1), "bool"),
    ((9, 100), "bfloat16"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("shape", "dtype"), MASKS)
def test_masks_broadcast(kernel: str, shape: tuple[int, ...], dtype: str) -> None:
    mask = rng.random(shape) < 0.6 if dtype == "bool" else rng.standard_normal(shape).astype(dtype_of(dtype))
    judge((2, 4, 9, 16), (2, 2, 100, 16), 16, mask=mask, kernel=kernel, scale=0.3, softcap=2.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_few_queries_read_keys_by_rows(dtype: str, target: str) -> None:
    mask = rng.random((2, 4, 3, 600)) < 0.5
    judge(
        (2, 4, 3, 20), (2, 2, 600, 20), 136, dtype, target=target, mask=mask, causal=True, causal_offset=580
    )
    judge((1, 8, 1, 64), (1, 8, 37, 64), 24, dtype, target=target, softcap=3.0, scale=0.5)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 1), "bool"), ((2, 1, 1, 70), "float32"), ((4, 3, 70), "float64")]
)
def test_masks_of_few_queries(shape: tuple[int, ...], dtype: str) -> None:
    mask = rng.random(shape) < 0.6 if dtype == "bool" else rng.standard_normal(shape).astype(dtype_of(dtype))
    judge((2, 4, 3, 16), (2, 2, 70, 16), 16, mask=mask)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_sees_no_key_gives_zero(kernel: str) -> None:
    y = judge((1, 2, 9, 8), (1, 2, 5, 8), 8, kernel=kernel, causal=True, causal_offset=-4)
    assert not y[:, :, :4].any()
    assert y[:, :, 4:].all()
    mask = np.ones((1, 1, 9, 5), bool)
    mask[:, :, 2] = False
    assert not judge((1, 2, 9, 8), (1, 2, 5, 8), 8, mask=mask, kernel=kernel)[:, :, 2].any()


@pytest.mark.parametrize("keys", [70, 700])  # in one part, and shared between tasks
def test_nan_and_infinity_stay_where_they_belong(keys: int) -> None:
    def spoil(feeds: dict[str, Any]) -> None:
        feeds["k"][0, 0, keys // 2, 0] = np.nan  # all of head 0
        feeds["v"][0, 1, 0, 3] = np.inf  # one element of head 1

    y = judge((1, 2, 5, 8), (1, 2, keys, 8), 8, change=spoil)
    assert np.isnan(y[0, 0]).all()
    assert np.isinf(y[0, 1, :, 3]).all()
    assert np.isfinite(y[0, 1, :, :3]).all()


def test_large_scores_do_not_overflow() -> None:
    judge((1, 1, 4, 8), (1, 1, 300, 8), 8, scale=400.0)


@pytest.mark.parametrize("q", [(0, 4, 9, 8), (2, 4, 0, 8)])
def test_nothing_to_do(q: tuple[int, ...]) -> None:
    judge(q, (q[0], 2, 5, 8), 8)


def test_no_keys_give_zeros() -> None:
    assert not judge((1, 4, 3, 8), (1, 2, 0, 8), 8).any()


def test_long_keys_are_split_and_joined_in_a_second_stage() -> None:
    def calls(queries: int, keys: int) -> list[int]:
        graph, _ = build((1, 8, queries, 64), (1, 2, keys, 64), 64, "float32", None)
        return [c.tasks for c in compile_graph(graph, passes=0).entries[0].plans[0].calls]

    assert len(calls(1, 4096)) == 2
    assert calls(1, 4096)[0] >= 16
    assert len(calls(1, 200)) == 1
    assert len(calls(512, 512)) == 1


def test_memory_does_not_grow_with_the_square_of_the_sequence() -> None:
    def scratch(n: int) -> int:
        graph, _ = build((1, 2, n, 64), (1, 2, n, 64), 64, "float32", None)
        plan = compile_graph(graph, passes=0).entries[0].plans[0]
        return max(c.scratch_bytes for c in plan.calls) + plan.arena_bytes

    assert scratch(4096) == scratch(1024)


def test_a_mask_of_integers_is_refused_with_its_dtype() -> None:
    graph, _ = build((1, 2, 4, 8), (1, 2, 4, 8), 8, "float32", np.ones((4, 4), np.int32))
    with pytest.raises(KernelUnavailable) as caught:
        compile_graph(graph, passes=0)
    assert "the mask must be bool or float, not int32" in str(caught.value.decision)
