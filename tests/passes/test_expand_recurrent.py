"""Recurrent layers written out step by step compute what the op does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext
from xpuruntime.passes.decompose import run

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
PLAIN = PassContext(has_kernel=lambda op: op not in GATES)


def layer(
    op: str, length: int = 5, bias: bool = True, states: bool = True, dtype: str = "float32", **attrs: Any
) -> ir.Graph:
    sides = 2 if attrs.get("direction") == "bidirectional" else 1
    b = ir.GraphBuilder(op)
    first = attrs.get("batch_first", False)
    x = b.input("x", f"{dtype}[2, {length}, 3]" if first else f"{dtype}[{length}, 2, 3]")
    rows = GATES[op] * 4
    w, r = b.input("w", f"{dtype}[{sides}, {rows}, 3]"), b.input("r", f"{dtype}[{sides}, {rows}, 4]")
    biases = b.input("b", f"{dtype}[{sides}, {2 * rows}]") if bias else None
    shape = f"{dtype}[2, {sides}, 4]" if first else f"{dtype}[{sides}, 2, 4]"
    given = [b.input(f"s{i}", shape) for i in range(2 if op == "lstm" else 1)] if states else []
    made = b.call(op, x, w, r, biases, None, *given, hidden_size=4, outputs=3 if op == "lstm" else 2, **attrs)
    for i, value in enumerate(made):
        b.output(f"y{i}", value)
    return b.build()


def feeds(graph: ir.Graph) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        v.name: draw.standard_normal([int(d) for d in v.spec.shape]).astype(v.spec.dtype.numpy)
        for v in graph.inputs
        if v.spec
    }


def same(graph: ir.Graph, tolerance: float = 2e-6) -> ir.Graph:
    after = run(graph, PLAIN)
    given = feeds(graph)
    want, got = interp.run(graph, given), interp.run(after, given)
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(
            got[name].astype(np.float64), value.astype(np.float64), rtol=1e-6, atol=tolerance
        )
    return after


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_directions_and_layouts(op: str, direction: str, batch_first: bool) -> None:
    after = same(layer(op, direction=direction, batch_first=batch_first))
    assert op not in {n.op for n in after}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("bias", "states"), [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("length", [1, 4])
def test_what_may_be_absent(op: str, bias: bool, states: bool, length: int) -> None:
    assert op not in {
        n.op for n in same(layer(op, length, bias=bias, states=states, direction="bidirectional"))
    }


@pytest.mark.parametrize("bias", [False, True])
def test_both_kinds_of_a_gru(bias: bool) -> None:
    assert "gru" not in {n.op for n in same(layer("gru", bias=bias, linear_before_reset=True))}


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype: str) -> None:
    after = same(
        layer("lstm", dtype=dtype, direction="bidirectional"),
        {"float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}[dtype],
    )
    assert "lstm" not in {n.op for n in after}


def test_activations_by_name() -> None:
    assert "rnn" not in {n.op for n in same(layer("rnn", activations=["Relu"]))}
    names = ["Sigmoid", "Tanh", "Relu"]
    assert "lstm" not in {n.op for n in same(layer("lstm", activations=names))}


@pytest.mark.parametrize(
    "attrs", [{"clip": 0.5}, {"activations": ["Elu"], "alpha": [0.5]}, {"activations": ["Softsign"]}]
)
def test_what_has_no_plain_form_stays(attrs: dict[str, Any]) -> None:
    assert "rnn" in {n.op for n in same(layer("rnn", **attrs))}


def test_an_open_length_stays() -> None:
    b = ir.GraphBuilder("open")
    x, w, r = (
        b.input("x", "float32[n, 2, 3]"),
        b.input("w", "float32[1, 4, 3]"),
        b.input("r", "float32[1, 4, 4]"),
    )
    y, _ = b.call("rnn", x, w, r, hidden_size=4, outputs=2)
    b.output("y", y)
    graph = b.build()
    assert run(graph, PLAIN) == graph
