"""Concatenations of concatenations, of inputs, of constants and of views, held to the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import Graph, GraphBuilder


def dense_block(layers: int, dtype: str = "float32") -> Graph:
    """Each layer reads all that came before, the graph's input included."""
    b = GraphBuilder("dense")
    parts = [b.input("x", f"{dtype}[2, 4, 3, 3]")]
    for _ in range(layers):
        before = b.call("cat", *parts, dim=1) if len(parts) > 1 else parts[0]
        parts.append(b.call("slice", b.call("relu", before), dim=1, start=0, end=4, step=1))
        parts[-1] = b.call("tanh", parts[-1])
    b.output("y", b.call("cat", *parts, dim=1))
    return b.build()


def image(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("passes", [0, 3])
def test_a_dense_block_compiles(target: str, passes: int) -> None:
    compile_graph(dense_block(3), target=target, passes=passes)


def test_a_dense_block_is_right() -> None:
    check(dense_block(3), {"x": image(2, 4, 3, 3)})


def test_a_concatenation_that_is_known_is_no_buffer_of_another() -> None:
    b = GraphBuilder("known")
    x = b.input("x", "float32[2, 3]")
    inner = b.call("cat", b.weight("w", "float32[2, 2]"), b.weight("v", "float32[2, 1]"), dim=1)
    b.output("y", b.call("cat", inner, x, b.call("exp", x), dim=1))
    check(b.build(), {"x": image(2, 3)}, weights={"w": image(2, 2), "v": image(2, 1)})


def test_the_next_content_of_a_state_is_not_overwritten() -> None:
    """What is copied into a state after the run is needed until then."""
    b = GraphBuilder("state")
    x, s = b.input("x", "float32[4]"), b.state("s", "float32[4]")
    following = b.call("relu", s)
    b.set_state("s", following)
    more = b.call("add", following, s)
    b.output("y", b.call("cat", b.call("relu", x), b.call("exp", more), dim=0))
    check(b.build(), {"x": image(4)}, states={"s": image(4)}, passes="none")


@st.composite
def concatenations(draw: Any) -> Graph:
    """Values of one shape but for the dim of the concatenations, in any nesting."""
    b = GraphBuilder("nested")
    rank = draw(st.integers(1, 4))
    dim, sizes = (
        draw(st.integers(0, rank - 1)),
        draw(st.lists(st.sampled_from([1, 2, 4]), min_size=4, max_size=4)),
    )

    def spec(extent: int) -> str:
        shape = [extent if d == dim else sizes[d] for d in range(rank)]
        return f"float32[{', '.join(map(str, shape))}]"

    def extent(value: str) -> int:
        return int(b.spec(value).shape[dim])

    values = [b.input("x", spec(draw(st.integers(1, 4)))), b.weight("w", spec(draw(st.integers(1, 4))))]
    state = b.state("s", spec(4)) if draw(st.booleans()) else ""
    if state:
        values.append(state)
    results: list[str] = []
    for _ in range(draw(st.integers(2, 8))):
        x = draw(st.sampled_from(values))
        match draw(st.sampled_from(["cat", "cat", "cat", "relu", "add", "view", "permute", "slice"])):
            case "cat":
                parts = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
                made = b.call("cat", *parts, dim=dim)
            case "relu":
                made = b.call("relu", x)
            case "add":
                fitting = [v for v in values if b.spec(v).shape == b.spec(x).shape]
                made = b.call("add", x, draw(st.sampled_from(fitting)))
            case "view":
                flat = b.call("view", x, size=[-1])
                made = b.call(
                    "view", b.call("exp", b.call("neg", b.call("abs", flat))), size=list(b.spec(x).shape)
                )
            case "permute":
                order = draw(st.permutations(range(rank)))
                turned = b.call("neg", b.call("permute", x, dims=list(order)))
                made = b.call("permute", turned, dims=[order.index(d) for d in range(rank)])
            case _:
                start = draw(st.integers(0, extent(x) - 1))
                made = b.call("slice", x, dim=dim, start=start, end=extent(x), step=1)
        if extent(made) <= 40:
            values.append(made)
            results.append(made)
    if state and (next_ := [v for v in results if b.spec(v).shape == b.spec(state).shape]):
        b.set_state(state, draw(st.sampled_from(next_)))
    for value in draw(st.lists(st.sampled_from(results), unique=True, max_size=3)) if results else []:
        b.output(f"y_{value}", value)
    b.output("last", b.call("cat", *(results or values)[-2:], dim=dim))
    return b.build()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("passes", ["none", "all"])
@given(graph=concatenations())
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_nested_concatenations_are_right(graph: Graph, passes: str) -> None:
    random = np.random.default_rng(1)

    def values(spec: Any) -> Any:
        return random.standard_normal(spec.shape).astype(np.float32)

    check(
        graph,
        {s.name: values(s) for s in graph.input_specs},
        weights={n: values(graph.spec(n)) for n in graph.weight_names},
        states={s.name: values(s.spec) for s in graph.states},
        passes=passes,
    )
