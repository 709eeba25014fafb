"""Versions that libraries report themselves, by libraries with the vendors' functions that are built here."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from xpuruntime import runtime
from xpuruntime.runtime.library_versions import reported_version

COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")

SOURCES = {
    "cublas": ("int cublasGetProperty(int kind, int* value) { int v[3] = {13, 1, 2}; *value = v[kind]; return 0; }", "13.1.2"),
    "cublasLt": ("int cublasLtGetProperty(int kind, int* value) { *value = 12 + kind; return 0; }", "12.13.14"),
    "cudnn": ("#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91400; }", "9.14.0"),
    "nvrtc": ("int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 2; return 0; }", "13.2"),
    "nccl": ("int ncclGetVersion(int* version) { *version = 22803; return 0; }", "2.28.3"),
}  # fmt: skip


def loaded(name: str, path: str) -> runtime.LibraryStatus:
    status = next(s for s in runtime.libraries(load=False) if s.name == name)
    return dataclasses.replace(status, path=path, version="13")


@pytest.mark.skipif(COMPILER is None, reason="a C compiler is needed")
@pytest.mark.parametrize("name", SOURCES)
def test_the_library_s_own_version_is_read(name: str, tmp_path: Path) -> None:
    source, version = SOURCES[name]
    (tmp_path / "lib.c").write_text(source + "\n")
    library = tmp_path / f"lib{name}.so.13"
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "lib.c")], check=True
    )
    assert reported_version(loaded(name, str(library))) == version


@pytest.mark.skipif(COMPILER is None, reason="a C compiler is needed")
@pytest.mark.parametrize(
    "source", ["int other;", "int cublasGetProperty(int kind, int* value) { return 7; }"]
)
def test_the_file_name_decides_if_it_reports_none(source: str, tmp_path: Path) -> None:
    (tmp_path / "lib.c").write_text(source + "\n")
    library = tmp_path / "libcublas.so.13"
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "lib.c")], check=True
    )
    assert reported_version(loaded("cublas", str(library))) == "13"


def test_a_library_that_is_not_loaded_has_no_version() -> None:
    for name in ("cublas", "cupti"):
        absent = dataclasses.replace(loaded(name, ""), version="")
        assert reported_version(absent) == ""
