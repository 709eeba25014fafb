"""Libraries that decline what they were chosen for: another kernel computes it, recorded; an error where it is forced, or under strict.

The library is oneDNN itself but for one function, which says of every product that there is no implementation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime.runtime.device import open_library

HERE = Path(__file__).resolve().parent
DECLINES = """
extern "C" int dnnl_matmul_primitive_desc_create(void **, void *, void *, void *, void *, void *, void *) { return 3; }  // unimplemented
"""


@pytest.fixture(scope="module")
def declining(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    real = open_library("onednn")
    if not real.loaded:
        pytest.skip("oneDNN is not installed: pip install 'xpuruntime[onednn]'")
    folder = tmp_path_factory.mktemp("declining")
    source, made = folder / "declines.cpp", folder / "libdnnl.so.3"
    source.write_text(DECLINES)
    folders = f"-Wl,-rpath,{Path(real.path).parent}"
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-Wl,--no-as-needed",
        "-o",
        str(made),
        str(source),
        real.path,
        folders,
    ]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize(
    "case",
    [
        "preferred",
        "forced",
        "compiled",
        "judged",
        "strict",
        "open_shapes",
        pytest.param("alternatives", marks=pytest.mark.level("x86-64-v3")),
    ],
)
def test_a_library_that_declines(case: str, declining: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XPU_LIBONEDNN": str(declining), "XPU_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(HERE / "refusal_case.py"), case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
