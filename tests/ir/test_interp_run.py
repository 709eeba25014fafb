"""Whole graphs: symbols, weights, states, every value, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import InputError, IrError
from xpuruntime.ir import interp
from xpuruntime.types import TensorSpec, dim

f32 = np.float32


def mlp() -> ir.Graph:
    b = ir.GraphBuilder("mlp")
    x = b.input("x", "float32[n, 4]")
    w = b.weight("w", "float32[8, 4]")
    h = b.linear(x, w, name="h")
    b.output("y", b.relu(h, name="r"))
    b.output("size", b.dims(values=[dim("n"), dim("n") * 8], name="s"))
    return b.build()


X = np.arange(8, dtype=f32).reshape(2, 4)
W = np.linspace(-1, 1, 32, dtype=f32).reshape(8, 4)


def test_outputs_by_name_symbols_from_the_feeds() -> None:
    out = interp.run(mlp(), {"x": X}, weights={"w": W})
    assert list(out) == ["y", "size"]
    np.testing.assert_allclose(out["y"], np.maximum(X @ W.T, 0), rtol=1e-6)
    assert out["size"].tolist() == [2, 16]
    assert out["size"].dtype == np.int64


def test_weights_by_a_function() -> None:
    asked = []

    def load(weight: ir.Weight) -> Any:
        asked.append(weight.name)
        return W

    interp.run(mlp(), {"x": X}, weights=load)
    assert asked == ["w"]


def test_trace_has_every_value() -> None:
    values = interp.trace(mlp(), {"x": X}, weights={"w": W})
    assert list(values) == ["h", "r", "s"]
    assert (values["h"] < 0).any()
    assert not (values["r"] < 0).any()


def test_evaluate_one_node() -> None:
    graph = mlp()
    (y,) = interp.evaluate(graph.node("r"), {"h": X - 3})
    np.testing.assert_array_equal(y, np.maximum(X - 3, 0))
    (s,) = interp.evaluate(graph.node("s"), {}, {"n": 5})
    assert s.tolist() == [5, 40]
    with pytest.raises(IrError, match=r"\[relu %r\] reads a value that was not passed; got %h\."):
        interp.evaluate(graph.node("r"), {})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "[graph 'mlp'] needs an input that was not passed; got 'x'. Its inputs are x."),
        ({"x": X, "z": X}, "[graph 'mlp'] has no such input; got 'z'. Its inputs are x."),
        (
            {"x": X.astype(np.float64)},
            "[input 'x'] has another type; got float64[2, 4]. Pass float32[n, 4].",
        ),
        ({"x": X[0]}, "[input 'x'] has another type; got float32[4]. Pass float32[n, 4]."),
        ({"x": X[:, :3]}, "[input 'x'] has another shape; got [2, 3]. Pass float32[n, 4]."),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        interp.run(mlp(), feeds, weights={"w": W})
    assert str(error.value) == message


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(IrError, match=r"weight 'w'\] was not passed"):
        interp.run(mlp(), {"x": X})
    with pytest.raises(IrError, match=r"weight 'w'\] has another shape"):
        interp.run(mlp(), {"x": X}, weights={"w": W[:4]})


def expressions() -> ir.Graph:
    b = ir.GraphBuilder()
    for name, shape in (("a", (dim("n") * 2 + 1,)), ("b", (dim("n"), dim("m")))):
        b.input(name, TensorSpec(shape, ir.promote([1.0])))
    b.output("y", b.sum("a"))
    b.output("z", b.view("b", size=[dim("n") * dim("m")]))
    return b.build()


def test_expressions_are_solved_and_checked() -> None:
    graph = expressions()
    out = interp.run(graph, {"a": np.ones(7, f32), "b": np.ones((3, 2), f32)})
    assert out["z"].shape == (6,)
    with pytest.raises(InputError) as error:
        interp.run(graph, {"a": np.ones(7, f32), "b": np.ones((4, 2), f32)})
    assert str(error.value) == "[input 'a'] has another shape; got [7]. Pass float32[2*n + 1] (2*n + 1 = 9)."


def test_one_unknown_in_an_expression() -> None:
    b = ir.GraphBuilder()
    b.input("a", TensorSpec((dim("n") * 2 + 1,), ir.promote([1.0])))
    b.output("y", b.dims(values=[dim("n")]))
    assert interp.run(b.build(), {"a": np.ones(7, f32)})["y"].tolist() == [3]
    with pytest.raises(InputError, match="has another shape"):
        interp.run(b.build(), {"a": np.ones(6, f32)})


def test_a_dim_that_nothing_tells() -> None:
    b = ir.GraphBuilder()
    b.input("a", TensorSpec((dim("n") * dim("m"),), ir.promote([1.0])))
    b.output("y", b.dims(values=[dim("n")], name="d"))
    with pytest.raises(IrError, match=r"\[dims %d\] uses a dim that no input determines; got n\."):
        interp.run(b.build(), {"a": np.ones(6, f32)})


def counter() -> ir.Graph:
    b = ir.GraphBuilder()
    x = b.input("x", "float32[2]")
    w = b.weight("w", "float32[2]")
    count = b.state("count", "float32[2]")
    best = b.state("best", "float32[2]", init=w)
    b.set_state("count", b.add(count, 1.0))
    b.set_state("best", b.maximum(best, x))
    b.output("was", count)
    b.output("best_was", best)
    return b.build()


def test_states_live_from_run_to_run() -> None:
    states: dict[str, Any] = {}
    weights = {"w": np.array([0.5, 9], f32)}
    seen = [
        interp.run(counter(), {"x": np.array([i, i], f32)}, weights=weights, states=states) for i in range(3)
    ]
    assert [o["was"].tolist() for o in seen] == [[0, 0], [1, 1], [2, 2]]
    assert [o["best_was"].tolist() for o in seen] == [[0.5, 9], [0.5, 9], [1, 9]]
    assert states["best"].tolist() == [2, 9]
    assert weights["w"].tolist() == [0.5, 9]


def test_without_states_every_run_is_the_first() -> None:
    weights = {"w": np.zeros(2, f32)}
    for _ in range(2):
        out = interp.run(counter(), {"x": np.ones(2, f32)}, weights=weights)
        assert out["was"].tolist() == [0, 0]


def test_counts_of_data_become_symbols() -> None:
    b = ir.GraphBuilder()
    x = b.input("x", "float32[n]")
    found = b.nonzero(x, count=dim("u0"))
    b.output("places", b.view(found, size=[dim("u0")]))
    b.output("count", b.dims(values=[dim("u0")]))
    out = interp.run(b.build(), {"x": np.array([0, 3, 0, 4], f32)})
    assert out["places"].tolist() == [1, 3]
    assert out["count"].tolist() == [2]


def test_values_leave_when_their_last_reader_is_done() -> None:
    """A chain of large values holds two of them at a time."""
    import tracemalloc

    b = ir.GraphBuilder()
    x = b.input("x", "float64[1000000]")
    for _ in range(20):
        x = b.add(x, 1.0)
    b.output("y", x)
    graph = b.build()
    feed = np.zeros(1_000_000)
    tracemalloc.start()
    out = interp.run(graph, {"x": feed})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert out["y"][0] == 20
    assert peak < 5 * feed.nbytes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: interp.apply("gather", X, np.array([[9]]), dim=1),
            "[gather] is not defined for these values: index 9 is out of range for a dim of 4; got float32[2, 4], int64[1, 1].",
        ),
        (
            lambda: interp.apply("div", np.array([1]), np.array([0]), rounding_mode="trunc"),
            "[div] is not defined for these values: an integer is divided by zero; got int64[1], int64[1].",
        ),
    ],
)
def test_values_without_an_answer(call: Any, message: str) -> None:
    with pytest.raises(IrError) as error:
        call()
    assert str(error.value) == message


def test_text() -> None:
    words = np.array(["a", "b"], object)
    (same,) = interp.apply("eq", words, np.array(["a", "c"], object))
    assert same.tolist() == [True, False]
    (number,) = interp.apply("cast", np.array(["1.5", "-inf"], object), dtype="float32")
    assert number.tolist() == [1.5, -np.inf]
    (joined,) = interp.apply("cat", words, words, dim=0)
    assert joined.tolist() == ["a", "b", "a", "b"]
