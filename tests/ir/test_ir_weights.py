from __future__ import annotations

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import FormatError, ModelError
from xpuruntime.ir.serialization.weights import save_weights
from xpuruntime.storage.tensor_files import CODES as _CODES
from xpuruntime.storage.tensor_files import read_safetensors
from xpuruntime.types import DType


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {d.value: rng.integers(0, 2, (3, 2)).astype(d.numpy) for d in _CODES} | {
        "empty": np.zeros((0, 4), np.float32)
    }


def test_safetensors_of_every_dtype_come_back(tmp_path) -> None:
    path = tmp_path / "w.safetensors"
    made = save_weights(arrays(), path)
    back = read_safetensors(path)
    for name, array in arrays().items():
        assert back[name].dtype == array.dtype
        assert back[name].tobytes() == array.tobytes()
        assert made[name].spec.shape == array.shape


def test_the_safetensors_package_reads_it_and_we_read_its(tmp_path) -> None:
    import safetensors.numpy

    path = tmp_path / "w.safetensors"
    ours = {k: v for k, v in arrays().items() if k in ("float32", "int64", "bool", "empty")}
    save_weights(ours, path)
    theirs = safetensors.numpy.load_file(path)
    assert {k: v.tobytes() for k, v in theirs.items()} == {k: v.tobytes() for k, v in ours.items()}
    safetensors.numpy.save_file(ours, path)
    assert {k: v.tobytes() for k, v in read_safetensors(path).items()} == {
        k: v.tobytes() for k, v in ours.items()
    }


def test_weights_of_a_graph_are_read_lazily(tmp_path) -> None:
    data = arrays()
    made = save_weights({"float32": data["float32"]}, tmp_path / "w.safetensors")
    (tmp_path / "raw.bin").write_bytes(b"xx" + data["int64"].tobytes())
    b = ir.GraphBuilder("g")
    w = made["float32"]
    b.weight("a", w.spec, file=w.file, format=w.format, key=w.key, digest=w.digest)
    b.weight("r", "int64[3, 2]", file="raw.bin", format="raw", offset=2)
    b.weight("gone", "int64[3, 2]", file="gone.bin", format="raw")
    b.weight("outside", "int64[1]", file="../x.bin", format="raw")
    b.weight("long", "int64[300]", file="raw.bin", format="raw")
    b.weight("other", "float64[3, 2]", file="w.safetensors", format="safetensors", key="float32")
    b.weight("handed", "float64[3, 2]")
    weights = ir.open_weights(b.build(), tmp_path)
    assert weights["a"].tobytes() == data["float32"].tobytes()
    assert weights["r"].tobytes() == data["int64"].tobytes()
    for name, text in {
        "gone": "cannot be read",
        "outside": "names a file outside the graph's folder; got ../x.bin",
        "long": "is outside its file",
        "other": r"has another shape or dtype in its file; got float32\[3, 2\] for float64\[3, 2\]",
        "handed": "has no file",
    }.items():
        with pytest.raises(ModelError, match=text):
            weights[name]


def test_a_file_of_one_byte_of_data_is_read(tmp_path) -> None:
    save_weights({"x": np.array([7], np.uint8)}, tmp_path / "w.safetensors")
    assert read_safetensors(tmp_path / "w.safetensors")["x"].tolist() == [7]


def test_damaged_files_are_refused(tmp_path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights({"x": np.arange(6, dtype=np.float32)}, path)
    blob = path.read_bytes()
    for end in range(len(blob)):
        path.write_bytes(blob[:end])
        with pytest.raises(FormatError):
            read_safetensors(path)
    for header in (b"[]", b"{", b'{"x":{}}', b'{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'):
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
        with pytest.raises(FormatError, match="damaged header"):
            read_safetensors(path)


def test_a_dtype_that_the_format_lacks(tmp_path) -> None:
    with pytest.raises(FormatError, match="cannot hold this dtype; got s: string"):
        save_weights({"s": np.array(["a"], dtype=object)}, tmp_path / "w.safetensors")
    assert DType.STRING not in _CODES
