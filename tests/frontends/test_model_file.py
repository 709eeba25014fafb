from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from xpuruntime.errors import ModelError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.types import DType, dim

Value = onnx.ValueInfoProto


def value(name: str, shape: list[object] | None = (4,), kind: int = TensorProto.FLOAT) -> Value:  # type: ignore[assignment]
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    *,
    inputs: list[Value] | None = None,
    outputs: list[Value] | None = None,
    **more: object,
):
    weights = more.pop("weights", [])
    opsets = more.pop("opsets", [("", 17)])
    functions = more.pop("functions", [])
    graph = helper.make_graph(nodes, "graph", inputs or [value("x")], outputs or [value("y")], weights)
    imports = [helper.make_opsetid(d, v) for d, v in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


RELU = helper.make_node("Relu", ["x"], ["y"], name="r")


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


def test_quantised_models_say_so() -> None:
    weights = [
        numpy_helper.from_array(np.ones((4, 4), np.uint8), "w"),
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.uint8(0), "z"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    source = open_model(model(nodes, weights=weights))
    assert source.quantized is DType.INT8
    assert source.precision is DType.FLOAT32


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


def sequence_model() -> onnx.ModelProto:
    out = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    return model([helper.make_node("SequenceConstruct", ["x"], ["y"])], outputs=[out])


def wrong_raw() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 12)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (lambda: None, r"\[open_model\] not a model; got a NoneType. Hand over a path"),
    "no bytes": (lambda: b"", r"\[model in memory\] is empty; got 0 bytes"),
    "text": (
        lambda: b"hello, world",
        r"is not an ONNX model; got 12 bytes; .* The file is truncated, corrupted",
    ),
    "zeros": (lambda: b"\0" * 64, r"is not an ONNX model"),
    "another message": (lambda: value("x").SerializeToString(), r"is not (a whole|an) ONNX model"),
    "IR in memory": (lambda: b"<?xml version='1.0'?><net/>", r"is OpenVINO XML without its weights"),
    "no graph": (lambda: onnx.ModelProto(ir_version=8), r"without a graph, an opset_import, outputs"),
    "unknown op": (
        lambda: model([helper.make_node("Rely", ["x"], ["y"], name="n")]),
        r"node 'n' has op 'Rely', which domain 'ai.onnx' does not have in opset 17. Did you mean 'Relu'\?",
    ),
    "op of a newer opset": (
        lambda: model([helper.make_node("Gelu", ["x"], ["y"])]),
        r"a node without a name has op 'Gelu', which domain 'ai.onnx' does not have in opset 17",
    ),
    "domain not imported": (
        lambda: model([helper.make_node("Foo", ["x"], ["y"], domain="mine", name="n")]),
        r"node 'n' has op 'Foo' of domain 'mine', which the model does not import; got imports ai.onnx",
    ),
    "opset of the future": (
        lambda: model([RELU], opsets=[("", 9999)]),
        r"uses opset 9999; the installed onnx .* knows opsets up to",
    ),
    "value made by nobody": (
        lambda: model([helper.make_node("Add", ["x", "ghost"], ["y"], name="n")]),
        r"node 'n' reads value 'ghost', which nothing before it makes",
    ),
    "value made twice": (
        lambda: model([RELU, helper.make_node("Relu", ["x"], ["y"], name="s")]),
        r"node 's' makes value 'y', which exists",
    ),
    "output made by nobody": (lambda: model([RELU], outputs=[value("z")]), r"output 'z' is made by no node"),
    "sequence": (sequence_model, r"value 'y' must be a tensor of a known element type; got sequence"),
    "short weights": (wrong_raw, r"tensor 'w' needs 16 bytes of data; got 12 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_end_in_a_clear_error(name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(ModelError, match=text):
        open_model(make())


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"\[model 'no.onnx'\] no such file; got '.*no.onnx'. Check the path."
    ):
        open_model(tmp_path / "no.onnx")
    with pytest.raises(ModelError, match=r"is a folder"):
        open_model(tmp_path)
    with pytest.raises(ModelError, match=r"no such file"):
        open_model("nul\0.onnx")
    with pytest.raises(ModelError, match=r"cannot be opened; got File name too long\. Check the path\."):
        open_model("m" * 5000)
    (tmp_path / "ring.onnx").symlink_to(tmp_path / "ring.onnx")
    with pytest.raises(ModelError, match=r"\[model 'ring.onnx'\] cannot be opened; got Too many levels"):
        open_model(tmp_path / "ring.onnx")
    (tmp_path / "e.onnx").touch()
    with pytest.raises(ModelError, match=r"\[model 'e.onnx'\] is empty"):
        open_model(tmp_path / "e.onnx")
    (tmp_path / "m.pt").write_bytes(b"PK")
    with pytest.raises(ModelError, match=r"another format \(torch\); got m.pt. Export it to ONNX first"):
        open_model(tmp_path / "m.pt")


def test_ir_version_of_the_future() -> None:
    proto = model([RELU])
    proto.ir_version = 9999
    with pytest.raises(ModelError, match=r"has ONNX IR version 9999; the installed onnx .* reads up to"):
        open_model(proto)


# --- external data


def external(folder: Path, *, size: int = 16, **entries: object) -> Path:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in ({"location": "w.bin"} | entries).items():
        weight.external_data.add(key=key, value=str(text))
    path = folder / "m.onnx"
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight]), path)
    if size:
        (folder / "w.bin").write_bytes(bytes(range(size)))
    return path


def test_external_data_counts_for_the_digest(tmp_path: Path) -> None:
    path = external(tmp_path)
    first = open_model(path)
    (tmp_path / "w.bin").write_bytes(b"\1" * 16)
    assert open_model(path).digest != first.digest
    assert first.precision is DType.FLOAT32


@pytest.mark.parametrize(
    ("entries", "size", "text"),
    [
        ({}, 0, r"external data of tensor 'w' is missing; got no file '.*w.bin'"),
        ({"location": "/etc/passwd"}, 16, "must lie in the model's folder; got '/etc/passwd'. Refused"),
        ({"location": "../w.bin"}, 16, r"must lie in the model's folder; got '../w.bin'"),
        ({"location": "a/../../w.bin"}, 16, "must lie in the model's folder"),
        ({"location": "C:\\w.bin"}, 16, "must lie in the model's folder"),
        ({"location": "..\\w.bin"}, 16, "must lie in the model's folder"),
        ({"location": ""}, 16, "must lie in the model's folder"),
        ({}, 12, "external data of tensor 'w' ends at byte 16, beyond its file; got 12 bytes in 'w.bin'"),
        ({"offset": 8, "length": 16}, 16, "ends at byte 24, beyond its file"),
        ({"offset": -1}, 16, "offset and length .* must be non-negative integers; got offset '-1'"),
        ({"length": 8}, 16, "tensor 'w' needs 16 bytes of external data; got 8 bytes"),
        ({"offset": "9" * 30}, 16, "must be non-negative integers"),
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, object], size: int, text: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    with pytest.raises(ModelError, match=text):
        open_model(external(folder, size=size, **entries))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_external_data_through_a_link_is_refused(tmp_path: Path, link: str) -> None:
    folder, other = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    other.mkdir()
    (other / "w.bin").write_bytes(bytes(16))
    if link == "file":
        (folder / "w.bin").symlink_to(other / "w.bin")
        path = external(folder, size=0)
    else:
        (folder / "sub").symlink_to(other)
        path = external(folder, size=0, location="sub/w.bin")
    with pytest.raises(ModelError, match=r"is reached through a symbolic link; got .* Refused"):
        open_model(path)


def test_a_model_in_memory_has_no_folder(tmp_path: Path) -> None:
    path = external(tmp_path)
    with pytest.raises(
        ModelError,
        match=r"a model handed over in memory has no folder to find it in; got 'w.bin'. Hand over the path",
    ):
        open_model(path.read_bytes())


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


# --- damage: whatever happens to the bytes, the answer is a model or a ModelError

WHOLE = model(
    [helper.make_node("MatMul", ["x", "w"], ["a"], name="m"), helper.make_node("Relu", ["a"], ["y"])],
    weights=[numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
).SerializeToString()


def refusal(data: bytes) -> ModelError | None:
    """The ModelError of damaged bytes; any other exception fails the test."""
    try:
        open_model(data)
    except ModelError as error:
        return error
    return None


@given(st.integers(0, len(WHOLE) - 1))
def test_truncated(length: int) -> None:
    error = refusal(WHOLE[:length])
    if error is None:  # what was cut off were whole trailing fields
        onnx.checker.check_model(WHOLE[:length])
    else:
        assert error.do


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_corrupted(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, byte in changes:
        data[at] = byte
    error = refusal(bytes(data))
    assert error is None or error.do


# --- OpenVINO IR


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
    with pytest.raises(ModelError, match=r"is not whole XML; got .* line"):
        open_model(ir)
    ir.write_text("<?xml version='1.0'?><svg></svg>")
    with pytest.raises(ModelError, match=r"is XML, but no OpenVINO model; got root element <svg>"):
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
