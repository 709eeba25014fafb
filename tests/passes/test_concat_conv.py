"""concat_conv: convolutions of parts of the channels become one, and norms move before concatenations; results are the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.native import run_native

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, run_passes
from xpuruntime.testing.emulation.cuda_host import cuda_host

ON = PassContext(library_ops=True)
ACTS = ["", "relu", "silu", "gelu", "hardswish"]


def graph_of(build: Any, arrays: dict[str, np.ndarray]) -> ir.Graph:
    """Return the graph of ``build(builder, **values)``: ``x`` is its input, all other arrays are weights."""
    b = ir.GraphBuilder("g")
    values = {n: (b.input if n == "x" else b.weight)(n, f"float32{list(a.shape)}") for n, a in arrays.items()}
    for i, value in enumerate(build(b, **values)):
        b.output(f"y{i}", value)
    return b.build()


def results(graph: ir.Graph, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the interpreter computes."""
    return interp.run(graph, {"x": arrays["x"]}, weights={n: a for n, a in arrays.items() if n != "x"})


def mixed(
    parts: list[tuple[int, int, int, int]],
    act: str = "",
    norm: bool = False,
    bias: bool = False,
    residual: bool = False,
    side: int = 5,
    images: int = 2,
    also: bool = False,
) -> tuple[ir.Graph, dict[str, np.ndarray]]:
    """Return a graph and its values: x is split, each part (channels, filters, kernel, groups) has a convolution, and results are concatenated."""
    rng = np.random.default_rng(len(parts))
    channels, filters = sum(p[0] for p in parts), sum(p[1] for p in parts)
    feeds = {"x": rng.integers(-3, 4, (images, channels, side, side)).astype(np.float32)}
    for i, (c, f, k, groups) in enumerate(parts):
        feeds[f"w{i}"] = rng.integers(-2, 3, (f, c // groups, k, k)).astype(np.float32)
        if bias:
            feeds[f"b{i}"] = rng.integers(-2, 3, f).astype(np.float32)
    if norm:
        feeds |= {n: rng.uniform(0.5, 2, filters).astype(np.float32) for n in ("g", "h", "m", "v")}

    def build(b: Any, /, x: Any, **weights: Any) -> list[Any]:
        pieces = b.split(x, outputs=len(parts), sizes=[p[0] for p in parts], dim=1)
        values = []
        for i, (_, _, k, groups) in enumerate(parts):
            how = {"stride": [1, 1], "padding": [k // 2, k // 2], "dilation": [1, 1], "groups": groups}
            values.append(b.convolution(pieces[i], weights[f"w{i}"], weights.get(f"b{i}"), **how))
        y = b.cat(*values, dim=1)
        if norm:
            y = b.batch_norm(y, weights["g"], weights["h"], weights["m"], weights["v"])
        if act:
            y = getattr(b, act)(y)
        return [y, values[0]] if also else [y]

    return graph_of(build, feeds), feeds


def rewritten(graph: ir.Graph, feeds: dict[str, np.ndarray], exact: bool = True) -> Counter[str]:
    """Run the pass, compare results, and return how often each op is in the graph."""
    after = run_passes(graph, ["concat_conv"], context=ON, check=True)
    now_all = results(after, feeds)
    for name, value in results(graph, feeds).items():
        now = now_all[name]
        assert np.array_equal(value, now, equal_nan=True) if exact else np.allclose(value, now, 1e-6, 1e-6)
    assert run_passes(after, ["concat_conv"], context=ON) == after
    return Counter(n.op for n in after.nodes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "parts", [[(3, 5, 1, 1)] * 2, [(4, 6, 3, 2)] * 3, [(1, 1, 3, 1)] * 4], ids=["two", "groups", "depthwise"]
)
def test_equal_parts_become_groups(parts: list[tuple[int, int, int, int]], bias: bool) -> None:
    ops = rewritten(*mixed(parts, bias=bias))
    assert ops["convolution"] == 1
    assert not ops["split"]
    assert ops["cat"] == 1 + bias


def test_infinite_inputs_reach_their_own_group_alone() -> None:
    graph, feeds = mixed([(3, 4, 1, 1)] * 2)
    feeds["x"][0, 0, 0, 0], feeds["x"][1, 4, 1, 1] = np.inf, np.nan
    ops = rewritten(graph, feeds)
    assert ops["convolution"] == 1


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("act", ACTS)
def test_norms_and_activations_move_before_a_concatenation(act: str, norm: bool) -> None:
    graph, feeds = mixed([(3, 3, 1, 3), (4, 4, 3, 4), (2, 2, 5, 2)], act=act, norm=norm, bias=True)
    ops = rewritten(graph, feeds)
    assert ops["convolution"] == 3
    assert ops["batch_norm"] == (3 if norm else 0)
    assert not act or ops[act] == 3


def test_a_network_of_both_computes_the_same() -> None:
    rng = np.random.default_rng(1)
    shapes = {"x": (2, 8, 6, 6), "a": (6, 4, 1, 1), "b": (6, 4, 1, 1), "c": (6, 1, 3, 3), "d": (6, 1, 5, 5)}
    feeds = {n: rng.integers(-2, 3, s).astype(np.float32) for n, s in shapes.items()}
    feeds |= {n: rng.uniform(0.5, 2, 12).astype(np.float32) for n in ("g", "h", "m", "v")}

    def build(at: Any, /, x: Any, a: Any, b: Any, c: Any, d: Any, **stats: Any) -> list[Any]:
        def conv(x: Any, w: Any, padding: int, groups: int) -> Any:
            how = {"stride": [1, 1], "padding": [padding] * 2, "dilation": [1, 1], "groups": groups}
            return at.convolution(x, w, None, **how)

        def norm(x: Any) -> Any:
            return at.silu(at.batch_norm(x, stats["g"], stats["h"], stats["m"], stats["v"]))

        first, second = at.split(x, outputs=2, sizes=[4, 4], dim=1)
        y = norm(at.cat(conv(first, a, 0, 1), conv(second, b, 0, 1), dim=1))
        third, fourth = at.split(y, outputs=2, sizes=[6, 6], dim=1)
        return [norm(at.cat(conv(third, c, 1, 6), conv(fourth, d, 2, 6), dim=1))]

    graph = graph_of(build, feeds)
    assert rewritten(graph, feeds, exact=False) == Counter(
        {"convolution": 3, "batch_norm": 3, "silu": 3, "split": 1 + 4, "cat": 2}
    )  # splits of a value, and of each statistic of the second norm


def test_what_stays() -> None:
    uneven = mixed([(3, 4, 1, 1), (4, 4, 1, 1)])[0]
    sizes = mixed([(3, 4, 1, 1), (3, 4, 3, 1)])[0]
    read = mixed([(3, 4, 1, 1)] * 2, also=True)[0]
    large = mixed([(64, 64, 3, 1)] * 2, side=64)[0]
    for graph in (uneven, sizes, read, large):
        assert run_passes(graph, ["concat_conv"], context=ON) == graph
    graph = mixed([(3, 4, 1, 1)] * 2)[0]
    assert run_passes(graph, ["concat_conv"]) == graph


def test_swapped_parts_stay() -> None:
    feeds = {"x": np.ones((1, 4, 2, 2), np.float32)} | {n: np.ones((3, 2, 1, 1), np.float32) for n in "ab"}

    def build(g: Any, x: Any, a: Any, b: Any) -> list[Any]:
        first, second = g.split(x, outputs=2, sizes=[2, 2], dim=1)
        how = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
        return [g.cat(g.convolution(second, a, **how), g.convolution(first, b, **how), dim=1)]

    graph = graph_of(build, feeds)
    assert run_passes(graph, ["concat_conv"], context=ON) == graph


@pytest.mark.parametrize(
    "parts", [[(8, 12, 1, 1)] * 2, [(6, 6, 3, 6), (8, 8, 5, 8)]], ids=["groups", "depthwise"]
)
def test_a_program_for_cuda_computes_them(parts: list[tuple[int, int, int, int]]) -> None:
    graph, feeds = mixed(parts, act="silu", norm=True)
    program = compile_graph(graph, target=cuda_host())
    calls = program.entries[0].plans[0].calls
    assert not any("batch_norm" in c.ops or c.ops == ("silu",) for c in calls)
    weights = {n: a for n, a in feeds.items() if n != "x"}
    got = run_native(graph, {"x": feeds["x"]}, weights=weights, target=cuda_host())["y0"]
    assert np.allclose(got, results(graph, feeds)["y0"], 1e-4, 1e-4)
