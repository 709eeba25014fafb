"""Plans of cuDNN follow the store of the session, over a driver without a device and a cuDNN that computes on the host (cpp/tests/libraries)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.errors import BuildError

pytest.importorskip("onnx")
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
    for name in ("simulated_driver", "computing_cudnn"):
        made, text = folder / f"{name}.so", LIBRARIES / f"{name}.cpp"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(made), str(text), "-ldl"]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "cases", [("own_folder", "read_again"), ("without_caching",), ("executors",)], ids=" ".join
)
def test_plans_follow_the_store(cases: tuple[str, ...], built: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XPU_LIBCUDA": str(built / "simulated_driver.so"),
        "XPU_LIBCUDNN": str(built / "computing_cudnn.so"),
        "XPU_CACHE_DIR": str(tmp_path / "default"),
    }
    for case in cases:
        command = [sys.executable, str(HERE / "plans_in_stores.py"), case, str(tmp_path / "own")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=300, check=False
        )
        assert done.returncode == 0, f"{case}: {done.stderr}"
