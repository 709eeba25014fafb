"""Random graphs run: every value has the type that inference gave it, and a graph that was printed and parsed gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import SYMBOLS, arrays_for, graphs

from xpuruntime import ir
from xpuruntime.ir import interp
from xpuruntime.types import DType


@settings(max_examples=150)
@given(graph=graphs(), seed=st.integers(0, 9))
def test_values_are_as_inferred(graph: ir.Graph, seed: int) -> None:
    inputs, weights = arrays_for(graph, seed)
    values = interp.trace(graph, inputs, weights=weights)
    for node in graph:
        for value in node.outputs:
            assert value.spec is not None
            array, spec = values[value.name], value.spec.substitute(SYMBOLS)
            assert (array.shape, DType.of(array.dtype)) == (spec.shape, spec.dtype), node


@settings(max_examples=60)
@given(graph=graphs())
def test_other_sizes_run_too(graph: ir.Graph) -> None:
    """The symbols' own values are not special: larger ones run, unless they meet a number that they no longer equal."""
    inputs, weights = arrays_for(graph, symbols={"n": 4, "m": 3})
    try:
        out = interp.run(graph, inputs, weights=weights)
    except ir.IrError:
        return
    assert list(out) == [o.name for o in graph.outputs]


@settings(max_examples=60)
@given(graph=graphs(sources=True))
def test_printed_and_parsed_gives_the_same(graph: ir.Graph) -> None:
    inputs, weights = arrays_for(graph)
    once = interp.run(graph, inputs, weights=weights)
    again = interp.run(ir.parse(str(graph)), inputs, weights=weights)
    for name, array in once.items():
        np.testing.assert_array_equal(array, again[name])


@settings(max_examples=30)
@given(graph=graphs(states=True))
def test_states_change_once_a_run(graph: ir.Graph) -> None:
    inputs, weights = arrays_for(graph)
    states: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    interp.run(graph, inputs, weights=weights, states=states)
    assert states.keys() == {s.name for s in graph.states if s.next is not None}


@settings(max_examples=20)
@given(graph=graphs(opaque=True))
def test_only_opaque_nodes_are_refused(graph: ir.Graph) -> None:
    if not any(node.op == "opaque" for node in graph):
        return
    inputs, weights = arrays_for(graph)
    with pytest.raises(ir.IrError, match="is opaque"):
        interp.run(graph, inputs, weights=weights)
