"""Files that are no whole models end in a clear error: bad graphs, bad paths, external data out of place, damage at any byte."""

from __future__ import annotations

import contextlib
import os
import sys
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
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.frontends.onnx.files.extract import OnnxExtractor
from xpuruntime.frontends.onnx.tensors import tensor_array

sys.path.insert(0, str(Path(__file__).parent))
from small_protos import RELU, external, model, value

sys.path.pop(0)


def sequence_model() -> onnx.ModelProto:
    out = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    return model([helper.make_node("SequenceConstruct", ["x"], ["y"])], outputs=[out])


def wrong_raw() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 12)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (lambda: None, r"\[open_model\] not a model; got a NoneType. Pass a path"),
    "no bytes": (lambda: b"", r"\[model in memory\] is empty; got 0 bytes"),
    "text": (
        lambda: b"hello, world",
        r"is not an ONNX model; got 12 bytes; .* The file is truncated, corrupted",
    ),
    "zeros": (lambda: b"\0" * 64, r"is not an ONNX model"),
    "another message": (lambda: value("x").SerializeToString(), r"is not (a complete|an) ONNX model"),
    "IR in memory": (lambda: b"<?xml version='1.0'?><net/>", r"is OpenVINO XML without its weights"),
    "no graph": (lambda: onnx.ModelProto(ir_version=8), r"without a graph, an opset_import, outputs"),
    "unknown op": (
        lambda: model([helper.make_node("Rely", ["x"], ["y"], name="n")]),
        r"node 'n' has op 'Rely', which domain 'ai.onnx' does not have in opset 17. Did you mean 'Relu'\?",
    ),
    "op of a newer opset": (
        lambda: model([helper.make_node("Gelu", ["x"], ["y"])]),
        r"a node without a name has op 'Gelu', which domain 'ai.onnx' does not have in opset 17. Export the model again with opset 20 or",
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
        r"node 'n' reads value 'ghost', which no earlier node produces",
    ),
    "value made twice": (
        lambda: model([RELU, helper.make_node("Relu", ["x"], ["y"], name="s")]),
        r"node 's' produces value 'y', which already exists",
    ),
    "output made by nobody": (
        lambda: model([RELU], outputs=[value("z")]),
        r"output 'z' is not produced by any node",
    ),
    "sequence": (sequence_model, r"value 'y' must be a tensor of a known element type; got sequence"),
    "no type of an output": (
        lambda: model(
            [helper.make_node("Foo", ["x"], ["y"], domain="mine", name="n")],
            outputs=[onnx.ValueInfoProto(name="y")],
            opsets=[("", 18), ("mine", 1)],
        ),
        r"value 'y' must be a tensor of a known element type; got no type\. Declare its type: onnx\.helper",
    ),
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
    for name, text in (
        ("m.npubin", r"a model is needed; got m.npubin. Pass the model"),
        ("m.onnx", "rename it to .npubin"),
    ):
        (tmp_path / name).write_bytes(b"XPUPROG\n")
        with pytest.raises(ModelError, match=text):
            open_model(tmp_path / name)


def test_ir_version_of_the_future() -> None:
    proto = model([RELU])
    proto.ir_version = 9999
    with pytest.raises(ModelError, match=r"has ONNX IR version 9999; the installed onnx .* reads up to"):
        open_model(proto)


@pytest.mark.parametrize(
    ("entries", "size", "text"),
    [
        ({}, 0, r"external data of tensor 'w' is missing; got no file '.*w.bin'"),
        ({"location": "/etc/passwd"}, 16, "must be in the model's folder; got '/etc/passwd'. Refused"),
        ({"location": "../w.bin"}, 16, r"must be in the model's folder; got '../w.bin'"),
        ({"location": "a/../../w.bin"}, 16, "must be in the model's folder"),
        ({"location": "C:\\w.bin"}, 16, "must be in the model's folder"),
        ({"location": "..\\w.bin"}, 16, "must be in the model's folder"),
        ({"location": ""}, 16, "must be in the model's folder"),
        ({}, 12, "external data of tensor 'w' ends at byte 16, beyond its file; got 12 bytes in 'w.bin'"),
        ({"offset": 8, "length": 16}, 16, "ends at byte 24, beyond its file"),
        ({"offset": -1}, 16, "offset and length .* must be non-negative integers; got offset '-1'"),
        ({"length": 8}, 16, "tensor 'w' needs 16 bytes of external data; got 8 bytes"),
        ({"offset": "9" * 30}, 16, "must be non-negative integers"),
        (
            {"offset": "9" * 5000},
            16,
            r"must be non-negative integers; got offset '99.*9' \(5002 characters\)",
        ),
        ({"location": "w.bin/"}, 16, "must be in the model's folder; got 'w.bin/'"),
        ({"location": "w.bin\\"}, 16, "must be in the model's folder"),
        ({"location": "w\0.bin"}, 16, "must be in the model's folder"),
        ({"location": "."}, 16, "external data of tensor 'w' is missing"),
        (
            {"location": "w" * 5000},
            16,
            r"external data of tensor 'w' cannot be read; got 'ww.*File name too long",
        ),
        ({"location": "w/" * 2500 + "w"}, 16, r"external data of tensor 'w' (cannot be read|is missing)"),
    ],
)
def test_bad_external_data(tmp_path: Path, entries: dict[str, object], size: int, text: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    with pytest.raises(ModelError, match=text):
        open_model(external(folder, size=size, **entries))


@pytest.mark.parametrize("key", ["location", "offset", "length", "checksum"])
def test_a_duplicate_key_of_external_data_is_refused(tmp_path: Path, key: str) -> None:
    """Of a key that is there twice, one reader takes the first and another the last."""
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    (weight,) = proto.graph.initializer
    for text in ("0", "../outside.bin"):
        weight.external_data.add(key=key, value=text)
    onnx.save(proto, path)
    with pytest.raises(ModelError, match=rf"tensor 'w' has a duplicate key '{key}'; got '.*' and '.*'"):
        open_model(path)


def test_external_data_is_checked_wherever_a_tensor_can_be(tmp_path: Path) -> None:
    """Attributes with defaults of local functions, and the graphs of training, too."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    function = model([RELU])
    function.functions.add(name="f", domain="own").attribute_proto.add(
        name="value", type=onnx.AttributeProto.TENSOR, t=tensor
    )
    training = model([RELU])
    training.training_info.add().algorithm.initializer.append(tensor)
    for proto in (function, training):
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="'t' must be in the model's folder; got '/etc/passwd'"):
            open_model(tmp_path / "m.onnx")


def test_a_pipe_is_no_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, size=0)
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(ModelError, match="external data of tensor 'w' is missing"):
        open_model(path)


def test_a_file_of_two_names_is_read_or_an_error_of_ours(tmp_path: Path) -> None:
    """The onnx package refuses files with hard links, which package managers make."""
    path = external(tmp_path)
    (tmp_path / "other").hardlink_to(tmp_path / "w.bin")
    source = open_model(path)
    (tensor,) = onnx.load(path, load_external_data=False).graph.initializer
    with contextlib.suppress(ModelError):  # depends on the version of onnx; any other error fails
        assert tensor_array(tensor, tmp_path).shape == (4,)
    with contextlib.suppress(ModelError):
        OnnxExtractor(source, import_onnx(path).graph)


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
        match=r"which a model in memory cannot refer to; got 'w.bin'. Pass the path",
    ):
        open_model(path.read_bytes())


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
