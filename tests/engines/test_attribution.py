from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import helper

from xpuruntime.engines.attribution import SourceGraph, inherit
from xpuruntime.frontends.model_file import open_model


def graph(make: Callable[..., onnx.ModelProto]) -> SourceGraph:
    """x -> a -> b -> y, b also read by c; k is constant; n is random."""
    node = helper.make_node
    nodes = [
        node("Constant", [], ["k0"], name="k", value_floats=[1.0]),
        node("Relu", ["x"], ["va"], name="a"),
        node("Add", ["va", "k0"], ["vb"], name="b"),
        node("Exp", ["vb"], ["vc"], name="c"),
        node("RandomNormal", [], ["vn"], name="n", shape=[1]),
        node("Sum", ["vb", "vc", "vn"], ["y"], name="d"),
    ]
    return SourceGraph(open_model(make(nodes, {"x": ("float32", [1])}, {"y": ("float32", [1])})))


def test_what_lies_between_values(make: Callable[..., onnx.ModelProto]) -> None:
    g = graph(make)
    assert g.between(["y"], {"vb", "vc"}) == ("n", "d")
    assert g.between(["vb"], {"x"}) == ("a", "b")
    assert g.between(["vb"], {"va"}) == ("b",)
    assert g.between(["y"], set()) == ("a", "b", "c", "n", "d")
    assert g.between(["k0"], set()) == ("k",)
    assert g.between(["nobody"], set()) == ()


def test_what_depends_on_no_input(make: Callable[..., onnx.ModelProto]) -> None:
    assert graph(make).constant == {"k"}


def test_readers(make: Callable[..., onnx.ModelProto]) -> None:
    g = graph(make)
    assert g.only_reader("va") is g.nodes["b"]
    assert g.only_reader("vb") is None
    assert g.only_reader("y") is None
    assert g.known("k0")
    assert not g.known("reorder_token_3")


def test_fused_nodes_go_to_the_row_that_alone_reads_them(make: Callable[..., onnx.ModelProto]) -> None:
    g = graph(make)
    rows = [{"b"}, {"d"}]
    g.absorb(rows)
    assert rows == [{"a", "b"}, {"c", "n", "d"}]
    rows = [{"b"}, {"d"}]
    g.absorb(rows, lambda node, row: node.op != "Exp")
    assert rows == [{"a", "b"}, {"n", "d"}]
    split = [{"c"}, {"d"}]
    g.absorb(split)
    assert split == [{"c"}, {"n", "d"}]  # b is read by two rows, so nobody gets it, nor a behind it


def test_parts_of_a_decomposed_op_belong_to_it() -> None:
    rows: list[set[str]] = [set(), set(), set(), {"norm"}, {"out"}]
    inherit(rows, [{1}, {3}, {3, 4}, {4}, set()], lambda i: True)
    assert rows == [{"norm"}, {"norm"}, set(), {"norm"}, {"out"}]
    rows[0] = rows[1] = set()
    inherit(rows, [{1}, {3}, {3, 4}, {4}, set()], lambda i: i != 1)
    assert rows[:2] == [set(), set()]
