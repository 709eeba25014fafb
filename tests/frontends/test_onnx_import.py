"""ONNX -> IR: what the backend suite does not ask (tests/conformance has that): names, opsets, laziness, dims, opaque nodes, speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support.onnx_models import small_classifier  # noqa: E402

from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.onnx import import_onnx, load_onnx  # noqa: E402
from xpuruntime.ir import interp, parse, verify  # noqa: E402
from xpuruntime.types import dim  # noqa: E402

F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(nodes, inputs, outputs, weights=None, opset=18, functions=(), imports=()):
    values = [[helper.make_tensor_value_info(*v) for v in group] for group in (inputs, outputs)]
    tensors = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    opsets = [helper.make_opsetid("", opset), *imports]
    graph = helper.make_graph(nodes, "g", *values, tensors)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def ops(graph):
    return [n.op for n in graph]


def test_a_classifier_keeps_names_sources_and_weights() -> None:
    graph, weights = import_onnx(small_classifier(), name="net")
    assert ops(verify(graph)) == [
        "convolution",
        "relu",
        "mean",
        "view",
        "matmul",
        "tanh",
        "matmul",
        "softmax",
    ]
    assert [n.sources[0].name for n in graph] == [
        "conv",
        "relu",
        "pool",
        "flatten",
        "fc1",
        "tanh",
        "fc2",
        "softmax",
    ]
    assert [n.sources[0].op for n in graph][:2] == ["Conv", "Relu"]
    assert [n.name for n in graph] == ["c", "r", "p", "f", "h", "t", "l", "output"]
    assert sorted(weights) == ["b1", "w1", "w2", "w3"]
    assert [str(s) for s in graph.input_specs] == ["float32[batch, 3, 8, 8]"]
    assert [str(s) for s in graph.output_specs] == ["float32[batch, 10]"]
    assert graph.metadata["opset"] == 17
    assert parse(str(graph)) == graph


def test_weights_of_a_file_are_references_into_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_classifier(), path)
    graph, weights = import_onnx(path)
    data = path.read_bytes()
    for weight in graph.weights:
        size = weight.spec.size_bytes
        held = np.frombuffer(data[weight.offset : weight.offset + size], np.float32)
        assert (weight.file, weight.format) == ("m.onnx", "raw")
        assert held.tobytes() == weights[weight.name].tobytes()


def test_external_data_is_a_reference(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_classifier(), path, save_as_external_data=True, location="m.bin", size_threshold=0)
    graph, weights = import_onnx(path)
    assert {w.file for w in graph.weights} == {"m.bin"}
    assert weights["w3"].shape == (64, 10)
    raw = (tmp_path / "m.bin").read_bytes()
    (w3,) = [w for w in graph.weights if w.name == "w3"]
    assert raw[w3.offset : w3.offset + w3.spec.size_bytes] == weights["w3"].tobytes()


def test_shape_arithmetic_becomes_dims() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Mul", ["n", "two"], ["m"]),
        helper.make_node("Unsqueeze", ["m", "axes"], ["m1"]),
        helper.make_node("Concat", ["m1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.array(0), "two": np.array(2), "axes": np.array([0]), "rest": np.array([-1])}
    graph = load_onnx(model(nodes, [("x", F, ["n", 6])], [("y", F, ["a", "b"])], weights))
    assert graph.node("y").attrs["size"] == (2 * dim("n"), 3)
    assert "opaque" not in ops(verify(graph))
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert interp.run(graph, {"x": x})["y"].shape == (4, 3)


def test_axes_move_from_attribute_to_input() -> None:
    old = model(
        [helper.make_node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0)],
        [("x", F, [2, 3])],
        [("y", F, [2])],
        opset=11,
    )
    new = model(
        [helper.make_node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], [("x", F, [2, 3])], [("y", F, [2])], {"a": np.array([1])}, 18
    )  # fmt: skip
    assert load_onnx(old).node("y") == load_onnx(new).node("y")


def test_softmax_below_opset_13_flattens() -> None:
    def made(opset: int):
        return load_onnx(
            model(
                [helper.make_node("Softmax", ["x"], ["y"], axis=1)],
                [("x", F, [2, 3, 4])],
                [("y", F, [2, 3, 4])],
                opset=opset,
            )
        )

    assert ops(made(13)) == ["softmax"]
    assert ops(made(12)) == ["view", "softmax", "view"]


def test_a_local_function_is_inlined_under_the_calling_node() -> None:
    body = helper.make_function(
        "my", "Twice", ["a"], ["b"],
        [helper.make_node("Add", ["a", "a"], ["t"]), helper.make_node("LeakyRelu", ["t"], ["b"])],
        [helper.make_opsetid("", 18)], ["alpha"],
    )  # fmt: skip
    alpha = body.node[1].attribute.add()
    alpha.name, alpha.ref_attr_name, alpha.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="my", name="call", alpha=0.5)]
    graph = load_onnx(
        model(
            nodes, [("x", F, [2])], [("y", F, [2])], functions=[body], imports=[helper.make_opsetid("my", 1)]
        )
    )
    assert ops(graph) == ["add", "leaky_relu", "clone"]
    assert {n.sources[0].name for n in graph} == {"call"}
    assert graph.nodes[1].attrs["negative_slope"] == 0.5


def test_if_with_a_known_condition_is_its_branch() -> None:
    def branch(name: str, op: str):
        return helper.make_graph(
            [helper.make_node(op, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, F, [2])]
        )

    nodes = [
        helper.make_node(
            "If", ["c"], ["y"], then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg"), name="if"
        )
    ]
    graph = load_onnx(model(nodes, [("x", F, [2])], [("y", F, [2])], {"c": np.array(False)}))
    assert [o for o in ops(graph) if o != "constant"] == ["neg", "clone"]
    open_ = load_onnx(model(nodes, [("x", F, [2]), ("c", B, [])], [("y", F, [2])]))
    (node,) = open_.nodes
    assert (node.op, node.inputs) == ("cond", ("c", "x"))  # what the branches read from outside is an operand
    assert [[n.op for n in node.attrs[b].nodes] for b in ("then_branch", "else_branch")] == [["exp"], ["neg"]]


def test_a_custom_domain_is_opaque_with_declared_types() -> None:
    nodes = [
        helper.make_node("Magic", ["x"], ["m"], domain="acme", name="magic", depth=3),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    proto = model(nodes, [("x", F, ["n", 4])], [("y", F, ["n", 4])], imports=[helper.make_opsetid("acme", 2)])
    proto.graph.value_info.append(helper.make_tensor_value_info("m", F, ["n", 4]))
    graph = load_onnx(proto)
    magic, relu = graph.nodes
    assert (magic.op, magic.attrs["domain"], dict(magic.attrs["attributes"])) == (
        "opaque",
        "acme",
        {"depth": 3},
    )
    assert magic.attrs["reason"] == "the op is of domain 'acme'"
    assert str(magic.spec) == "float32[n, 4]"
    assert relu.op == "relu"


def test_content_that_decides_shapes_can_be_bound() -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [("x", F, [6]), ("s", I64, [2])], [("y", F, [2, 3])]
    )
    graph = load_onnx(proto)
    assert graph.nodes[0].attrs["reason"] == "its shape is known only at run time"
    assert graph.metadata["deciding"] == ("s",)
    bound = load_onnx(proto, bind={"s": np.array([2, 3])})
    assert bound.node("y").attrs["size"] == (2, 3)
    assert [v.name for v in bound.inputs] == ["x", "s"]


def test_inputs_that_are_no_tensors_do_not_stop_the_import() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", F, [2])
    nodes = [helper.make_node("SequenceAt", ["s", "i"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [sequence],
        [helper.make_tensor_value_info("y", F, [2])],
        [numpy_helper.from_array(np.array(0), "i")],
    )
    made = load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert made.inputs[0].spec is None
    assert made.node("y").attrs["reason"] == "the elements of its sequence are known only at run time"
    assert str(made.node("y").spec) == "float32[2]"


def test_quantized_models_keep_their_pairs() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    weights = {"s": np.float32(0.1).reshape(()), "z": np.array(3, np.int8)}
    graph = load_onnx(model(nodes, [("x", F, [4])], [("y", F, [4])], weights))
    assert [o for o in ops(graph) if o != "constant"] == ["quantize_linear", "dequantize_linear"]


def test_two_symbols_meet_only_where_one_cannot_be_one() -> None:
    add = [helper.make_node("Add", ["a", "b"], ["y"])]
    unsure = load_onnx(model(add, [("a", F, ["n"]), ("b", F, ["m"])], [("y", F, ["k"])]))
    assert unsure.nodes[0].attrs["reason"] == "symbolic dims n and m broadcast, and either may be 1"
    twice = [
        helper.make_node("Concat", ["b", "b"], ["b2"], axis=0),
        helper.make_node("Add", ["a", "b2"], ["y"]),
    ]
    sure = load_onnx(model(twice, [("a", F, ["n"]), ("b", F, ["m"])], [("y", F, ["k"])]))
    assert ops(sure) == ["cat", "expand", "add"]


def test_a_slice_of_a_symbolic_dim_that_may_be_shorter_is_not_guessed() -> None:
    def made(end: int):
        weights = {"b": np.array([0]), "e": np.array([end]), "a": np.array([1])}
        return load_onnx(
            model(
                [helper.make_node("Slice", ["x", "b", "e", "a"], ["y"])],
                [("x", F, [1, "n"])],
                [("y", F, [1, "m"])],
                weights,
            )
        )

    assert (
        made(512).node("y").attrs["reason"]
        == "it slices a symbolic dim up to 512, and the dim may be shorter"
    )
    assert ops(made(2**31 - 1)) == ["slice"]


def test_ten_thousand_nodes_are_imported() -> None:
    nodes, last = [], "x"
    for i in range(5000):
        nodes += [
            helper.make_node("Add", [last, "w"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    proto = model(nodes, [("x", F, ["n", 4])], [(last, F, ["n", 4])], {"w": np.ones(4, np.float32)})
    assert len(load_onnx(proto)) == 10_000


@pytest.mark.parametrize("damage", [b"", b"\x08", b"\x0a\x03abc"])
def test_what_is_no_model_is_a_model_error(damage: bytes) -> None:
    with pytest.raises(ModelError):
        load_onnx(damage)


def test_an_openvino_file_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="OpenVINO XML without its weights"):
        load_onnx(b"<?xml version='1.0'?><net/>")


def test_sizes_from_roots_are_known_at_import() -> None:
    """Exporters take the square root of a number of patches to find the side of an image."""
    node = helper.make_node
    nodes = [
        node("Pow", ["count", "half"], ["root"]),
        node("Round", ["root"], ["near"]),
        node("Sign", ["near"], ["sign"]),
        node("Mul", ["near", "sign"], ["signed"]),
        node("Abs", ["signed"], ["positive"]),
        node("Cast", ["positive"], ["side"], to=TensorProto.INT64),
        node("Concat", ["side", "side", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([16.0], np.float32), "count"),
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
        numpy_helper.from_array(np.array([-1]), "rest"),
    ]
    io = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [16, 3]), ("y", [4, 4, 3]))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "root", io[:1], io[1:], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph, _ = import_onnx(model)
    assert [n.op for n in graph.nodes if n.op != "constant"] == ["view"]
    assert graph.values[graph.outputs[0].value].spec.shape == (4, 4, 3)


def test_the_sign_of_nan_is_nan() -> None:
    x = np.array([-2.0, np.nan, 0.0, np.inf], np.float32)
    graph, _ = import_onnx(model([helper.make_node("Sign", ["x"], ["y"])], [("x", F, [4])], [("y", F, [4])]))
    np.testing.assert_array_equal(interp.run(graph, {"x": x})["y"], np.sign(x))


def test_a_function_without_a_value_for_its_attribute_says_so() -> None:
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    scaled = helper.make_function(
        "own",
        "Scaled",
        ["x"],
        ["y"],
        [constant, helper.make_node("Mul", ["x", "c"], ["y"])],
        [helper.make_opsetid("", 18)],
        ["alpha"],
    )
    call = helper.make_node("Scaled", ["x"], ["y"], domain="own")
    proto = model(
        [call], [("x", F, [4])], [("y", F, [4])], functions=[scaled], imports=[helper.make_opsetid("own", 1)]
    )
    graph, _ = import_onnx(proto)
    reasons = [str(n.attrs["reason"]) for n in graph.nodes if n.op == "opaque"]
    assert "takes its value from a function attribute" in reasons[0]
