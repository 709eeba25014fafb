"""Untrusted GGUF files: counts, lengths, dims, offsets and alignments that lead out of the file are named errors."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import pytest

from xpuruntime.errors import ModelError, XpuError
from xpuruntime.llm.checkpoint.gguf_check import TYPES, UNREAD, check_gguf


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf(*, version: int = 3, tensors: int = 1, pairs: int = 4, alignment: int = 32, dims: tuple[int, ...] = (4,), offset: int = 0,
         array: int = 2, length: int | None = None, kind: int = 4, data: int = 16, ranks: int | None = None, of: int = 0) -> bytes:  # fmt: skip
    key = b"general.alignment"
    made = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)
    made += (
        struct.pack("<Q", len(key) if length is None else length) + key + struct.pack("<II", kind, alignment)
    )
    made += string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")
    made += string(b"llama.block_count") + struct.pack("<II", 4, 1)
    made += string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, array) + string(b"a") + string(b"b")
    made += string(b"token_embd.weight") + struct.pack("<I", len(dims) if ranks is None else ranks)
    made += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", of, offset)
    return made + bytes(-len(made) % 32) + bytes(data)


def written(folder: Path, data: bytes) -> Path:
    (folder / "m.gguf").write_bytes(data)
    return folder / "m.gguf"


def test_a_whole_header_passes(tmp_path: Path) -> None:
    check_gguf(written(tmp_path, gguf()), "model")


@pytest.mark.parametrize("change", [
    {"version": 1}, {"version": 2**31}, {"tensors": 2**63}, {"tensors": 2}, {"pairs": 2**63}, {"alignment": 0},
    {"alignment": 48}, {"alignment": 2**31}, {"kind": 6}, {"kind": 99}, {"dims": (2**63,)}, {"dims": (2**31, 2**31)}, {"dims": (0,)},
    {"offset": 2**63}, {"offset": 7}, {"offset": 64}, {"array": 2**63}, {"array": 2**40}, {"data": 15}, {"of": 2}, {"length": 2**63}, {"length": 2**64 - 1},
    {"ranks": 2**32 - 1}, {"ranks": 5},
])  # fmt: skip
def test_what_leads_out_of_the_file_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a GGUF file, or damaged"):
        check_gguf(written(tmp_path, gguf(**change)), "model")  # type: ignore[arg-type]


@pytest.mark.parametrize(("of", "word"), [(4, "Q4_2"), (24, "I8"), (999, "unknown"), (2**32 - 1, "unknown")])
def test_a_type_that_cannot_be_read_is_refused_with_its_tensor(of: int, word: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        check_gguf(written(tmp_path, gguf(of=of)), "model")
    assert "has a tensor of a type that cannot be read" in str(caught.value)
    assert f"token_embd.weight: type {of} ({word})" in str(caught.value)
    assert "Convert the model to a type such as F16" in caught.value.do


def test_tensors_that_end_after_the_file_and_files_that_are_absent(tmp_path: Path) -> None:
    whole = gguf(dims=(64,), of=2, data=36)  # two blocks of Q4_0
    check_gguf(written(tmp_path, whole), "model")
    with pytest.raises(ModelError, match=r"a tensor ends 1 bytes after the end.* Download the file again"):
        check_gguf(written(tmp_path, whole[:-1]), "model")
    with pytest.raises(ModelError, match=r"rows of 48 values; Q4_0 has blocks of 32"):
        check_gguf(written(tmp_path, gguf(dims=(48,), of=2, data=64)), "model")
    with pytest.raises(ModelError, match=r"cannot be read; got No such file or directory\. Check the path"):
        check_gguf(tmp_path / "absent.gguf", "model")


def test_the_types_are_those_of_the_package() -> None:
    package = pytest.importorskip("gguf")
    from gguf import quants

    kinds = package.GGMLQuantizationType
    known = {int(k): (k.name, *package.GGML_QUANT_SIZES[k]) for k in kinds}
    assert {n: row for n, row in TYPES.items() if n in known} == {n: known[n] for n in TYPES if n in known}
    assert {int(k) for k in quants._type_traits} | {0, 1, 28} <= set(TYPES)
    assert {n: known[n][0] for n in UNREAD if n in known}.items() <= UNREAD.items()
    assert not set(UNREAD) & set(TYPES)
    assert set(known) <= set(UNREAD) | set(TYPES)


def test_headers_cut_at_any_byte_are_refused(tmp_path: Path) -> None:
    whole = gguf(data=0)
    for size in range(len(whole.rstrip(b"\0")) - 8):
        with pytest.raises(ModelError):
            check_gguf(written(tmp_path, whole[:size]), "model")


def test_changed_bytes_end_in_named_errors(tmp_path: Path) -> None:
    draw, whole = random.Random(5), gguf()
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.choice((0, 1, 8, 9, 127, 128, 255, draw.randrange(256)))
        with contextlib.suppress(ModelError):
            check_gguf(written(tmp_path, bytes(data)), "model")


def test_the_reader_ends_in_named_errors_too(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from xpuruntime.llm.checkpoint.gguf_file import open_gguf

    draw, whole = random.Random(6), gguf()
    for turn in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(0, 3) if turn else 0):
            data[draw.randrange(len(data))] = draw.randrange(256)
        with pytest.raises(XpuError):
            open_gguf(written(tmp_path, bytes(data)))
