"""The program file: comes back equal, and nothing that was cut, changed, newer or foreign gets in."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.random_programs import random_program, strategy

from xpuruntime.errors import FormatError, InputError, StoreError
from xpuruntime.program.program import CompiledProgram, EntryPoint, WeightRef, WeightTransformRecipe
from xpuruntime.program.segment import Segment
from xpuruntime.program.validate import problems
from xpuruntime.types import DType, TensorSpec

SMALL = random_program(2)
BYTES = SMALL.to_bytes()


def remade(data: bytes, change: Callable[[dict[str, Any]], None], version: tuple[int, int] = (1, 0)) -> bytes:
    """A file with another manifest and right digests, as a third party could write it."""
    length = int.from_bytes(data[16:24], "little")
    manifest = json.loads(data[64 : 64 + length])
    old = [data[s["offset"] : s["offset"] + s["bytes"]] for s in manifest["segments"]]
    text = b""
    for _ in range(9):  # offsets are part of the text, whose length moves them
        body = bytearray()
        for facts, blob in zip(manifest["segments"], old, strict=True):
            body += bytes(-(64 + len(text) + len(body)) % 64)
            facts["offset"] = 64 + len(text) + len(body)
            body += blob
        changed = copy.deepcopy(manifest)
        change(changed)
        text = json.dumps(changed).encode()
    head = struct.pack("<8sHHIQQ", b"XPUPROG\n", *version, 0, len(text), 64 + len(text) + len(body))
    return head + hashlib.sha256(head + text).digest() + text + body


def nothing(_: dict[str, Any]) -> None:
    pass


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(strategy())
def test_what_is_written_is_read_back_equal(program: CompiledProgram) -> None:
    assert list(problems(program)) == []
    data = program.to_bytes()
    back = CompiledProgram.from_bytes(data)
    assert back == program
    assert back.to_bytes() == data


def test_a_file_is_mapped_and_equal(tmp_path: Path) -> None:
    path = tmp_path / "m.npubin"
    SMALL.save(path)
    assert path.read_bytes() == BYTES
    back = CompiledProgram.load(path)
    assert back == SMALL
    assert back.folder == str(tmp_path)
    assert pickle.loads(pickle.dumps(back)) == SMALL


def test_a_mapped_program_may_replace_its_own_file(tmp_path: Path) -> None:
    array = np.arange(600_000, dtype=np.float32)
    program = replace(
        SMALL, weights=(*SMALL.weights, WeightRef("big", TensorSpec(array.shape, DType.FLOAT32)))
    )
    path = tmp_path / "m.npubin"
    program.save(path, {"big": array})
    back = CompiledProgram.load(path)
    replace(back, name="renamed").save(path)
    assert CompiledProgram.load(path).name == "renamed"
    np.testing.assert_array_equal(back.weights[-1].array(), array)


def test_every_truncation_is_refused() -> None:
    for end in range(len(BYTES)):
        with pytest.raises(FormatError) as caught:
            CompiledProgram.from_bytes(BYTES[:end])
        assert caught.value.do
    with pytest.raises(
        FormatError, match=rf"is longer than its header says; got {len(BYTES) + 1} of {len(BYTES)} bytes"
    ):
        CompiledProgram.from_bytes(BYTES + b"\0")


def test_every_changed_byte_is_refused() -> None:
    data = bytearray(BYTES)
    for at in range(len(data)):
        for bit in (1, 128):
            data[at] ^= bit
            with pytest.raises(FormatError):
                CompiledProgram.from_bytes(bytes(data))
            data[at] ^= bit


def test_a_large_weight_is_checked_before_its_first_use(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((600, 600)).astype(np.float32)
    spec = TensorSpec((600, 600), DType.FLOAT32)
    program = replace(SMALL, weights=(*SMALL.weights, WeightRef("big", spec)))
    path = tmp_path / "m.npubin"
    program.save(path, {"big": array})
    ref = CompiledProgram.load(path).weights[-1]
    assert ref.digest == hashlib.sha256(array.tobytes()).hexdigest()
    np.testing.assert_array_equal(ref.array(), array)
    assert not ref.array().flags.writeable
    assert repr(ref.data) == "Segment(1440000 bytes)"
    data = bytearray(path.read_bytes())
    data[data.index(array.tobytes()) + 1_000_000] ^= 1
    path.write_bytes(data)
    damaged = CompiledProgram.load(path).weights[-1]  # what is large is not read yet
    with pytest.raises(
        FormatError, match=r"program file .*m.npubin\] does not match its checksum. Copy the file again"
    ):
        damaged.array()


def test_embedding(tmp_path: Path) -> None:
    refs = (
        WeightRef("a", TensorSpec((3,), DType.INT4), "w.bin", "raw", "", 4),
        WeightRef("b", TensorSpec((), DType.BFLOAT16)),
    )
    recipes = tuple(WeightTransformRecipe(f"r{w.name}", w.spec, w.name) for w in refs)
    program = replace(
        SMALL,
        weights=refs,
        recipes=recipes,
        states=(),
        entries=(EntryPoint("e", (), (), (), (), (SMALL.entries[0].plans[0],)),),
    )
    program = replace(
        program,
        entries=(
            replace(program.entries[0], plans=(replace(SMALL.entries[0].plans[0], calls=(), buffers=()),)),
        ),
    )
    a, b = np.array([1, -2, 7]).astype(DType.INT4.numpy), np.array(1.5).astype(DType.BFLOAT16.numpy)
    program.save(tmp_path / "m", {"a": a, "b": b, "other": b})
    back = CompiledProgram.load(tmp_path / "m")
    assert [w.array().tolist() for w in back.weights] == [[1, -2, 7], 1.5]
    assert back.weights[0].file == ""
    with pytest.raises(
        InputError, match=r"\[weight 'a'\] has another dtype or shape; got int4\[2\] for int4\[3\]"
    ):
        program.save(tmp_path / "m", {"a": a[:2]})
    with pytest.raises(
        InputError, match=r"\[weight 'b'\] is not in the program. Pass its array by that name"
    ):
        refs[1].array()


def test_foreign_and_unreadable_files(tmp_path: Path) -> None:
    for data, says in (
        (b"", "is not a program; got b''"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), r"is not a program; got b'\\x89PNG"),
        (BYTES[:40], "is truncated; got 40 bytes"),
        (BYTES[:-1], f"is truncated; got {len(BYTES) - 1} of {len(BYTES)} bytes"),
    ):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(FormatError, match=says):
            CompiledProgram.load(tmp_path / "f")
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path / "pipe", "is not a file"),
        (tmp_path, "is not a file"),
        (tmp_path / "no", "No such file"),
        ("\0", "cannot be read"),
    ):
        with pytest.raises(FormatError, match=says):
            CompiledProgram.load(path)
    with pytest.raises(StoreError):
        SMALL.save(tmp_path / "f" / "below" / "a" / "file")


def test_versions() -> None:
    assert CompiledProgram.from_bytes(remade(BYTES, nothing)) == SMALL
    with pytest.raises(
        FormatError, match=r"has the newer format version 2.0; this release reads 1.2. Update xpuruntime"
    ):
        CompiledProgram.from_bytes(remade(BYTES, nothing, (2, 0)))
    with pytest.raises(FormatError, match=r"has the older format version 0\.9"):
        CompiledProgram.from_bytes(remade(BYTES, nothing, (0, 9)))

    def more(manifest: dict[str, Any]) -> None:
        manifest["hint"] = 1
        manifest["program"]["hint"] = {"x": 1}
        manifest["program"]["entries"][0]["plans"][0]["calls"][0]["hint"] = 2

    assert CompiledProgram.from_bytes(remade(BYTES, more, (1, 3))) == SMALL  # a newer minor version only adds
    with pytest.raises(FormatError, match="has an unknown field 'hint'"):
        CompiledProgram.from_bytes(remade(BYTES, more, (1, 2)))


def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set what a path names: ``program.entries.0.name``; DROP removes it."""

    def change(manifest: dict[str, Any]) -> None:
        *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
        target: Any = manifest
        for step in steps:
            target = target[step]
        if value is DROP:
            target.pop(last, None)
        else:
            target[last] = value

    return change


DROP = object()
CALL = "program.entries.0.plans.0.calls.0"
MANIFESTS = [
    ("format", "other", "does not have the format xpuruntime.program"),
    ("segments", 3, "segments: must be a list"),
    ("segments.0", {}, r"segments\[0\]: must have offset, bytes and sha256"),
    ("segments.0.sha256", "0" * 64, "does not match its checksum"),
    ("segments.0.sha256", "x" * 64, r"segments\[0\]: has no sha256"),
    ("segments.0.offset", 0, r"segments\[0\]: is at 0"),
    ("segments.0.bytes", 1 << 60, r"segments\[0\]: is at \d+ with 1152921504606846976 bytes"),
    ("segments.0.bytes", 3, "expected at|end at|checksum"),
    ("program", [], r"must be an object, got \[\]"),
    ("program.entries", DROP, "has no field 'entries'"),
    ("program.entries", [], "entries: must be a list of 1 to"),
    ("program.surprise", 1, "has an unknown field 'surprise'"),
    ("program.name", 7, "name: must be text of 0 to 65536 characters, got 7"),
    ("program.name", "\ud800", "name: is not valid Unicode text"),
    ("program.name", "x" * 70000, "name: must be text"),
    (f"{CALL}.tasks", 0, r"entries\[0\].plans\[0\].calls\[0\].tasks: must be an integer from 1 to"),
    (f"{CALL}.tasks", True, "tasks: must be an integer"),
    (f"{CALL}.tasks", 1.0, "tasks: must be an integer"),
    (f"{CALL}.flops", 1 << 70, "flops: must be an integer"),
    (f"{CALL}.options", {"o": {"float": "what"}}, "no such float"),
    (f"{CALL}.params", [{"name": "n", "type": "f64", "value": "1"}], r"params\[0\].value: must be a number"),
    ("program.entries.0.plans.0.buffers.0.kind", "other", "kind: must be one of input, output"),
    ("program.entries.0.plans.0.buffers.0.spec.dtype", "string", "dtype: no such dtype: 'string'"),
    ("program.entries.0.plans.0.buffers.0.spec.shape", [-1], "shape: must be a list of at most 64 non-negative integers"),
    ("program.entries.0.plans.0.buffers.0.spec.shape", [1 << 40, 1 << 40], "is too large"),
    ("program.entries.0.plans.0.buffers.0.spec.order", [0], "must have both order and alloc, or neither"),
    ("program.entries.0.plans.0.buffers.0.spec.extra", [0], "has an unknown field 'extra'"),
    ("program.binaries.0.data", 99, r"binaries\[0\].data: no such segment: 99"),
    ("program.binaries.0.source", DROP, "segments, but only"),
    ("program.binaries.0.symbols", [], "calls '[fg]', which its binary does not have"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "says"), MANIFESTS)
def test_a_wrong_manifest_says_where(path: str, value: Any, says: str) -> None:
    program = replace(
        SMALL, binaries=tuple(replace(b, source=f"text {i}") for i, b in enumerate(SMALL.binaries))
    )
    plan = program.entries[0].plans[0]
    calls = (replace(plan.calls[0], library="", options={}), *plan.calls[1:])
    entry = replace(program.entries[0], plans=(replace(plan, calls=calls), *program.entries[0].plans[1:]))
    program = replace(program, entries=(entry, *program.entries[1:]))
    with pytest.raises(FormatError) as caught:
        CompiledProgram.from_bytes(remade(program.to_bytes(), at(path, value)))
    assert re.search(says, str(caught.value)), str(caught.value)
    assert caught.value.do


@pytest.mark.parametrize(
    "text",
    [b"{", b"\xff", b'{"format": NaN}', b"[" * 200_000, b'{"a": 1, "a": 1}', b"1" * 5000],
    ids=["cut", "bytes", "nan", "deep", "twice", "digits"],
)
def test_a_manifest_that_is_no_json(text: bytes) -> None:
    head = struct.pack("<8sHHIQQ", b"XPUPROG\n", 1, 0, 0, len(text), 64 + len(text))
    with pytest.raises(FormatError, match="has a manifest that is not JSON"):
        CompiledProgram.from_bytes(head + hashlib.sha256(head + text).digest() + text)


def test_what_the_compiler_made_wrong_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"\[program 'made'\] is not a valid program: it has no entry point. Report it"
    ):
        replace(SMALL, entries=()).save(tmp_path / "m")
    with pytest.raises(FormatError, match=r"cannot be written: facts.x: must be plain data, got array"):
        replace(SMALL, facts={"x": np.zeros(1)}).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_segments_compare_by_their_bytes() -> None:
    assert Segment(b"ab") == b"ab" == Segment(b"ab")
    assert Segment(b"ab") != b"ac"
    assert Segment(b"ab") != 3
    assert hash(Segment(b"ab")) == hash(Segment(memoryview(b"ab")))
    assert len(Segment(b"ab")) == 2
