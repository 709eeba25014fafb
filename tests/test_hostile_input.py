"""What SECURITY.md lists as not trusted ends in a named error, one example of each kind; the pages that it names hold the many."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import FormatError, InputError, ModelError, PolicyError, XpuError
from xpuruntime.llm.checkpoint.reader import _json
from xpuruntime.storage.tensor_files import read_safetensors

ROOT = Path(__file__).resolve().parents[1]


def header(text: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + rest


def tensor(**facts: object) -> bytes:
    return header(json.dumps({"w": facts}).encode(), bytes(16))


CHECKPOINTS = {
    "empty": b"",
    "a header without an end": struct.pack("<Q", 2**62),
    "no JSON": header(b"{"),
    "a deep header": header(b"[" * 100_000),
    "a list": header(b"[]"),
    "no dtype": tensor(shape=[4], data_offsets=[0, 16]),
    "a strange dtype": tensor(dtype="F99", shape=[4], data_offsets=[0, 16]),
    "outside": tensor(dtype="F32", shape=[2**40], data_offsets=[0, 2**42]),
    "negative": tensor(dtype="F32", shape=[-4], data_offsets=[16, 0]),
    "another size": tensor(dtype="F32", shape=[5], data_offsets=[0, 16]),
    "a product that overflows": tensor(dtype="F32", shape=[2**32, 2**32], data_offsets=[0, 0]),
    "text for a number": tensor(dtype="F32", shape=["4"], data_offsets=[0, 16]),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c.safetensors").write_bytes(CHECKPOINTS[kind])
    with pytest.raises(FormatError):
        read_safetensors(tmp_path / "c.safetensors")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"3"])
def test_configs(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError):
        _json(tmp_path / "config.json")


MODELS = {
    "nothing": b"",
    "text": b"not a model",
    "zeros": bytes(1000),
    "a program": b"XPUPROG\n" + bytes(100),
    "an endless varint": b"\xff" * 1000,
    "an archive": b"PK\x03\x04" + bytes(100),
    "XML without weights": b"<?xml version='1.0'?><net/>",
    "entities that grow": b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;'>]><net>&b;</net>",
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["m.onnx", "m.xml", ""])
def test_models(tmp_path: Path, kind: str, name: str) -> None:
    pytest.importorskip("onnx")
    if name:
        (tmp_path / name).write_bytes(MODELS[kind])
    with pytest.raises(ModelError):
        xrt.InferenceSession(tmp_path / name if name else MODELS[kind], device="cpu")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "a: &a [*a]",
        "a: !!python/object/apply:os.system ['true']",
        "kernel: 3",
        "\0",
        "a: 1\na: 2",
    ],
)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_policies(tmp_path: Path, text: str, suffix: str) -> None:
    (tmp_path / f"p{suffix}").write_text(text)
    try:
        made = xrt.load_policy(tmp_path / f"p{suffix}")
    except PolicyError:
        return
    assert text == ""
    assert made == xrt.load_policy({})


def inputs_of(kind: str, path: Path) -> Path:
    if kind == "pickle":
        np.save(path.with_suffix(".npy"), np.array([{"a": 1}], object), allow_pickle=True)
        return path.with_suffix(".npy")
    if kind == "no zip":
        path.with_suffix(".npz").write_bytes(b"PK\x03\x04" + bytes(50))
    elif kind == "no array":
        with zipfile.ZipFile(path.with_suffix(".npz"), "w") as archive:
            archive.writestr("x.npy", b"text")
    return path.with_suffix(".npz")


@pytest.mark.parametrize("kind", ["pickle", "no zip", "no array"])
def test_inputs(tmp_path: Path, kind: str) -> None:
    from xpuruntime.types import TensorSpec
    from xpuruntime.workbench.inputs import Inputs

    with pytest.raises(InputError):
        Inputs((str(inputs_of(kind, tmp_path / "x")),)).samples((TensorSpec.parse("float32[2, 2]", "x"),))


@pytest.mark.parametrize("parse", [xrt.ir.Graph.load, xrt.CompiledProgram.load])
@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"graph ", b"XPUPROG\n", b"\0" * 64])
def test_graphs_and_programs(tmp_path: Path, parse: Callable[[Path], object], content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(XpuError):
        parse(tmp_path / "f")


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)`", page)
    assert len(named) > 10
    assert [n for n in named if not (ROOT / n).exists()] == []
    for text in ("README.md", "docs/README.md"):
        assert "SECURITY.md" in (ROOT / text).read_text(encoding="utf-8"), text
