"""``paged_attention`` on CPUs and in its expansion: the interpreter's results, and the same bits in every company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check, run_native
from support.paged_graphs import graph_of, paged

from xpuruntime.errors import RunError
from xpuruntime.ir import interp
from xpuruntime.passes import find_passes
from xpuruntime.passes.context import PassContext

LEVELS = ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v2")
CASES = (
    # batch, heads, kv heads, length, size, value size, blocks, listed, block size, attributes
    (5, 6, 2, 1, 32, 32, 12, 5, 4, {}),
    (3, 4, 4, 2, 33, 7, 9, 3, 5, {"softcap": 3.0}),
    (2, 16, 1, 1, 24, 40, 6, 6, 16, {"scale": 0.2}),
    (4, 8, 2, 1, 64, 64, 40, 80, 16, {}),
    (3, 2, 1, 3, 16, 16, 5, 400, 3, {"window": 600}),
    (2, 4, 2, 1, 8, 8, 3, 3, 100, {"window": 7}),
    (3, 6, 2, 2, 24, 24, 9, 5, 4, {"places": 20, "softcap": 2.0}),
    (3, 4, 4, 1, 16, 24, 9, 6, 4, {"places": 7}),
    (3, 4, 2, 1, 16, 16, 9, 5, 4, {"places": 13, "by_key": True, "window": 9}),
    (2, 4, 1, 2, 16, 16, 40, 80, 16, {"places": 900}),
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.sampled(1)
def test_results_are_those_of_the_interpreter(dtype: str, target: str) -> None:
    for case in CASES:
        graph, feeds = paged(case, dtype)
        check(graph, feeds, target=target)


@pytest.mark.parametrize("case", CASES)
def test_the_interpreter_computes_plain_attention_of_each_text(case: Any) -> None:
    """By definition: the softmax over the rows that a table names, written out."""
    graph, feeds = paged(case, "float64")
    (y,) = interp.run(graph, feeds).values()
    _, heads, kv, length, d, _, _, _, size, attrs = case
    for b, t, h in np.ndindex(len(y), length, heads):
        at = int(feeds["positions"][b, t])
        first = max(0, at + 1 - attrs["window"]) if attrs.get("window") else 0
        rows = [feeds["tables"][b, p // size] * size + p % size for p in range(first, at + 1)]
        want = np.zeros(y.shape[3])
        if rows:
            k, v = (feeds[n][rows, h // (heads // kv)] for n in ("keys", "values"))
            x = k @ feeds["q"][b, h, t] * attrs.get("scale", d**-0.5)
            cap = attrs.get("softcap")
            x = cap * np.tanh(x / cap) if cap else x
            if rows and "biases" in feeds:
                keys = np.arange(first, at + 1)
                index = keys if attrs.get("by_key") else at - keys
                x = x + feeds["biases"][h, np.minimum(index, attrs["places"] - 1)]
            w = np.exp(x - x.max())
            want = w @ v / w.sum()
        np.testing.assert_allclose(y[b, h, t], want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_expansion_computes_the_same(case: Any) -> None:
    graph, feeds = paged(case)
    (decompose,) = find_passes(["decompose"])
    expanded = decompose.run(graph, PassContext(has_kernel=lambda op: op != "paged_attention"))
    assert {"attention", "index_select"} <= {n.op for n in expanded.nodes}
    np.testing.assert_allclose(interp.run(expanded, feeds)["y"], interp.run(graph, feeds)["y"], 1e-4, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_text_has_the_same_bits_in_every_company(dtype: str) -> None:
    """Alone or with others, in whatever row, and wherever its blocks are in the cache."""
    case = (4, 8, 2, 1, 64, 64, 160, 80, 16, {})
    _, feeds = paged(case, dtype)
    rng = np.random.default_rng(3)
    feeds["tables"] = rng.permutation(160)[: 2 * 80].reshape(2, 80).repeat(2, 0).astype(np.int32)
    whole = run_native(graph_of(feeds, 16, {}), feeds)["y"]
    order = rng.permutation(160)  # block i of the cache moves to order[i]
    for b in range(4):
        alone = {n: feeds[n][b : b + 1] for n in ("q", "tables", "positions")}
        moved = np.argsort(order)
        alone["tables"] = order[feeds["tables"][b : b + 1]].astype(np.int32)
        for n in ("keys", "values"):
            rows = feeds[n].reshape(160, 16, 2, 64)
            alone[n] = np.ascontiguousarray(rows[moved]).reshape(feeds[n].shape)
        alone = {n: alone[n] for n in feeds}
        got = run_native(graph_of(alone, 16, {}), alone, split=3)["y"]
        assert got.tobytes() == whole[b : b + 1].tobytes()


@pytest.mark.parametrize("fault", ["block", "position"])
def test_an_index_out_of_range_is_an_error(fault: str) -> None:
    for case in (CASES[0], CASES[3]):
        graph, feeds = paged(case)
        if fault == "block":
            feeds["tables"][0, 0] = case[6]
        else:
            feeds["positions"][0, 0] = case[7] * case[8]
        with pytest.raises(RunError, match="outside a dim"):
            run_native(graph, feeds)
        with pytest.raises(Exception, match="out of range"):
            interp.run(graph, feeds)
