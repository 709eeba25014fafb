"""Untrusted GGUF files: counts, lengths, dims, offsets and alignments that lead out of the file are named errors."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import pytest

from xpuruntime.errors import ModelError, XpuError
from xpuruntime.llm.checkpoint.gguf_check import check_gguf


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf(*, version: int = 3, tensors: int = 1, pairs: int = 4, alignment: int = 32, dims: tuple[int, ...] = (4,), offset: int = 0,
         array: int = 2, length: int | None = None, kind: int = 4, data: int = 16, ranks: int | None = None) -> bytes:  # fmt: skip
    key = b"general.alignment"
    made = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)
    made += (
        struct.pack("<Q", len(key) if length is None else length) + key + struct.pack("<II", kind, alignment)
    )
    made += string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama")
    made += string(b"llama.block_count") + struct.pack("<II", 4, 1)
    made += string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, array) + string(b"a") + string(b"b")
    made += string(b"token_embd.weight") + struct.pack("<I", len(dims) if ranks is None else ranks)
    made += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", 0, offset)
    return made + bytes(-len(made) % 32) + bytes(data)


def written(folder: Path, data: bytes) -> Path:
    (folder / "m.gguf").write_bytes(data)
    return folder / "m.gguf"


def test_a_whole_header_passes(tmp_path: Path) -> None:
    check_gguf(written(tmp_path, gguf()), "model")


@pytest.mark.parametrize("change", [
    {"version": 1}, {"version": 2**31}, {"tensors": 2**63}, {"tensors": 2}, {"pairs": 2**63}, {"alignment": 0},
    {"alignment": 48}, {"alignment": 2**31}, {"kind": 6}, {"kind": 99}, {"dims": (2**63,)}, {"dims": (2**31, 2**31)}, {"dims": (0,)},
    {"offset": 2**63}, {"offset": 7}, {"offset": 64}, {"array": 2**63}, {"array": 2**40}, {"length": 2**63}, {"length": 2**64 - 1},
    {"ranks": 2**32 - 1}, {"ranks": 5},
])  # fmt: skip
def test_what_leads_out_of_the_file_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a GGUF file, or damaged"):
        check_gguf(written(tmp_path, gguf(**change)), "model")  # type: ignore[arg-type]


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
