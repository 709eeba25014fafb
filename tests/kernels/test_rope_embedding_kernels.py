"""Rotary embedding and rows of tables, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, run_native

from xpuruntime.ir import GraphBuilder

rng = np.random.default_rng(11)


def graph(*calls: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """One graph of several nodes, so that one program checks them all: (op, operands, attrs)."""
    b = GraphBuilder("rows")
    feeds: dict[str, Any] = {}
    for op, operands, attrs in calls:
        names = []
        for x in operands:
            name = None if x is None else b.input(f"x{len(feeds)}", f"{x.dtype.name}{list(x.shape)}")
            if name is not None:
                feeds[name] = x
            names.append(name)
        b.output(f"y{len(b.outputs)}", b.call(op, *names, outputs=1, **attrs))
    return b.build(), feeds


def judge(*calls: tuple[Any, ...], target: str = "cpu") -> None:
    made, feeds = graph(*calls)
    check(made, feeds, passes="none", split=3, target=target)


def values(dtype: str) -> Any:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return lambda *shape: rng.standard_normal(shape).astype(own)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_rope(dtype: str, target: str) -> None:
    r = values(dtype)
    calls = []
    for interleaved in (False, True):
        attrs = {"interleaved": interleaved}
        calls += [
            ("rope", (r(2, 3, 5, 16), r(5, 8), r(5, 8)), attrs),
            ("rope", (r(2, 3, 5, 70), r(2, 5, 35), r(2, 5, 35)), attrs),
            ("rope", (r(3, 5, 16), r(5, 8), r(5, 8)), attrs),
            ("rope", (r(3, 5, 16), r(3, 5, 8), r(3, 5, 8)), attrs),
            ("rope", (r(2, 3, 1, 16), r(1, 8), r(1, 8)), attrs),
            ("rope", (r(2, 3, 5, 2), r(5, 1), r(5, 1)), attrs),
            ("rope", (r(2, 3, 5, 16), r(9, 4), r(9, 4), rng.integers(0, 9, (2, 5))), attrs | {"size": 8}),
        ]
    judge(*calls, target=target)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64", "bool"])
def test_embedding_moves_rows_of_any_type(dtype: str) -> None:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    table, wide = rng.integers(0, 2, (10, 7)).astype(own), rng.integers(0, 2, (10, 130)).astype(own)
    judge(
        ("embedding", (table, rng.integers(-10, 10, (3, 4))), {}),
        ("embedding", (wide, rng.integers(-10, 10, 5).astype(np.int32)), {"padding_idx": 3}),
        ("embedding", (wide, np.zeros((0, 3), np.int64)), {}),
    )


def test_an_index_outside_the_table_is_an_error_of_the_run() -> None:
    made, feeds = graph(("embedding", (values("float32")(10, 7), np.array([3, 10])), {}))
    with pytest.raises(Exception, match=r"10.*outside|outside.*10|index"):
        run_native(made, feeds, passes="none")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    for dtype in ("float32", "bfloat16"):
        table, at = values(dtype)(10, 7), rng.integers(0, 10, 12)
        judge(
            ("embedding_bag", (table, at, np.array([0, 3, 3, 9])), {"mode": mode, "padding_idx": 2}),
            (
                "embedding_bag",
                (table, at, np.array([0, 3, 3, 12])),
                {"mode": mode, "include_last_offset": True},
            ),
        )
    judge(("embedding_bag", (table, at, np.array([0, 3, 3, 9]), values("bfloat16")(12)), {"mode": "sum"}))
