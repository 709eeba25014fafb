"""Rotation of queries and keys and update of the caches on CUDA: the kernel's own text on a CPU, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of
from support.native import check

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.cuda.rope import RopeAppendCuda
from xpuruntime.testing.emulation.cuda_host import cuda_host

rng = np.random.default_rng(4)
CAPACITY = 24


def cache(
    heads: int, kv: int, length: int, d: int, dtype: str, *, batch: int = 1, size: int = 0, skipped: int = 0
) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """A graph of rotated queries, and caches that keys and values enter. ``skipped``: elements before and behind each row of the queries."""
    b, kind = GraphBuilder("cache"), np.dtype(getattr(ml_dtypes, dtype, dtype))
    shapes = {"q": (heads, d + 2 * skipped), "k": (kv, d), "v": (kv, d)}
    feeds: dict[str, Any] = {
        n: rng.standard_normal((batch, h, length, e)).astype(kind) for n, (h, e) in shapes.items()
    }
    parts = [b.input(n, f"{dtype}{list(feeds[n].shape)}") for n in shapes]
    if skipped:
        parts[0] = b.slice(parts[0], dim=3, start=skipped, end=skipped + d, step=1)
    half = (size or d) // 2
    angles = rng.uniform(0, 6, (40, half))
    feeds |= {"cos": np.cos(angles).astype(kind), "sin": np.sin(angles).astype(kind)}
    tables = [b.input(n, f"{dtype}[40, {half}]") for n in ("cos", "sin")]
    feeds["places"] = np.stack([rng.permutation(CAPACITY)[:length] for _ in range(batch)])
    feeds["positions"] = rng.integers(0, 40, (batch, length))
    listed = [b.input(n, f"int64[{batch}, {length}]") for n in ("places", "positions")]
    start = {n: rng.standard_normal((batch, kv, CAPACITY, d)).astype(kind) for n in ("keys", "values")}
    old = [b.state(n, f"{dtype}{list(a.shape)}") for n, a in start.items()]
    y, *new = b.rope_append(*parts, *tables, *old, *listed, size=size)
    for state, value in zip(old, new, strict=True):
        b.set_state(state, value)
    b.output("y", y)
    return b.build(), feeds, start


def source_of(graph: Graph) -> str:
    """Return the text of the kernel of a graph of one node."""
    return RopeAppendCuda().lower(call_of(graph, {}), cuda_target("cuda:sm_90")).stages[-1].source


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 6, "kv": 2, "length": 5, "d": 64},
        {"heads": 3, "kv": 3, "length": 17, "d": 32, "size": 16, "batch": 2},
        {"heads": 2, "kv": 1, "length": 3, "d": 48, "size": 16},
        {"heads": 2, "kv": 1, "length": 9, "d": 128},
    ],
    ids=str,
)
def test_eight_pairs_of_a_thread(sizes: dict[str, int], dtype: str) -> None:
    graph, feeds, start = cache(dtype=dtype, **sizes)
    assert "rope::rotate8" in source_of(graph)
    check(graph, feeds, states=start, target=cuda_host())


def test_eight_pairs_at_addresses_that_are_no_multiples_of_16_bytes() -> None:
    graph, feeds, start = cache(2, 1, 5, 32, "bfloat16", skipped=4)
    check(graph, feeds, states=start, target=cuda_host())


@pytest.mark.parametrize(
    ("dtype", "d", "size"), [("float32", 64, 0), ("bfloat16", 24, 0), ("float16", 32, 8), ("bfloat16", 20, 8)]
)
def test_one_pair_of_a_thread(dtype: str, d: int, size: int) -> None:
    graph, feeds, start = cache(3, 1, 4, d, dtype, size=size)
    assert "rope::rotate8" not in source_of(graph)
    check(graph, feeds, states=start, target=cuda_host())
