"""What becomes of a file that is a model: specs, nodes, precision, digest; ONNX with external data, and OpenVINO IR."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xpuruntime.errors import ModelError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.types import DType, dim

sys.path.insert(0, str(Path(__file__).parent))
from small_protos import RELU, external, model, value

sys.path.pop(0)


def test_path_bytes_and_proto_give_the_same_model(tmp_path: Path) -> None:
    proto = model([RELU])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    sources = [open_model(path), open_model(str(path)), open_model(path.read_bytes()), open_model(proto)]
    assert {s.nodes for s in sources} == {sources[0].nodes}
    assert {s.digest for s in sources} == {sources[0].digest}
    assert [s.name for s in sources] == ["m", "m", "graph", "graph"]
    assert sources[0].path == path
    assert sources[0].data is None
    assert sources[2].path is None
    assert sources[2].data == path.read_bytes()
    assert open_model(sources[0]) is sources[0]
    assert open_model(path, name="mine").name == "mine"


def test_nodes_without_a_name_of_their_own_get_a_stable_one() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="Relu_0"),
        helper.make_node("Relu", ["b"], ["c"], name="twice"),
        helper.make_node("Relu", ["c"], ["y"], name="twice"),
    ]
    source = open_model(model(nodes))
    assert [n.name for n in source.nodes] == ["Relu_0_", "Relu_0", "twice", "twice#3"]
    assert source.nodes[0].inputs == ("x",)
    assert source.nodes[0].outputs == ("a",)


def test_a_node_reads_what_its_subgraphs_capture() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node("Add", ["x", "w"], ["o"])], name, [], [value("o")])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")]
    source = open_model(model([node], inputs=[value("c", [], TensorProto.BOOL), value("x")], weights=weights))
    assert source.nodes[0].inputs == ("c", "x", "w")


def test_dims() -> None:
    open_dims = value("x", ["N", None, 3, "x_1"])
    open_dims.type.tensor_type.shape.dim[2].dim_value = -1
    source = open_model(model([RELU], inputs=[open_dims], outputs=[value("y", None)]))
    assert source.inputs[0].shape == (dim("N"), dim("x_1_"), dim("x_2"), dim("x_1"))
    assert source.outputs[0].shape == (dim("..."),)
    assert open_model(model([RELU], inputs=[value("x", [])], outputs=[value("y", [0, 2])])).outputs[
        0
    ].shape == (0, 2)


def test_weights_are_no_inputs() -> None:
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")]
    add = helper.make_node("Add", ["x", "w"], ["y"])
    source = open_model(model([add], inputs=[value("x"), value("w")], weights=weights))
    assert [s.name for s in source.inputs] == ["x"]


@pytest.mark.parametrize(
    ("kind", "weight", "expected"),
    [
        (
            TensorProto.FLOAT,
            np.float16,
            DType.FLOAT16,
        ),  # a half model with float inputs is still a half model
        (TensorProto.FLOAT16, None, DType.FLOAT16),
        (TensorProto.INT64, None, DType.FLOAT32),
        (TensorProto.DOUBLE, None, DType.FLOAT64),
        (TensorProto.FLOAT, np.float64, DType.FLOAT64),
    ],
)
def test_precision(kind: int, weight: type | None, expected: DType) -> None:
    weights = [] if weight is None else [numpy_helper.from_array(np.ones((8, 8), weight), "w")]
    node = helper.make_node("Identity", ["x"], ["y"])
    source = open_model(
        model([node], inputs=[value("x", [4], kind)], outputs=[value("y", [4], kind)], weights=weights)
    )
    assert source.precision is expected
    assert source.quantized is None


def test_quantized_models_say_so() -> None:
    weights = [
        numpy_helper.from_array(np.ones((4, 4), np.uint8), "w"),
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.uint8(0), "z"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("MatMul", ["d", "f"], ["y"]),
    ]
    source = open_model(model(nodes, weights=weights))
    assert source.quantized is DType.INT8
    assert source.precision is DType.FLOAT32
    nodes[-1] = helper.make_node("MatMul", ["x", "f"], ["y"])  # weights alone: the product is a float one
    assert open_model(model(nodes, weights=weights)).quantized is None


def function_model() -> onnx.ModelProto:
    body = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    node = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    return model([node], opsets=[("", 17), ("mine", 1)], functions=[body])


def test_local_functions_are_known() -> None:
    source = open_model(function_model())
    assert source.functions == {("mine", "Twice")}
    assert source.nodes[0].domain == "mine"


def test_ops_of_other_domains_are_left_to_engines() -> None:
    node = helper.make_node("Anything", ["x"], ["y"], domain="vendor.ops")
    assert open_model(model([node], opsets=[("", 17), ("vendor.ops", 3)])).opsets == {"": 17, "vendor.ops": 3}


def test_external_data_counts_for_the_digest(tmp_path: Path) -> None:
    path = external(tmp_path)
    first = open_model(path)
    (tmp_path / "w.bin").write_bytes(b"\1" * 16)
    assert open_model(path).digest != first.digest
    assert first.precision is DType.FLOAT32


def test_big_external_data_is_not_loaded(tmp_path: Path) -> None:
    elements = 64 * 2**20  # 256 MiB, as a sparse file
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="w.bin")
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight]), tmp_path / "m.onnx")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(elements * 4)
    tracemalloc.start()
    try:
        open_model(tmp_path / "m.onnx")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.fixture
def ir(tmp_path: Path) -> Path:
    openvino = pytest.importorskip("openvino")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="mm"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")]
    proto = model(nodes, inputs=[value("x", ["N", 4])], outputs=[value("y", ["N", 4])], weights=weights)
    network = openvino.Core().read_model(proto.SerializeToString())
    openvino.save_model(network, str(tmp_path / "m.xml"), compress_to_fp16=False)
    return tmp_path / "m.xml"


def test_ir(ir: Path) -> None:
    source = open_model(ir)
    assert (source.format, source.name, source.precision, source.path) == (
        "openvino-ir",
        "m",
        DType.FLOAT32,
        ir,
    )
    assert [s.name for s in source.inputs] == ["x"]
    assert source.inputs[0].shape == (dim("x_0"), 4)
    assert [s.name for s in source.outputs] == ["y"]
    assert [(n.name, n.op) for n in source.nodes] == [("mm", "MatMul"), ("y", "Relu")]
    assert source.nodes[0].inputs[0] == "x"
    assert source.nodes[1].inputs == source.nodes[0].outputs
    weights = bytearray(ir.with_suffix(".bin").read_bytes())
    weights[0] ^= 1
    ir.with_suffix(".bin").write_bytes(weights)
    assert open_model(ir).digest != source.digest


def test_ir_without_its_weights(ir: Path) -> None:
    weights = ir.with_suffix(".bin")
    with pytest.raises(
        ModelError, match=r"holds only the weights of an OpenVINO model; got m.bin. Open m.xml instead"
    ):
        open_model(weights)
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(
        ModelError, match=r"its weights end at byte 64, beyond their file; got 60 bytes in 'm.bin'"
    ):
        open_model(ir)
    weights.unlink()
    with pytest.raises(ModelError, match=r"its weights file is missing; got no file '.*m.bin'"):
        open_model(ir)


def test_ir_that_is_none(ir: Path) -> None:
    text = ir.read_text()
    ir.write_text(text[: len(text) // 2])
    with pytest.raises(ModelError, match=r"is not complete XML; got .* line"):
        open_model(ir)
    ir.write_text("<?xml version='1.0'?><svg></svg>")
    with pytest.raises(ModelError, match=r"is XML, but not an OpenVINO model; got root element <svg>"):
        open_model(ir)
    ir.write_text(text.replace('type="ReLU"', 'type="Rely"'))
    with pytest.raises(ModelError, match=r"OpenVINO cannot read it; got .*Rely"):
        open_model(ir)


def test_without_the_onnx_package(bare_python: Callable[[str], str]) -> None:
    code = "from xpuruntime.frontends.model_file import open_model\ntry: open_model(b'x')\nexcept Exception as e: print(e)"
    said = bare_python(code)
    assert (
        "[model in memory] reading ONNX needs the Python package 'onnx'; got No module named 'onnx'." in said
    )
    assert "Run: pip install 'xpuruntime[onnx]'" in said


def test_a_type_that_an_output_omits_is_inferred() -> None:
    omitted = onnx.ValueInfoProto(name="y")
    source = open_model(
        model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)], outputs=[omitted])
    )
    assert [s.dtype for s in source.outputs] == [DType.INT32]


@pytest.mark.parametrize(
    "attrs", [{"op_type": "MeanVarianceNormalization"}, {"op_type": "GroupNormalization", "num_groups": 1}]
)
def test_a_type_that_onnx_does_not_infer_is_that_of_the_operand(attrs: dict[str, Any]) -> None:
    operands = ["x", "s", "s"] if "num_groups" in attrs else ["x"]
    nodes = [
        helper.make_node("Constant", [], ["s"], value_floats=[1.0, 2.0]),
        helper.make_node(inputs=operands, outputs=["norm"], **attrs),
        helper.make_node("Shape", ["norm"], ["z"]),
        helper.make_node("Relu", ["norm"], ["y"]),
    ]
    outputs = [onnx.ValueInfoProto(name=n) for n in "yz"]
    source = open_model(model(nodes, outputs=outputs, opsets=[("", 21)]))
    assert [s.dtype for s in source.outputs] == [DType.FLOAT32, DType.INT64]
    assert [n.op for n in source.nodes[1:]] == [
        attrs["op_type"],
        "Shape",
        "Relu",
    ]  # the model itself is as it was


def test_an_output_that_is_listed_twice_is_one() -> None:
    """PyTorch's exporter lists a value that a model returns twice, or with its clone, twice."""
    proto = model([helper.make_node("Relu", ["x"], ["y"])], outputs=[value("y"), value("y")])
    assert [s.name for s in open_model(proto).outputs] == ["y"]
    graph, _ = import_onnx(proto)
    assert [o.name for o in graph.outputs] == ["y"]
