from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.graphs import graphs

from xpuruntime import ir
from xpuruntime.errors import InputError, IrError
from xpuruntime.ir.shapes.symbols import substitute
from xpuruntime.types import TensorSpec

HIDDEN: tuple[TensorSpec, ...] = ()


def specs(**texts: str) -> list[TensorSpec]:
    return [TensorSpec.parse(text, name) for name, text in texts.items()]


def test_symbols_are_found_from_shapes() -> None:
    wanted = specs(a="float32[2*n + 1, 3]", b="float32[n, m]", c="float32[n*m, 4]")
    assert ir.bind(wanted, {"a": (7, 3), "b": (3, 5), "c": (15, 4)}) == {"n": 3, "m": 5}


def test_a_linear_dim_decides_its_symbol() -> None:
    assert ir.bind(specs(a="float32[2*n + 1]"), {"a": (9,)}) == {"n": 4}
    assert ir.bind(specs(a="float32[n//2]"), {"a": (9,)}) == {}, "two values of n would do"


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"a": (7, 3)}, r"\[input 'b'\] must be float32\[n, m\]; got nothing"),
        ({"a": (7,), "b": (3, 5)}, r"\[input 'a'\] must be float32\[2\*n \+ 1, 3\]; got shape \[7\]"),
        ({"a": (7, 4), "b": (3, 5)}, r"\[input 'a'\] dim 1 must be 3; got 4"),
        (
            {"a": (8, 3), "b": (3, 5)},
            r"\[input 'a'\] dim 0 must be 2\*n \+ 1 = 7 \(n=3 from 'b' dim 0\); got 8",
        ),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        ir.bind(specs(a="float32[2*n + 1, 3]", b="float32[n, m]"), shapes)


def test_specialize_reaches_specs_and_attributes() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[n, 4]")
    b.output("y", b.view(x, size=[-1]))
    b.output("d", b.dims(values=b.spec(x).shape))
    done = ir.verify(ir.specialize(b.build(), {"n": 3, "unknown": 9}))
    assert done.symbols == frozenset()
    assert done.node("view").attrs["size"] == (12,)
    assert done.node("dims").attrs["values"] == (3, 4)
    c = ir.GraphBuilder("g")
    c.output("y", c.pad(c.input("x", "float32[n]"), pads=[-2, 0]))
    with pytest.raises(IrError, match=r"would have a negative dim with n=1; got float32\[-1\]"):
        ir.specialize(c.build(), {"n": 1})


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(1, 6))
def test_inference_commutes_with_substitution(graph: ir.Graph, n: int, m: int) -> None:
    """What inference says with symbols is what it says with their values."""
    values = {"n": n, "m": m}
    try:
        known = ir.specialize(graph, values)
    except IrError:
        assume(False)  # a pad or a view asked for more than there is
    for node, before in zip(known.nodes, graph.nodes, strict=True):
        operands = [known.values[i].spec if isinstance(i, str) else i for i in node.inputs]
        got = HIDDEN
        with contextlib.suppress(IrError):
            got = ir.infer(node.op, operands, node.attrs)
        if got is HIDDEN:  # a symbol hid an integer that it must meet, or a broadcast that it decides
            assert any(d != 1 for spec in operands if isinstance(spec, TensorSpec) for d in spec.shape)
            assume(False)
        assert [substitute(v.spec, values) for v in before.outputs] == list(got[: len(node.outputs)])
