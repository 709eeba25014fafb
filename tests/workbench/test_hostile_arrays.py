"""Untrusted array files: their headers are read and compared before any of their data is."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from xpuruntime.errors import InputError
from xpuruntime.types import TensorSpec
from xpuruntime.workbench.inputs import Inputs

SPEC = TensorSpec.parse("float32[2, 3]", "x")


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(f"{name}.npy", data)
    return path


def read(path: Path, prefix: str = "") -> np.ndarray:
    return Inputs((f"{prefix}{path}",)).samples([SPEC])[0]["x"]


def test_arrays_that_fit_are_read(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", x=x)
    np.savez_compressed(tmp_path / "b.npz", x=x, other=x)
    np.save(tmp_path / "c.npy", x)
    for path, prefix in (("a.npz", ""), ("b.npz", "x="), ("c.npy", ""), ("c.npy", "x=")):
        np.testing.assert_array_equal(read(tmp_path / path, prefix), x)


@pytest.mark.parametrize("shape", ["()", "(6,)", "(3, 2)", "(2, 3, 1)", "(1000000, 1000000)", "(2, 0)"])
def test_another_shape_is_refused_from_the_header(shape: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.npz", x=header(shape))
    for prefix in ("", "x="):
        with pytest.raises(InputError, match="the array has another shape"):
            read(path, prefix)
    (tmp_path / "x.npy").write_bytes(header(shape))
    with pytest.raises(InputError, match="the array has another shape"):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize("data", [
    header("(2, 3)"), header("(2, 3)") + bytes(23), header("(2, 3)") + bytes(25), b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00" + bytes(90),
    header("(2, 3)", "|O") + bytes(24), header("(2, -3)"), header("5"), header("(2, 3)", "x" * 9), header("x" * 60_000), b"PK\x03\x04" + bytes(99),
])  # fmt: skip
def test_damaged_arrays_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    for path in (archive(tmp_path / "x.npz", x=data), tmp_path / "x.npy"):
        with pytest.raises(InputError):
            read(path)


def test_archives_cut_at_any_byte_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.ones((2, 3), np.float32))
    whole = buffer.getvalue()
    for size in range(len(whole)):
        (tmp_path / "x.npz").write_bytes(whole[:size])
        with pytest.raises(InputError):
            read(tmp_path / "x.npz")


def test_a_small_file_of_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made,
        made.open("x.npy", "w") as member,
    ):
        member.write(header(f"({1 << 27},)"))
        for _ in range(512):
            member.write(bytes(1 << 20))
    code = f"""
import resource
from xpuruntime.errors import InputError
from xpuruntime.types import TensorSpec
from xpuruntime.workbench.inputs import Inputs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try: Inputs(({str(path)!r},)).samples([TensorSpec.parse("float32[2, 3]", "x")])
except InputError as error: print("the array has another shape" in str(error), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 65536)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr[-2000:]
