"""cuDNN is asked before its kernels are taken, over a driver without a device and a cuDNN whose engines are a table (cpp/tests/libraries)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cuda_doubles import build_libraries

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.errors import BuildError

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(f"{error}")
    if shutil.which("g++") is None:
        pytest.skip("the simulated libraries are compiled here")
    folder = tmp_path_factory.mktemp("simulated")
    return build_libraries(folder, "simulated_driver", "simulated_cudnn")


@pytest.mark.sampled(1)
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
def test_cudnn_is_asked(case: str, engines: str, built: Mapping[str, Path], tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XPU_LIBCUDA": str(built["simulated_driver"]),
        "XPU_LIBCUDNN": str(built["simulated_cudnn"]),
        "XPU_TEST_CUDNN": engines,
        "XPU_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, str(HERE / "declining_cudnn.py"), case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
