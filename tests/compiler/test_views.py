"""Views of views: where results are stored when nothing moves, held to NumPy's strides, and what of it kernels take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler import views
from xpuruntime.ir import Graph, GraphBuilder, parse
from xpuruntime.types import Layout


@st.composite
def lying(draw: Any) -> tuple[tuple[int, ...], Layout]:
    """A shape and its layout."""
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(sizes)))))
    pads = draw(st.lists(st.sampled_from([0, 0, 0, 1, 6]), min_size=len(sizes), max_size=len(sizes)))
    return sizes, Layout(order, tuple(s + p for s, p in zip(sizes, pads, strict=True)))


def memory_of(sizes: tuple[int, ...], layout: Layout, memory: Any) -> Any:
    """The value as NumPy sees it."""
    assert len(sizes) == len(layout.alloc)
    return np.lib.stride_tricks.as_strided(memory, sizes, [s * memory.itemsize for s in layout.strides])


@given(lying(), st.data())
@settings(deadline=None, max_examples=300)
def test_a_reshape_that_moves_nothing_lies_where_it_says(given: Any, data: Any) -> None:
    sizes, layout = given
    out: list[int] = []
    left = math.prod(sizes)
    while left > 1 and len(out) < 5:
        out.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= out[-1]
    out.append(left)
    made = views._regrouped(layout, sizes, tuple(out))
    memory = np.arange(layout.elements)
    want = memory_of(sizes, layout, memory).reshape(out)
    if made is not None:
        np.testing.assert_array_equal(memory_of(tuple(out), made, memory), want)
    elif layout.order == tuple(range(len(sizes))) and layout.alloc == sizes:
        pytest.fail("what is dense can be seen as any shape")


@given(lying(), st.data())
@settings(deadline=None, max_examples=200)
def test_one_index_of_a_dim_lies_where_it_says(given: Any, data: Any) -> None:
    sizes, layout = given
    dim = data.draw(st.integers(0, len(sizes) - 1))
    at = data.draw(st.integers(0, sizes[dim] - 1))
    made = views._without(layout, dim)
    assert (made is None) == (layout.order[-1] == dim)
    if made is not None:
        memory = np.arange(layout.elements)
        start = at * layout.strides[dim]
        np.testing.assert_array_equal(
            memory_of(sizes[:dim] + sizes[dim + 1 :], made, memory[start:]),
            memory_of(sizes, layout, memory).take(at, dim),
        )


def heads(way: str) -> Graph:
    """Queries, keys and values out of one product, in the ways that models write it, and their attention."""
    b = GraphBuilder("heads")
    x, w = b.input("x", "float32[2, 9, 32]"), b.weight("w", "float32[96, 32]")
    wide = b.call("linear", x, w, None)
    if way == "split":
        parts = b.call("split", wide, sizes=[32, 32, 32], dim=2)
        q, k, v = (b.call("permute", b.call("view", p, size=[2, 9, 4, 8]), dims=[0, 2, 1, 3]) for p in parts)
    elif way == "slice":
        parts = [b.call("slice", wide, dim=2, start=32 * i, end=32 * (i + 1), step=1) for i in range(3)]
        q, k, v = (b.call("permute", b.call("view", p, size=[2, 9, 4, 8]), dims=[0, 2, 1, 3]) for p in parts)
    else:
        turned = b.call("permute", b.call("view", wide, size=[2, 9, 3, 4, 8]), dims=[2, 0, 3, 1, 4])
        q, k, v = (b.call("select", turned, dim=0, index=i) for i in range(3))
    y = b.call("attention", q, k, v)
    flat = b.call("view", b.call("permute", y, dims=[0, 2, 1, 3]), size=[2, 9, 32])
    b.output("y", b.call("linear", flat, w, None))
    return b.build()


@pytest.mark.parametrize("way", ["split", "slice", "select"])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_heads_of_one_product_are_not_moved(way: str, target: str) -> None:
    program = compile_graph(heads(way), target=target, passes=0)
    kernels = [c.kernel for c in program.entries[0].plans[0].calls]
    assert [k.partition("/")[0] for k in kernels] == ["matmul", "attention", "matmul"], kernels


@pytest.mark.parametrize("way", ["split", "slice", "select"])
def test_heads_of_one_product_are_right(way: str) -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((2, 9, 32), (96, 32)))
    check(heads(way), {"x": x}, weights={"w": w})


def test_a_view_that_is_an_output_is_moved() -> None:
    b = GraphBuilder("kept")
    parts = b.call("split", b.input("x", "float32[4, 6]"), sizes=[2, 4], dim=1)
    b.output("y", b.call("view", parts[1], size=[4, 2, 2]))
    b.output("z", b.call("relu", parts[0]))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    check(b.build(), {"x": x})


def copies(graph: Graph) -> int:
    calls = compile_graph(graph, passes=1).entries[0].plans[0].calls
    return sum("clone" in c.ops for c in calls)


def test_an_output_that_views_a_whole_value_needs_no_copy() -> None:
    """The caller's memory is where the value under the view is computed; other views of it, and readers, follow."""
    b = GraphBuilder("g")
    x = b.input("x", "float32[4, 6]")
    y = b.exp(x)
    b.output("flat", b.view(y, size=[24]))
    b.output("sum", b.sum(y, dim=[1], keepdim=False))
    graph = b.build()
    assert copies(graph) == 0
    check(graph, {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)})


def test_outputs_that_share_or_cut_a_value_are_copied() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32[4, 6]")
    y = b.exp(x)
    b.output("flat", b.view(y, size=[24]))
    b.output("other", b.view(y, size=[2, 12]))
    b.output("part", b.slice(y, dim=0, start=0, end=2))
    b.output("input", b.view(x, size=[3, 8]))
    graph = b.build()
    assert copies(graph) == 3
    check(graph, {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)})


def test_channels_that_were_last_are_stored_in_vectors() -> None:
    """A block of ConvNeXt: what scales the rows writes them in order, although the next node reads channels first."""
    text = """graph "g" {
        input %x: float32[8, 96, 32, 32]
        weight %k: float32[96, 96, 3, 3]
        weight %w: float32[96, 96]
        weight %s: float32[96]
        %c: float32[8, 96, 32, 32] = convolution(%x, %k, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)
        %p: float32[8, 32, 32, 96] = permute(%c, dims=[0, 2, 3, 1])
        %l: float32[8, 32, 32, 96] = linear(%p, %w)
        %m: float32[8, 32, 32, 96] = mul(%l, %s)
        %q: float32[8, 96, 32, 32] = permute(%m, dims=[0, 3, 1, 2])
        %r: float32[8, 96, 32, 32] = add(%c, %q)
        %y: float32[8, 96, 32, 32] = convolution(%r, %k, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1)
        output "y" = %y
    }"""
    program = compile_graph(parse(text), target="cuda:h100-sxm")
    (scaled,) = [c for c in program.entries[0].plans[0].calls if "mul" in c.ops]
    assert scaled.options["grid"][0] == 8 * 96 * 32 * 32 // 4 // scaled.options["block"][0]


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("select", (0, 2), {"dim": 1, "index": 1}),
        ("select", (3, 0, 5), {"dim": 2, "index": 4}),
        ("slice", (0, 8), {"dim": 1, "start": 5, "end": 8, "step": 1}),
        ("split", (0, 6), {"dim": 1, "sizes": [2, 4]}),
    ],
)
def test_parts_of_nothing(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    b = GraphBuilder("parts")
    table = b.input("table", "float32[7]")
    parts = b.call(op, b.input("x", f"int64[{', '.join(map(str, shape))}]"), **attrs)
    for i, part in enumerate([parts] if isinstance(parts, str) else parts):
        b.output(f"y{i}", b.index_put(table, b.full(size=[], value=1.0, dtype="float32"), part))
    check(b.build(), {"x": np.zeros(shape, np.int64), "table": np.zeros(7, np.float32)})
