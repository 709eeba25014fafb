"""Values that are known before a run and large on the way: sums and slices of long ranges are computed by kernels, and endless ones end in a named error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check

import xpuruntime as xrt
from xpuruntime.errors import InternalError, XpuError
from xpuruntime.ir import Graph, GraphBuilder


def graph_of(tail: Any, length: int, dtype: str = "float32") -> Graph:
    b = GraphBuilder("range")
    x = b.input("x", f"{dtype}[3]")
    b.output("y", b.add(x, tail(b, b.arange(start=0, end=length, step=1, dtype=xrt.DType(dtype)))))
    return b.build()


TAILS = {
    "sum": lambda b, n: b.sum(n, dim=[0]),
    "mean": lambda b, n: b.mean(n, dim=[0]),
    "slice": lambda b, n: b.slice(n, dim=0, start=7, end=10, step=1),
    "select of a flip": lambda b, n: b.select(b.flip(n, dims=[0]), dim=0, index=5),
    "sum of rows": lambda b, n: b.sum(b.view(n, size=[-1, 3]), dim=[0]),
    "slice of a product": lambda b, n: b.slice(b.mul(n, n), dim=0, start=0, end=3, step=1),
}


@pytest.mark.parametrize(
    ("tail", "dtype"), [(t, d) for t in TAILS for d in ("float32", "int64") if (t, d) != ("mean", "int64")]
)
def test_little_of_a_long_range(tail: str, dtype: str) -> None:
    graph = graph_of(TAILS[tail], 300_000, dtype)
    check(graph, {"x": np.arange(3).astype(dtype)}, tolerance=1e-5 if dtype == "float32" else None)


@pytest.mark.parametrize("tail", ["sum", "slice"])
def test_a_range_that_fits_no_memory_is_a_named_error(tail: str) -> None:
    graph = graph_of(TAILS[tail], 10**15)
    with pytest.raises(XpuError) as error:
        check(graph, {"x": np.zeros(3, np.float32)})
    assert not isinstance(error.value, InternalError)
