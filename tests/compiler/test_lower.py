"""Lowering as a whole: views, known values, borders, states and concatenations against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, compile_native

from xpuruntime import ir
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.weights import KnownValues
from xpuruntime.testing.conformance.native_batch import batch_of
from xpuruntime.types import DType

PASSES = ["none", "all"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def conv(
    b: ir.GraphBuilder, x: str, weights: dict[str, Any], rng: np.random.Generator, out: int, k: int
) -> str:
    name, channels = f"w{len(weights)}", int(b.spec(x).shape[1])
    weights[name] = floats(rng, out, channels, k, k) / (channels * k * k) ** 0.5
    w = b.weight(name, f"float32[{out}, {channels}, {k}, {k}]")
    return b.convolution(x, w, stride=[1, 1], padding=[k // 2, k // 2], dilation=[1, 1])


@pytest.mark.parametrize("passes", PASSES)
def test_borders_hand_through_inputs_states_weights_and_one_value_twice(
    passes: str, rng: np.random.Generator
) -> None:
    b, weights = ir.GraphBuilder("borders"), {}
    x, c = b.input("x", "float32[1, 3, 6, 6]"), b.state("c", "float32[1, 4, 6, 6]")
    y = conv(b, x, weights, rng, 4, 3)
    b.set_state("c", y)
    for name, value in {
        "y": y,
        "again": y,
        "x_out": x,
        "old": c,
        "w": "w0",
        "seen": b.view(y, size=[4, 36]),
    }.items():
        b.output(name, value)
    states = {"c": floats(rng, 1, 4, 6, 6)}
    check(b.build(), {"x": floats(rng, 1, 3, 6, 6)}, weights=weights, states=states, passes=passes)


@pytest.mark.parametrize("passes", PASSES)
def test_values_may_have_the_names_of_buffers_that_lowering_adds(
    passes: str, rng: np.random.Generator
) -> None:
    """The old content of a state, its next content, the memory of a kernel, and an output."""
    b = ir.GraphBuilder("names")
    p, q = b.state("p", "float32[64, 64]"), b.state("q", "float32[64, 64]")
    b.set_state("p", q)
    b.set_state("q", p)
    x = b.input("x", "float32[64, 64]")
    for at, name in enumerate(("p.old", "q.old", "p.next", "q.next", "temp.1", "temp.2", "y.out", "y.out_")):
        x = b.call("mul" if at % 2 else "matmul", x, p if at % 3 else q, name=name)
    b.output("y", b.add(b.add(x, p), q))
    b.output("z", b.matmul(x, x))
    states = {"p": floats(rng, 64, 64) / 8, "q": floats(rng, 64, 64) / 8}
    check(b.build(), {"x": floats(rng, 64, 64)}, states=states, passes=passes, tolerance=1e-4)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("passes", PASSES)
def test_values_may_have_the_names_of_parts_of_a_concatenation(
    passes: str, index: int, rng: np.random.Generator
) -> None:
    b = ir.GraphBuilder("parts")
    x, w = b.input("x", "float32[2, 3]"), b.input("w", "float32[2, 3]")
    own = b.call("exp", w, name=f"y.{index}")
    joined = b.call("cat", b.exp(x), w, dim=0, name="y")
    for name, value in {"joined": joined, "own": own, "later": b.neg(own)}.items():
        b.output(name, value)
    check(b.build(), {"x": floats(rng, 2, 3), "w": floats(rng, 2, 3)}, passes=passes)


def test_a_value_may_have_the_name_of_the_counters() -> None:
    """Blocks that share a sum count each other: neither kernel may have the value's memory for the counts."""
    b = ir.GraphBuilder("counters")
    value = b.call("exp", b.input("x", "float32[16, 100000]"), name="temp.counters")
    b.output("flipped", b.flip(value, dims=[1]))
    b.output("sums", b.sum(value, dim=[1]))
    program = compile_graph(b.build(), target=batch_of(cuda_target("cuda:sm_90")))
    calls = program.entries[0].plans[0].calls
    (zeroed,) = [c for c in calls if c.kernel == "create/generated" or "full" in c.ops]
    assert zeroed.outputs == ("temp.counters_",)
    assert [c.inputs for c in calls if "exp" in c.ops] == [("x",)]


@pytest.mark.parametrize("passes", PASSES)
def test_states_may_change_places(passes: str, rng: np.random.Generator) -> None:
    b = ir.GraphBuilder("swap")
    x, p, q = b.input("x", "float32[5]"), b.state("p", "float32[5]"), b.state("q", "float32[5]")
    b.set_state("p", q)
    b.set_state("q", p)
    b.output("y", b.add(b.add(x, p), q))
    check(b.build(), {"x": floats(rng, 5)}, states={"p": floats(rng, 5), "q": floats(rng, 5)}, passes=passes)


def test_a_state_is_written_where_it_lies(rng: np.random.Generator) -> None:
    b = ir.GraphBuilder("cache")
    x, at, cache = (
        b.input("x", "float32[1, 2, 1, 4]"),
        b.input("at", "int64[1]"),
        b.state("cache", "float32[1, 2, 8, 4]"),
    )
    new = b.index_copy(cache, at, x, dim=2)
    b.set_state("cache", new)
    b.output("y", b.sum(new, dim=2))
    graph = b.build()
    feeds = {"x": floats(rng, 1, 2, 1, 4), "at": np.array([3])}
    check(graph, feeds, states={"cache": floats(rng, 1, 2, 8, 4)})
    plan = compile_native(graph, feeds).entries[0].plans[0]
    assert [c.ops for c in plan.calls if plan.buffer(c.outputs[0]).root == "cache"] == [("index_copy",)]
    assert not any("clone" in c.ops for c in plan.calls)


@pytest.mark.parametrize("passes", PASSES)
def test_known_values_are_computed_when_weights_are_loaded(passes: str, rng: np.random.Generator) -> None:
    b = ir.GraphBuilder("known")
    x, w, v = b.input("x", "float32[3, 4]"), b.weight("w", "float32[4, 5]"), b.weight("v", "float32[5]")
    scale = b.rsqrt(b.add(b.mul(v, v), 1e-5))
    b.output("y", b.linear(x, b.permute(b.mul(w, scale), dims=[1, 0])))
    graph = b.build()
    feeds = {"x": floats(rng, 3, 4)}
    check(graph, feeds, weights={"w": floats(rng, 4, 5), "v": floats(rng, 5)}, passes=passes)
    plan = compile_native(graph, feeds, passes=passes).entries[0].plans[0]
    assert [c.ops for c in plan.calls] == [("linear",)]


def test_lookups_and_positions_are_computed_when_weights_are_loaded(rng: np.random.Generator) -> None:
    """What BERT does: rows of a table at positions that are a buffer of the model, plus one, and where a mask allows it."""
    b = ir.GraphBuilder("places")
    x, table, ids = (
        b.input("x", "float32[1, 6, 4]"),
        b.weight("table", "float32[9, 4]"),
        b.weight("ids", "int64[1, 8]"),
    )
    mask, kinds = b.weight("mask", "bool[6, 1]"), b.weight("kinds", "int32[1, 6]")
    here = b.slice(ids, dim=1, start=1, end=7, step=1)
    rows = b.embedding(table, b.add(here, 1))
    same = b.gather(b.slice(ids, dim=1, start=0, end=6, step=1), b.cast(kinds, dtype=DType.INT64), dim=1)
    rows = b.add(rows, b.index_select(table, same, dim=0))
    b.output("y", b.add(x, b.where(mask, rows, 0.5)))
    graph, feeds = b.build(), {"x": floats(rng, 1, 6, 4)}
    weights = {
        "table": floats(rng, 9, 4),
        "ids": np.arange(8)[None],
        "mask": np.array([[True], [False], [True], [True], [False], [True]]),
        "kinds": np.array([[5, 0, 3, 1, 2, 4]], np.int32),
    }
    for passes in PASSES:
        check(graph, feeds, weights=weights, passes=passes)
        (call,) = compile_native(graph, feeds, passes=passes).entries[0].plans[0].calls
        assert call.ops[-1] == "add"


def test_a_large_choice_is_left_to_a_kernel() -> None:
    b = ir.GraphBuilder("large")
    x, table, ids = (
        b.input("x", "float32[4096, 512]"),
        b.weight("table", "float32[2, 512]"),
        b.weight("ids", "int64[4096]"),
    )
    b.output("y", b.add(x, b.embedding(table, ids)))
    program = compile_native(b.build(), {"x": np.zeros((4096, 512), np.float32)})
    assert any("embedding" in c.ops for c in program.entries[0].plans[0].calls)
    assert sum(r.spec.size_bytes or 0 for r in program.recipes) < 1 << 20


def test_constants_of_less_than_a_byte_lie_packed() -> None:
    codes = np.array([-8, 7, -1, 0, 3], ml_dtypes.int4)
    b = ir.GraphBuilder("nibbles")
    b.output("y", b.constant(codes))
    node = b.build().nodes[0]
    known = KnownValues(b.build())
    assert known.take(node)
    known.recipe(node.name)
    (ref,) = known.weights
    assert len(ref.data) == 3
    np.testing.assert_array_equal(ref.array().astype(np.int8), codes.astype(np.int8))


@pytest.mark.parametrize("passes", PASSES)
def test_a_dense_block_copies_nothing(passes: str, rng: np.random.Generator) -> None:
    b, weights = ir.GraphBuilder("dense"), {}
    h = conv(b, b.input("x", "float32[1, 3, 12, 12]"), weights, rng, 16, 3)
    for _ in range(3):
        new = conv(b, b.relu(h), weights, rng, 8, 1)
        h = b.cat(h, conv(b, b.relu(new), weights, rng, 8, 3), dim=1)
    b.output("y", b.relu(h))
    graph, feeds = b.build(), {"x": floats(rng, 1, 3, 12, 12)}
    check(graph, feeds, weights=weights, passes=passes, split=3)
    plan = compile_native(graph, feeds, passes=passes).entries[0].plans[0]
    assert not any("cat" in c.ops for c in plan.calls)
    roots = {plan.buffer(n).root for n in ("convolution", "cat", "cat_1", "cat_2")}
    assert len(roots) == 1


@pytest.mark.parametrize("batch", [1, 3])
def test_one_kernel_writes_two_parts_of_a_concatenation(batch: int, rng: np.random.Generator) -> None:
    """Boxes from distances to points, as detectors make them: centers and sizes come of one fused kernel, row by row next to each other."""
    b = ir.GraphBuilder("boxes")
    x, at = b.input("x", f"float32[{batch}, 4, 50]"), b.input("at", "float32[1, 2, 50]")
    low = b.sub(at, b.slice(b.exp(x), dim=1, start=0, end=2, step=1))
    high = b.add(at, b.slice(b.exp(x), dim=1, start=2, end=4, step=1))
    b.output(
        "y", b.relu(b.cat(b.mul(b.add(low, high), b.constant(np.float32(0.5))), b.sub(high, low), dim=1))
    )
    feeds = {"x": floats(rng, batch, 4, 50), "at": floats(rng, 1, 2, 50)}
    check(b.build(), feeds)
    plan = compile_native(b.build(), feeds, passes="all").entries[0].plans[0]
    assert not any("cat" in c.ops for c in plan.calls)


@pytest.mark.parametrize("passes", PASSES)
def test_what_a_kernel_did_not_make_is_copied_into_a_concatenation(
    passes: str, rng: np.random.Generator
) -> None:
    b = ir.GraphBuilder("mixed")
    x, w = b.input("x", "float32[2, 3, 4]"), b.weight("w", "float32[2, 1, 4]")
    b.output("y", b.exp(b.cat(w, x, b.relu(x), b.neg(x), dim=1)))
    check(b.build(), {"x": floats(rng, 2, 3, 4)}, weights={"w": floats(rng, 2, 1, 4)}, passes=passes)


def test_scratch_of_values_that_live_apart_is_shared(rng: np.random.Generator) -> None:
    b = ir.GraphBuilder("chain")
    h = b.input("x", "float32[64, 64]")
    for _ in range(8):
        h = b.softmax(b.matmul(h, h), dim=1)
    b.output("y", h)
    graph, feeds = b.build(), {"x": floats(rng, 64, 64)}
    check(graph, feeds)
    assert compile_native(graph, feeds).entries[0].plans[0].arena_bytes <= 2 * 64 * 64 * 4 + 128
