from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.graphs import arrays_for, graphs

from xpuruntime import ir
from xpuruntime.decisions import Reason, Support
from xpuruntime.errors import IrError
from xpuruntime.ir.match import Any, Match, Number, Op, find, match


def layer(act: str = "relu", *, swap: bool = False, shared: bool = False, scale: float = 1.0) -> ir.Graph:
    b = ir.GraphBuilder("layer")
    x = b.input("x", "float32[n, 4]")
    w = b.weight("w", "float32[4, 8]")
    bias = b.weight("b", "float32[8]")
    with b.source(ir.Source("MatMul_0", "MatMul")):
        m = b.matmul(x, w, name="m")
    with b.source(ir.Source("Add_1", "Add")):
        a = b.add(bias, m, name="a") if swap else b.add(m, bias, name="a")
    with b.source(ir.Source("Relu_2", "Relu")):
        r = b.call(act, a, name="r")
    b.output("y", b.mul(r, scale, name="out"))
    if shared:
        b.output("also", m)
    return b.build()


LINEAR = Op(
    "relu|gelu",
    Op("add", Op("matmul", Any("x"), Any("w", kind="weight")), Any("bias"), name="add"),
    name="act",
)


@pytest.mark.parametrize("swap", [False, True])
def test_commutative_ops_match_in_both_orders(swap: bool) -> None:
    found = find(layer(swap=swap), LINEAR)
    (m,) = found
    assert (m["x"], m["w"], m["bias"]) == ("x", "w", "b")
    assert [n.name for n in m.nodes] == ["m", "a", "r"]
    assert m.node("add").name == "a"
    assert found.misses == ()


def test_a_shared_inner_node_is_a_miss_with_its_reason() -> None:
    found = find(layer(shared=True), LINEAR)
    assert len(found) == 0
    assert found.misses[0].depth == 2
    assert str(found.misses[0]) == "%r: 2 nodes match, then at %m: %m leaves the graph"
    loose = Op("relu", Op("add", Op("matmul", shared=True), Any("bias")))
    assert len(find(layer(shared=True), loose)) == 1


def test_misses_say_what_was_there_instead() -> None:
    pattern = Op("relu", Op("add", Op("mm"), Any()))
    found = find(layer(), pattern)
    assert found.explain() == "miss %r: 2 nodes match, then at %m: is matmul, wanted mm"
    assert find(layer("silu"), LINEAR).explain() == "no match"


def test_constraints_answer_with_reasons() -> None:
    def narrow(m: Match) -> bool | str:
        return "the weight is wider than 4" if m.graph.spec(str(m["w"])).shape[1] != 4 else True

    found = find(layer(), LINEAR, narrow)
    assert len(found) == 0
    assert "the weight is wider than 4" in found.explain()
    assert len(find(layer(), LINEAR, lambda m: True)) == 1
    assert len(find(layer(), LINEAR, [lambda m: True, lambda m: Support.yes()])) == 1
    no = Support.no(Reason.SHAPE_UNSUPPORTED, "K is not a multiple of 8")
    assert "K is not a multiple of 8" in find(layer(), LINEAR, lambda m: no).explain()
    assert "a constraint is not satisfied" in find(layer(), LINEAR, lambda m: False).explain()


def test_numbers_and_attributes() -> None:
    assert len(find(layer(scale=0.5), Op("mul", Any(), Number(0.5)))) == 1
    assert len(find(layer(scale=0.5), Op("mul", Number(name="s"), Any("x")))) == 1
    assert "is not the number 2.0" in find(layer(scale=0.5), Op("mul", Any(), Number(2.0))).explain()
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2, 3]")
    b.output("y", b.softmax(b.mul(x, b.constant(np.full((1, 3), 0.25, np.float32))), dim=-1))
    g = b.build()
    pattern = Op("softmax", Op("mul", Any("x"), Number(0.25)), dim=1)
    assert len(find(g, pattern)) == 1
    assert len(find(g, Op("softmax", Any(), dim=lambda d: d == 1))) == 1
    assert "attribute dim is 1, wanted 0" in find(g, Op("softmax", Any(), dim=0)).explain()


def test_the_same_name_meets_the_same_value() -> None:
    b = ir.GraphBuilder("g")
    x, z = b.input("x", "float32[2]"), b.input("z", "float32[2]")
    b.output("a", b.mul(x, b.sigmoid(x)))
    b.output("b", b.mul(x, b.sigmoid(z)))
    silu = Op("mul", Any("x"), Op("sigmoid", Any("x")))
    found = find(b.build(), silu)
    assert [m.root.name for m in found] == ["mul"]
    assert "'x' was 'x' before" in found.explain()


def test_matches_do_not_overlap() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2]")
    for _ in range(3):
        x = b.relu(x)
    b.output("y", x)
    found = find(b.build(), Op("relu", Op("relu", Any("x"))))
    assert [[n.name for n in m.nodes] for m in found] == [["relu_1", "relu_2"]]
    assert "a node already belongs to another match" in found.explain()


def test_wide_searches_end() -> None:
    b = ir.GraphBuilder("g")
    values = [b.input(f"x{i}", "float32[2]") for i in range(2**9)]
    while len(values) > 1:
        values = [b.add(a, c) for a, c in zip(values[::2], values[1::2], strict=True)]
    b.output("y", values[0])
    g = b.build()

    def tree(depth: int) -> Op | Any:
        return Op("add", tree(depth - 1), tree(depth - 1)) if depth else Any(kind="weight")

    result = match(g, tree(9), g.nodes[-1])
    assert not isinstance(result, Match)


def fuse(editor: ir.Editor, node: ir.Node) -> None:
    found = match(editor.graph, LINEAR, editor.graph.node(node.name)) if node.op == "relu" else None
    if isinstance(found, Match):
        weight = editor.insert(node, "permute", found["w"], dims=[1, 0])
        editor.replace(
            node, "fused_linear", found["x"], weight, found["bias"], absorbs=found.nodes, act="relu"
        )


def test_a_fused_node_carries_its_members() -> None:
    fused = ir.verify(layer().rewrite(fuse))
    assert [n.op for n in fused] == ["permute", "fused_linear", "mul"]
    node = fused.node("r")
    assert [s.name for s in node.sources] == ["MatMul_0", "Add_1", "Relu_2"]
    assert str(node) == (
        '%r: float32[n, 8] = fused_linear(%x, %permute, %b, act="relu")'
        '  # name="MatMul_0" op="MatMul" | name="Add_1" op="Add" | name="Relu_2" op="Relu"'
    )
    assert ir.parse(str(fused)) == fused


def test_forward_takes_dead_nodes_and_unread_weights_along() -> None:
    def rule(editor: ir.Editor, node: ir.Node) -> None:
        if node.op == "mul" and node.inputs[1] == 1.0:
            editor.forward(node.name, str(node.inputs[0]))
        if node.op == "add":
            editor.forward(node.name, str(node.inputs[0]))

    slim = ir.verify(layer().rewrite(rule))
    assert [n.op for n in slim] == ["matmul", "relu"]
    assert slim.outputs == (ir.Output("y", "r"),)
    assert [w.name for w in slim.weights] == ["w"]


def test_nothing_to_do_gives_the_same_graph() -> None:
    g = layer()
    assert g.rewrite(lambda e, n: None) is g


def test_a_replacement_of_another_type_is_refused() -> None:
    with pytest.raises(IrError, match=r"rewrite of %r.*isnan has a result of another type"):
        layer().rewrite(lambda e, n: e.replace(n, "isnan", n.inputs[0]) if n.op == "relu" else None)


def test_a_cycle_is_refused() -> None:
    editor = ir.Editor(layer())
    g = editor.graph
    editor.replace(g.node("a"), "add", "r", "b")
    with pytest.raises(IrError, match="depends on its own result through other nodes"):
        editor.done()


def test_order_is_mended() -> None:
    """A value may be forwarded to one that is made later; the result is ordered anew."""
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2]")
    a = b.relu(x, name="a")
    u = b.neg(a, name="u")
    late = b.abs(x, name="late")
    b.output("y", b.add(u, late))
    editor = ir.Editor(b.build())
    editor.forward("a", "late")
    done = ir.verify(editor.done())
    assert [n.name for n in done] == ["late", "u", "add"]


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(graphs(sources=True, states=True))
def test_every_node_made_again_gives_the_same_graph(graph: ir.Graph) -> None:
    def again(editor: ir.Editor, node: ir.Node) -> None:
        editor.replace(node, node.op, *node.inputs, **node.attrs)

    live = ir.verify(graph.rewrite(lambda e, n: None))
    assert ir.verify(live.rewrite(again)) == live


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(graphs(symbolic=False))
def test_every_node_is_a_region_of_its_own(graph: ir.Graph) -> None:
    for node in graph:
        part = ir.verify(graph.subgraph([node]))
        assert part.nodes == (node,)
        assert {v.name for v in part.inputs} | {w.name for w in part.weights} == set(node.values)


def test_arrays_of_a_random_graph_fit_its_inputs() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[n, 2*m]")
    b.weight("w", "int32[3]")
    inputs, weights = arrays_for(b.build(), symbols={"n": 5})
    assert (inputs["x"].shape, inputs["x"].dtype) == ((5, 4), np.float32)
    assert (weights["w"].shape, weights["w"].dtype) == ((3,), np.int32)
