"""``fused``: a graph as an attribute: its text and JSON, its laws, what it computes, and how it is taken apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.graphs import arrays_for, graphs

from xpuruntime import ir
from xpuruntime.errors import FormatError, IrError
from xpuruntime.ir import interp

TEXT = """\
graph "net" {
  input %x: float32[n, 4]
  input %b: float32[4]
  %y: float32[n, 4], %s: float32[n, 1] = fused(%x, %b, body=graph "add_relu_sum" {
    input %p: float32[n, 4]
    input %q: float32[4]
    %t: float32[n, 4] = add(%p, %q)  # name="Add_0" op="Add" | name="line\\nbreak"
    %u: float32[n, 4] = relu(%t)  # name="Relu_0"
    %v: float32[n, 1] = sum(%u, dim=[1], keepdim=true)
    output "y" = %u
    output "s" = %v
  })  # name="Add_0" op="Add" | name="Relu_0"
  %z: float32[n, 4] = div(%y, %s)
  output "z" = %z
}
"""


def test_text_json_and_digest() -> None:
    graph = ir.parse(TEXT)
    assert str(graph) == TEXT
    assert ir.parse(str(graph)) == graph
    assert ir.Graph.from_json(graph.to_json()) == graph
    assert ir.Graph.from_json(graph.to_json()).digest == graph.digest
    assert graph.digest != ir.parse(TEXT.replace("relu(", "sigmoid(")).digest
    assert hash(graph) == hash(ir.parse(TEXT))


def test_file_keeps_the_body(tmp_path) -> None:
    graph = ir.parse(TEXT)
    graph.save(tmp_path / "g.json")
    assert ir.Graph.load(tmp_path / "g.json") == graph


def test_interpreter_runs_the_body_and_binds_its_symbols() -> None:
    graph = ir.parse(TEXT)
    x = np.arange(-4, 8, dtype=np.float32).reshape(3, 4)
    b = np.ones(4, np.float32)
    y = np.maximum(x + b, 0)
    with np.errstate(invalid="ignore"):
        want = y / y.sum(1, keepdims=True)
    np.testing.assert_array_equal(interp.run(graph, {"x": x, "b": b})["z"], want)


def test_specialize_reaches_the_body() -> None:
    graph = ir.specialize(ir.parse(TEXT), {"n": 3})
    assert graph.node("y").attrs["body"].spec("u").shape == (3, 4)
    assert not graph.node("y").attrs["body"].symbols
    ir.verify(graph)


def test_inline_gives_the_members_back_with_their_sources() -> None:
    plain = ir.inline_fused(ir.parse(TEXT))
    ir.verify(plain)
    assert [n.op for n in plain] == ["add", "relu", "sum", "div"]
    assert [s.name for s in plain.node("t").sources] == ["Add_0", "line\nbreak"]
    assert [s.name for s in plain.node("s").sources] == ["Add_0", "Relu_0"]  # it had none: the fused node's
    assert plain.node("y").op == "relu"


def test_body_of_and_inline_are_inverse() -> None:
    b = ir.GraphBuilder()
    x = b.input("x", "float32[3]")
    with b.source(ir.Source("a")):
        t = b.mul(x, 2.0, name="t")
    b.output("y", b.add(b.relu(t, name="r"), x, name="y"))
    graph = b.build()
    operands, body = ir.body_of(graph, graph.nodes[:2])
    assert (operands, body.name, [o.value for o in body.outputs]) == (("x",), "mul_relu", ["r"])

    def fuse(editor: ir.Editor, node: ir.Node) -> None:
        if node.name == "r":
            editor.replace(node, "fused", *operands, absorbs=[graph.node("t")], body=body)

    fused = graph.rewrite(fuse)
    ir.verify(fused)
    assert [n.op for n in fused] == ["fused", "add"]
    assert [s.name for s in fused.node("r").sources] == ["a"]
    assert [(n.op, n.inputs) for n in ir.inline_fused(fused)] == [(n.op, n.inputs) for n in graph]


def test_outputs_that_are_inputs_are_forwarded() -> None:
    text = """
    graph "g" {
      input %x: float32[2]
      %a: float32[2], %b: float32[2], %c: float32[2] = fused(%x, body=graph "" {
        input %x: float32[2]
        %a: float32[2] = neg(%x)
        output "1" = %x
        output "2" = %a
        output "3" = %a
      })
      output "a" = %a
      output "b" = %b
      output "c" = %c
    }"""
    graph = ir.parse(text)
    plain = ir.inline_fused(graph)
    ir.verify(plain)
    feeds = {"x": np.array([1.0, 2.0], np.float32)}
    got, want = interp.run(plain, feeds), interp.run(graph, feeds)
    assert len(plain) == 1
    assert all(np.array_equal(got[k], want[k]) for k in "abc")


BROKEN = {
    "contains matmul": ("relu(%t)", "matmul(%t, %t)"),
    "number of the body's inputs": ("fused(%x, %b, body", "fused(%x, body"),
    "another type": ("input %q: float32[4]", "input %q: float32[1]"),
    "not a valid graph": ("%t: float32[n, 4] = add", "%t: float32[n, 5] = add"),
    "uses a symbol that no operand has": ("%u: float32[n, 4] = relu(%t)", "%u: float32[n, 4] = relu(%t)\n%w: float32[m] = full(size=[<m>], value=0.0, dtype=float32)"),
    "has no outputs": ('    output "y" = %u\n    output "s" = %v\n', ""),
    "weights or states": ("    %t:", "    weight %w: float32[4]\n    %t:"),
    "contains fused": ("relu(%t)", 'fused(%t, body=graph "" { input %t: float32[n, 4] output "t" = %t })'),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_laws_of_a_body(what: str) -> None:
    old, new = BROKEN[what]
    assert old in TEXT
    with pytest.raises(IrError, match=what):
        ir.parse(TEXT.replace(old, new))


def test_bodies_nest_a_little_only() -> None:
    text = 'graph "g" {' + '%x: float32[] = fused(body=graph "g" {' * 15
    with pytest.raises(FormatError, match="are nested more than"):
        ir.parse(text)
    data = ir.parse(TEXT).to_json()
    for _ in range(9):
        data["nodes"][0]["attrs"]["body"] = {"graph": {**data, "nodes": [dict(data["nodes"][0])]}}
        data = {**data, "nodes": [{**data["nodes"][0], "attrs": dict(data["nodes"][0]["attrs"])}]}
    deep = data
    for _ in range(15):
        deep = {**data, "nodes": [{**data["nodes"][0], "attrs": {"body": {"graph": deep}}}]}
    with pytest.raises(FormatError, match="are nested more than"):
        ir.Graph.from_json(deep)


def test_family_is_the_heaviest_members() -> None:
    graph = ir.parse(TEXT)
    assert ir.family_of(graph.node("y")) == "reduce"
    assert ir.family_of(ir.parse(TEXT.replace("sum(%u", "amax(%u")).node("y")) == "reduce"
    plain = TEXT.replace("    %v: float32[n, 1] = sum(%u, dim=[1], keepdim=true)\n", "").replace(
        '"s" = %v', '"s" = %t'
    )
    plain = plain.replace("%s: float32[n, 1]", "%s: float32[n, 4]")
    assert ir.family_of(ir.parse(plain).node("y")) == "elementwise"


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(graphs(steps=("fused", "unary", "binary", "view"), sources=True))
def test_inline_computes_the_same(graph: ir.Graph) -> None:
    plain = ir.inline_fused(graph)
    ir.verify(plain)
    feeds, weights = arrays_for(graph)
    want, got = (interp.run(g, feeds, weights=weights) for g in (graph, plain))
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
