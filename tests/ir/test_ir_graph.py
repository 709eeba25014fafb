from __future__ import annotations

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.types import DType, TensorSpec, dim


def mlp() -> ir.Graph:
    b = ir.GraphBuilder("mlp")
    x = b.input("x", "float32[n, 4]")
    w = b.weight("w", "float32[8, 4]")
    with b.source(ir.Source("MatMul_0", "MatMul")):
        h = b.linear(x, w, name="h")
    with b.source(ir.Source("Relu_1", "Relu")):
        r = b.relu(h, name="r")
    b.output("y", b.add(r, h, name="s"))
    return b.build()


def test_the_text_form() -> None:
    assert str(mlp()) == (
        'graph "mlp" {\n'
        "  input %x: float32[n, 4]\n"
        "  weight %w: float32[8, 4]\n"
        '  %h: float32[n, 8] = linear(%x, %w)  # name="MatMul_0" op="MatMul"\n'
        '  %r: float32[n, 8] = relu(%h)  # name="Relu_1" op="Relu"\n'
        "  %s: float32[n, 8] = add(%r, %h)\n"
        '  output "y" = %s\n'
        "}\n"
    )


def test_queries() -> None:
    g = mlp()
    assert [n.name for n in g] == ["h", "r", "s"]
    assert [n.name for n in g.users("h")] == ["r", "s"]
    assert g.only_user("h") is None
    assert g.only_user("r") is g.node("s")
    assert g.only_user("s") is None, "it leaves the graph"
    assert g.producer("x") is None
    assert g.symbols == {"n"}
    assert g.spec("h") == TensorSpec((dim("n"), 8), DType.FLOAT32)
    assert g.output_specs[0].name == "y"
    with pytest.raises(IrError, match="has no such value; got 'z'"):
        g.spec("z")
    with pytest.raises(IrError, match="has no node that produces this value"):
        g.node("x")


def test_subgraph_has_what_it_reads_and_what_is_read_of_it() -> None:
    g = mlp()
    part = ir.verify(g.subgraph([g.node("r")]))
    assert [v.name for v in part.inputs] == ["h"]
    assert [o.value for o in part.outputs] == ["r"]
    first = ir.verify(g.subgraph([g.node("h")]))
    assert [w.name for w in first.weights] == ["w"]
    assert [v.name for v in first.inputs] == ["x"]


def test_equality_keeps_kinds_of_numbers_apart() -> None:
    def graph(number: object) -> ir.Graph:
        b = ir.GraphBuilder("g")
        b.output("y", b.mul(b.input("x", "float32[]"), number))
        return b.build()

    different = [1, 1.0, True, 0.0, -0.0, 0, False, float("nan"), float("inf")]
    for i, a in enumerate(different):
        for j, c in enumerate(different):
            assert (graph(a) == graph(c)) == (i == j), (a, c)
    assert graph(float("nan")).digest == graph(float("nan")).digest


def test_states() -> None:
    b = ir.GraphBuilder("g")
    b.weight("zero", "float32[4]")
    cache = b.state("cache", "float32[4]", init="zero")
    b.set_state("cache", b.add(cache, 1.0, name="new"))
    b.output("y", "new")
    g = b.build()
    assert g.kept == {"new"}
    assert ir.parse(str(g)) == g
    with pytest.raises(IrError, match="cannot extract a region with states; got cache"):
        g.subgraph(g.nodes)
    with pytest.raises(IrError, match="has no such state; got 'other'"):
        b.set_state("other", "new")


def test_opaque_outputs_of_unknown_type() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2]")
    (s,) = b.opaque("SequenceConstruct", [x], [("s", None)], reason="sequences are for engines")
    with pytest.raises(
        IrError, match=r"\[relu\] reads a value of unknown type; got %s\. Make this node opaque, too\."
    ):
        b.relu(s)
    with pytest.raises(IrError, match="needs a reason"):
        b.opaque("Loop", [x], [("l", None)], reason=" ")
    b.output("s", s)
    with pytest.raises(IrError, match="has no known tensor type"):
        _ = b.build().output_specs


def test_outputs_that_may_be_left_off() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2, 3, 8]")
    assert isinstance(b.layer_norm(x, normalized_shape=[8]), str)
    _, mean = b.layer_norm(x, normalized_shape=[8], outputs=2)
    assert b.spec(mean).shape == (2, 3, 1)
    assert len(b.split(x, sizes=[1, 2], dim=1)) == 2
    with pytest.raises(IrError, match="has 1 to 3 outputs; got 4"):
        b.layer_norm(x, normalized_shape=[8], outputs=4)


ERRORS = {
    "unknown op": (lambda b, x: b.call("rellu", x), r"\[op 'rellu'\] is not in the op table\. Did you mean relu"),
    "operands": (lambda b, x: b.relu(), r"\[relu\] has the wrong number of operands; got 0\. See relu\(x\) -> y"),
    "absent": (lambda b, x: b.matmul(x, None), r"operand 'other' cannot be absent"),
    "number": (lambda b, x: b.matmul(x, 2.0), r"operand 'other' must be a tensor; got 2\.0"),
    "no tensor": (lambda b, x: b.add(1, 2), r"needs a tensor among its operands"),
    "attribute": (lambda b, x: b.softmax(x, axis=1), r"has no attribute 'axis'\. Known ones: dim, dtype"),
    "missing": (lambda b, x: b.softmax(x), r"needs attribute 'dim'"),
    "kind": (lambda b, x: b.softmax(x, dim="last"), r"attribute 'dim': must be an axis; got 'last'"),
    "choice": (lambda b, x: b.gelu(x, approximate="erf"), r"must be one of none, tanh"),
    "axis": (lambda b, x: b.softmax(x, dim=2), r"attribute 'dim' is outside the rank; got 2 for rank 2"),
    "twice": (lambda b, x: b.sum(x, dim=[0, -2]), r"names an axis twice"),
    "broadcast": (
        lambda b, x: b.add(x, b.input("v", "float32[3]")),
        r"\[add\] shapes do not broadcast; got \[n, 4\] and \[3\]\.",
    ),
    "symbols": (lambda b, x: b.add(x, b.input("v", "float32[m, 4]")), r"cannot decide how two symbols broadcast"),
    "reshape": (lambda b, x: b.view(b.full(size=[6], value=0, dtype="int64"), size=[4]), "the number of elements must not change"),
    "unknown value": (lambda b, x: b.relu("nothing"), r"\[relu\] reads a value that does not exist; got %nothing"),
    "name taken": (lambda b, x: b.relu(x, name="x"), "the name of a value is taken; got 'x'"),
    "bad spec": (lambda b, x: b.input("v", "float32(3)"), "is not a tensor spec"),
    "big constant": (lambda b, x: b.constant(np.zeros(5000)), "at most 4096 elements, got 5000. Make it a weight"),
    "dtype": (lambda b, x: b.matmul(x, b.input("v", "float64[4, 4]")), "operands must have one dtype; got float32, float64"),
    "bits": (lambda b, x: b.bitwise_and(x, x), "needs integers or bool; got float32"),
    "text": (lambda b, x: b.add(b.input("t", "string[2]"), 1), "strings have no arithmetic; got string"),
    "window": (
        lambda b, x: b.max_pool(
            b.input("i", "float32[1, 1, 2, 2]"), kernel_size=[3, 3], stride=[1, 1], padding=[0, 0], dilation=[1, 1]
        ),
        "the window is larger than the padded input; got window 3, input 2 \\+ 0 \\+ 0",
    ),
    "groups": (
        lambda b, x: b.convolution(
            b.input("i", "float32[1, 3, 8, 8]"), b.input("k", "float32[4, 1, 3, 3]"), stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2
        ),
        "groups must divide the channels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_builder_errors(case: str) -> None:
    make, text = ERRORS[case]
    b = ir.GraphBuilder("g")
    with pytest.raises(IrError, match=text):
        make(b, b.input("x", "float32[n, 4]"))


def test_errors_name_the_source() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2, 3]")
    with b.source(ir.Source("Add_7", "Add", "layers.0", "model.py", 12)), pytest.raises(IrError) as error:
        b.add(x, b.constant(np.ones(2, np.float32)))
    assert str(error.value) == (
        "[add from Add_7 (Add) layers.0 model.py:12] shapes do not broadcast; got [2, 3] and [2]. See add(x#, other#) -> y."
    )


f32 = TensorSpec((2,), DType.FLOAT32)
LAWS = {
    "value twice": (lambda g: g.replace(inputs=(*g.inputs, g.inputs[0])), "defines a value twice; got %x"),
    "no name": (lambda g: g.replace(inputs=(*g.inputs, ir.Value("", f32))), "has a value without a name"),
    "order": (lambda g: g.replace(nodes=g.nodes[::-1]), "reads a value that is defined later; got %"),
    "dangling": (lambda g: g.replace(nodes=g.nodes[1:]), r"\[relu %r from Relu_1 \(Relu\)\] reads a value that is not defined; got %h"),
    "output": (lambda g: g.replace(outputs=(ir.Output("y", "z"),)), "output 'y' is not a defined value; got %z"),
    "outputs alike": (lambda g: g.replace(outputs=g.outputs * 2), "has two outputs of the same name; got 'y'"),
    "state type": (
        lambda g: g.replace(states=(ir.State(ir.Value("c", f32), None, "s"),)),
        "becomes a value of another type; got %s: float32",
    ),
    "state init": (lambda g: g.replace(states=(ir.State(ir.Value("c", f32), "x"),)), "starts from a weight that is not there"),
    "state untyped": (lambda g: g.replace(states=(ir.State(ir.Value("c", None)),)), "has no type"),
    "negative": (
        lambda g: g.replace(inputs=(*g.inputs, ir.Value("q", TensorSpec((-1,), DType.BOOL)))),
        r"has a negative dim; got bool\[-1\]",
    ),
    "symbolic weight": (
        lambda g: g.replace(weights=(*g.weights, ir.Weight(ir.Value("q", TensorSpec((dim("k"),), DType.BOOL))))),
        "must have a static shape",
    ),
    "type": (
        lambda g: g.replace(nodes=(*g.nodes[:1], ir.Node("relu", ("h",), ir.Attrs(), (ir.Value("r", f32),)), g.nodes[2])),
        r"output %r does not have the inferred type; got float32\[2\], inferred float32\[n, 8\]",
    ),
    "attributes": (
        lambda g: g.replace(nodes=(*g.nodes, ir.Node("softmax", ("s",), ir.Attrs({"dim": -1, "dtype": None}), (ir.Value("t", g.spec("s")),)))),
        "attribute 'dim' is not in canonical form; got -1, wanted 1",
    ),
    "no outputs": (lambda g: g.replace(nodes=(*g.nodes, ir.Node("relu", ("s",), ir.Attrs(), ()))), "has a node without outputs"),
    "opaque": (
        lambda g: g.replace(nodes=(*g.nodes, ir.Node("opaque", ("s",), ir.Attrs({"domain": "", "op_type": "X", "reason": "", "attributes": ir.Attrs()}), (ir.Value("t", None),)))),
        "needs domain, op_type, attributes and a reason",
    ),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    breaks, text = LAWS[law]
    broken = breaks(mlp())
    found = ir.problems(broken)
    assert found
    with pytest.raises(IrError, match=text):
        ir.verify(broken)


def test_a_frontend_may_know_more_than_inference() -> None:
    g = mlp()
    known = tuple(
        ir.Node(
            n.op,
            n.inputs,
            n.attrs,
            tuple(ir.Value(v.name, TensorSpec((5, 8), DType.FLOAT32)) for v in n.outputs),
        )
        for n in g.nodes
    )
    assert ir.problems(g.replace(nodes=known)) == []


@pytest.mark.sampled(one_in=2)
def test_ten_thousand_nodes() -> None:
    b = ir.GraphBuilder("big")
    x = b.input("x", "float32[n, 8, 16, 16]")
    w = b.weight("w", "float32[8, 8, 3, 3]")
    for _ in range(5000):
        x = b.relu(b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
    b.output("y", x)
    graph = b.build()
    text = str(graph)
    assert ir.parse(text) == graph
    assert ir.Graph.from_json(graph.to_json()) == graph
    slim = graph.rewrite(lambda e, n: e.forward(n.name, str(n.inputs[0])) if n.op == "relu" else None)
    assert len(slim) == 5000
    assert ir.find(graph, ir_op("relu", ir_op("convolution"))).matches[-1].root.name == x


def ir_op(*arguments):
    from xpuruntime.ir.match import Op

    return Op(*arguments)


def shape_of(make) -> str:
    b = ir.GraphBuilder("g")
    return str(b.spec(make(b, b.input("x", "float32[n, 3, h, w]"))))


WINDOW = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]}
SYMBOLIC = {
    "conv": (
        lambda b, x: b.convolution(x, b.weight("k", "float32[8, 3, 3, 3]"), stride=[2, 2], padding=[1, 1], dilation=[1, 1]),
        "float32[n, 8, ((h - 1)//(2)) + 1, ((w - 1)//(2)) + 1]",
    ),
    "same": (
        lambda b, x: b.convolution(x, b.weight("k", "float32[8, 3, 3, 3]"), stride=[1, 1], padding=[1, 1], dilation=[1, 1]),
        "float32[n, 8, h, w]",
    ),
    "up": (
        lambda b, x: b.convolution(
            x, b.weight("k", "float32[3, 8, 2, 2]"), stride=[2, 2], padding=[0, 0], dilation=[1, 1], transposed=True
        ),
        "float32[n, 8, 2*h, 2*w]",
    ),
    "ceil": (lambda b, x: b.max_pool(x, **WINDOW, ceil_mode=True), "float32[n, 3, (h//(2)) + 1, ((w)//(2)) + 1]"),
    "flatten": (lambda b, x: b.view(x, size=[dim("n"), -1]), "float32[n, 3*h*w]"),
    "last": (lambda b, x: b.slice(x, dim=2, start=-1), "float32[n, 3, 1, w]"),
    "all but last": (lambda b, x: b.slice(x, dim=2, end=-1), "float32[n, 3, h - 1, w]"),
    "to the end": (lambda b, x: b.slice(x, dim=2, start=1, end=2**31 - 1), "float32[n, 3, h - 1, w]"),
    "every second": (lambda b, x: b.slice(x, dim=2, step=2), "float32[n, 3, ((h + 1)//(2)), w]"),
    "keep": (lambda b, x: b.expand(x, size=[5, -1, -1, -1, -1]), "float32[5, n, 3, h, w]"),
    "range": (lambda b, x: b.arange(end=dim("n") * 2, dtype="int64"), "int64[2*n]"),
    "scores": (
        lambda b, x: b.attention(x, b.input("k", "float32[n, 1, t, w]"), b.input("v", "float32[n, 1, t, 7]")),
        "float32[n, 3, h, 7]",
    ),
    "equation": (lambda b, x: b.einsum(x, b.input("v", "float32[w, 9]"), equation="...w,wd->...d"), "float32[n, 3, h, 9]"),
    "one scale": (
        lambda b, x: b.quantize_linear(b.input("v", "float32[n]"), b.weight("s", "float32[]"), dtype="int8"),
        "int8[n]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SYMBOLIC)
def test_shapes_with_symbols(case: str) -> None:
    make, want = SYMBOLIC[case]
    assert shape_of(make) == str(TensorSpec.parse(want))


def test_ceil_mode_that_a_symbol_cannot_decide() -> None:
    with pytest.raises(IrError, match="ceil_mode needs a known size here; got h"):
        shape_of(
            lambda b, x: b.avg_pool(
                x, kernel_size=[2, 2], stride=[3, 3], padding=[0, 0], dilation=[1, 1], ceil_mode=True
            )
        )


def test_what_a_policy_asks_of_a_node() -> None:
    g = mlp()
    assert [ir.family_of(n) for n in g] == ["matmul", "activation", "elementwise"]
    assert ir.source_names(g.node("h")) == ("MatMul_0",)
    assert ir.source_names(g.node("s")) == ("s",)
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2]")
    for domain, op, family in (
        ("", "Gemm", "matmul"),
        ("aten", "aten.gelu.default", "activation"),
        ("my", "Mine", "other"),
    ):
        b.opaque(op, [x], [("", "float32[2]")], reason="a test", domain=domain)
        assert ir.family_of(b.nodes[-1]) == family


def test_views() -> None:
    """The table says which results may share their operand's memory, and how."""
    kinds = {name: row.view for name, row in ir.OPS.items() if row.view}
    assert {n for n, k in kinds.items() if k == "reshape"} == {"clone", "view", "squeeze", "unsqueeze"}
    strided = {"permute", "expand", "split", "slice", "select", "as_strided", "diagonal"}
    assert {n for n, k in kinds.items() if k == "strided"} == strided
    b = ir.GraphBuilder("g")
    b.permute(b.relu(b.input("x", "float32[2, 3]")), dims=[1, 0])
    assert [ir.is_view(n) for n in b.nodes] == [False, True]
