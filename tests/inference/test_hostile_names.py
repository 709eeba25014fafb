"""Names of models that a file cannot hold, or a vendor cannot take: the model runs, and its records and programs can be read again."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.native import compile_native
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.inference.models import model_cache as opened

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

ENGINES = ["native", "onnxruntime", "openvino"]


def relu(node: str = "n", name: str = "x", dims: tuple[object, ...] = (2, 4), graph: str = "g") -> bytes:
    specs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(dims)) for n in (name, "y")]
    nodes = [helper.make_node("Relu", [name], ["y"], name=node)]
    made = helper.make_graph(nodes, graph, specs[:1], specs[1:])
    return bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_name_that_is_not_utf8(engine: str, tmp_path: Path) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    paths = [Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff\xfe.onnx")), tmp_path / "good.onnx"]
    for path in paths:
        path.write_bytes(small_classifier().SerializeToString())
    x = np.ones((1, 3, 8, 8), np.float32)
    answers = []
    for path in paths:  # the second finds the first one's artifact in the store
        with xrt.InferenceSession(path, engine=engine, device="cpu", cache_dir=tmp_path / "store") as session:
            answers.append(session.run([x])["output"])
            assert str(session.receipt()).encode()
    np.testing.assert_array_equal(*answers)
    command = [
        sys.executable,
        "-m",
        "xpuruntime.cli",
        "run",
        os.fsencode(paths[0]),
        "--engine",
        engine,
        "--receipt",
    ]
    for more in ([], ["--json"]):
        done = subprocess.run([*command, *more], capture_output=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "m\\udcff\\udcfe" in done.stdout.decode()


def test_long_names_are_cut_where_they_only_tell(tmp_path: Path) -> None:
    model = relu(node="n" * 70_000, graph="g" * 70_000)
    for _ in range(2):
        with xrt.InferenceSession(model, engine="native", cache_dir=tmp_path) as session:
            np.testing.assert_array_equal(
                session.run(x=np.full((2, 4), -1, np.float32))["y"], np.zeros((2, 4))
            )
            chosen = session.plan.decision("engine")
            assert chosen is not None
            assert chosen.chosen is not None
            from_store = chosen.chosen.facts["from_store"]
            assert len(session.plan.nodes[0].name) == 70_000
    assert from_store is True


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (relu(name="x" * 70_000), r"inputs\[0\]: must be text of 0 to 65536 characters"),
        (relu(dims=(2**20, 2**20, 2**23)), r"is too large: float32\[1048576, 1048576, 8388608\](?!: None)"),
    ],
    ids=["name", "size"],
)
def test_what_no_program_file_holds_is_a_reason_against_the_native_engine(model: bytes, says: str) -> None:
    with pytest.raises(xrt.BuildError, match=says) as error:
        xrt.InferenceSession(model, engine="native")
    assert "makes a program that cannot be saved" in str(error.value)
    assert "Copy the file again" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "p\udcff"},
        {"name": "p" * 70_000},
        {"digest": "d" * 70_000},
        {"facts": {"k": ["t" * 70_000]}},
    ],
)
def test_save_writes_nothing_that_no_reader_takes(tmp_path: Path, change: dict[str, object]) -> None:
    b = xrt.ir.GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[4]")))
    program = dataclasses.replace(compile_native(b.build(), {"x": np.zeros(4, np.float32)}), **change)  # type: ignore[arg-type]
    with pytest.raises(xrt.FormatError, match="cannot be written"):
        program.save(tmp_path / "p.npubin")
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_could_not_be_read_back_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A dim's name of more characters than the text of a spec may have."""
    monkeypatch.setattr(opened, "SETTLED_S", 0.0)
    path = tmp_path / "m.onnx"
    path.write_bytes(relu(dims=("q" * 12_000, 4)))
    store = xrt.Store(tmp_path / "store", mode="rw")
    for _ in range(2):
        assert opened.open_known(path, store).inputs[0].shape[1] == 4
    assert caplog.messages == []


@pytest.mark.parametrize(
    "payload", [b"{", b"[]", b'{"source": 3}', b"[" * 50_000, b'{"source": {}, "further": []}']
)
def test_a_damaged_record_of_a_model_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, payload: bytes
) -> None:
    monkeypatch.setattr(opened, "SETTLED_S", 0.0)
    path = tmp_path / "m.onnx"
    path.write_bytes(relu())
    store = xrt.Store(tmp_path / "store", mode="rw")
    first = opened.open_known(path, store)
    (entry,) = store.entries()
    store.put(entry.kind, entry.ingredients, payload)
    assert opened.open_known(path, store) == first
    assert "cannot be parsed" in caplog.text
    caplog.clear()
    assert opened.open_known(path, store) == first
    assert caplog.messages == []


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("payload", [b"{", b'{"chosen": 3}', b'{"question": 1}', b"null"])
def test_a_damaged_record_of_auto_is_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, payload: bytes
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    store = xrt.Store(tmp_path, mode="rw")
    for damaged in (False, True):
        if damaged:
            (entry,) = [e for e in store.entries() if e.kind == "auto"]
            store.put("auto", entry.ingredients, payload)
        with xrt.InferenceSession(relu(), engine="auto", device="cpu", cache_dir=tmp_path) as session:
            assert session.run(x=np.ones((2, 4), np.float32))["y"].sum() == 8
    assert "cannot be parsed" in caplog.text
