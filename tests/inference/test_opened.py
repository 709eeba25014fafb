"""What the store knows of a model file: all that opening it would say, and nothing once any of its files changed."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from support.onnx_models import build_model, small_classifier

import xpuruntime as xrt
from xpuruntime.frontends.fix_shapes import fix_shapes
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.models import model_cache as opened

onnx = pytest.importorskip("onnx")


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Files that were written a moment ago count as old."""
    monkeypatch.setattr(opened, "SETTLED_S", 0.0)


@pytest.fixture
def store(tmp_path):
    return xrt.Store(tmp_path / "store", mode="rw")


@pytest.fixture
def no_reading(monkeypatch):
    """From now on nothing may be read and checked anew."""

    def refuse(*_, **__):
        raise AssertionError("the model was read again")

    def start():
        monkeypatch.setattr(opened, "open_model", refuse)
        monkeypatch.setattr(opened, "fix_shapes", refuse)

    return start


def external(folder):
    """A model whose weights are stored in a file next to it."""
    path = folder / "big.onnx"
    model = small_classifier()
    onnx.save(model, path, save_as_external_data=True, location="big.weights", size_threshold=0)
    return path


def inline(folder):
    path = folder / "small.onnx"
    onnx.save(small_classifier(batch="N, 'odd' name"), path)
    return path


def openvino_ir(folder):
    openvino = pytest.importorskip("openvino")
    path = folder / "small.xml"
    openvino.save_model(openvino.convert_model(inline(folder)), path, compress_to_fp16=False)
    return path


MADE = [external, inline, openvino_ir]


@pytest.mark.parametrize("make", MADE)
def test_a_known_file_says_what_opening_it_said(make, tmp_path, store, no_reading) -> None:
    path = make(tmp_path)
    first = opened.open_known(path, store)
    no_reading()
    again = opened.open_known(str(path), store)
    assert again == first == open_model(path)
    assert again.files == first.files
    assert len(first.files) == (1 if make is inline else 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("make", [external, openvino_ir])
def test_any_change_of_any_file_is_seen_even_with_its_old_time_and_size(make, which, tmp_path, store) -> None:
    path = make(tmp_path)
    first = opened.open_known(path, store)
    file = first.files[which]
    status, data = file.stat(), file.read_bytes()
    at = (
        5 if which else data.index(b"tanh")
    )  # in the weights any byte; in the model a letter of a node's name
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert opened.open_known(path, store).digest != first.digest


def test_a_file_that_goes_is_an_error_again(tmp_path, store) -> None:
    path = external(tmp_path)
    gone = opened.open_known(path, store).files[1]
    gone.unlink()
    with pytest.raises(xrt.ModelError, match=r"big\.weights"):
        opened.open_known(path, store)
    path.unlink()
    with pytest.raises(xrt.ModelError, match="no such file"):
        opened.open_known(path, store)


def test_a_file_that_changed_a_moment_ago_is_not_recorded(tmp_path, store, monkeypatch) -> None:
    monkeypatch.setattr(opened, "SETTLED_S", 60.0)
    opened.open_known(inline(tmp_path), store)
    assert store.entries() == []


def test_a_file_that_changes_while_it_is_read_is_not_recorded(tmp_path, store, monkeypatch) -> None:
    path = inline(tmp_path)

    def slowly(model):
        found = open_model(model)
        onnx.save(small_classifier(seed=9), path)
        return found

    monkeypatch.setattr(opened, "open_model", slowly)
    opened.open_known(path, store)
    assert store.entries() == []


def test_nothing_is_kept_where_caching_is_off(tmp_path) -> None:
    path = inline(tmp_path)
    cache = tmp_path / "cache"
    off = xrt.ExecutionPolicy(caching=False)
    xrt.InferenceSession(path, device="cpu", engine="onnxruntime", cache_dir=cache, exec_policy=off).close()
    assert xrt.Store(cache).entries() == []
    xrt.InferenceSession(path, device="cpu", engine="onnxruntime", cache_dir=cache).close()
    assert opened.KIND in {e.kind for e in xrt.Store(cache).entries()}


@pytest.mark.parametrize("sizes", [{"batch": 3}, {"input": [3, 3, 8, 8]}])
def test_a_model_with_fixed_dims_is_written_only_when_somebody_wants_it(
    sizes, tmp_path, store, monkeypatch
) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(small_classifier(), path)
    model = opened.open_known(path, store)
    first = opened.fixed_known(model, sizes, store)
    made = []
    monkeypatch.setattr(opened, "fix_shapes", lambda *a: made.append(a) or fix_shapes(*a))
    again = opened.fixed_known(model, sizes, store)
    assert (again.digest, again.inputs, again.nodes) == (first.digest, first.inputs, first.nodes)
    assert not made
    assert again.data == first.data
    assert again.data is again.data
    assert len(made) == 1
    assert opened.fixed_known(model, {"batch": 4}, store).digest != first.digest


def test_bytes_that_wait_go_with_a_copy_and_to_another_process(tmp_path, store) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(small_classifier(), path)
    model = opened.open_known(path, store)
    first = opened.fixed_known(model, {"batch": 3}, store)
    for copy in (pickle.loads, lambda text: dataclasses.replace(pickle.loads(text), name="other")):
        waiting = opened.fixed_known(model, {"batch": 3}, store)
        assert copy(pickle.dumps(waiting)).data == first.data


def test_every_field_of_a_model_survives(tmp_path, store, no_reading) -> None:
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="product")
    kinds = onnx.TensorProto
    proto = build_model(
        [node],
        [("x", kinds.UINT8, ["rows", None, 4])],
        [("y", kinds.INT32, ["rows", None, 4])],
        {"w": np.ones((4, 4), np.int8)},
    )
    path = tmp_path / "q.onnx"
    onnx.save(proto, path)
    first = opened.open_known(path, store)
    no_reading()
    again = opened.open_known(path, store)
    for field in dataclasses.fields(first):
        assert getattr(again, field.name) == getattr(first, field.name), field.name
    assert first.quantized is not None


START = """
import sys
import numpy as np
import xpuruntime as xrt
import xpuruntime.inference.models.model_cache as opened
opened.SETTLED_S = 0.0
with xrt.InferenceSession(sys.argv[1], device="cpu", engine="openvino", cache_dir=sys.argv[2]) as sess:
    sess.run(input=np.zeros((1, 3, 8, 8), np.float32))
    print("onnx" in sys.modules)
    print(sess.plan.decision("engine").chosen.facts["from_store"])
"""


def test_a_second_start_reads_neither_the_model_nor_the_onnx_package(tmp_path) -> None:
    pytest.importorskip("openvino")
    path = tmp_path / "m.onnx"
    onnx.save(small_classifier(), path)
    said = [
        subprocess.run(
            [sys.executable, "-c", START, str(path), str(tmp_path / "store")],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["True", "False"], ["False", "True"]]
