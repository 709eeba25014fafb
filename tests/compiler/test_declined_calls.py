"""cuDNN is asked before its kernels are taken, over a driver without a device and a cuDNN whose engines are a table (cpp/tests/libraries)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.errors import BuildError

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parents[1] / "cpp" / "tests" / "libraries"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(f"{error}")
    if shutil.which("g++") is None:
        pytest.skip("the simulated libraries are compiled here")
    folder = tmp_path_factory.mktemp("simulated")
    for name in ("driver", "cudnn"):
        made, text = folder / f"{name}.so", LIBRARIES / f"simulated_{name}.cpp"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(made), str(text), "-ldl"]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "engines"),
    [
        ("declines", "a10:0 a12:5 f8:! f11:~ e3:2"),
        ("every_engine", "a10:0 a12:5 f8:! e3:"),
        ("pinned", "a10:0 e3:"),
        ("no_device", "a10:0"),
        ("attention", "a2:0"),
        ("attention", "f8:! e3:2"),
    ],
)
def test_cudnn_is_asked(case: str, engines: str, built: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XPU_LIBCUDA": str(built / "driver.so"),
        "XPU_LIBCUDNN": str(built / "cudnn.so"),
        "XPU_TEST_CUDNN": engines,
        "XPU_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, str(HERE / "declining_cudnn.py"), case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
